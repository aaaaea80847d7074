use super::*;
use crate::{ApiServer, Config};

async fn server() -> ApiServer {
    ApiServer::open(Config::default()).await.unwrap()
}

/// Stores a role or a binding without any check.
async fn put(server: &ApiServer, collection: &str, key: &str, object: Value) {
    let core = server.core();
    let written = match core.store.get(collection, key) {
        Some(entry) => core.store.update(collection, key, entry.revision, object).await,
        None => core.store.create(collection, key, object).await,
    };
    written.unwrap();
}

async fn remove(server: &ApiServer, collection: &str, key: &str) {
    let core = server.core();
    let entry = core.store.get(collection, key).unwrap();
    core.store.delete(collection, key, entry.revision, entry.value.value()).await.unwrap();
}

fn object(kind: &str, namespace: &str, name: &str, rest: Value) -> Value {
    let mut object =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

fn binding(kind: &str, namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    let role = json!({"apiGroup": GROUP, "kind": role.0, "name": role.1});
    object(kind, namespace, name, json!({"roleRef": role, "subjects": subjects}))
}

fn get_pods() -> Value {
    json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]})
}

fn decided(server: &ApiServer, identity: &Identity, action: Action<'_>) -> (bool, String) {
    let decision = server.core().access.decide(identity, &action);
    (decision.allowed, decision.reason.to_string())
}

fn pods(namespace: &str) -> Action<'_> {
    Action::on("get", "", "pods", "x").inside(namespace)
}

#[tokio::test]
async fn binding_is_seen_by_the_next_decision_and_gone_with_its_deletion() {
    let (server, alice) = (server().await, Identity::new("alice", &[]));
    assert_eq!(decided(&server, &alice, pods("a")), (false, String::new()));
    put(&server, policy::CLUSTER_ROLES, "reader", object("ClusterRole", "", "reader", get_pods())).await;
    let user = json!([{"kind": "User", "name": "alice"}]);
    let cluster = binding("ClusterRoleBinding", "", "all", ("ClusterRole", "reader"), user.clone());
    put(&server, policy::CLUSTER_BINDINGS, "all", cluster).await;
    let reason = r#"RBAC: allowed by ClusterRoleBinding "all" of ClusterRole "reader" to User "alice""#;
    assert_eq!(decided(&server, &alice, pods("a")), (true, reason.into()));
    assert_eq!(decided(&server, &alice, pods("")), (true, reason.into()));
    remove(&server, policy::CLUSTER_BINDINGS, "all").await;
    assert!(!decided(&server, &alice, pods("a")).0);
    let one = binding("RoleBinding", "a", "one", ("ClusterRole", "reader"), user);
    put(&server, policy::BINDINGS, "a/one", one).await;
    let reason = r#"RBAC: allowed by RoleBinding "one/a" of ClusterRole "reader" to User "alice""#;
    assert_eq!(decided(&server, &alice, pods("a")), (true, reason.into()));
    assert!(!decided(&server, &alice, pods("b")).0 && !decided(&server, &alice, pods("")).0);
    put(&server, policy::CLUSTER_ROLES, "reader", object("ClusterRole", "", "reader", json!({"rules": []})))
        .await;
    assert!(!decided(&server, &alice, pods("a")).0);
}

#[tokio::test]
async fn group_and_service_account_are_subjects() {
    let server = server().await;
    put(&server, policy::ROLES, "a/reader", object("Role", "a", "reader", get_pods())).await;
    let subjects = json!([{"kind": "Group", "name": "devs"}, {"kind": "ServiceAccount", "name": "bot"}]);
    let bound = binding("RoleBinding", "a", "b", ("Role", "reader"), subjects);
    put(&server, policy::BINDINGS, "a/b", bound).await;
    let start = r#"RBAC: allowed by RoleBinding "b/a" of Role "reader" to "#;
    let dev = Identity::new("x", &["devs"]);
    assert_eq!(decided(&server, &dev, pods("a")), (true, format!("{start}Group \"devs\"")));
    let bot = Identity::service_account("a", "bot");
    assert_eq!(decided(&server, &bot, pods("a")), (true, format!("{start}ServiceAccount \"bot/a\"")));
    assert!(!decided(&server, &Identity::service_account("b", "bot"), pods("a")).0);
}

#[tokio::test]
async fn binding_to_a_missing_role_names_it() {
    let (server, alice) = (server().await, Identity::new("alice", &[]));
    let user = json!([{"kind": "User", "name": "alice"}]);
    for name in ["one", "two"] {
        let bound = binding("ClusterRoleBinding", "", name, ("ClusterRole", "nothing"), user.clone());
        put(&server, policy::CLUSTER_BINDINGS, name, bound).await;
    }
    let reason = r#"RBAC: clusterrole.rbac.authorization.k8s.io "nothing" not found"#;
    assert_eq!(decided(&server, &alice, pods("a")), (false, reason.into()));
}

#[tokio::test]
async fn aggregated_role_has_the_rules_of_what_it_selects() {
    let (server, alice) = (server().await, Identity::new("alice", &[]));
    let user = json!([{"kind": "User", "name": "alice"}]);
    let bound = binding("ClusterRoleBinding", "", "admins", ("ClusterRole", "admin"), user);
    put(&server, policy::CLUSTER_BINDINGS, "admins", bound).await;
    let create = |resource| Action::on("create", "extensions.agents.x-k8s.io", resource, "").inside("a");
    assert!(
        decided(&server, &alice, create("sandboxclaims")).0,
        "admin has edit, which has the kinds of Agent Sandbox"
    );
    let things = Action::on("get", "example.com", "things", "x");
    assert!(!decided(&server, &alice, things).0);
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let rules = json!([{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["things"]}]);
    let mut viewer = object("ClusterRole", "", "things", json!({"rules": rules}));
    viewer["metadata"]["labels"] = labels;
    put(&server, policy::CLUSTER_ROLES, "things", viewer).await;
    assert!(decided(&server, &alice, things).0, "view is in edit and edit in admin");
    reconcile_aggregated(&server.core().access).await;
    let shown = |name: &str| server.core().read(policy::CLUSTER_ROLES, name).unwrap()["rules"].clone();
    for role in ["admin", "edit", "view"] {
        assert!(shown(role).as_array().unwrap().contains(&rules[0]), "{role}");
    }
    remove(&server, policy::CLUSTER_ROLES, "things").await;
    assert!(!decided(&server, &alice, things).0);
    reconcile_aggregated(&server.core().access).await;
    assert!(!shown("admin").as_array().unwrap().contains(&rules[0]));
}

#[tokio::test]
async fn callers_without_a_binding_get_discovery_only() {
    let server = server().await;
    let account = Identity::service_account("default", "x");
    let path = |path| Action::Path { verb: "get", path };
    let create = |group, resource| Action::on("create", group, resource, "");
    for (action, authenticated, anonymous) in [
        (create("authentication.k8s.io", "selfsubjectreviews"), true, false),
        (create("authorization.k8s.io", "selfsubjectaccessreviews"), true, false),
        (create("authorization.k8s.io", "subjectaccessreviews"), false, false),
        (create("authentication.k8s.io", "tokenreviews"), false, false),
        (pods("default"), false, false),
        (path("/apis/apps/v1"), true, false),
        (path("/openapi/v3"), true, false),
        (path("/version"), true, true),
        (path("/healthz"), true, true),
        (path("/metrics"), false, false),
        (Action::Path { verb: "post", path: "/version" }, false, false),
    ] {
        assert_eq!(decided(&server, &account, action).0, authenticated, "{action:?}");
        assert_eq!(decided(&server, &Identity::anonymous(), action).0, anonymous, "{action:?}");
        assert!(decided(&server, &Identity::admin(), action).0, "{action:?}");
    }
    assert!(!decided(&server, &Identity { name: "x".into(), ..Identity::default() }, path("/version")).0);
}

#[test]
fn refusal_has_the_words_of_kubernetes() {
    let account = Identity::service_account("default", "x");
    let message = |action, reason| denied(&account, action, reason).message;
    assert_eq!(
        message(Action::on("list", "", "pods", "").inside("default"), ""),
        "pods is forbidden: User \"system:serviceaccount:default:x\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(
        message(Action::on("create", "apps", "deployments", "d").below("scale"), "because"),
        "deployments.apps \"d\" is forbidden: User \"system:serviceaccount:default:x\" cannot create resource \"deployments/scale\" in API group \"apps\" at the cluster scope: because"
    );
    assert_eq!(
        message(Action::Path { verb: "get", path: "/<a>" }, ""),
        "forbidden: User \"system:serviceaccount:default:x\" cannot get path \"/&lt;a&gt;\""
    );
}
