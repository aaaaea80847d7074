//! Status of a claim.

use super::*;

#[test]
fn the_status_mirrors_the_sandbox() {
    let sandbox = pooled("p-1", json!({}));
    let bound = says(&claim(json!({})), &State::Bound(&sandbox));
    assert_eq!(bound["sandbox"], json!({"name": "p-1", "podIPs": ["10.0.0.1"]}));
    assert_eq!(
        bound["conditions"],
        json!([{"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "Pod is Ready",
            "lastTransitionTime": "2026-01-01T00:05:00Z", "observedGeneration": 1}])
    );
    let silent = pooled("p-1", json!({"status": null}));
    let said = says(&claim(json!({})), &State::Bound(&silent));
    assert_eq!(
        (&said["conditions"][0]["reason"], &said["conditions"][0]["message"]),
        (&json!("SandboxNotReady"), &json!("Sandbox is not ready"))
    );
    let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "False", "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 9});
    let ended = pooled(
        "p-1",
        json!({"status": {"conditions": [condition("Ready", "SandboxExpired"), condition("Finished", "PodFailed")]}}),
    );
    let said = says(&claim(json!({})), &State::Bound(&ended));
    assert_eq!(said["conditions"][0], condition("Finished", "PodFailed"), "copied as it is, sorted by type");
    assert_eq!(
        said["conditions"][1]["message"],
        "Underlying Sandbox resource has expired independently of the Claim."
    );
}

#[test]
fn error_keeps_the_sandbox_in_the_status() {
    let refusal = Refusal::no_template("t");
    let said = says(&claim(bound_to("p-1")), &State::Refused(&refusal));
    assert_eq!(said["sandbox"]["name"], "p-1");
    assert_eq!(said["conditions"][0]["reason"], "TemplateNotFound");
    let expired = says(&claim(bound_to("p-1")), &State::Expired { sandbox: None, problem: None });
    assert_eq!(
        (&expired["sandbox"], &expired["conditions"][0]["message"]),
        (&json!({}), &json!("Claim expired. Sandbox cleanup initiated."))
    );
}
