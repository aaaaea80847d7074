use super::*;
use serde_json::{Value, json};

fn target() -> Target {
    Target { namespace: "n".into(), id: "a".into(), port: 1, pod_ip: None, uid: None, timeout: None }
}

fn sandbox(metadata: Value) -> Named {
    let mut all = json!({"name": "a", "namespace": "n", "uid": "s"});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": all,
        "spec": {"podTemplate": {"spec": {"containers": []}}}
    }))
    .unwrap()
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "ownerReferences": [
            {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "a", "uid": "s", "controller": true}]},
        "status": {"podIP": "10.89.0.7", "podIPs": [{"ip": "10.89.0.7"}, {"ip": "fd00::7"}],
            "conditions": [{"type": "Ready", "status": "True"}]}
    })
}

fn found(target: &Target, sandbox: &Named, pod: Value) -> Result<Backend, Unresolved> {
    backend(target, sandbox, Some(&serde_json::from_value(pod).unwrap()))
}

#[test]
fn the_sandboxs_own_ready_pod_is_reached() {
    let backend = found(&target(), &sandbox(json!({})), pod()).unwrap();
    assert_eq!(backend.pod, PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() });
    assert_eq!(backend.ips, ["10.89.0.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]);
    let named = Target { uid: Some("s".into()), ..target() };
    assert!(found(&named, &sandbox(json!({})), pod()).is_ok());
}

#[test]
fn other_or_unready_pods_are_not_reached() {
    for (pointer, value) in [
        ("/metadata/ownerReferences/0/uid", json!("other")),
        ("/metadata/ownerReferences/0/controller", json!(false)),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ("/status/conditions/0/status", json!("False")),
        ("/status/conditions/0/type", json!("Initialized")),
        ("/status", json!({"conditions": [{"type": "Ready", "status": "True"}]})),
    ] {
        let mut pod = pod();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { Some(&mut pod) } else { pod.pointer_mut(parent) };
        parent.unwrap()[key] = value;
        let result = found(&target(), &sandbox(json!({})), pod);
        assert!(matches!(result, Err(Unresolved::NotReady)), "{pointer}");
    }
    assert!(matches!(backend(&target(), &sandbox(json!({})), None), Err(Unresolved::NotReady)));
}

#[test]
fn pooled_sandboxes_and_other_uids_are_not_reached() {
    let owner = |kind: &str, group: &str| json!({"ownerReferences": [{"apiVersion": format!("{group}/v1beta1"), "kind": kind, "name": "o", "uid": "o", "controller": true}]});
    let pooled = sandbox(owner("SandboxWarmPool", "extensions.agents.x-k8s.io"));
    assert!(matches!(found(&target(), &pooled, pod()), Err(Unresolved::Pooled)));
    for (kind, group) in [("SandboxClaim", "extensions.agents.x-k8s.io"), ("SandboxWarmPool", "else.example")]
    {
        assert!(found(&target(), &sandbox(owner(kind, group)), pod()).is_ok(), "{kind} {group}");
    }
    let other = Target { uid: Some("other".into()), ..target() };
    assert!(matches!(found(&other, &sandbox(json!({})), pod()), Err(Unresolved::Unknown)));
}

#[test]
fn the_pod_name_comes_from_annotation_or_sandbox() {
    assert_eq!(pod_name(&sandbox(json!({}))), "a");
    assert_eq!(pod_name(&sandbox(json!({"annotations": {"agents.x-k8s.io/pod-name": "p"}}))), "p");
    assert_eq!(pod_name(&sandbox(json!({"annotations": {"agents.x-k8s.io/pod-name": ""}}))), "a");
}
#[test]
fn pods_alone_reaches_claimed_pods_of_that_owner() {
    let of = |pod: Value| alone(&target(), Some(&serde_json::from_value(pod).unwrap()));
    assert_eq!(of(pod()).unwrap().sandbox, "s");
    let mut pooled = pod();
    pooled["metadata"]["labels"] = json!({"agents.x-k8s.io/warm-pool-sandbox": "h"});
    assert!(matches!(of(pooled), Err(Unresolved::Pooled)));
    for (key, value) in [("kind", "Job"), ("apiVersion", "agents.example/v1"), ("name", "b")] {
        let mut other = pod();
        other["metadata"]["ownerReferences"][0][key] = json!(value);
        assert!(matches!(of(other), Err(Unresolved::Unknown)), "{key}");
    }
    let wanted = Target { uid: Some("t".into()), ..target() };
    assert!(matches!(alone(&wanted, serde_json::from_value(pod()).ok().as_ref()), Err(Unresolved::Unknown)));
    assert!(matches!(alone(&target(), None), Err(Unresolved::Unknown)));
}
