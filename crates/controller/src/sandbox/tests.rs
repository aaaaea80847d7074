use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Action, Part, Plan, Stage, plan};
use super::status::status;
use super::*;
use crate::fixture::{object, owned_by, patched};
use hutch_api::SandboxStatus;
use jiff::Timestamp;

const API: &str = "agents.x-k8s.io/v1beta1";
const DOMAIN: &str = "cluster.local";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn sandbox(more: Value) -> Arc<Sandbox> {
    let mut base = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c"}]}}}});
    json_patch::merge(&mut base, &more);
    object(API, "Sandbox", "s", base)
}

fn mine() -> Value {
    owned_by(API, "Sandbox", "s")
}

fn theirs() -> Value {
    owned_by("apps/v1", "ReplicaSet", "r")
}

/// A Pod of the Sandbox's name and label, as the reconciler would have made it.
fn pod(name: &str, more: Value) -> Arc<PodView> {
    let mut base = json!({"metadata": {
        "labels": {"agents.x-k8s.io/sandbox-name-hash": name_hash("s")}, "ownerReferences": mine(),
    }});
    json_patch::merge(&mut base, &more);
    object("v1", "Pod", name, base)
}

fn running() -> Value {
    json!({
        "spec": {"containers": [], "nodeName": "n"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]},
    })
}

fn seen(sandbox: Arc<Sandbox>, pods: &[Arc<PodView>], service: Option<Arc<Service>>) -> Seen {
    let tracked = pods.iter().find(|pod| pod.name_any() == pod_name(&sandbox)).cloned();
    let hash = Some(name_hash("s"));
    let labelled =
        pods.iter().filter(|p| p.labels().get("agents.x-k8s.io/sandbox-name-hash") == hash.as_ref());
    let volumes = vec![None; sandbox.spec.volumes().len()];
    Seen { labelled: labelled.cloned().collect(), tracked, service, volumes, sandbox, pool_eviction: true }
}

/// The actions in short, with problems at the end.
fn steps(seen: &Seen) -> Vec<String> {
    let Plan { actions, problems, .. } = plan(seen, now());
    let actions = actions.iter().map(|action| match action {
        Action::CreateVolume(claim) => format!("create volume {}", claim.name_any()),
        Action::PatchVolume(name, _) => format!("adopt volume {name}"),
        Action::CreatePod(pod) => format!("create pod {}", pod.name_any()),
        Action::PatchPod(name, _) => format!("patch pod {name}"),
        Action::SyncPod(name, _) => format!("sync pod {name}"),
        Action::DeletePod(name) => format!("delete pod {name}"),
        Action::CreateService(_) => "create service".into(),
        Action::PatchService(_) => "patch service".into(),
        Action::DeleteService => "delete service".into(),
        Action::NotePodName(name) => format!("note {}", name.as_deref().unwrap_or("none")),
        Action::DeleteSandbox => "delete sandbox".into(),
        Action::Sleep(_) => "sleep or wake".into(),
    });
    actions.chain(problems.into_iter().map(|(part, text)| format!("{part:?}: {text}"))).collect()
}

/// `status/reason/message` of a condition.
fn says(seen: &Seen, stage: Stage, problems: &[(Part, String)], kind: &str) -> String {
    let status = status(seen, stage, problems, DOMAIN, now());
    let found = status.conditions.unwrap().into_iter().find(|condition| condition.type_ == kind);
    found.map_or_else(|| "absent".into(), |c| format!("{}/{}/{}", c.status, c.reason, c.message))
}

fn noted() -> Value {
    json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "s"}}})
}

fn suspended() -> Value {
    json!({"spec": {"operatingMode": "Suspended"}, "metadata": {"annotations": {"agents.x-k8s.io/pod-name": "s"}}})
}

#[test]
fn the_pod_table() {
    let unowned = json!({"metadata": {"ownerReferences": null}});
    let bare = json!({"metadata": {"ownerReferences": null, "labels": null}});
    let offered = json!({"metadata": {"ownerReferences": null, "labels": {
        "agents.x-k8s.io/sandbox-name-hash": null, "agents.x-k8s.io/adoptable": "true"}}});
    let foreign = json!({"metadata": {"ownerReferences": theirs()}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let missing_label = "Pod: cannot adopt unowned pod \"s\": missing required pool authorization label (\"agents.x-k8s.io/adoptable\") or sandbox tracking label (\"agents.x-k8s.io/sandbox-name-hash\")";
    let owned_by_other = "Pod: pod \"s\" is owned by ReplicaSet/r (UID: ReplicaSet-r), not by sandbox \"s\"";
    let cases: [(&str, Value, Option<Value>, &[&str]); 13] = [
        ("running, none", json!({}), None, &["create pod s", "note s"]),
        (
            "running, note stale",
            json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "old"}}}),
            None,
            &["create pod s", "note s"],
        ),
        ("running, owned", json!({}), Some(json!({})), &["note s"]),
        ("running, owned and noted", noted(), Some(json!({})), &[]),
        ("running, going", noted(), Some(going.clone()), &[]),
        ("running, finished", noted(), Some(json!({"status": {"phase": "Succeeded"}})), &[]),
        ("running, unowned, name label", json!({}), Some(unowned.clone()), &["patch pod s", "note s"]),
        ("running, unowned, offered", json!({}), Some(offered), &["patch pod s", "note s"]),
        ("running, unowned, no word", json!({}), Some(bare), &[missing_label]),
        ("running, foreign", noted(), Some(foreign.clone()), &["note none", owned_by_other]),
        ("suspended, owned", suspended(), Some(json!({})), &["delete pod s"]),
        ("suspended, going", suspended(), Some(going), &[]),
        ("suspended, foreign", suspended(), Some(foreign), &["note none"]),
    ];
    for (name, sandbox_more, pod_more, expected) in cases {
        let pods: Vec<_> = pod_more.into_iter().map(|more| pod("s", more)).collect();
        assert_eq!(steps(&seen(sandbox(sandbox_more), &pods, None)), expected, "{name}");
    }
    assert_eq!(steps(&seen(sandbox(suspended()), &[], None)), ["note none"]);
}

#[test]
fn several_pods_stop_pod_and_service_but_not_volumes() {
    let more =
        json!({"spec": {"service": true, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}});
    let seen = seen(sandbox(more), &[pod("s", json!({})), pod("other", json!({}))], None);
    let text = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod";
    assert_eq!(steps(&seen), ["create volume v-s".to_owned(), format!("Pod: {text}")]);
    let problems = [(Part::Pod, text.to_owned())];
    assert_eq!(says(&seen, Stage::Live, &problems, "Ready"), format!("False/MultiplePods/{text}"));
}

#[test]
fn one_owned_pod_of_another_name_is_the_pod() {
    let seen = seen(sandbox(json!({})), &[pod("other", json!({}))], None);
    assert_eq!(steps(&seen), ["note other"]);
}

#[test]
fn a_new_pod_has_the_users_metadata_and_not_the_projects() {
    let sandbox = sandbox(json!({
        "metadata": {
            "labels": {"agents.x-k8s.io/warm-pool-sandbox": "p", "agents.x-k8s.io/sandbox-template-ref-hash": "t",
                "agents.x-k8s.io/created-by": "somebody", "agents.x-k8s.io/claim-uid": "u"},
            "ownerReferences": owned_by("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "pool"),
        },
        "spec": {
            "podTemplate": {
                "metadata": {
                    "labels": {"b": "2", "a": "1", "agents.x-k8s.io/claim-uid": "u"},
                    "annotations": {"x": "y", "opentelemetry.io/trace-context": "{}"},
                },
                "spec": {"containers": [{"name": "c"}], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]},
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        },
    }));
    let plan = plan(&seen(sandbox, &[], None), now());
    let Some(Action::CreatePod(pod)) = plan.actions.into_iter().find(|a| matches!(a, Action::CreatePod(_)))
    else {
        panic!("no pod")
    };
    let pod = serde_json::to_value(pod).unwrap();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"a": "1", "b": "2", "agents.x-k8s.io/sandbox-name-hash": name_hash("s"),
            "agents.x-k8s.io/warm-pool-sandbox": "p", "agents.x-k8s.io/sandbox-template-ref-hash": "t",
            "agents.x-k8s.io/created-by": "unknown"})
    );
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"x": "y", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            "agents.x-k8s.io/propagated-labels": "a,b",
            "agents.x-k8s.io/propagated-annotations": "cluster-autoscaler.kubernetes.io/safe-to-evict,x"})
    );
    assert_eq!(
        pod["spec"]["volumes"],
        json!([{"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-s"}}])
    );
    assert_eq!(pod["metadata"]["ownerReferences"], mine());
}

#[test]
fn a_pod_that_leaves_its_pool_loses_the_pools_marks_and_keeps_other_peoples() {
    let claimed = sandbox(json!({
        "metadata": {
            "annotations": {"agents.x-k8s.io/pod-name": "s"},
            "labels": {"agents.x-k8s.io/sandbox-template-ref-hash": "t", "agents.x-k8s.io/created-by": "go-client"},
            "ownerReferences": owned_by("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", "c"),
        },
        "spec": {"podTemplate": {"metadata": {"labels": {"new": "1"}}}},
    }));
    let pooled = pod(
        "s",
        json!({"metadata": {
            "labels": {"old": "1", "mesh": "x", "agents.x-k8s.io/warm-pool-sandbox": "p",
                "agents.x-k8s.io/sandbox-template-ref-hash": "t", "agents.x-k8s.io/created-by": "controller"},
            "annotations": {"agents.x-k8s.io/propagated-labels": "old",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "cni": "y",
                "agents.x-k8s.io/propagated-annotations": "cluster-autoscaler.kubernetes.io/safe-to-evict"},
        }}),
    );
    let Plan { actions, .. } = plan(&seen(claimed, &[pooled], None), now());
    assert_eq!(
        actions,
        [Action::SyncPod(
            "s".into(),
            json!({"metadata": {
                "labels": {"old": null, "new": "1", "agents.x-k8s.io/warm-pool-sandbox": null,
                    "agents.x-k8s.io/created-by": "go-client"},
                "annotations": {"agents.x-k8s.io/propagated-labels": "new",
                    "agents.x-k8s.io/propagated-annotations": "",
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": null},
            }})
        )]
    );
}

fn service(more: Value) -> Arc<Service> {
    let hash = name_hash("s");
    let mut base = json!({
        "metadata": {"labels": {"agents.x-k8s.io/sandbox-name-hash": hash}, "ownerReferences": mine()},
        "spec": {"clusterIP": "None", "selector": {"agents.x-k8s.io/sandbox-name-hash": hash}},
    });
    json_patch::merge(&mut base, &more);
    object("v1", "Service", "s", base)
}

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
        assert_eq!(steps(&seen(sandbox(more), &[pod("s", json!({}))], there)), expected, "{label}");
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
    let Plan { actions, .. } = plan(&seen(sandbox, &[], None), now());
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

#[test]
fn volumes_are_made_or_taken_or_refused() {
    let more = json!({"spec": {"volumeClaimTemplates": [
        {"metadata": {"name": "v", "labels": {"l": "1"}}, "spec": {"accessModes": ["ReadWriteOnce"]}},
        {"metadata": {"name": "w"}, "spec": {}},
    ]}});
    let claim =
        |more: Value| -> Arc<PersistentVolumeClaim> { object("v1", "PersistentVolumeClaim", "v-s", more) };
    let with = |more_claim: Option<Value>| {
        let mut seen = seen(sandbox(more.clone()), &[], None);
        seen.volumes[0] = more_claim.map(claim);
        steps(&seen).into_iter().filter(|step| step.to_lowercase().contains("volume")).collect::<Vec<_>>()
    };
    assert_eq!(with(None), ["create volume v-s", "create volume w-s"]);
    assert_eq!(with(Some(json!({"metadata": {"ownerReferences": mine()}}))), ["create volume w-s"]);
    let offered = json!({"metadata": {"labels": {"agents.x-k8s.io/adoptable": "true"}}});
    assert_eq!(with(Some(offered)), ["adopt volume v-s", "create volume w-s"]);
    let owned_by_other =
        "Volumes: PVC \"v-s\" is owned by ReplicaSet/r (UID: ReplicaSet-r), not by sandbox \"s\"";
    assert_eq!(with(Some(json!({"metadata": {"ownerReferences": theirs()}}))), [owned_by_other]);
    assert!(with(Some(json!({})))[0].contains("cannot adopt unowned PVC \"v-s\""));
}

#[test]
fn the_ready_table() {
    let no_ip = json!({"status": {"podIPs": null}});
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    let wants = json!({"spec": {"service": true}});
    let cases: [(&str, Value, Option<Value>, bool, &str); 12] = [
        ("all", wants.clone(), Some(json!({})), true, "True/DependenciesReady/Pod is Ready; Service Exists"),
        ("no service wanted", json!({}), Some(json!({})), false, "True/DependenciesReady/Pod is Ready"),
        (
            "service kept",
            json!({}),
            Some(json!({})),
            true,
            "True/DependenciesReady/Pod is Ready; Service Exists",
        ),
        ("no pod", json!({}), None, false, "False/DependenciesNotReady/Pod does not exist"),
        (
            "nothing",
            wants.clone(),
            None,
            false,
            "False/DependenciesNotReady/Pod does not exist; Service does not exist",
        ),
        (
            "no service",
            wants,
            Some(json!({})),
            false,
            "False/DependenciesNotReady/Pod is Ready; Service does not exist",
        ),
        (
            "pending",
            json!({}),
            Some(phase("Pending")),
            false,
            "False/DependenciesNotReady/Pod exists with phase: Pending",
        ),
        (
            "not ready",
            json!({}),
            Some(not_ready),
            false,
            "False/DependenciesNotReady/Pod is Running but not Ready",
        ),
        (
            "no address",
            json!({}),
            Some(no_ip),
            false,
            "False/DependenciesNotReady/Pod is Ready but has no podIPs yet",
        ),
        (
            "succeeded",
            json!({}),
            Some(phase("Succeeded")),
            false,
            "False/PodSucceeded/Pod completed successfully",
        ),
        ("failed", json!({}), Some(phase("Failed")), false, "False/PodFailed/Pod failed"),
        ("suspending", suspended(), Some(json!({})), false, "False/SandboxSuspended/Sandbox is suspending"),
    ];
    for (name, more, pod_more, has_service, expected) in cases {
        let pods: Vec<_> =
            pod_more.into_iter().map(|more| patched(pod("s", running()).as_ref(), &more)).collect();
        let seen = seen(sandbox(more), &pods, has_service.then(|| service(json!({}))));
        assert_eq!(says(&seen, Stage::Live, &[], "Ready"), expected, "{name}");
    }
    let problems = [(Part::Volumes, "one".to_owned()), (Part::Pod, "two".to_owned())];
    let seen = seen(sandbox(json!({})), &[], None);
    assert_eq!(says(&seen, Stage::Live, &problems, "Ready"), "False/ReconcilerError/Error seen: one\ntwo");
}

#[test]
fn the_other_conditions() {
    let foreign = json!({"metadata": {"ownerReferences": theirs()}});
    let problem = [(Part::Pod, "x".to_owned())];
    let see = |more: Value, pods: &[Arc<PodView>]| seen(sandbox(more), pods, None);
    let up = [pod("s", running())];
    for (seen, problems, kind, expected) in [
        (see(json!({}), &up), &[][..], "Suspended", "False/NotSuspended/Sandbox is not suspended"),
        (
            see(suspended(), &[]),
            &[],
            "Suspended",
            "True/PodTerminated/Pod has been terminated. Sandbox is suspended",
        ),
        (
            see(suspended(), &up),
            &[],
            "Suspended",
            "False/PodTerminating/Pod is terminating. Sandbox is suspending",
        ),
        (
            see(suspended(), &[pod("s", foreign)]),
            &[],
            "Suspended",
            "False/PodNotOwned/Refused to delete pod because it is not owned by this sandbox",
        ),
        (
            see(suspended(), &[]),
            &problem,
            "Suspended",
            "Unknown/PodStateUnknown/Pod state is unknown. Sandbox suspension cannot be confirmed",
        ),
        (see(json!({}), &up), &[], "PodScheduled", "True/PodScheduled/"),
        (
            see(json!({}), &[pod("s", json!({}))]),
            &[],
            "PodScheduled",
            "Unknown/PodSchedulingUnknown/Pod has not reported a PodScheduled condition yet",
        ),
        (see(json!({}), &[]), &[], "PodScheduled", "absent"),
        (
            see(json!({}), &[]),
            &problem,
            "PodScheduled",
            "Unknown/PodSchedulingUnknown/Pod state is unknown. Pod scheduling cannot be determined",
        ),
        (see(json!({}), &up), &[], "Finished", "absent"),
        (
            see(json!({}), &[pod("s", json!({"status": {"phase": "Failed"}}))]),
            &[],
            "Finished",
            "True/PodFailed/Pod failed",
        ),
    ] {
        assert_eq!(says(&seen, Stage::Live, problems, kind), expected);
    }
}

#[test]
fn somebody_elses_pod_in_the_place_of_the_sandboxs() {
    let foreign = [pod("s", json!({"metadata": {"ownerReferences": theirs()}}))];
    let refused = [(Part::Pod, "not ours".to_owned())];
    let wants = seen(sandbox(json!({})), &foreign, None);
    assert_eq!(status(&wants, Stage::Live, &refused, DOMAIN, now()).selector, None);
    let seen = seen(sandbox(suspended()), &foreign, None);
    assert_eq!(
        says(&seen, Stage::Live, &[], "Ready"),
        "False/SandboxSuspended/Sandbox is suspending",
        "as long as it stands there"
    );
}

#[test]
fn fields_and_order_of_a_fresh_status() {
    let seen =
        seen(sandbox(json!({"spec": {"service": true}})), &[pod("s", running())], Some(service(json!({}))));
    let status = serde_json::to_value(status(&seen, Stage::Live, &[], DOMAIN, now())).unwrap();
    let kinds: Vec<_> =
        status["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Suspended", "PodScheduled", "Ready"]);
    assert!(status["conditions"].as_array().unwrap().iter().all(|c| c["observedGeneration"] == 1));
    let selector = format!("agents.x-k8s.io/sandbox-name-hash={}", name_hash("s"));
    let fields = json!([
        status["service"],
        status["serviceFQDN"],
        status["selector"],
        status["podIPs"],
        status["nodeName"]
    ]);
    assert_eq!(fields, json!(["s", "s.d.svc.cluster.local", selector, ["10.0.0.1"], "n"]));
}

#[test]
fn the_time_of_a_condition_changes_with_its_status_only() {
    let earlier = "2026-01-01T00:00:00Z";
    let with = |status: &str| {
        sandbox(json!({"status": {"selector": "kept", "conditions": [
            {"type": "Ready", "status": status, "reason": "X", "message": "", "lastTransitionTime": earlier}]}}))
    };
    for (before, expected) in [("True", earlier), ("False", "2026-01-01T00:10:00Z")] {
        let seen = seen(with(before), &[pod("s", running())], None);
        let status = status(&seen, Stage::Live, &[], DOMAIN, now());
        let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.last_transition_time.0.to_string(), expected);
    }
}

#[test]
fn the_end_of_a_sandbox() {
    let over = json!({"spec": {"shutdownTime": "2026-01-01T00:10:00Z"}});
    let announced = |policy: &str| {
        let mut more = over.clone();
        more["spec"]["shutdownPolicy"] = json!(policy);
        more["status"] = json!({"selector": "a=b", "podIPs": ["10.0.0.1"], "conditions": [
            {"type": "Suspended", "status": "False", "reason": "NotSuspended", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Ready", "status": "False", "reason": "SandboxExpired", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        more
    };
    let up = [pod("s", running())];
    let first = seen(sandbox(over.clone()), &up, Some(service(json!({}))));
    assert_eq!(steps(&first), [""; 0], "first it is told");
    assert_eq!(plan(&first, now()).stage, Stage::Expiring);
    assert_eq!(says(&first, Stage::Expiring, &[], "Ready"), "False/SandboxExpired/Sandbox has expired");
    assert_eq!(says(&first, Stage::Expiring, &[], "PodScheduled"), "absent");

    let retained = seen(sandbox(announced("Retain")), &up, Some(service(json!({}))));
    assert_eq!(steps(&retained), ["delete pod s", "delete service"]);
    let status = status(&retained, Stage::Retained, &[], DOMAIN, now());
    assert_eq!((status.selector, status.pod_ips, status.conditions.unwrap().len()), (None, None, 2));

    let foreign = json!({"metadata": {"ownerReferences": theirs()}});
    let spared = seen(
        sandbox(announced("Retain")),
        &[pod("s", foreign)],
        Some(service(json!({"metadata": {"ownerReferences": null}}))),
    );
    assert_eq!(steps(&spared), [""; 0], "what is not ours stays");

    let both = [pod("s", running()), pod("other", running())];
    let several = seen(sandbox(announced("Retain")), &both, None);
    assert_eq!(steps(&several), ["delete pod s", "delete pod other"], "nothing runs on");

    let deleted = seen(sandbox(announced("Delete")), &up, None);
    assert_eq!(steps(&deleted), ["delete pod s", "delete sandbox"]);

    let mut extended = announced("Retain");
    extended["spec"]["shutdownTime"] = json!("2026-01-01T00:10:01Z");
    assert_eq!(steps(&seen(sandbox(extended), &[], None)), ["create pod s", "note s"], "it lives again");
}

#[test]
fn only_pods_of_pools_are_safe_to_evict() {
    let with = |kind: &str, own: Value, pool_eviction: bool| {
        let sandbox = sandbox(json!({
            "metadata": {"ownerReferences": owned_by("extensions.agents.x-k8s.io/v1beta1", kind, "o")},
            "spec": {"podTemplate": {"metadata": {"annotations": own}}},
        }));
        let seen = Seen { pool_eviction, ..seen(sandbox, &[], None) };
        let made = plan(&seen, now()).actions.into_iter().find_map(|action| match action {
            Action::CreatePod(pod) => Some(pod),
            _ => None,
        });
        made.unwrap().annotations().get("cluster-autoscaler.kubernetes.io/safe-to-evict").cloned()
    };
    let said = json!({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"});
    assert_eq!(with("SandboxWarmPool", json!({}), true).as_deref(), Some("true"));
    assert_eq!(with("SandboxWarmPool", json!({}), false), None);
    assert_eq!(with("SandboxWarmPool", said, true).as_deref(), Some("false"), "the template's word stands");
    assert_eq!(with("SandboxClaim", json!({}), true), None);
}

/// What a status may leave out for a moment, and what not.
#[test]
fn steps_on_the_way_to_ready() {
    let of = |more: Value, pods: &[Arc<PodView>], service: Option<Arc<Service>>| {
        status(&seen(sandbox(more), pods, service), Stage::Live, &[], DOMAIN, now())
    };
    let with_phase = |phase: &str| pod("s", json!({"status": {"phase": phase}}));
    let unready =
        json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}});
    let (nothing, pending) = (SandboxStatus::default(), of(json!({}), &[with_phase("Pending")], None));
    let starting = of(json!({}), &[pod("s", unready)], None);
    let has_address =
        of(json!({}), &[patched(pod("s", running()).as_ref(), &json!({"status": {"conditions": []}}))], None);
    let ready = of(json!({}), &[pod("s", running())], None);
    let failed = of(json!({}), &[with_phase("Failed")], None);
    let asleep = of(suspended(), &[], None);
    let served = of(json!({"spec": {"service": true}}), &[with_phase("Pending")], Some(service(json!({}))));
    let cases: [(&str, &SandboxStatus, &SandboxStatus, bool); 11] = [
        ("nothing yet", &nothing, &pending, true),
        ("with a Service", &nothing, &served, true),
        ("further", &pending, &starting, true),
        ("an address", &starting, &has_address, false),
        ("there", &pending, &ready, false),
        ("no longer", &ready, &pending, false),
        ("ended", &pending, &failed, false),
        ("asleep", &pending, &asleep, false),
        ("awake", &asleep, &pending, false),
        ("again", &failed, &pending, false),
        ("the Service is gone", &served, &pending, false),
    ];
    for (name, current, wanted, expected) in cases {
        assert_eq!(super::status::is_step(current, wanted), expected, "{name}");
    }
    let seen = seen(sandbox(json!({})), &[], None);
    let problem = [(Part::Pod, "x".to_owned())];
    let broken = status(&seen, Stage::Live, &problem, DOMAIN, now());
    assert!(!super::status::is_step(&nothing, &broken), "an error is told at once");
}

/// Two names with the same hash: 32 bits are few, and whoever may choose names can find such pairs.
#[test]
fn sandboxes_whose_names_collide_keep_apart() {
    let mut known = std::collections::HashMap::new();
    let names = (0..).map(|n: u32| format!("s{n}"));
    let (one, other) = names
        .into_iter()
        .find_map(|n| known.insert(name_hash(&n), n.clone()).map(|first| (first, n)))
        .unwrap();
    let hash = name_hash(&one);
    assert_eq!(hash, name_hash(&other));
    let named = |name: &str| -> Arc<Sandbox> {
        object(
            API,
            "Sandbox",
            name,
            json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c"}]}}}}),
        )
    };
    let owned = json!({"metadata": {"labels": {"agents.x-k8s.io/sandbox-name-hash": hash}, "ownerReferences": owned_by(API, "Sandbox", &one)}});
    let theirs: Arc<PodView> = object("v1", "Pod", &one, owned);
    let seen = Seen {
        sandbox: named(&other),
        labelled: vec![theirs],
        tracked: None,
        service: None,
        volumes: vec![],
        pool_eviction: true,
    };
    assert_eq!(steps(&seen), [format!("create pod {other}"), format!("note {other}")]);
}

#[test]
fn hostile_words_in_a_pods_conditions() {
    let odd = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "no reason!", "message": "m".repeat(100_000)}]}});
    let seen = seen(sandbox(json!({})), &[pod("s", odd)], None);
    let said = says(&seen, Stage::Live, &[], "PodScheduled");
    assert!(said.starts_with("False/PodSchedulingUnknown/mmm"));
    assert!(said.len() < 33_000, "a status that the server takes");
}

#[test]
fn ends_far_away_on_both_sides() {
    for (end, stage) in [("0001-01-01T00:00:00Z", Stage::Expiring), ("9999-12-31T23:59:59Z", Stage::Live)] {
        let sandbox = sandbox(json!({"spec": {"shutdownTime": end}}));
        let wait = expiry::remaining(&sandbox, now()).unwrap();
        assert!(wait <= std::time::Duration::from_secs(60), "{wait:?}");
        assert_eq!(plan(&seen(sandbox, &[], None), now()).stage, stage, "{end}");
    }
}

/// Does what the API server and a kubelet would do.
fn simulate(seen: &Seen, actions: Vec<Action>) -> Seen {
    let mut next = seen.clone();
    let name_of = |pod: &Arc<PodView>| pod.name_any();
    let mut pods: Vec<Arc<PodView>> = seen.labelled.clone();
    pods.extend(
        seen.tracked.iter().filter(|t| !seen.labelled.iter().any(|p| p.name_any() == t.name_any())).cloned(),
    );
    for action in actions {
        match action {
            Action::CreatePod(new) => {
                let more = json!({"metadata": {"uid": "new"}, "status": running()["status"]});
                let made = patched(new.as_ref(), &more);
                pods.push(Arc::new(
                    serde_json::from_value(serde_json::to_value(made.as_ref()).unwrap()).unwrap(),
                ));
            }
            Action::PatchPod(name, patch) | Action::SyncPod(name, patch) => {
                for pod in pods.iter_mut().filter(|pod| name_of(pod) == name) {
                    *pod = patched(pod.as_ref(), &patch);
                }
            }
            Action::DeletePod(name) => pods.retain(|pod| name_of(pod) != name),
            Action::CreateService(new) => next.service = Some(Arc::new(*new)),
            Action::PatchService(patch) => {
                next.service = next.service.map(|service| patched(service.as_ref(), &patch))
            }
            Action::DeleteService => next.service = None,
            Action::NotePodName(name) => {
                let patch = json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": name}}});
                next.sandbox = patched(next.sandbox.as_ref(), &patch);
            }
            Action::CreateVolume(claim) => {
                let at =
                    next.sandbox.spec.volumes().iter().position(|t| volume::name(t, "s") == claim.name_any());
                next.volumes[at.unwrap()] = Some(Arc::new(*claim));
            }
            Action::PatchVolume(..) | Action::DeleteSandbox | Action::Sleep(_) => {}
        }
    }
    let volumes = next.volumes.clone();
    let mut next = super::tests::seen(next.sandbox, &pods, next.service);
    next.volumes = volumes;
    next
}

fn any_pod() -> impl Strategy<Value = Option<Value>> {
    let labels = prop_oneof![Just(json!({})), Just(json!({"x": "old", "agents.x-k8s.io/adoptable": "true"}))];
    let owners = prop_oneof![Just(Value::Null), Just(mine()), Just(theirs())];
    let lists = prop_oneof![Just(json!({})), Just(json!({"agents.x-k8s.io/propagated-labels": "x"}))];
    prop::option::of((labels, owners, lists).prop_map(|(labels, owners, lists)| {
        json!({"metadata": {"labels": labels, "ownerReferences": owners, "annotations": lists}})
    }))
}

proptest! {
    /// Whatever is there: after two passes nothing is left to do, a status that was written stays as it is, and no Pod of somebody
    /// else was touched.
    #[test]
    fn passes_come_to_rest(
        pod_more in any_pod(), suspended: bool, wanted in prop::option::of(any::<bool>()), has_service: bool, labels in prop::collection::btree_map("[x-z]", "[12]", 0..3),
    ) {
        let mode = if suspended { "Suspended" } else { "Running" };
        let sandbox = sandbox(json!({"spec": {"operatingMode": mode, "service": wanted, "podTemplate": {"metadata": {"labels": labels}},
            "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}}));
        let pods: Vec<_> = pod_more.into_iter().map(|more| pod("s", more)).collect();
        let start = seen(sandbox, &pods, has_service.then(|| service(json!({}))));
        let first = plan(&start, now());
        let foreign = start.tracked.as_ref().is_some_and(|pod| crate::owner::controller(pod.as_ref()).is_some_and(|o| o.kind == "ReplicaSet"));
        let touched = first.actions.iter().any(|action| matches!(action, Action::PatchPod(..) | Action::SyncPod(..) | Action::DeletePod(_)));
        prop_assert!(!(foreign && touched));
        let mut now_seen = simulate(&start, first.actions);
        let second = plan(&now_seen, now());
        now_seen = simulate(&now_seen, second.actions);
        let third = plan(&now_seen, now());
        prop_assert_eq!(&third.actions, &vec![]);
        let written = status(&now_seen, Stage::Live, &third.problems, DOMAIN, now());
        let patch = json!({"status": serde_json::to_value(&written).unwrap()});
        now_seen.sandbox = patched(now_seen.sandbox.as_ref(), &patch);
        let later = "2026-01-01T00:20:00Z".parse().unwrap();
        prop_assert_eq!(status(&now_seen, Stage::Live, &third.problems, DOMAIN, later), written);
    }
}
