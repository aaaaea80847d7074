use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::plan::{Plan, plan};
use super::*;
use crate::blueprint::Hashes;
use crate::config::Config;
use crate::fixture::{object, owned_by};

const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn template() -> Arc<SandboxTemplate> {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    object(EXTENSIONS, "SandboxTemplate", "t", json!({ "spec": spec }))
}

fn pool(replicas: Value, strategy: &str) -> Arc<SandboxWarmPool> {
    let spec = json!({"replicas": replicas, "sandboxTemplateRef": {"name": "t"}, "updateStrategy": {"type": strategy}});
    object(EXTENSIONS, "SandboxWarmPool", "p", json!({"metadata": {"generation": 4}, "spec": spec}))
}

/// A member that the pool would have made, some minutes old.
fn member(name: &str, more: Value) -> Arc<Sandbox> {
    let template = template();
    let made =
        super::member::desired(&pool(json!(1), "OnReplenish"), &template, &Hashes::of(&template), true);
    let mut value = serde_json::to_value(&made).unwrap();
    json_patch::merge(&mut value, &json!({"metadata": {"generateName": null}}));
    json_patch::merge(&mut value, &more);
    object("agents.x-k8s.io/v1beta1", "Sandbox", name, value)
}

fn ready(created: &str) -> Value {
    json!({"metadata": {"creationTimestamp": created}, "status": {"conditions": [condition("Ready", "True", "X")]}})
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn planned(replicas: Value, strategy: &str, members: Vec<Arc<Sandbox>>) -> Plan {
    let seen = Seen { pool: pool(replicas, strategy), template: Some(template()), labelled: members };
    plan(&seen, &Config::default(), now())
}

#[test]
fn the_size_is_exact() {
    let young = json!({"metadata": {"creationTimestamp": "2026-01-01T00:09:00Z"}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:09:00Z", "creationTimestamp": "2026-01-01T00:09:00Z"}});
    let two = || vec![member("a", ready("2026-01-01T00:01:00Z")), member("b", young.clone())];
    for (replicas, members, create, delete) in [
        (json!(null), vec![], 1, vec![]),
        (json!(3), vec![], 3, vec![]),
        (json!(3), two(), 1, vec![]),
        (json!(2), two(), 0, vec![]),
        (json!(1), two(), 0, vec!["b"]),
        (json!(0), two(), 0, vec!["b", "a"]),
        (json!(2), vec![member("a", going), member("b", young.clone())], 0, vec![]),
        (json!(500), vec![], 300, vec![]),
    ] {
        let plan = planned(replicas.clone(), "OnReplenish", members);
        assert_eq!(
            (plan.create, plan.delete.iter().map(String::as_str).collect()),
            (create, delete),
            "{replicas}"
        );
        assert_eq!(plan.new.is_some(), create > 0);
    }
}

#[test]
fn of_the_ready_ones_the_newest_go_first() {
    let members = vec![
        member("old", ready("2026-01-01T00:01:00Z")),
        member("new", ready("2026-01-01T00:03:00Z")),
        member("middle", ready("2026-01-01T00:02:00Z")),
    ];
    assert_eq!(planned(json!(1), "OnReplenish", members).delete, ["new", "middle"]);
}

#[test]
fn a_member_that_does_not_start_is_replaced_unless_no_node_has_room() {
    let old = json!({"metadata": {"creationTimestamp": "2026-01-01T00:01:00Z"}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", old.clone())]);
    assert_eq!(
        (plan.delete, plan.create),
        (vec!["a".to_owned()], 0),
        "its place is free only when it is gone"
    );

    let mut held = old;
    held["status"] = json!({"conditions": [condition("PodScheduled", "False", "Unschedulable")]});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", held)]);
    assert_eq!((plan.delete.len(), plan.unschedulable, plan.again), (0, 1, Some(Duration::from_secs(60))));

    let young = json!({"metadata": {"creationTimestamp": "2026-01-01T00:09:00Z"}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", young)]);
    assert_eq!((plan.delete.len(), plan.again), (0, Some(Duration::from_secs(242))));
}

#[test]
fn members_of_an_older_blueprint() {
    let stale = json!({
        "metadata": {"labels": {"agents.x-k8s.io/sandbox-template-hash": "00000000"}, "creationTimestamp": "2026-01-01T00:09:00Z"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "older"}]}}},
    });
    assert!(planned(json!(1), "OnReplenish", vec![member("a", stale.clone())]).delete.is_empty());
    let plan = planned(json!(1), "Recreate", vec![member("a", stale)]);
    assert_eq!((plan.delete, plan.create), (vec!["a".to_owned()], 0), "never more than asked for");
}

#[test]
fn orphans_are_taken_in_and_other_owners_left_alone() {
    let orphan = json!({"metadata": {"ownerReferences": null, "creationTimestamp": "2026-01-01T00:09:00Z"}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", orphan.clone())]);
    assert_eq!(plan.create, 0);
    let (name, patch) = &plan.patch[0];
    assert_eq!(
        (name.as_str(), &patch["metadata"]["ownerReferences"]),
        ("a", &owned_by(EXTENSIONS, "SandboxWarmPool", "p"))
    );
    assert_eq!(patch["metadata"]["resourceVersion"], "1", "guarded");

    let mut stale = orphan;
    stale["spec"] = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "older"}]}}});
    assert_eq!(planned(json!(0), "OnReplenish", vec![member("a", stale)]).delete, ["a"]);

    let claimed = json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "c")}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", claimed)]);
    assert_eq!((plan.create, plan.delete.len(), plan.patch.len()), (1, 0, 0));
}

#[test]
fn without_its_template_a_pool_keeps_what_it_has() {
    let seen = Seen {
        pool: pool(json!(3), "Recreate"),
        template: None,
        labelled: vec![member("a", ready("2026-01-01T00:01:00Z"))],
    };
    let plan = plan(&seen, &Config::default(), now());
    assert_eq!((plan.create, plan.delete.len()), (0, 0));
    assert_eq!((plan.status.replicas, plan.status.ready_replicas), (Some(1), Some(1)));
    assert_eq!(plan.status.observed_generation, Some(4));
    let selector = format!("agents.x-k8s.io/warm-pool-sandbox={}", name_hash("p"));
    assert_eq!(plan.status.selector, Some(selector));
}

#[test]
fn a_new_member_has_every_mark() {
    let made = serde_json::to_value(planned(json!(1), "OnReplenish", vec![]).new.unwrap()).unwrap();
    let (metadata, pod) = (&made["metadata"], &made["spec"]["podTemplate"]);
    assert_eq!(metadata["generateName"], "p-");
    let hashes = Hashes::of(&template());
    let common = json!({
        "agents.x-k8s.io/warm-pool-sandbox": name_hash("p"),
        "agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t"),
        "agents.x-k8s.io/sandbox-pod-template-hash": hashes.pod_template,
        "agents.x-k8s.io/sandbox-template-hash": hashes.blueprint,
    });
    assert_eq!(pod["metadata"]["labels"], common);
    let mut labels = common;
    labels["agents.x-k8s.io/launch-type"] = "warm".into();
    labels["agents.x-k8s.io/created-by"] = "controller".into();
    assert_eq!(metadata["labels"], labels);
    assert_eq!(metadata["annotations"], json!({"agents.x-k8s.io/sandbox-template-ref": "t"}));
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"})
    );
    assert_eq!(metadata["ownerReferences"], owned_by(EXTENSIONS, "SandboxWarmPool", "p"));
    assert_eq!(pod["spec"]["dnsConfig"], json!({"nameservers": ["8.8.8.8", "1.1.1.1"]}));
}
