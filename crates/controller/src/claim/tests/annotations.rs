//! Annotations of a claim.

use super::*;

#[test]
fn missing_and_wrong_annotations_are_patched() {
    use super::annotate::{Pass, patch};
    let (first, then) = ("2026-01-01T00:09:00Z", now());
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "X", "message": "", "lastTransitionTime": first}]}});
    let launched =
        |how: &str| pooled("p-1", json!({"metadata": {"labels": {"agents.x-k8s.io/launch-type": how}}}));
    let (warm, cold) = (launched("warm"), launched("cold"));
    let with = |more: Value, status: &str| {
        let mut more = more;
        json_patch::merge(&mut more, &ready(status));
        claim(more)
    };
    let seen_at = "agents.x-k8s.io/controller-first-observed-at";
    let ready_at = "agents.x-k8s.io/claim-first-ready-at";
    let record = "agents.x-k8s.io/sandbox-name";
    let all = json!({seen_at: first, ready_at: "2026-01-01T00:10:00Z", record: "p-1"});
    let done = json!({"metadata": {"annotations": {seen_at: "x", ready_at: "x", record: "p-1"}}});
    let old_label =
        json!({"metadata": {"labels": {record: "p-1"}, "annotations": {seen_at: "x", ready_at: "x"}}});
    let stale = json!({"metadata": {"annotations": {seen_at: "x", ready_at: "x", record: "gone"}}});
    type Case<'a> = (&'a str, Value, &'a str, &'a str, Option<&'a Arc<Sandbox>>, bool, Value);
    let cases: [Case<'_>; 10] = [
        ("warm", json!({}), "False", "True", Some(&warm), true, json!({"annotations": all})),
        (
            "cold",
            json!({}),
            "False",
            "True",
            Some(&cold),
            true,
            json!({"annotations": {seen_at: first, ready_at: "2026-01-01T00:10:00Z"}}),
        ),
        (
            "no times wanted",
            json!({}),
            "False",
            "True",
            Some(&warm),
            false,
            json!({"annotations": {record: "p-1"}}),
        ),
        (
            "was Ready before",
            json!({}),
            "True",
            "True",
            Some(&cold),
            true,
            json!({"annotations": {seen_at: first, ready_at: "unknown"}}),
        ),
        ("not Ready yet", json!({}), "False", "False", Some(&warm), true, Value::Null),
        ("has to wait", json!({}), "False", "False", None, true, json!({"annotations": {seen_at: first}})),
        ("all there", done.clone(), "True", "True", Some(&warm), true, Value::Null),
        (
            "an old record",
            old_label,
            "True",
            "True",
            Some(&warm),
            true,
            json!({"annotations": {record: "p-1"}, "labels": {record: null}}),
        ),
        (
            "a stale record",
            stale.clone(),
            "True",
            "True",
            Some(&cold),
            true,
            json!({"annotations": {record: null}}),
        ),
        ("another one", stale, "True", "True", Some(&warm), true, json!({"annotations": {record: "p-1"}})),
    ];
    for (name, more, before, after, sandbox, times, expected) in cases {
        let (before, after) = (with(more.clone(), before), with(more, after));
        let pass = Pass { before: &before, after: &after, sandbox: sandbox.map(Arc::as_ref) };
        let expected = (!expected.is_null()).then(|| json!({ "metadata": expected }));
        let ready = (!is_ready(&before) && is_ready(&after)).then_some(then);
        let times = times.then(|| Times { seen: first.parse().unwrap(), ready });
        assert_eq!(patch(&pass, times), expected, "{name}");
    }
}
