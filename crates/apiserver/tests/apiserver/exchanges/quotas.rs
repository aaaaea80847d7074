//! Quotas and limit ranges.

use serde_json::{Value, json};

use super::Caller::{Admin, User};
use super::Exchange;

const PLACE: &str = "/api/v1/namespaces/bounded";

fn create(plural: &str, detail: &str, object: Value) -> Exchange {
    Exchange::new(Admin, "POST", format!("{PLACE}/{plural}"), object).named(detail)
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn quota(name: &str, hard: Value) -> Value {
    object("ResourceQuota", name, json!({"hard": hard}))
}

fn pod(name: &str, resources: Value) -> Value {
    object("Pod", name, json!({"containers": [{"name": "c", "image": "i", "resources": resources}]}))
}

fn claim(name: &str, storage: &str) -> Value {
    object(
        "PersistentVolumeClaim",
        name,
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}),
    )
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})
}

fn used(name: &str, detail: &str) -> Exchange {
    let path = format!("{PLACE}/resourcequotas/{name}");
    Exchange::new(Admin, "GET", path, Value::Null).named(detail).showing("/status").settling()
}

fn delete(path: &str) -> Exchange {
    Exchange::new(Admin, "DELETE", format!("{PLACE}/{path}?gracePeriodSeconds=0"), Value::Null)
}

fn sandbox(name: &str) -> Exchange {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let body = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name}, "spec": spec});
    let path = "/apis/agents.x-k8s.io/v1beta1/namespaces/bounded/sandboxes";
    Exchange::new(Admin, "POST", path, body).named(name)
}

fn quotas() -> Vec<Exchange> {
    let requests = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
    let service =
        |name: &str, kind: &str| object("Service", name, json!({"type": kind, "ports": [{"port": 80}]}));
    vec![
        create(
            "resourcequotas",
            "objects",
            quota(
                "objects",
                json!({"count/secrets": "2", "secrets": "5", "services": "2",
            "services.nodeports": "1", "persistentvolumeclaims": "2", "requests.storage": "3Gi", "count/sandboxes.agents.x-k8s.io": "1"}),
            ),
        ),
        used("objects", "at first"),
        create("secrets", "first", secret("a")),
        create("secrets", "second", secret("b")),
        create("secrets", "beyond", secret("c")),
        Exchange::new(Admin, "POST", format!("{PLACE}/secrets?dryRun=All"), secret("c")),
        Exchange::new(User("m", &["system:masters"]), "POST", format!("{PLACE}/secrets"), secret("c")),
        used("objects", "with secrets"),
        delete("secrets/a"),
        used("objects", "without one"),
        create("secrets", "again", secret("c")),
        create("services", "plain", service("s", "ClusterIP")),
        create("services", "node port", service("n", "NodePort")),
        create("services", "beyond", service("x", "ClusterIP")),
        create("persistentvolumeclaims", "small", claim("small", "1Gi")),
        create("persistentvolumeclaims", "large", claim("large", "2.5Gi")),
        create("persistentvolumeclaims", "fits", claim("fits", "512Mi")),
        create("persistentvolumeclaims", "third", claim("third", "1Mi")),
        used("objects", "of all kinds"),
        sandbox("one"),
        used("objects", "with a sandbox"),
        sandbox("two"),
        delete("resourcequotas/objects"),
        create(
            "resourcequotas",
            "compute",
            quota("compute", json!({"pods": "3", "requests.cpu": "1", "limits.memory": "1Gi"})),
        ),
        used("compute", "at first"),
        create("pods", "says nothing", pod("none", json!({}))),
        create("pods", "says half", pod("half", requests("1", "1Gi"))),
        create(
            "pods",
            "fits",
            pod("p1", json!({"requests": {"cpu": "600m"}, "limits": {"memory": "512Mi"}})),
        ),
        create(
            "pods",
            "too much cpu",
            pod("p2", json!({"requests": {"cpu": "0.5"}, "limits": {"memory": "256Mi"}})),
        ),
        create(
            "pods",
            "too much of both",
            pod("p2", json!({"requests": {"cpu": "500m"}, "limits": {"memory": "0.75Gi"}})),
        ),
        create(
            "pods",
            "limits are requests",
            pod("p3", json!({"limits": {"cpu": "400m", "memory": "512Mi"}})),
        ),
        used("compute", "full"),
        delete("pods/p1"),
        used("compute", "half empty"),
        delete("pods/p3"),
        delete("resourcequotas/compute"),
    ]
}

fn limits() -> Vec<Exchange> {
    let limit = |name: &str, limits: Value| object("LimitRange", name, json!({"limits": limits}));
    let dry = |detail: &str, resources: Value| {
        Exchange::new(Admin, "POST", format!("{PLACE}/pods?dryRun=All"), pod("p", resources)).named(detail)
    };
    let show = "/spec/containers/0/resources";
    vec![
        create(
            "limitranges",
            "containers",
            limit(
                "containers",
                json!([{"type": "Container", "max": {"cpu": "2", "memory": "1Gi"},
            "min": {"cpu": "100m"}, "default": {"memory": "512Mi"}, "defaultRequest": {"cpu": "250m"}}]),
            ),
        )
        .showing("/spec")
        .settling(),
        dry("defaults", json!({})).showing(show),
        dry("note", json!({})).named("annotation").showing("/metadata/annotations"),
        dry("own request", json!({"requests": {"cpu": "500m"}})).showing(show),
        dry("too much", json!({"limits": {"memory": "2Gi"}})),
        dry("too little", json!({"requests": {"cpu": "50m"}})),
        dry("too much and too little", json!({"requests": {"cpu": "50m"}, "limits": {"memory": "2Gi"}})),
        delete("limitranges/containers"),
        create(
            "limitranges",
            "ratio",
            limit("ratio", json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}])),
        )
        .settling(),
        dry("ratio of three", json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}})),
        dry("ratio of two", json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}})).showing(show),
        dry("no ratio", json!({"requests": {"cpu": "100m"}})),
        delete("limitranges/ratio"),
        create(
            "limitranges",
            "pods",
            limit(
                "pods",
                json!([{"type": "Pod", "max": {"cpu": "1"}}, {"type": "PersistentVolumeClaim",
            "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]),
            ),
        )
        .settling(),
        dry("pod without a limit", json!({})),
        dry("pod beyond the limit", json!({"limits": {"cpu": "1500m"}})),
        create("persistentvolumeclaims", "too small", claim("x", "1Mi")),
        create("persistentvolumeclaims", "too large", claim("x", "3Gi")),
        delete("limitranges/pods"),
    ]
}

pub(super) fn all() -> Vec<Exchange> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bounded"}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let first = vec![
        Exchange::new(Admin, "POST", "/api/v1/namespaces", namespace).settling(),
        // A real server's controller may have been quicker.
        Exchange::new(Admin, "POST", format!("{PLACE}/serviceaccounts?dryRun=All"), account).settling(),
    ];
    [first, quotas(), limits()].concat()
}
