//! The headless Service of a Sandbox.

use super::*;

#[test]
fn the_service_table() {
    let unowned = json!({"metadata": {"ownerReferences": null}});
    let foreign = json!({"metadata": {"ownerReferences": theirs()}});
    let with_address = json!({"metadata": {"ownerReferences": null}, "spec": {"clusterIP": "10.1.1.1"}});
    let other_ports = json!({"spec": {"ports": [{"name": "x", "port": 9}]}});
    let other_selector = json!({"spec": {"selector": {"app": "x"}}});
    let owned_by_other =
        "Service: service \"s\" is owned by ReplicaSet/r (UID: ReplicaSet-r), not by sandbox \"s\"";
    let has_address = "Service: cannot adopt service \"s\": ClusterIP is \"10.1.1.1\" (expected \"None\", field is immutable)";
    let (yes, no, unset) = (json!(true), json!(false), json!(null));
    let cases: [(&Value, Option<Value>, &[&str]); 16] = [
        (&yes, None, &["create service"]),
        (&yes, Some(json!({})), &[]),
        (&yes, Some(other_ports.clone()), &["patch service"]),
        (&yes, Some(other_selector.clone()), &["patch service"]),
        (&yes, Some(unowned.clone()), &["patch service"]),
        (&yes, Some(with_address), &[has_address]),
        (&yes, Some(foreign.clone()), &[owned_by_other]),
        (&unset, None, &[]),
        (&unset, Some(json!({})), &[]),
        (&unset, Some(other_ports), &[]),
        (&unset, Some(other_selector), &["patch service"]),
        (&unset, Some(unowned.clone()), &[]),
        (&unset, Some(foreign.clone()), &[owned_by_other]),
        (&no, Some(json!({})), &["delete service"]),
        (&no, Some(unowned), &[]),
        (&no, Some(foreign), &[]),
    ];
    for (wanted, there, expected) in cases {
        let mut more = noted();
        more["spec"] = json!({"service": wanted});
        let there = there.map(service);
        let label = format!("{wanted} {there:?}");
        assert_eq!(steps(&observed(sandbox(more), &[pod("s", json!({}))], there)), expected, "{label}");
    }
}

#[test]
fn service_ports_come_from_the_containers() {
    let sandbox = sandbox(json!({"spec": {"service": true, "podTemplate": {"spec": {
        "containers": [
            {"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 53, "protocol": "UDP"}]},
            {"name": "b", "ports": [{"containerPort": 80, "name": "again"}, {"containerPort": 81, "name": "web"}, {"containerPort": 0}]},
        ],
        "initContainers": [
            {"name": "side", "restartPolicy": "Always", "ports": [{"containerPort": 90, "name": "p-81-tcp"}]},
            {"name": "once", "ports": [{"containerPort": 91}]},
        ],
    }}}}));
    let Plan { actions, .. } = plan(&observed(sandbox, &[], None), now());
    let Some(Action::CreateService(service)) =
        actions.into_iter().find(|a| matches!(a, Action::CreateService(_)))
    else {
        panic!("no service")
    };
    let spec = serde_json::to_value(service.spec).unwrap();
    let ports: Vec<_> = spec["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| format!("{} {} {}", p["name"], p["port"], p["protocol"]))
        .collect();
    assert_eq!(
        ports,
        [
            "\"p-53-udp\" 53 \"UDP\"",
            "\"web\" 80 \"TCP\"",
            "\"p-81-tcp-2\" 81 \"TCP\"",
            "\"p-81-tcp\" 90 \"TCP\""
        ]
    );
    assert_eq!((&spec["clusterIP"], spec["ports"][0]["targetPort"].as_i64()), (&json!("None"), Some(53)));
}
