//! The status of a Sandbox.

use super::*;

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
        let observed = observed(sandbox(more), &pods, has_service.then(|| service(json!({}))));
        assert_eq!(says(&observed, Stage::Live, &[], "Ready"), expected, "{name}");
    }
    let problems = [(Part::Volumes, "one".to_owned()), (Part::Pod, "two".to_owned())];
    let observed = observed(sandbox(json!({})), &[], None);
    assert_eq!(
        says(&observed, Stage::Live, &problems, "Ready"),
        "False/ReconcilerError/Error seen: one\ntwo"
    );
}

#[test]
fn the_other_conditions() {
    let foreign = json!({"metadata": {"ownerReferences": theirs()}});
    let problem = [(Part::Pod, "x".to_owned())];
    let see = |more: Value, pods: &[Arc<PodView>]| observed(sandbox(more), pods, None);
    let up = [pod("s", running())];
    for (observed, problems, kind, expected) in [
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
        assert_eq!(says(&observed, Stage::Live, problems, kind), expected);
    }
}

#[test]
fn fields_and_order_of_a_fresh_status() {
    let observed = observed(
        sandbox(json!({"spec": {"service": true}})),
        &[pod("s", running())],
        Some(service(json!({}))),
    );
    let status = serde_json::to_value(status(&observed, Stage::Live, &[], DOMAIN, now())).unwrap();
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
        let observed = observed(with(before), &[pod("s", running())], None);
        let status = status(&observed, Stage::Live, &[], DOMAIN, now());
        let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.last_transition_time.0.to_string(), expected);
    }
}

/// Intermediate steps may be deferred, all other changes not.
#[test]
fn intermediate_steps_may_be_deferred() {
    let of = |more: Value, pods: &[Arc<PodView>], service: Option<Arc<Service>>| {
        status(&observed(sandbox(more), pods, service), Stage::Live, &[], DOMAIN, now())
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
    let observed = observed(sandbox(json!({})), &[], None);
    let problem = [(Part::Pod, "x".to_owned())];
    let broken = status(&observed, Stage::Live, &problem, DOMAIN, now());
    assert!(!super::status::is_step(&nothing, &broken), "an error is reported at once");
}

#[test]
fn hostile_pod_conditions_are_sanitized() {
    let odd = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "no reason!", "message": "m".repeat(100_000)}]}});
    let observed = observed(sandbox(json!({})), &[pod("s", odd)], None);
    let said = says(&observed, Stage::Live, &[], "PodScheduled");
    assert!(said.starts_with("False/PodSchedulingUnknown/mmm"));
    assert!(said.len() < 33_000, "a status that the server takes");
}

#[test]
fn sandbox_says_why_its_snapshot_is_not_restored() {
    let at = |sandbox: Value, reason: &str| {
        let condition = json!({"type": "PodRestored", "status": "False", "reason": reason, "message": "runsc: bad image"});
        let more = json!({"status": {"phase": "Pending", "conditions": [condition]}});
        observed(super::sandbox(sandbox), &[patched(pod("s", running()).as_ref(), &more)], None)
    };
    let waits = at(json!({}), "RestoreFailed");
    assert_eq!(says(&waits, Stage::Live, &[], "Ready"), "False/RestoreFailed/runsc: bad image");
    assert_eq!(says(&waits, Stage::Live, &[], "Restored"), "absent");
    let anew = at(json!({}), "StartedAnew");
    assert_eq!(says(&anew, Stage::Live, &[], "Restored"), "False/StartedAnew/runsc: bad image");
    assert!(says(&anew, Stage::Live, &[], "Ready").starts_with("False/DependenciesNotReady"));
    let ends = at(suspended(), "RestoreFailed");
    assert!(says(&ends, Stage::Live, &[], "Ready").starts_with("False/SandboxSuspended"));
}
