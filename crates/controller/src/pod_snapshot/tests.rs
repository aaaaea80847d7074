use std::sync::Arc;

use hutch_api::annotation;
use hutch_api::pod_snapshot::{PodSnapshot, PodSnapshotManualTrigger};
use hutch_api::state::SandboxSnapshot;
use hutch_api::{Sandbox, label, name_hash};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{trigger, view};
use crate::fixture::{object, owned_by, patched};
use crate::view::PodView;

const GKE: &str = "podsnapshot.gke.io/v1";
const CORE: &str = "agents.x-k8s.io/v1beta1";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn conditions(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

fn request() -> Arc<PodSnapshotManualTrigger> {
    object(
        GKE,
        "PodSnapshotManualTrigger",
        "t",
        json!({"metadata": {"uid": "n"}, "spec": {"targetPod": "p"}}),
    )
}

fn sandbox(annotations: Value) -> Arc<Sandbox> {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c"}]}}});
    object(CORE, "Sandbox", "s", json!({"metadata": {"annotations": annotations}, "spec": spec}))
}

fn snapshot(more: Value) -> Arc<SandboxSnapshot> {
    let base = json!({
        "metadata": {"annotations": {annotation::ORIGIN_POD: "p"}},
        "spec": {"source": {"sandbox": "s", "uid": "Sandbox-s"}, "content": "Full"},
    });
    let base: Arc<SandboxSnapshot> = object("hutch.dev/v1alpha1", "SandboxSnapshot", "n", base);
    patched(base.as_ref(), &more)
}

fn with_status(status: &str, reason: &str) -> Arc<SandboxSnapshot> {
    snapshot(json!({"status": conditions("Ready", status, reason, "why")}))
}

fn shown(more: Value) -> Arc<PodSnapshot> {
    let metadata = json!({"finalizers": ["hutch.dev/sandbox-snapshot"], "labels": {label::SANDBOX_NAME_HASH: name_hash("s")},
        "annotations": {annotation::ORIGIN_POD: "p"}});
    let base: Arc<PodSnapshot> = object(GKE, "PodSnapshot", "n", json!({"metadata": metadata, "spec": {}}));
    patched(base.as_ref(), &more)
}

fn observed() -> trigger::Observed {
    let pod: Arc<PodView> =
        object("v1", "Pod", "p", json!({"metadata": {"ownerReferences": owned_by(CORE, "Sandbox", "s")}}));
    trigger::Observed {
        trigger: request(),
        pod: Some(pod),
        sandbox: Some(sandbox(json!({annotation::SHARES_GENERATORS: "true"}))),
        snapshot: None,
        view: None,
        others: Vec::new(),
    }
}

/// Status, reason and message of a trigger, and the name of its snapshot.
fn reported(plan: &trigger::Plan) -> (String, String, String, Option<String>) {
    let one = &plan.status.conditions.as_ref().unwrap()[0];
    let name = plan.status.snapshot_created.as_ref().map(|created| created.name.clone());
    (one.status.clone(), one.reason.clone(), one.message.clone(), name)
}

#[test]
fn trigger_makes_a_snapshot_and_is_complete_once_its_view_is_ready() {
    let first = trigger::plan(&observed(), now());
    let trigger::Action::Create(made) = &first.action else { panic!("{first:?}") };
    let expected = json!({"source": {"sandbox": "s", "uid": "Sandbox-s"}, "content": "Full", "afterwards": "Run",
        "volumes": {"none": true}});
    assert_eq!(serde_json::to_value(&made.spec).unwrap(), expected);
    assert_eq!((made.name_any().as_str(), made.annotations()[annotation::ORIGIN_POD].as_str()), ("n", "p"));
    assert_eq!((reported(&first).1.as_str(), reported(&first).3), ("Pending", None));

    let complete = Some(with_status("True", "Completed"));
    let ready = Some(shown(json!({"status": conditions("Ready", "True", "Completed", "")})));
    for (snapshot, view, status, reason) in [
        (Some(snapshot(json!({}))), None, "False", "InProgress"),
        (Some(with_status("False", "InProgress")), None, "False", "InProgress"),
        (complete.clone(), None, "False", "InProgress"),
        (complete.clone(), Some(shown(json!({}))), "False", "InProgress"),
        (complete, ready, "True", "Complete"),
    ] {
        let plan = trigger::plan(&trigger::Observed { snapshot, view, ..observed() }, now());
        let (found, why, _, name) = reported(&plan);
        assert_eq!((&plan.action, found.as_str(), why.as_str()), (&trigger::Action::Nothing, status, reason));
        assert_eq!(name.as_deref(), Some("n"));
    }
}

#[test]
fn trigger_that_cannot_succeed_names_the_cause() {
    let fails = |observed: &trigger::Observed, action: trigger::Action, words: &str| {
        let plan = trigger::plan(observed, now());
        let (status, reason, message, name) = reported(&plan);
        assert_eq!((status.as_str(), reason.as_str(), name), ("False", "Failed", None), "{message}");
        assert_eq!(plan.action, action, "{message}");
        assert!(message.contains(words), "{message}");
    };
    let nothing = || trigger::Action::Nothing;
    let base = observed();
    fails(
        &trigger::Observed { pod: None, ..base.clone() },
        nothing(),
        "spec.targetPod: there is no Pod \"p\"",
    );
    fails(&trigger::Observed { sandbox: None, ..base.clone() }, nothing(), "Pod \"p\" is not of a Sandbox");
    let other = patched(base.sandbox.as_deref().unwrap(), &json!({"metadata": {"uid": "another"}}));
    fails(&trigger::Observed { sandbox: Some(other), ..base.clone() }, nothing(), "is not of a Sandbox");
    let bare = trigger::Observed { sandbox: Some(sandbox(json!({}))), ..base.clone() };
    fails(&bare, nothing(), annotation::AFTER_RESTORE);
    fails(&bare, nothing(), annotation::SHARES_GENERATORS);
    let foreign = snapshot(json!({"metadata": {"annotations": null}}));
    fails(&trigger::Observed { snapshot: Some(foreign), ..base.clone() }, nothing(), "not of this trigger");
    let begun = patched(base.trigger.as_ref(), &json!({"status": {"snapshotCreated": {"name": "n"}}}));
    fails(&trigger::Observed { trigger: begun, ..base.clone() }, nothing(), "was deleted");
    for (reason, action) in [
        ("Failed", trigger::Action::Delete),
        ("SourceReplaced", trigger::Action::Delete),
        ("Lost", trigger::Action::Nothing),
    ] {
        let failed = trigger::Observed { snapshot: Some(with_status("False", reason)), ..base.clone() };
        fails(&failed, action, &format!("{reason}: why"));
    }
}

#[test]
fn snapshots_of_a_sandbox_have_different_seconds_of_creation() {
    let created = |time: &str| Some(shown(json!({"metadata": {"creationTimestamp": time}})));
    for (other, waits) in [
        (None, true),
        (created("2026-01-01T00:10:00Z"), true),
        (created("2026-01-01T00:09:59Z"), false),
        // A clock that was set back stops no snapshot.
        (created("2026-01-01T09:00:00Z"), false),
    ] {
        let plan = trigger::plan(&trigger::Observed { others: vec![other], ..observed() }, now());
        assert_eq!(plan.action == trigger::Action::Wait, waits, "{plan:?}");
    }
}

#[test]
fn view_shows_its_snapshot_and_goes_with_it() {
    let plan =
        |snapshot, view, has_sandbox| view::plan(&view::Observed { snapshot, view, has_sandbox }, now());
    assert!(plan(None, None, false).is_empty());
    let made = plan(Some(snapshot(json!({}))), None, true);
    let [view::Action::Create(made)] = made.as_slice() else { panic!("{made:?}") };
    let expected = shown(json!({}));
    assert_eq!(
        (made.labels(), made.annotations(), made.finalizers()),
        (expected.labels(), expected.annotations(), expected.finalizers())
    );

    let begun = plan(Some(snapshot(json!({}))), Some(shown(json!({}))), true);
    let [view::Action::PatchStatus(patch)] = begun.as_slice() else { panic!("{begun:?}") };
    assert_eq!(patch["status"]["conditions"][0]["reason"], "Pending");
    let complete = plan(Some(with_status("True", "Completed")), Some(shown(json!({}))), true);
    let [view::Action::PatchStatus(patch)] = complete.as_slice() else { panic!("{complete:?}") };
    assert_eq!(patch["status"]["conditions"][0]["status"], "True");
    let after = shown(json!({"status": patch["status"]}));
    assert!(plan(Some(with_status("True", "Completed")), Some(after.clone()), true).is_empty());

    // Deleted from either side.
    let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:05:00Z"}});
    let going = patched(after.as_ref(), &ending);
    assert_eq!(
        plan(Some(with_status("True", "Completed")), Some(going.clone()), true),
        [view::Action::DeleteSnapshot]
    );
    let released = view::Action::Patch(json!({"metadata": {"uid": "PodSnapshot-n", "finalizers": []}}));
    assert_eq!(plan(None, Some(going), false), std::slice::from_ref(&released));
    assert_eq!(plan(None, Some(after), false), [view::Action::Delete, released]);
    assert!(plan(Some(snapshot(ending)), None, true).is_empty(), "it is not made again");
}

#[test]
fn view_is_found_by_its_own_sandbox_only() {
    let complete = with_status("True", "Completed");
    let status = json!({"status": conditions("Ready", "True", "Completed", "why")});
    let observed = view::Observed { snapshot: Some(complete), view: Some(shown(status)), has_sandbox: false };
    let actions = view::plan(&observed, now());
    let Some(view::Action::Patch(patch)) = actions.first() else { panic!("{actions:?}") };
    assert_eq!(patch["metadata"]["labels"], json!({label::SANDBOX_NAME_HASH: null}));
}
