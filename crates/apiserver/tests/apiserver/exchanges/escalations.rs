//! Roles and bindings that grant more than their author holds.

use serde_json::{Value, json};

use super::Caller::{self, User};
use super::Exchange;
use super::setup::{binding, place, role, rule};

pub(super) fn all() -> Vec<Exchange> {
    let create = |caller: Caller, detail: &str, object: Value| {
        Exchange::new(caller, "POST", format!("{}?dryRun=All", place(&object)), object).named(detail)
    };
    let patch = |caller: Caller, path: &str, body: Value| {
        Exchange::new(caller, "PATCH", format!("/apis/rbac.authorization.k8s.io/v1/{path}?dryRun=All"), body)
    };
    let (adam, rolf, esca, bindy) =
        (User("adam", &[]), User("rolf", &[]), User("esca", &[]), User("bindy", &[]));
    let roler = User("rolf", &["devs"]);
    let pods = || json!([rule(&[""], &["pods"], &["get", "list"])]);
    let inside = |name: &str, role: (&str, &str)| binding("team-a", name, role, "User:x");
    let named = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["a", "b"]}]);
    vec![
        create(adam, "what he holds", role("team-a", "r", pods())).showing("/rules"),
        create(adam, "elsewhere", role("team-b", "r", pods())),
        create(
            adam,
            "nodes",
            role("team-a", "r", json!([rule(&[""], &["nodes", "pods"], &["get", "list"])])),
        ),
        create(adam, "everything", role("team-a", "r", json!([rule(&["*"], &["*"], &["*"])]))),
        create(adam, "a quote", role("team-a", "r", json!([rule(&["a\"b"], &["x/y"], &["é"])]))),
        create(rolf, "pods", role("", "r", pods())),
        create(
            rolf,
            "own rules",
            role("", "r", json!([rule(&["rbac.authorization.k8s.io"], &["roles"], &["get", "bind"])])),
        )
        .showing("/rules"),
        create(
            rolf,
            "paths",
            role("", "r", json!([{"nonResourceURLs": ["/version", "/metrics"], "verbs": ["get", "post"]}])),
        ),
        create(rolf, "names", role("team-a", "r", named)),
        create(
            roler,
            "of a group",
            role("team-a", "r", json!([rule(&[""], &["configmaps", "secrets"], &["get", "list"])])),
        ),
        create(rolf, "invalid as well", role("team-a", "r", json!([rule(&[""], &["pods"], &["get"]), {}]))),
        create(rolf, "aggregation", {
            let mut role = role("", "r", json!([]));
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
            role
        }),
        create(rolf, "no such namespace", role("nowhere", "r", pods())),
        create(esca, "escalates", role("", "r", pods())).showing("/rules"),
        create(esca, "escalates everything", role("team-a", "r", json!([rule(&["*"], &["*"], &["*"])])))
            .showing("/rules"),
        patch(
            rolf,
            "namespaces/team-a/roles/config-reader",
            json!({"rules": [rule(&[""], &["secrets"], &["get"])]}),
        ),
        patch(rolf, "namespaces/team-a/roles/config-reader", json!({"metadata": {"labels": {"a": "b"}}}))
            .named("a label"),
        patch(
            rolf,
            "namespaces/team-a/roles/config-reader",
            json!({"metadata": {"finalizers": ["example.com/x"]}}),
        )
        .named("a finalizer")
        .showing("/metadata/finalizers"),
        patch(adam, "namespaces/team-a/roles/config-reader", json!({"metadata": {"labels": {"a": "b"}}}))
            .named("a label")
            .showing("/metadata/labels"),
        patch(rolf, "clusterroles/view", json!({"aggregationRule": null})),
        create(adam, "binds what he holds", inside("b", ("ClusterRole", "edit"))).showing("/roleRef"),
        create(adam, "binds a role", inside("b", ("Role", "config-reader"))).showing("/roleRef"),
        create(adam, "binds more", inside("b", ("ClusterRole", "metrics-reader"))),
        create(adam, "binds cluster-admin", inside("b", ("ClusterRole", "cluster-admin"))),
        create(adam, "binds nothing", inside("b", ("ClusterRole", "nothing"))),
        create(adam, "binds no role", inside("b", ("Role", "nothing"))),
        create(adam, "binds a Pod", inside("b", ("Pod", "nothing"))),
        create(rolf, "binds view to all", binding("", "b", ("ClusterRole", "log-reader"), "User:rolf")),
        create(bindy, "may bind view", binding("", "b", ("ClusterRole", "view"), "User:x"))
            .showing("/roleRef"),
        create(bindy, "may bind view inside", inside("b", ("ClusterRole", "view"))).showing("/roleRef"),
        create(bindy, "may not bind others", inside("b", ("ClusterRole", "log-reader"))),
        patch(bindy, "clusterrolebindings/olga", json!({"subjects": [{"kind": "User", "name": "bindy"}]})),
        create(User("lotte", &[]), "may not create", inside("b", ("ClusterRole", "view"))),
        create(User("m", &["system:masters"]), "may all", inside("b", ("ClusterRole", "cluster-admin")))
            .showing("/roleRef"),
    ]
}
