use hutch_api::condition::{FALSE, TRUE};
use hutch_api::state::reason;
use hutch_api::{annotation, label};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::plan::{Action, Plan, is_over, plan};
use super::*;
use crate::fixture::{object, owned_by, patched};

const API: &str = "hutch.dev/v1alpha1";

fn fork(spec: Value) -> Arc<SandboxFork> {
    let metadata = json!({"annotations": {annotation::USER: "alice"}});
    let fork: Arc<SandboxFork> = object(
        API,
        "SandboxFork",
        "f",
        json!({"metadata": metadata,
        "spec": {"source": {"sandbox": "a"}, "replicas": 2}}),
    );
    patched(fork.as_ref(), &json!({ "spec": spec }))
}

fn conditions(status: &str, reason: &str, message: &str) -> Value {
    json!({"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

fn snapshot(status: &str, reason: &str) -> Arc<SandboxSnapshot> {
    let mut status = conditions(status, reason, "m");
    status["sandboxUid"] = "Sandbox-a".into();
    object(
        API,
        "SandboxSnapshot",
        "f",
        json!({"metadata": {"ownerReferences": owned_by(API, "SandboxFork", "f")},
        "spec": {"source": {"sandbox": "a"}, "content": "Full"}, "status": status}),
    )
}

fn source() -> Arc<Sandbox> {
    let annotations =
        json!({annotation::SHARES_GENERATORS: "true", annotation::USER: "bob", annotation::POLICIES: "p"});
    object(
        "agents.x-k8s.io/v1beta1",
        "Sandbox",
        "a",
        json!({"metadata": {"annotations": annotations},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
    )
}

fn observed(spec: Value, snapshot: Option<Arc<SandboxSnapshot>>) -> Observed {
    let fork = fork(spec);
    let children = vec![None; fork.child_names().len()];
    Observed { fork, snapshot, source: Some(source()), children }
}

fn planned(observed: &Observed) -> Plan {
    plan(observed, Timestamp::from_second(1_800_000_000).unwrap())
}

fn ready(plan: &Plan) -> (String, String, String) {
    let ready = &plan.status.conditions.as_ref().unwrap()[0];
    (ready.status.clone(), ready.reason.clone(), ready.message.clone())
}

/// The same state after the status was written and the Sandboxes were created.
fn after(observed: &Observed, plan: &Plan) -> Observed {
    let status = serde_json::to_value(&plan.status).unwrap();
    let mut next = observed.clone();
    next.fork = patched(next.fork.as_ref(), &json!({ "status": status }));
    if let Action::Children(made) = &plan.action {
        let made = made.iter().map(|made| {
            let name = made.name_any();
            Some(object("agents.x-k8s.io/v1beta1", "Sandbox", &name, serde_json::to_value(made).unwrap()))
        });
        next.children = made.collect();
    }
    next
}

#[test]
fn fork_makes_a_snapshot_first_and_then_its_sandboxes() {
    let state = observed(json!({}), None);
    let first = planned(&state);
    let Action::Snapshot(made) = &first.action else { panic!("{first:?}") };
    let spec =
        json!({"source": {"sandbox": "a", "uid": "Sandbox-a"}, "content": "Full", "afterwards": "Run"});
    assert_eq!(serde_json::to_value(&made.spec).unwrap(), spec);
    assert_eq!((made.name_any(), made.owner_references()[0].uid.as_str()), ("f".to_owned(), "SandboxFork-f"));
    assert_eq!(first.status.children.len(), 2);

    let state = Observed { snapshot: Some(snapshot(FALSE, reason::IN_PROGRESS)), ..after(&state, &first) };
    let second = planned(&state);
    assert_eq!(second.action, Action::Nothing);
    assert_eq!(ready(&second).2, "SandboxSnapshot f is not complete: m");

    let state = Observed { snapshot: Some(snapshot(TRUE, reason::COMPLETED)), ..after(&state, &second) };
    let third = planned(&state);
    let Action::Children(made) = &third.action else { panic!("{third:?}") };
    assert_eq!(made.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["f-0", "f-1"]);
    let expected = json!({
        "name": "f-0", "namespace": "d", "labels": {label::FORK: "f"},
        "annotations": {annotation::FORK_UID: "SandboxFork-f", annotation::USER: "alice", annotation::POLICIES: "p",
            annotation::SHARES_GENERATORS: "true", annotation::FORK_CREDENTIALS: "None/Sandbox-a"},
    });
    assert_eq!(serde_json::to_value(&made[0].metadata).unwrap(), expected);
    let restore = made[0].spec.pod_template.metadata.annotations.as_ref().unwrap();
    assert_eq!(restore[annotation::RESTORE_FROM], "f");

    let mut state = after(&state, &third);
    let fourth = planned(&state);
    assert_eq!((&fourth.action, ready(&fourth).2), (&Action::Nothing, "0 of 2 Sandboxes are ready".into()));
    let one = state.children[0].clone().unwrap();
    state.children[0] =
        Some(patched(one.as_ref(), &json!({"status": conditions(TRUE, "DependenciesReady", "")})));
    let fifth = planned(&state);
    assert_eq!(ready(&fifth).2, "1 of 2 Sandboxes are ready");
    assert_eq!(
        (fifth.status.children[0].phase.as_str(), fifth.status.children[1].phase.as_str()),
        ("Ready", "Pending")
    );
    let two = state.children[1].clone().unwrap();
    state.children[1] =
        Some(patched(two.as_ref(), &json!({"status": conditions(TRUE, "DependenciesReady", "")})));
    let last = planned(&state);
    assert_eq!(ready(&last), ("True".into(), "Completed".into(), "2 of 2 Sandboxes are ready".into()));
    assert!(is_over(&after(&state, &last).fork) && !is_over(&after(&state, &fifth).fork));
}

#[test]
fn each_sandbox_fails_for_itself_and_none_is_made_twice() {
    let state = observed(json!({}), Some(snapshot(TRUE, reason::COMPLETED)));
    let made = planned(&state);
    let mut state = after(&state, &made);
    let seen = planned(&state);
    state = after(&state, &seen);
    state.children[0] = None;
    let failed = conditions(FALSE, "RestoreFailed", "the image was changed");
    let two = state.children[1].clone().unwrap();
    state.children[1] = Some(patched(two.as_ref(), &json!({ "status": failed })));
    let plan = planned(&state);
    assert_eq!(plan.action, Action::Nothing, "a deleted one is not made again");
    let reasons: Vec<_> = plan.status.children.iter().map(|child| child.reason.clone().unwrap()).collect();
    assert_eq!(reasons, ["it was deleted", "the image was changed"]);
    let text = "2 of 2 Sandboxes have failed: f-0: it was deleted";
    assert_eq!(ready(&plan), ("False".into(), "Failed".into(), text.into()));
    assert!(is_over(&after(&state, &plan).fork));

    // A Sandbox of another has one of the names.
    let mut state = observed(json!({}), Some(snapshot(TRUE, reason::COMPLETED)));
    state.children[1] = Some(source());
    let plan = planned(&state);
    let Action::Children(made) = &plan.action else { panic!("{plan:?}") };
    assert_eq!(made.len(), 1);
    assert_eq!((plan.status.children[1].phase.as_str(), ready(&plan).1.as_str()), ("Failed", "InProgress"));
}

#[test]
fn fork_that_cannot_succeed_ends_with_the_cause() {
    let complete = || Some(snapshot(TRUE, reason::COMPLETED));
    let ends = |state: &Observed, reason: &str, text: &str| {
        let plan = planned(state);
        let (status, found, message) = ready(&plan);
        assert_eq!(
            (plan.action, status.as_str(), found.as_str()),
            (Action::Nothing, "False", reason),
            "{message}"
        );
        assert!(message.contains(text), "{message}");
        assert_eq!(plan.status.children.len(), 2);
    };
    let base = observed(json!({}), None);
    ends(&Observed { source: None, ..base.clone() }, "Failed", "there is no Sandbox a");
    let of_snapshot = json!({"source": {"sandbox": null, "snapshot": "s"}});
    ends(&observed(of_snapshot, None), "Failed", "there is no SandboxSnapshot s");
    for last in [reason::FAILED, reason::SOURCE_REPLACED, reason::NOT_SUPPORTED_HERE, reason::LOST] {
        ends(&observed(json!({}), Some(snapshot(FALSE, last))), last, "SandboxSnapshot f: m");
    }
    let foreign = patched(&*complete().unwrap(), &json!({"metadata": {"ownerReferences": null}}));
    ends(&observed(json!({}), Some(foreign)), "Failed", "not of this fork");
    let other = patched(source().as_ref(), &json!({"metadata": {"uid": "other"}}));
    let replaced = Observed { source: Some(other), ..observed(json!({}), complete()) };
    ends(&replaced, "SourceReplaced", "not the one of the snapshot");
    let gone = after(&base, &planned(&observed(json!({}), Some(snapshot(FALSE, reason::IN_PROGRESS)))));
    ends(&gone, "Failed", "SandboxSnapshot f was deleted");
}

#[test]
fn fork_of_memory_needs_new_random_numbers() {
    let state = |annotations: Value, spec: Value, snapshot| {
        let bare = patched(
            source().as_ref(),
            &json!({"metadata": {"annotations": {annotation::SHARES_GENERATORS: null}}}),
        );
        let source = patched(bare.as_ref(), &json!({"metadata": {"annotations": annotations}}));
        Observed { source: Some(source), ..observed(spec, snapshot) }
    };
    for snapshot in [None, Some(snapshot(TRUE, reason::COMPLETED))] {
        for bad in [
            json!({}),
            json!({annotation::SHARES_GENERATORS: "false"}),
            json!({annotation::AFTER_RESTORE: "[]"}),
            json!({annotation::AFTER_RESTORE: "reseed"}),
        ] {
            let plan = planned(&state(bad.clone(), json!({"replicas": 1}), snapshot.clone()));
            let (_, reason, text) = ready(&plan);
            assert_eq!((&plan.action, reason.as_str()), (&Action::Nothing, "NeedsAfterRestore"), "{bad}");
            assert!(
                text.contains(annotation::AFTER_RESTORE) && text.contains(annotation::SHARES_GENERATORS),
                "{text}"
            );
        }
        for good in [
            json!({annotation::SHARES_GENERATORS: "true"}),
            json!({annotation::AFTER_RESTORE: "[\"/bin/reseed\", \"all\"]"}),
        ] {
            assert_ne!(planned(&state(good, json!({}), snapshot.clone())).action, Action::Nothing);
        }
    }
    // Files have no generators.
    let files = state(json!({}), json!({"content": "Filesystem"}), None);
    assert_ne!(planned(&files).action, Action::Nothing);
}

#[test]
fn names_follow_the_template() {
    assert_eq!(fork(json!({"nameTemplate": "try-$(INDEX)"})).child_names(), ["try-0", "try-1"]);
    assert_eq!(fork(json!({"nameTemplate": "one", "replicas": 1})).child_names(), ["one"]);
}
