//! Which Pod is a Sandbox's, and what it is made to look like.

use super::*;

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
        ("running, none", json!({}), None, &["create pod s", "note own name"]),
        (
            "running, note stale",
            json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "old"}}}),
            None,
            &["create pod s", "note s"],
        ),
        ("running, owned", json!({}), Some(json!({})), &["note own name"]),
        ("running, owned and noted", noted(), Some(json!({})), &[]),
        ("running, going", noted(), Some(going.clone()), &[]),
        ("running, finished", noted(), Some(json!({"status": {"phase": "Succeeded"}})), &[]),
        ("running, unowned, name label", json!({}), Some(unowned.clone()), &["patch pod s", "note own name"]),
        ("running, unowned, offered", json!({}), Some(offered), &["patch pod s", "note own name"]),
        ("running, unowned, no word", json!({}), Some(bare), &[missing_label]),
        ("running, foreign", noted(), Some(foreign.clone()), &["note none", owned_by_other]),
        ("suspended, owned", suspended(), Some(json!({})), &["delete pod s"]),
        ("suspended, going", suspended(), Some(going), &[]),
        ("suspended, foreign", suspended(), Some(foreign), &["note none"]),
    ];
    for (name, sandbox_more, pod_more, expected) in cases {
        let pods: Vec<_> = pod_more.into_iter().map(|more| pod("s", more)).collect();
        assert_eq!(steps(&observed(sandbox(sandbox_more), &pods, None)), expected, "{name}");
    }
    assert_eq!(steps(&observed(sandbox(suspended()), &[], None)), ["note none"]);
}

#[test]
fn several_pods_stop_pod_and_service_but_not_volumes() {
    let more =
        json!({"spec": {"service": true, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}});
    let observed = observed(sandbox(more), &[pod("s", json!({})), pod("other", json!({}))], None);
    let text = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod";
    assert_eq!(steps(&observed), ["create volume v-s".to_owned(), format!("Pod: {text}")]);
    let problems = [(Part::Pod, text.to_owned())];
    assert_eq!(says(&observed, Stage::Live, &problems, "Ready"), format!("False/MultiplePods/{text}"));
}

#[test]
fn one_owned_pod_of_another_name_is_the_pod() {
    let observed = observed(sandbox(json!({})), &[pod("other", json!({}))], None);
    assert_eq!(steps(&observed), ["note other"]);
}

#[test]
fn a_new_pod_has_the_users_metadata_and_not_the_projects() {
    let sandbox = sandbox(json!({
        "metadata": {
            "labels": {"agents.x-k8s.io/warm-pool-sandbox": "p", "agents.x-k8s.io/sandbox-template-ref-hash": "t",
                "agents.x-k8s.io/created-by": "someone", "agents.x-k8s.io/claim-uid": "u"},
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
    let plan = plan(&observed(sandbox, &[], None), now());
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
fn adopted_pod_loses_only_the_marks_of_the_pool() {
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
    let Plan { actions, .. } = plan(&observed(claimed, &[pooled], None), now());
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

#[test]
fn foreign_pod_of_the_sandboxs_name_is_left_alone() {
    let foreign = [pod("s", json!({"metadata": {"ownerReferences": theirs()}}))];
    let refused = [(Part::Pod, "not ours".to_owned())];
    let wants = observed(sandbox(json!({})), &foreign, None);
    assert_eq!(status(&wants, Stage::Live, &refused, DOMAIN, now()).selector, None);
    let observed = observed(sandbox(suspended()), &foreign, None);
    assert_eq!(
        says(&observed, Stage::Live, &[], "Ready"),
        "False/SandboxSuspended/Sandbox is suspending",
        "as long as it stands there"
    );
}

#[test]
fn only_pods_of_pools_are_safe_to_evict() {
    let with = |kind: &str, own: Value, pool_eviction: bool| {
        let sandbox = sandbox(json!({
            "metadata": {"ownerReferences": owned_by("extensions.agents.x-k8s.io/v1beta1", kind, "o")},
            "spec": {"podTemplate": {"metadata": {"annotations": own}}},
        }));
        let observed = Observed { pool_eviction, ..observed(sandbox, &[], None) };
        let made = plan(&observed, now()).actions.into_iter().find_map(|action| match action {
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

/// Two names with the same hash: 32 bits are few, and a user who chooses names can find such pairs.
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
    let observed = Observed {
        sandbox: named(&other),
        labelled: vec![theirs],
        tracked: None,
        service: None,
        volumes: vec![],
        pool_eviction: true,
        snapshot: None,
        newest: None,
        snapshots: false,
        policy: None,
        template_closes: true,
        gateway: None,
    };
    assert_eq!(steps(&observed), [format!("create pod {other}"), "note own name".into()]);
}
