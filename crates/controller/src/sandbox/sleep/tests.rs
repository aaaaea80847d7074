use std::sync::Arc;

use serde_json::Value;

use super::super::plan::plan as whole;
use super::*;
use crate::fixture::{object, owned_by, patched};

const API: &str = "agents.x-k8s.io/v1beta1";
/// Ready since then, and last used ten minutes later.
const ACTIVE: &str = "2026-01-01T00:10:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn observed(more: Value) -> Observed {
    let mut base = json!({
        "metadata": {"generation": 4, "resourceVersion": "77", "annotations": {
            "agents.x-k8s.io/pod-name": "s", annotation::SUSPEND_AFTER: "1h", annotation::LAST_ACTIVITY: ACTIVE,
        }},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c"}]}}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 4}]},
    });
    json_patch::merge(&mut base, &more);
    let sandbox: Arc<Sandbox> = object(API, "Sandbox", "s", base);
    Observed {
        labelled: vec![],
        tracked: None,
        service: None,
        volumes: vec![],
        sandbox,
        pool_eviction: true,
        snapshot: None,
        newest: None,
        snapshots: false,
        policy: None,
        template_closes: true,
        gateway: None,
    }
}

/// Returns the patch that is written to that Sandbox at that time.
fn written(more: Value, now: &str) -> Option<Value> {
    let plan = whole(&observed(more), at(now));
    plan.actions.into_iter().find_map(|action| match action {
        Action::Sleep(patch) => Some(patch),
        _ => None,
    })
}

#[test]
fn suspend_is_one_guarded_write() {
    assert_eq!(written(json!({}), "2026-01-01T01:09:59Z"), None);
    let patch = written(json!({}), "2026-01-01T01:10:00Z").unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "77");
    let asleep = patched(observed(json!({})).sandbox.as_ref(), &patch);
    assert_eq!(asleep.annotations()[annotation::ASLEEP_GENERATION], "5", "the generation after this write");
    assert_eq!(serde_json::to_value(asleep.spec.operating_mode).unwrap(), "Suspended");
    let left = remaining(&observed(json!({})), at("2026-01-01T01:09:30Z"));
    assert_eq!(left, Some(Duration::from_secs(30)));
}

#[test]
fn busy_or_invalid_sandboxes_do_not_suspend() {
    let pool = owned_by("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "p");
    for (what, more) in [
        ("not requested", json!({"metadata": {"annotations": {annotation::SUSPEND_AFTER: null}}})),
        ("no duration", json!({"metadata": {"annotations": {annotation::SUSPEND_AFTER: "1 hour"}}})),
        ("pooled", json!({"metadata": {"ownerReferences": pool}})),
        ("used", json!({"metadata": {"annotations": {annotation::LAST_ACTIVITY: "2026-01-01T01:30:00Z"}}})),
        ("suspended by a user", json!({"spec": {"operatingMode": "Suspended"}})),
        ("expired", json!({"spec": {"shutdownTime": "2026-01-01T00:30:00Z"}})),
        ("of unknown use", json!({"metadata": {"annotations": {annotation::LAST_ACTIVITY: null}}})),
        ("starting", json!({"status": {"conditions": []}})),
        (
            "just woken",
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "",
                "lastTransitionTime": "2026-01-01T01:30:00Z", "observedGeneration": 4}]}}),
        ),
        ("running again, with the conditions of before", json!({"metadata": {"generation": 5}})),
    ] {
        assert_eq!(written(more, "2026-01-01T02:00:00Z"), None, "{what}");
    }
}

#[test]
fn template_may_set_the_idle_timeout() {
    let more = json!({
        "metadata": {"annotations": {annotation::SUSPEND_AFTER: null}},
        "spec": {"podTemplate": {"metadata": {"annotations": {annotation::SUSPEND_AFTER: "30m"}}}},
    });
    assert_eq!(written(more.clone(), "2026-01-01T00:39:59Z"), None);
    assert!(written(more, "2026-01-01T00:40:00Z").is_some());
}

#[test]
fn sandbox_wakes_at_its_time() {
    let sleeping = |at: &str| json!({"spec": {"operatingMode": "Suspended"}, "metadata": {"annotations": {annotation::WAKE_AT: at}}});
    let morning = "2026-01-02T08:00:00+02:00";
    assert_eq!(written(sleeping(morning), "2026-01-02T05:59:59Z"), None);
    let patch = written(sleeping(morning), "2026-01-02T06:00:00Z").unwrap();
    let awake = patched(observed(sleeping(morning)).sandbox.as_ref(), &patch);
    assert_eq!(serde_json::to_value(awake.spec.operating_mode).unwrap(), "Running");
    assert!(!awake.annotations().contains_key(annotation::WAKE_AT));
    let bad = observed(sleeping("tomorrow"));
    assert_eq!(next(&bad), Next::Never);
    assert!(invalid(&bad.sandbox).unwrap().contains("tomorrow"));
    let mut over = sleeping(morning);
    over["spec"]["shutdownTime"] = json!("2026-01-02T00:00:00Z");
    assert_eq!(written(over, "2026-01-02T06:00:00Z"), None, "its time is up");
}
