use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::fixture::owned_by;

const CORE: &str = "agents.x-k8s.io/v1beta1";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";

/// Builds a context without a server.
fn alone() -> Context {
    let service = tower::service_fn(|_: http::Request<Body>| async {
        Err::<http::Response<Body>, _>(std::io::Error::other("there is no server"))
    });
    let client = Client::new(service, "default");
    let (recorder, _) = crate::record::recorder(client.clone(), crate::REPORTER);
    Context::new(&client, Config::default(), recorder)
}

fn metadata(kind: &str, name: &str, owner: Value) -> Value {
    let fields = json!({"f:metadata": {"f:labels": {"f:a": {}, "f:b": {}}}, "f:spec": {"f:containers": {"f:image": {}}}});
    json!({
        "name": name, "namespace": "default", "uid": format!("0b2e2f0c-7a43-4e3d-8f6d-{kind}{name}"), "generation": 1,
        "resourceVersion": "123456", "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": owner,
        "labels": {
            label::SANDBOX_NAME_HASH: "374de8f5", label::TEMPLATE_REF_HASH: "374de8f5", label::WARM_POOL_SANDBOX: "00375482",
            label::CREATED_BY: "controller", label::LAUNCH_TYPE: "warm", label::TEMPLATE_HASH: "811c9dc5",
        },
        "annotations": {annotation::POD_NAME: name, annotation::TEMPLATE_REF: "python",
            "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(2000)},
        "managedFields": [{"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}],
    })
}

fn pod_spec() -> Value {
    json!({
        "automountServiceAccountToken": false, "dnsPolicy": "None", "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]},
        "containers": [{
            "name": "python", "image": "registry.example.com/python-runtime:1.2.3", "ports": [{"containerPort": 8888, "protocol": "TCP"}],
            "env": [{"name": "A", "value": "1"}], "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
        }],
    })
}

fn condition(kind: &str, reason: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": "a message of some length",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1})
}

fn sandbox(name: &str) -> Value {
    json!({
        "apiVersion": CORE, "kind": "Sandbox", "metadata": metadata("s", name, owned_by(EXTENSIONS, "SandboxWarmPool", "python")),
        "spec": {"operatingMode": "Running", "shutdownPolicy": "Retain", "podTemplate": {"spec": pod_spec()}},
        "status": {"podIPs": ["10.1.2.3"], "nodeName": "node-1", "selector": "agents.x-k8s.io/sandbox-name-hash=374de8f5",
            "conditions": [condition("Suspended", "NotSuspended"), condition("PodScheduled", "PodScheduled"), condition("Ready", "DependenciesReady")]},
    })
}

fn pod(name: &str) -> Value {
    let mut spec = pod_spec();
    spec["nodeName"] = "node-1".into();
    spec["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata("p", name, owned_by(CORE, "Sandbox", name)), "spec": spec,
        "status": {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}], "hostIP": "10.0.0.1", "qosClass": "Burstable",
            "conditions": kinds.map(|kind| condition(kind, "Some")),
            "containerStatuses": [{"name": "python", "ready": true, "restartCount": 0, "image": "i", "imageID": "sha256:0",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
    })
}

/// Memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("with its memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<usize>().ok()).expect("in kB") * 1024
}

#[tokio::test]
async fn unused_fields_are_not_cached() {
    let ctx = alone();
    let key = Key::new("default", "a");
    ctx.sandboxes.insert(serde_json::from_value(sandbox("a")).unwrap());
    ctx.sandboxes.insert(serde_json::from_value(sandbox("b")).unwrap());
    ctx.pods.insert(serde_json::from_value(pod("a")).unwrap());
    let (a, b) = (ctx.sandboxes.get(&key).unwrap(), ctx.sandboxes.get(&key.beside("b")).unwrap());
    assert!(a.metadata.managed_fields.is_none());
    assert_eq!(
        a.annotations().keys().map(String::as_str).collect::<Vec<_>>(),
        [annotation::POD_NAME, annotation::TEMPLATE_REF]
    );
    assert!(Arc::ptr_eq(&a.spec.pod_template.spec, &b.spec.pod_template.spec), "one template, one spec");
    assert_eq!(a.spec.pod_template.spec.containers[0].name, "python");
    let status = ctx.pods.get(&key).unwrap().status.clone().unwrap();
    let kinds: Vec<_> = status.conditions.unwrap().into_iter().map(|condition| condition.type_).collect();
    assert_eq!(kinds, ["Ready", "PodScheduled"]);
}

/// Measures the whole process, so it runs alone: `cargo test -p hutch-controller --lib -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "measures the memory of the process, which other tests change"]
async fn ten_thousand_sandboxes_cost_less_than_a_hundred_megabytes() {
    const COUNT: usize = 10_000;
    const MOST: usize = 100 << 20;
    let ctx = alone();
    let texts = |name: &str| (sandbox(name).to_string(), pod(name).to_string());
    let before = resident();
    for n in 0..COUNT {
        let (sandbox, pod) = texts(&format!("python-{n:05}"));
        ctx.sandboxes.insert(serde_json::from_str(&sandbox).unwrap());
        ctx.pods.insert(serde_json::from_str(&pod).unwrap());
    }
    let grown = resident() - before;
    println!("{COUNT} Sandboxes with their Pods: {} MiB, {} bytes each", grown >> 20, grown / COUNT);
    assert!(grown < MOST, "{grown} bytes");
}

#[test]
fn bound_claim_with_pod_metadata_is_indexed_by_pool() {
    let mut claim = json!({
        "apiVersion": EXTENSIONS, "kind": "SandboxClaim", "metadata": {"name": "c", "namespace": "d"},
        "spec": {"warmPoolRef": {"name": "p"}}, "status": {"sandbox": {"name": "s"}},
    });
    let terms = |claim: &Value| claim_terms(&serde_json::from_value(claim.clone()).unwrap());
    assert_eq!(terms(&claim), [""; 0]);
    claim["spec"]["additionalPodMetadata"] = json!({"labels": {"a": "b"}});
    assert_eq!(terms(&claim), [metadata_term("d", "p")]);
    claim["status"] = json!({});
    assert_eq!(terms(&claim), [waiting_term("d", "p"), metadata_term("d", "p")]);
}
