use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Plan, plan};
use super::*;
use crate::blueprint::Hashes;
use crate::config::Config;
use crate::fixture::{object, owned_by, patched};

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

/// Builds a Sandbox as the pool creates it, some minutes old.
fn member(name: &str, more: Value) -> Arc<Sandbox> {
    let template = template();
    let made = super::member::desired(&pool(json!(1), "OnReplenish"), &template, &Hashes::of(&template));
    let mut value = serde_json::to_value(super::member::named(&made, name)).unwrap();
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
    plan(&observed(replicas, strategy, members), &Config::default(), now())
}

fn observed(replicas: Value, strategy: &str, labelled: Vec<Arc<Sandbox>>) -> Observed {
    Observed {
        pool: pool(replicas, strategy),
        template: Some(template()),
        labelled,
        undecodable: Vec::new(),
        pods: HashMap::new(),
        ages: HashMap::new(),
    }
}

#[test]
fn pool_has_exactly_its_replicas() {
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
fn undecodable_sandbox_counts_and_stays() {
    let undecodable = |deleted: Value| {
        let metadata = json!({"name": "u", "deletionTimestamp": deleted});
        serde_json::from_value::<PartialObjectMeta<Sandbox>>(json!({ "metadata": metadata })).unwrap()
    };
    let outcome = |replicas: i32, undecodable: Vec<PartialObjectMeta<Sandbox>>| {
        let members = vec![member("a", ready("2026-01-01T00:01:00Z"))];
        let observed = Observed { undecodable, ..observed(json!(replicas), "Recreate", members) };
        let plan = plan(&observed, &Config::default(), now());
        (plan.create, plan.delete, plan.members, plan.status.replicas, plan.status.ready_replicas)
    };
    let there = || vec![undecodable(json!(null))];
    assert_eq!(outcome(3, there()), (1, vec![], 2, Some(2), Some(1)));
    assert_eq!(outcome(2, there()), (0, vec![], 2, Some(2), Some(1)));
    assert_eq!(outcome(1, there()), (0, vec!["a".to_owned()], 2, Some(1), None));
    assert_eq!(outcome(0, there()), (0, vec!["a".to_owned()], 2, Some(1), None));
    assert_eq!(
        outcome(2, vec![undecodable(json!("2026-01-01T00:09:00Z"))]),
        (0, vec![], 1, Some(1), Some(1))
    );
}

#[test]
fn newest_ready_sandboxes_are_deleted_first() {
    let members = vec![
        member("old", ready("2026-01-01T00:01:00Z")),
        member("new", ready("2026-01-01T00:03:00Z")),
        member("middle", ready("2026-01-01T00:02:00Z")),
    ];
    assert_eq!(planned(json!(1), "OnReplenish", members).delete, ["new", "middle"]);
}

#[test]
fn sandbox_that_does_not_start_is_replaced_unless_unschedulable() {
    let old = json!({"metadata": {"creationTimestamp": "2026-01-01T00:01:00Z"}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", old.clone())]);
    assert_eq!(
        (plan.delete, plan.create),
        (vec!["a".to_owned()], 0),
        "its place is free only when it is gone"
    );

    let unscheduled = json!({"status": {"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable")]}});
    let with_pod = |more: Value| {
        let mut pod_more = unscheduled.clone();
        json_patch::merge(&mut pod_more, &more);
        let mut observed = observed(json!(1), "OnReplenish", vec![member("a", old.clone())]);
        observed.pods.insert("a".into(), object("v1", "Pod", "a", pod_more));
        let plan = super::plan::plan(&observed, &Config::default(), now());
        (plan.delete.len(), plan.unschedulable, plan.again)
    };
    assert_eq!(with_pod(json!({})), (0, 1, Some(Duration::from_secs(60))), "held");
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:09:00Z"}});
    assert_eq!(with_pod(going), (1, 0, None), "its Pod is going anyway");
    let other = json!({"status": {"conditions": [condition("PodScheduled", "False", "SchedulingGated")]}});
    assert_eq!(with_pod(other), (1, 0, None));

    let young = |created: &str| {
        let more = json!({"metadata": {"creationTimestamp": created}});
        let plan = planned(json!(1), "OnReplenish", vec![member("a", more)]);
        (plan.delete.len(), plan.grace_left, plan.again)
    };
    assert_eq!(young("2026-01-01T00:09:00Z"), (0, Some(Duration::from_secs(242)), None));
    assert_eq!(young("2026-01-01T05:00:00Z"), (0, Some(Duration::from_secs(302)), None), "a clock ahead");
}

#[test]
fn hostile_numbers() {
    for (replicas, create) in [(json!(i32::MAX), 300), (json!(i32::MIN), 0), (json!(-1), 0)] {
        assert_eq!(planned(replicas, "OnReplenish", vec![]).create, create);
    }
    for grace in [Duration::ZERO, Duration::MAX] {
        let config = Config { readiness_grace: grace, ..Config::default() };
        let young = json!({"metadata": {"creationTimestamp": "2026-01-01T05:00:00Z"}});
        let plan = plan(&observed(json!(1), "OnReplenish", vec![member("a", young)]), &config, now());
        assert_eq!(plan.delete.is_empty(), grace == Duration::MAX);
    }
}

/// Two pools whose names have the same hash see each other's members, and leave them alone.
#[test]
fn pools_whose_names_collide_keep_apart() {
    let mut known = HashMap::new();
    let names = (0..).map(|n: u32| format!("p{n}"));
    let (one, other) = names
        .into_iter()
        .find_map(|n| known.insert(name_hash(&n), n.clone()).map(|first| (first, n)))
        .unwrap();
    assert_eq!(name_hash(&one), name_hash(&other));
    let theirs = json!({"metadata": {
        "labels": {"agents.x-k8s.io/warm-pool-sandbox": name_hash(&one), "agents.x-k8s.io/sandbox-template-hash": "old"},
        "ownerReferences": owned_by(EXTENSIONS, "SandboxWarmPool", &one)}});
    let mut observed = observed(json!(1), "Recreate", vec![member("a", theirs)]);
    observed.pool = object(
        EXTENSIONS,
        "SandboxWarmPool",
        &other,
        json!({"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}}),
    );
    let plan = plan(&observed, &Config::default(), now());
    assert_eq!((plan.create, plan.delete.len(), plan.patch.len(), plan.status.replicas), (1, 0, 0, None));
}

#[test]
fn readiness_grace_of_own_sandbox_ignores_the_clock() {
    let old = json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}});
    let mut observed = observed(json!(1), "OnReplenish", vec![member("a", old)]);
    assert_eq!(plan(&observed, &Config::default(), now()).delete, ["a"], "made by another process, long ago");
    observed.ages.insert("a".into(), SignedDuration::from_secs(2));
    let young = plan(&observed, &Config::default(), now());
    assert!(young.delete.is_empty() && young.create == 0);
    let grace = SignedDuration::try_from(Config::default().readiness_grace).unwrap();
    observed.ages.insert("a".into(), grace);
    assert_eq!(plan(&observed, &Config::default(), now()).delete, ["a"]);
}

#[test]
fn members_of_an_older_blueprint() {
    let stale = json!({
        "metadata": {"labels": {"agents.x-k8s.io/sandbox-template-hash": "00000000"}, "creationTimestamp": "2026-01-01T00:09:00Z"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "older"}]}}},
    });
    assert!(planned(json!(1), "OnReplenish", vec![member("a", stale.clone())]).delete.is_empty());
    let other = json!({"metadata": {"annotations": {"agents.x-k8s.io/sandbox-template-ref": "other"}}});
    assert_eq!(planned(json!(1), "OnReplenish", vec![member("a", other)]).delete, ["a"]);
    let plan = planned(json!(1), "Recreate", vec![member("a", stale)]);
    assert_eq!((plan.delete, plan.create), (vec!["a".to_owned()], 0), "never more than the replicas");
}

#[test]
fn orphans_are_adopted_and_foreign_sandboxes_left_alone() {
    let orphan = json!({"metadata": {"ownerReferences": null, "creationTimestamp": "2026-01-01T00:09:00Z"}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", orphan.clone())]);
    assert_eq!(plan.create, 0);
    let (name, patch) = &plan.patch[0];
    assert_eq!(
        (name.as_str(), &patch["metadata"]["ownerReferences"]),
        ("a", &owned_by(EXTENSIONS, "SandboxWarmPool", "p"))
    );
    assert_eq!(patch["metadata"]["resourceVersion"], "1", "guarded");
    assert_eq!(patch["metadata"]["labels"], json!({"agents.x-k8s.io/launch-type": "warm"}));

    let mut stale = orphan;
    stale["spec"] = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "older"}]}}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", stale)]);
    assert_eq!((plan.delete, plan.create), (vec!["a".to_owned()], 0));
    assert!(plan.again.is_some(), "its end wakes no pool: without a requeue it is never replaced");

    let claimed = json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "c")}});
    let plan = planned(json!(1), "OnReplenish", vec![member("a", claimed)]);
    assert_eq!((plan.create, plan.delete.len(), plan.patch.len()), (1, 0, 0));
}

#[test]
fn without_its_template_a_pool_keeps_what_it_has() {
    let observed = Observed {
        pool: pool(json!(3), "Recreate"),
        template: None,
        labelled: vec![member("a", ready("2026-01-01T00:01:00Z"))],
        undecodable: Vec::new(),
        pods: HashMap::new(),
        ages: HashMap::new(),
    };
    let plan = plan(&observed, &Config::default(), now());
    assert_eq!((plan.create, plan.delete.len()), (0, 0));
    assert_eq!((plan.status.replicas, plan.status.ready_replicas), (Some(1), Some(1)));
    assert_eq!(plan.status.observed_generation, Some(4));
    let selector = format!("agents.x-k8s.io/warm-pool-sandbox={}", name_hash("p"));
    assert_eq!(plan.status.selector, Some(selector));
}

#[test]
fn new_pooled_sandbox_has_every_label() {
    let made = planned(json!(1), "OnReplenish", vec![]).new.unwrap();
    let made = serde_json::to_value(super::member::named(&made, "p-x")).unwrap();
    let (metadata, pod) = (&made["metadata"], &made["spec"]["podTemplate"]);
    assert_eq!((&metadata["generateName"], &metadata["name"]), (&json!("p-"), &json!("p-x")));
    let hashes = Hashes::of(&template());
    assert_eq!(
        metadata["labels"],
        json!({
            "agents.x-k8s.io/warm-pool-sandbox": name_hash("p"),
            "agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t"),
            "agents.x-k8s.io/sandbox-pod-template-hash": hashes.pod_template,
            "agents.x-k8s.io/sandbox-template-hash": hashes.blueprint,
            "agents.x-k8s.io/launch-type": "warm",
            "agents.x-k8s.io/created-by": "controller",
        })
    );
    assert_eq!(
        metadata["annotations"],
        json!({"agents.x-k8s.io/sandbox-template-ref": "t", "agents.x-k8s.io/pod-name": "p-x"})
    );
    assert_eq!(pod["metadata"], json!({}), "nothing that leaving the pool would have to take away");
    assert_eq!(metadata["ownerReferences"], owned_by(EXTENSIONS, "SandboxWarmPool", "p"));
    assert_eq!(pod["spec"]["dnsConfig"], json!({"nameservers": ["8.8.8.8", "1.1.1.1"]}));
}

/// Applies a plan as the API server would.
fn simulate(members: &[Arc<Sandbox>], plan: &Plan, next: &mut u32) -> Vec<Arc<Sandbox>> {
    let mut after: Vec<_> =
        members.iter().filter(|member| !plan.delete.contains(&member.name_any())).cloned().collect();
    for (name, patch) in &plan.patch {
        for member in after.iter_mut().filter(|member| member.name_any() == *name) {
            *member = patched(member.as_ref(), patch);
        }
    }
    for _ in 0..plan.create {
        *next += 1;
        after.push(member(
            &format!("new{next}"),
            json!({"metadata": {"creationTimestamp": "2026-01-01T00:10:00Z"}}),
        ));
    }
    after
}

/// Generates a Sandbox with the pool's label.
fn any_member() -> impl Strategy<Value = Value> {
    let owner = prop_oneof![
        4 => Just(owned_by(EXTENSIONS, "SandboxWarmPool", "p")),
        1 => Just(Value::Null),
        1 => Just(owned_by(EXTENSIONS, "SandboxWarmPool", "another")),
        1 => Just(owned_by(EXTENSIONS, "SandboxClaim", "c")),
    ];
    let image = prop_oneof![3 => Just("i"), 1 => Just("older")];
    let created = prop_oneof![Just("2026-01-01T00:01:00Z"), Just("2026-01-01T00:09:00Z")];
    (owner, image, created, any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(owner, image, created, ready, going)| {
        let status = json!({"conditions": [condition("Ready", if ready { "True" } else { "False" }, "X")]});
        let gone = going.then_some("2026-01-01T00:09:30Z");
        let labels = if image == "i" { json!({}) } else { json!({"agents.x-k8s.io/sandbox-template-hash": "old"}) };
        json!({
            "metadata": {"ownerReferences": owner, "creationTimestamp": created, "deletionTimestamp": gone, "labels": labels},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": image}]}}}, "status": status,
        })
    })
}

fn is_ours(sandbox: &Sandbox) -> bool {
    crate::owner::is_controlled_by(sandbox, pool(json!(0), "OnReplenish").as_ref())
}

proptest! {
    /// From any state, the pool converges to its replicas, never exceeds them, and takes nothing from other owners.
    #[test]
    fn pool_converges_to_its_replicas(
        found in prop::collection::vec(any_member(), 0..8), replicas in 0..6_usize, recreate: bool,
    ) {
        let strategy = if recreate { "Recreate" } else { "OnReplenish" };
        let mut members: Vec<_> = found.iter().enumerate().map(|(n, more)| member(&format!("m{n}"), more.clone())).collect();
        let start = members.clone();
        let mut next = 0;
        for pass in 0.. {
            prop_assert!(pass < 5, "does not come to rest");
            let plan = planned(json!(replicas), strategy, members.clone());
            for name in plan.delete.iter().chain(plan.patch.iter().map(|(name, _)| name)) {
                let known = members.iter().find(|member| member.name_any() == *name).unwrap();
                prop_assert!(is_ours(known) || crate::owner::controller(known.as_ref()).is_none(), "{} is not ours", name);
            }
            if plan.create == 0 && plan.delete.is_empty() && plan.patch.is_empty() {
                let alive = members.iter().filter(|m| is_ours(m) && m.metadata.deletion_timestamp.is_none()).count();
                let going = members.iter().filter(|m| is_ours(m) && m.metadata.deletion_timestamp.is_some()).count();
                prop_assert!(alive <= replicas && alive + going >= replicas);
                break;
            }
            let ours = members.iter().filter(|member| is_ours(member)).count();
            prop_assert!(plan.create == 0 || ours + plan.create <= replicas, "more than the replicas");
            members = simulate(&members, &plan, &mut next);
        }
        let theirs = |list: &[Arc<Sandbox>]| list.iter().filter(|m| crate::owner::controller(m.as_ref()).is_some() && !is_ours(m)).count();
        prop_assert_eq!(theirs(&start), theirs(&members));
    }
}
