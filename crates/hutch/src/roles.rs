//! Identities and roles of the components of `hutch up`.
//!
//! They are the same as on a cluster: the controllers and the router are the ServiceAccounts of `deploy/`, with the rules
//! from there. The node is a member of `system:nodes`. The controllers of kube-controller-manager have its identity. None
//! is a member of `system:masters`. The roles have names of their own, so manifests that are applied to this server
//! cannot remove a permission.

use anyhow::Context;
use hutch_apiserver::Identity;
use serde_json::Value;

/// Manifests with roles. Objects of other kinds in them are not used here.
const MANIFESTS: [&str; 4] = [
    include_str!("../../../deploy/rbac.yaml"),
    include_str!("../../../deploy/sandbox-router.yaml"),
    include_str!("../../../deploy/sandbox-sleep.yaml"),
    include_str!("roles.yaml"),
];
/// Prefix of the names of these roles and their bindings.
const PREFIX: &str = "hutch:";
const GROUP: &str = "rbac.authorization.k8s.io";
/// Namespace of the ServiceAccounts of the controllers and the router.
const NAMESPACE: &str = "agent-sandbox-system";

/// Identity of the controllers of the four kinds.
pub(crate) fn controller() -> Identity {
    Identity::service_account(NAMESPACE, "agent-sandbox-controller")
}

/// Identity of the router.
pub(crate) fn router() -> Identity {
    Identity::service_account(NAMESPACE, "sandbox-router")
}

/// Identity of the node of that name.
pub(crate) fn node(name: &str) -> Identity {
    Identity::new(format!("system:node:{name}"), &["system:nodes"])
}

/// Identity of garbage collection, namespaces, workloads, endpoints.
pub(crate) fn controller_manager() -> Identity {
    Identity::new("system:kube-controller-manager", &[])
}

/// Identity that reads the policies about output which passes the front.
pub(crate) fn screens() -> Identity {
    Identity::new("system:hutch-screens", &[])
}

/// Identity that creates the objects of [`crate::bootstrap`].
pub(crate) fn bootstrap() -> Identity {
    Identity::new("system:hutch", &[])
}

/// Returns the roles and bindings of all components.
pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    let mut roles = Vec::new();
    for manifest in MANIFESTS {
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).context("a manifest with roles")?;
        let kinds = ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"];
        let wanted =
            documents.into_iter().filter(|document| kinds.iter().any(|kind| document["kind"] == *kind));
        roles.extend(wanted.map(named));
    }
    Ok(roles)
}

/// Returns the object with its own name, and with the fields that the short form in `roles.yaml` omits.
fn named(mut object: Value) -> Value {
    object["apiVersion"] = format!("{GROUP}/v1").into();
    object["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "true".into();
    for pointer in ["/metadata/name", "/roleRef/name"] {
        if let Some(name) = object.pointer_mut(pointer)
            && let Some(text) = name.as_str()
        {
            *name = format!("{PREFIX}{text}").into();
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use hutch_apiserver::{ApiServer, Config};
    use k8s_openapi::api::authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    };
    use kube::Api;
    use kube::api::PostParams;

    use super::*;

    async fn server() -> ApiServer {
        ApiServer::open(Config { roles: all().expect("the roles"), ..Config::default() })
            .await
            .expect("a server")
    }

    /// Reviews each of `VERB GROUP/RESOURCE[/SUBRESOURCE] [NAMESPACE]` for a component.
    async fn ask(identity: Identity, allowed: &[&str], denied: &[&str]) {
        let server = server().await;
        let reviews: Api<SelfSubjectAccessReview> = Api::all(server.client(identity, "default"));
        let cases = allowed.iter().map(|text| (text, true)).chain(denied.iter().map(|text| (text, false)));
        for (text, wanted) in cases {
            let words: Vec<&str> = text.split(' ').collect();
            let parts: Vec<&str> = words[1].split('/').collect();
            let attributes = ResourceAttributes {
                verb: Some(words[0].into()),
                group: Some(parts[0].into()),
                resource: Some(parts[1].into()),
                subresource: parts.get(2).map(ToString::to_string),
                namespace: words.get(2).map(ToString::to_string),
                ..ResourceAttributes::default()
            };
            let spec =
                SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            let status = reviews.create(&PostParams::default(), &review).await.expect("a review").status;
            assert_eq!(status.expect("a status").allowed, wanted, "{text}");
        }
    }

    #[tokio::test]
    async fn controller_writes_sandboxes_and_pods_but_reads_no_secrets() {
        let allowed = [
            "watch agents.x-k8s.io/sandboxes",
            "create agents.x-k8s.io/sandboxes default",
            "create /pods default",
            "patch extensions.agents.x-k8s.io/sandboxclaims/status default",
            "create networking.k8s.io/networkpolicies x",
            "create hutch.dev/sandboxsnapshots default",
            "delete hutch.dev/sandboxsnapshots default",
            "patch hutch.dev/sandboxforks/status default",
            "create podsnapshot.gke.io/podsnapshots default",
            "patch podsnapshot.gke.io/podsnapshotmanualtriggers/status default",
        ];
        let denied = [
            "create podsnapshot.gke.io/podsnapshotmanualtriggers default",
            "patch hutch.dev/sandboxsnapshots/status default",
            "create hutch.dev/sandboxforks default",
            "list /secrets",
            "get /secrets default",
            "create /pods/exec default",
            "list /nodes",
            "delete /namespaces",
            "create rbac.authorization.k8s.io/clusterroles",
            "impersonate /users",
            "get /configmaps default",
        ];
        ask(controller(), &allowed, &denied).await;
    }

    #[tokio::test]
    async fn router_finds_and_wakes_sandboxes_and_nothing_else() {
        let allowed = [
            "watch /pods",
            "watch agents.x-k8s.io/sandboxes",
            "patch agents.x-k8s.io/sandboxes default",
            "create authentication.k8s.io/tokenreviews",
        ];
        let denied = [
            "list /secrets",
            "get hutch.dev/sandboxsnapshots default",
            "get /secrets default",
            "create /pods default",
            "create /pods/exec default",
            "delete agents.x-k8s.io/sandboxes default",
            "create agents.x-k8s.io/sandboxes default",
            "list /configmaps",
        ];
        ask(router(), &allowed, &denied).await;
    }

    #[tokio::test]
    async fn screens_follow_policies_and_read_nothing_else() {
        let allowed =
            ["watch policy.hutch.dev/sandboxpolicies", "list /pods", "watch agents.x-k8s.io/sandboxes"];
        let denied =
            ["list /secrets", "get /configmaps default", "patch /pods default", "create /pods/exec default"];
        ask(screens(), &allowed, &denied).await;
    }

    #[tokio::test]
    async fn node_reads_single_secrets_but_lists_none() {
        let allowed = [
            "watch /pods",
            "patch /pods/status default",
            "get /secrets default",
            "get /serviceaccounts default",
            "create /serviceaccounts/token default",
            "create /nodes",
            "create coordination.k8s.io/leases kube-node-lease",
            "patch agents.x-k8s.io/sandboxes default",
            "watch hutch.dev/sandboxsnapshots",
            "patch hutch.dev/sandboxsnapshots/status default",
            "delete hutch.dev/sandboxsnapshots default",
        ];
        let denied = [
            "create hutch.dev/sandboxsnapshots default",
            "list hutch.dev/sandboxforks",
            "list /secrets",
            "watch /secrets default",
            "list /serviceaccounts",
            "create /pods default",
            "create /secrets default",
            "create coordination.k8s.io/leases default",
            "list extensions.agents.x-k8s.io/sandboxclaims",
            "delete /nodes",
        ];
        ask(node("hutch"), &allowed, &denied).await;
    }

    #[tokio::test]
    async fn controller_manager_collects_every_kind_but_grants_and_enters_nothing() {
        let allowed = [
            "list example.com/things",
            "delete /secrets default",
            "create /pods default",
            "update /namespaces/finalize",
            "create discovery.k8s.io/endpointslices default",
        ];
        let denied = [
            "create /secrets default",
            "create /pods/exec default",
            "create /serviceaccounts/token default",
            "create rbac.authorization.k8s.io/clusterrolebindings",
            "escalate rbac.authorization.k8s.io/clusterroles",
            "impersonate /users",
            "update rbac.authorization.k8s.io/clusterroles",
            "create agents.x-k8s.io/sandboxes default",
        ];
        ask(controller_manager(), &allowed, &denied).await;
    }

    #[tokio::test]
    async fn bootstrap_creates_objects_of_its_namespace_only() {
        let allowed =
            ["create apps/deployments agent-sandbox-system", "create /serviceaccounts agent-sandbox-system"];
        let denied = [
            "create apps/deployments default",
            "get apps/deployments agent-sandbox-system",
            "create /pods agent-sandbox-system",
            "list /secrets agent-sandbox-system",
        ];
        ask(bootstrap(), &allowed, &denied).await;
    }

    #[test]
    fn no_component_is_in_system_masters() {
        for identity in [controller(), router(), node("n"), controller_manager(), bootstrap()] {
            assert!(!identity.groups.iter().any(|group| group == "system:masters"), "{}", identity.name);
        }
    }
}
