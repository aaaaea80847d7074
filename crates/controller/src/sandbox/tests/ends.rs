//! The end of a Sandbox.

use super::*;

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
    let first = observed(sandbox(over.clone()), &up, Some(service(json!({}))));
    assert_eq!(steps(&first), [""; 0], "first it is reported");
    assert_eq!(plan(&first, now()).stage, Stage::Expiring);
    assert_eq!(says(&first, Stage::Expiring, &[], "Ready"), "False/SandboxExpired/Sandbox has expired");
    assert_eq!(says(&first, Stage::Expiring, &[], "PodScheduled"), "absent");

    let retained = observed(sandbox(announced("Retain")), &up, Some(service(json!({}))));
    assert_eq!(steps(&retained), ["delete pod s", "delete service"]);
    let status = status(&retained, Stage::Retained, &[], DOMAIN, now());
    assert_eq!((status.selector, status.pod_ips, status.conditions.unwrap().len()), (None, None, 2));

    let foreign = json!({"metadata": {"ownerReferences": theirs()}});
    let spared = observed(
        sandbox(announced("Retain")),
        &[pod("s", foreign)],
        Some(service(json!({"metadata": {"ownerReferences": null}}))),
    );
    assert_eq!(steps(&spared), [""; 0], "what is not ours stays");

    let both = [pod("s", running()), pod("other", running())];
    let several = observed(sandbox(announced("Retain")), &both, None);
    assert_eq!(steps(&several), ["delete pod s", "delete pod other"], "nothing runs on");

    let deleted = observed(sandbox(announced("Delete")), &up, None);
    assert_eq!(steps(&deleted), ["delete pod s", "delete sandbox"]);

    let mut extended = announced("Retain");
    extended["spec"]["shutdownTime"] = json!("2026-01-01T00:10:01Z");
    assert_eq!(
        steps(&observed(sandbox(extended), &[], None)),
        ["create pod s", "note own name"],
        "it lives again"
    );
}

#[test]
fn extreme_ends_are_bounded() {
    for (end, stage) in [("0001-01-01T00:00:00Z", Stage::Expiring), ("9999-12-31T23:59:59Z", Stage::Live)] {
        let sandbox = sandbox(json!({"spec": {"shutdownTime": end}}));
        let wait = expiry::remaining(&sandbox, now()).unwrap();
        assert!(wait <= std::time::Duration::from_secs(60), "{wait:?}");
        assert_eq!(plan(&observed(sandbox, &[], None), now()).stage, stage, "{end}");
    }
}
