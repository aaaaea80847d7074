//! Checks of roles and bindings. Each is a dry run.

use serde_json::{Value, json};

use super::Caller::Admin;
use super::Exchange;
use super::setup::{binding, place, role, rule};

fn create(detail: &str, object: Value) -> Exchange {
    Exchange::new(Admin, "POST", format!("{}?dryRun=All", place(&object)), object).named(detail)
}

fn changed(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    let parent = object.pointer_mut(parent).expect("a parent");
    match parent {
        Value::Array(list) => list[field.parse::<usize>().expect("an index")] = value,
        other => other[field] = value,
    }
    object
}

pub(super) fn all() -> Vec<Exchange> {
    let pods = || rule(&[""], &["pods"], &["get"]);
    let named = |rules: Value| role("team-a", "r", rules);
    let cluster = |rules: Value| role("", "r", rules);
    let bound = || binding("team-a", "b", ("Role", "r"), "User:x");
    let all_bound = || binding("", "b", ("ClusterRole", "r"), "User:x");
    let aggregating = |rule: Value| changed(cluster(json!([])), "/aggregationRule", rule);
    vec![
        create("a rule", named(json!([pods()]))).showing("/rules"),
        create("no verbs", named(json!([rule(&[""], &["pods"], &[])]))),
        create("no groups", named(json!([rule(&[], &["pods"], &["get"])]))),
        create("no resources", named(json!([rule(&[""], &[], &["get"])]))),
        create("nothing", named(json!([{}]))),
        create("paths", named(json!([{"nonResourceURLs": ["/x"], "verbs": ["get"]}]))),
        create("paths", cluster(json!([{"nonResourceURLs": ["/x"], "verbs": ["get"]}]))).showing("/rules"),
        create(
            "paths and resources",
            cluster(
                json!([{"nonResourceURLs": ["/x"], "verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]),
            ),
        ),
        create("a selector", aggregating(json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})))
            .showing("/aggregationRule"),
        create("no selector", aggregating(json!({"clusterRoleSelectors": []}))),
        create("a binding", bound()).showing("/subjects"),
        create("no group of the role", changed(bound(), "/roleRef/apiGroup", "".into())).showing("/roleRef"),
        create("another group of the role", changed(bound(), "/roleRef/apiGroup", "x".into())),
        create("another kind of role", changed(bound(), "/roleRef/kind", "Pod".into())),
        create("a Role in a cluster binding", changed(all_bound(), "/roleRef/kind", "Role".into())),
        create("no name of the role", changed(bound(), "/roleRef/name", "".into())),
        create("a slash in the name", changed(bound(), "/roleRef/name", "a/b".into())),
        create("another kind of subject", changed(bound(), "/subjects/0/kind", "Pod".into())),
        create("no name of the subject", changed(bound(), "/subjects/0/name", "".into())),
        create("no group of the subject", changed(bound(), "/subjects/0/apiGroup", "".into()))
            .showing("/subjects"),
        create("another group of the subject", changed(bound(), "/subjects/0/apiGroup", "x".into())),
        create("an account", changed(bound(), "/subjects/0", json!({"kind": "ServiceAccount", "name": "x"})))
            .showing("/subjects"),
        create(
            "an account without a namespace",
            changed(all_bound(), "/subjects/0", json!({"kind": "ServiceAccount", "name": "x"})),
        ),
        create(
            "an account with a group",
            changed(bound(), "/subjects/0", json!({"kind": "ServiceAccount", "name": "x", "apiGroup": "y"})),
        ),
        create(
            "an account with a bad name",
            changed(bound(), "/subjects/0", json!({"kind": "ServiceAccount", "name": "X_"})),
        ),
        create("no subjects", changed(bound(), "/subjects", json!([]))).showing("/subjects"),
        Exchange::new(
            Admin,
            "PATCH",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a/rolebindings/devs?dryRun=All",
            json!({"roleRef": {"name": "other"}}),
        ),
        Exchange::new(
            Admin,
            "PATCH",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/olga?dryRun=All",
            json!({"subjects": [{"kind": "User", "name": "z"}]}),
        )
        .showing("/subjects"),
    ]
}
