//! Objects that the exchanges need.

use serde_json::{Value, json};

use super::server::Server;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

pub(super) fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

/// A role, or a ClusterRole when it has no namespace.
pub(super) fn role(namespace: &str, name: &str, rules: Value) -> Value {
    let mut role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    if !namespace.is_empty() {
        role["kind"] = "Role".into();
        role["metadata"]["namespace"] = namespace.into();
    }
    role
}

/// A binding, or a ClusterRoleBinding when it has no namespace. The subject is `User:NAME`, `Group:NAME` or
/// `ServiceAccount:NAMESPACE:NAME`.
pub(super) fn binding(namespace: &str, name: &str, role: (&str, &str), subject: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    let subject = match subject.split(':').collect::<Vec<_>>()[..] {
        ["ServiceAccount", namespace, name] => {
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
        }
        [kind, name] => json!({"kind": kind, "apiGroup": group, "name": name}),
        _ => panic!("{subject} is a subject"),
    };
    let mut binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": role.0, "name": role.1}, "subjects": [subject]});
    if !namespace.is_empty() {
        binding["kind"] = "RoleBinding".into();
        binding["metadata"]["namespace"] = namespace.into();
    }
    binding
}

/// Path at which an object is created.
pub(super) fn place(object: &Value) -> String {
    let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{RBAC}/namespaces/{namespace}/{plural}"),
        None => format!("{RBAC}/{plural}"),
    }
}

/// The roles for the kinds of Agent Sandbox, which this server has from the start.
fn sandbox_roles() -> [Value; 2] {
    let (agents, extensions) = (["agents.x-k8s.io"], ["extensions.agents.x-k8s.io"]);
    let change = ["create", "delete", "deletecollection", "patch", "update"];
    let read = ["get", "list", "watch"];
    let mut edit = role(
        "",
        "agent-sandbox:aggregate-to-edit",
        json!([
            rule(&agents, &["sandboxes", "sandboxes/scale"], &change),
            rule(
                &extensions,
                &["sandboxclaims", "sandboxtemplates", "sandboxwarmpools", "sandboxwarmpools/scale"],
                &change
            ),
        ]),
    );
    edit["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-edit": "true"});
    let kinds = [
        "sandboxclaims",
        "sandboxclaims/status",
        "sandboxtemplates",
        "sandboxwarmpools",
        "sandboxwarmpools/scale",
        "sandboxwarmpools/status",
    ];
    let mut view = role(
        "",
        "agent-sandbox:aggregate-to-view",
        json!([
            rule(&agents, &["sandboxes", "sandboxes/scale", "sandboxes/status"], &read),
            rule(&extensions, &kinds, &read),
        ]),
    );
    view["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    [edit, view]
}

fn roles() -> Vec<Value> {
    let one = |name: &str, rule: Value| role("", name, json!([rule]));
    let mut named = rule(&[""], &["configmaps"], &["get", "update", "watch", "list"]);
    named["resourceNames"] = json!(["one"]);
    vec![
        role(
            "",
            "log-reader",
            json!([rule(&[""], &["pods/log"], &["get"]), rule(&[""], &["pods/exec"], &["get"]), named]),
        ),
        one("status-reader", rule(&["*"], &["*/status"], &["get", "patch"])),
        one("metrics-reader", json!({"nonResourceURLs": ["/metrics", "/logs/*"], "verbs": ["get"]})),
        one("impersonator", rule(&[""], &["users", "groups", "serviceaccounts"], &["impersonate"])),
        role(
            "",
            "narrow-impersonator",
            json!([
                {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["victor"]},
                {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"], "resourceNames": ["devs"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"], "resourceNames": ["view"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "verbs": ["impersonate"], "resourceNames": ["u-1"]},
            ]),
        ),
        role(
            "",
            "constrained-impersonator",
            json!([
                rule(&["authentication.k8s.io"], &["users", "groups"], &["impersonate:user-info"]),
                rule(&["authentication.k8s.io"], &["serviceaccounts"], &["impersonate:serviceaccount"]),
                rule(&["authentication.k8s.io"], &["nodes"], &["impersonate:arbitrary-node"]),
                rule(
                    &[""],
                    &["pods"],
                    &[
                        "impersonate-on:user-info:list",
                        "impersonate-on:serviceaccount:list",
                        "impersonate-on:arbitrary-node:list"
                    ]
                ),
            ]),
        ),
        one(
            "role-editor",
            rule(
                &["rbac.authorization.k8s.io"],
                &["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
                &["*"],
            ),
        ),
        one(
            "escalator",
            rule(
                &["rbac.authorization.k8s.io"],
                &["roles", "clusterroles"],
                &["create", "update", "patch", "escalate"],
            ),
        ),
        role(
            "",
            "binder",
            json!([
                rule(&["rbac.authorization.k8s.io"], &["rolebindings", "clusterrolebindings"], &["create", "update", "patch"]),
                {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": ["view"]},
            ]),
        ),
        one(
            "plain-writer",
            rule(&[""], &["configmaps", "secrets", "pods"], &["create", "update", "patch", "delete"]),
        ),
        one("patcher", rule(&[""], &["configmaps"], &["patch"])),
        role("team-a", "config-reader", json!([rule(&[""], &["configmaps"], &["get", "list"])])),
    ]
}

fn bindings() -> Vec<Value> {
    let all = |name: &str, role: &str, subject: &str| binding("", name, ("ClusterRole", role), subject);
    let inside = |role: &str, subject: &str| {
        let name = format!("{}-{role}", subject.rsplit(':').next().unwrap_or_default());
        binding("team-a", &name, ("ClusterRole", role), subject)
    };
    vec![
        inside("edit", "User:alice"),
        inside("view", "User:victor"),
        inside("admin", "User:adam"),
        all("olga", "log-reader", "User:olga"),
        all("sven", "status-reader", "User:sven"),
        all("mia", "metrics-reader", "User:mia"),
        all("imani", "impersonator", "User:imani"),
        all("nora", "narrow-impersonator", "User:nora"),
        all("conny", "constrained-impersonator", "User:conny"),
        all("rolf", "role-editor", "User:rolf"),
        all("esca", "escalator", "User:esca"),
        all("bindy", "binder", "User:bindy"),
        inside("plain-writer", "User:wanda"),
        inside("patcher", "User:patty"),
        binding("team-a", "devs", ("Role", "config-reader"), "Group:devs"),
        binding("team-a", "bot", ("Role", "config-reader"), "ServiceAccount:team-a:bot"),
        all("lost", "nothing", "User:lotte"),
        binding("team-a", "lost", ("Role", "nothing"), "User:lotte"),
    ]
}

/// Creates everything and waits until the roles are aggregated.
pub(super) async fn run(server: &Server) {
    let create = async |path: &str, object: Value| {
        for _ in 0..200 {
            let (code, body) = server.admin("POST", path, object.clone()).await;
            if code == 201 || code == 409 {
                return;
            }
            assert!(code == 404 || code == 403, "{path}: {body}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("{path}: {object}");
    };
    for name in ["team-a", "team-b"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create("/api/v1/namespaces", namespace).await;
    }
    for (namespace, name) in [("team-a", "bot"), ("team-a", "gone"), ("team-b", "default")] {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), account).await;
    }
    for object in sandbox_roles().into_iter().chain(roles()).chain(bindings()) {
        create(&place(&object), object).await;
    }
    for name in ["one", "two"] {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        create("/api/v1/namespaces/team-a/configmaps", map).await;
    }
    for _ in 0..400 {
        let (_, admin) = server.admin("GET", &format!("{RBAC}/clusterroles/admin"), Value::Null).await;
        if admin.to_string().contains("sandboxwarmpools/status") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let (code, token) =
        server.admin("POST", "/api/v1/namespaces/team-a/serviceaccounts/bot/token", request).await;
    assert_eq!(code, 201, "{token}");
    server.set_bot(token["status"]["token"].as_str().expect("a token"));
    server.settle().await;
    server.settle().await;
}
