//! Requests of callers with different roles.

use serde_json::{Value, json};

use super::Caller::{self, Anonymous, Bot, Stranger, User};
use super::Exchange;

const A: &str = "/api/v1/namespaces/team-a";
const AGENTS: &str = "/apis/agents.x-k8s.io/v1beta1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// Requests that change nothing.
fn matrix() -> Vec<(&'static str, String, Value)> {
    let dry = |path: &str| format!("{path}?dryRun=All");
    let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "s"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    vec![
        ("GET", format!("{A}/pods"), Value::Null),
        ("GET", format!("{A}/pods?watch=1&timeoutSeconds=1"), Value::Null),
        ("GET", format!("{A}/pods/p"), Value::Null),
        ("GET", format!("{A}/pods/p/log"), Value::Null),
        ("POST", format!("{A}/pods/p/exec?command=ls"), Value::Null),
        ("GET", format!("{A}/secrets"), Value::Null),
        ("GET", format!("{A}/configmaps/one"), Value::Null),
        ("POST", dry(&format!("{A}/configmaps")), config_map("new")),
        ("PUT", dry(&format!("{A}/configmaps/one")), config_map("one")),
        ("DELETE", dry(&format!("{A}/configmaps/one")), Value::Null),
        ("DELETE", dry(&format!("{A}/configmaps")), Value::Null),
        ("GET", "/api/v1/namespaces/team-b/pods".into(), Value::Null),
        ("GET", "/api/v1/pods".into(), Value::Null),
        ("GET", "/api/v1/nodes".into(), Value::Null),
        ("GET", A.into(), Value::Null),
        ("DELETE", dry("/api/v1/namespaces/team-b"), Value::Null),
        ("GET", format!("{AGENTS}/namespaces/team-a/sandboxes"), Value::Null),
        ("POST", dry(&format!("{AGENTS}/namespaces/team-a/sandboxes")), sandbox),
        ("GET", format!("{AGENTS}/namespaces/team-a/sandboxes/s/status"), Value::Null),
        ("GET", format!("{AGENTS}/sandboxes"), Value::Null),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/team-a/deployments/d/scale".into(),
            json!({"spec": {"replicas": 1}}),
        ),
        ("GET", format!("{RBAC}/namespaces/team-a/roles"), Value::Null),
        ("GET", format!("{RBAC}/clusterroles/view"), Value::Null),
        ("GET", "/apis/nothing.example.com/v1/things/x".into(), Value::Null),
        ("GET", "/version".into(), Value::Null),
        ("GET", "/healthz".into(), Value::Null),
        ("GET", "/api".into(), Value::Null),
        ("GET", "/apis/apps/v1".into(), Value::Null),
        ("POST", "/version".into(), Value::Null),
    ]
}

/// Requests of one caller each.
fn single() -> Vec<Exchange> {
    let get = |caller: Caller, path: &str| Exchange::new(caller, "GET", path, Value::Null);
    let (olga, sven, mia, lotte) =
        (User("olga", &[]), User("sven", &[]), User("mia", &[]), User("lotte", &[]));
    let dev = User("dana", &["devs"]);
    vec![
        get(olga, &format!("{A}/pods/p")),
        get(olga, &format!("{A}/pods/p/log")),
        get(olga, &format!("{A}/pods/p/exec?command=ls")),
        get(olga, &format!("{A}/configmaps/one")),
        get(olga, &format!("{A}/configmaps/two")),
        get(olga, &format!("{A}/configmaps")),
        get(olga, &format!("{A}/configmaps?fieldSelector=metadata.name%3Done")),
        get(olga, &format!("{A}/configmaps?fieldSelector=metadata.name%3Dtwo")),
        get(olga, &format!("{A}/configmaps?watch=1&fieldSelector=metadata.name%3Done&timeoutSeconds=1")),
        Exchange::new(olga, "PUT", format!("{A}/configmaps/one?dryRun=All"), config_map("one")),
        Exchange::new(olga, "PUT", format!("{A}/configmaps/two?dryRun=All"), config_map("two")),
        get(sven, &format!("{A}/pods/p/status")),
        get(sven, &format!("{A}/pods/p")),
        get(sven, "/apis/apps/v1/namespaces/team-b/deployments/d/status"),
        get(sven, "/api/v1/nodes/n/status"),
        Exchange::new(sven, "PATCH", "/api/v1/nodes/n/status", json!({})),
        Exchange::new(sven, "PUT", "/api/v1/nodes/n/status", json!({})),
        get(mia, "/logs"),
        Exchange::new(mia, "DELETE", "/metrics", Value::Null),
        get(User("nobody", &[]), "/metrics"),
        get(User("nobody", &[]), "/%3Cscript%3E%26"),
        get(dev, &format!("{A}/configmaps")),
        get(dev, &format!("{A}/configmaps/one")),
        get(dev, &format!("{A}/secrets")),
        get(User("dana", &[]), &format!("{A}/configmaps")),
        get(Bot, &format!("{A}/configmaps")),
        get(Bot, "/api/v1/namespaces/team-b/configmaps"),
        Exchange::new(Bot, "POST", format!("{A}/configmaps"), config_map("new")),
        get(lotte, &format!("{A}/configmaps")),
        get(lotte, "/api/v1/nodes"),
        get(lotte, "/version"),
        get(User("m", &["system:masters"]), &format!("{A}/configmaps")),
        Exchange::new(
            User("patty", &[]),
            "APPLY",
            format!("{A}/configmaps/applied?fieldManager=t"),
            config_map("applied"),
        ),
        Exchange::new(
            User("patty", &[]),
            "APPLY",
            format!("{A}/configmaps/one?fieldManager=t&dryRun=All"),
            config_map("one"),
        ),
        Exchange::new(User("victor", &[]), "POST", format!("{A}/pods/p/eviction"), json!({})),
        Exchange::new(User("victor", &[]), "POST", format!("{A}/pods/p/binding"), json!({})),
        Exchange::new(User("victor", &[]), "POST", format!("{A}/pods/p/attach"), json!({})),
        Exchange::new(User("victor", &[]), "POST", format!("{A}/pods/p/portforward"), json!({})),
        Exchange::new(User("victor", &[]), "GET", format!("{A}/pods/p/proxy/x/y"), Value::Null),
        Exchange::new(User("victor", &[]), "POST", format!("{A}/serviceaccounts/bot/token"), json!({})),
        Exchange::new(User("victor", &[]), "PUT", format!("{A}/finalize"), json!({})),
        Exchange::new(User("victor", &[]), "PUT", format!("{A}/status"), json!({})),
        Exchange::new(User("victor", &[]), "OPTIONS", format!("{A}/pods"), Value::Null),
    ]
}

pub(super) fn all() -> Vec<Exchange> {
    let callers = [
        User("alice", &[]),
        User("victor", &[]),
        User("adam", &[]),
        User("nobody", &[]),
        Bot,
        Anonymous,
        Stranger,
    ];
    let mut exchanges = Vec::new();
    for caller in callers {
        let requests = matrix().into_iter();
        exchanges.extend(requests.map(|(method, path, body)| Exchange::new(caller, method, path, body)));
    }
    exchanges.extend(single());
    exchanges
}
