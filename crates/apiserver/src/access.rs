//! Authorization. Members of `system:masters` may do everything. Other callers may do what Kubernetes allows every
//! authenticated user: review themselves and read about the server.

use serde_json::{Value, json};

use crate::Identity;
use crate::call::Target;
use crate::failure::Failure;

/// Group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// Group of all authenticated callers.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// Reviews that every authenticated caller may create.
const OWN_REVIEWS: [(&str, &[&str]); 2] = [
    ("authentication.k8s.io", &["selfsubjectreviews"]),
    ("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
];
/// Paths that every authenticated caller may read, as the ClusterRole `system:discovery` has them.
const DISCOVERY: [&str; 12] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
    "/",
];

/// An action that a caller requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// A verb on objects of a kind. An empty field means all of them, or none.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
    /// A verb on a path that is no object's.
    Path { verb: &'a str, path: &'a str },
}

impl<'a> Action<'a> {
    /// The action of a request for an object or a collection.
    pub(crate) fn of(target: &'a Target, method: &str, watch: bool) -> Action<'a> {
        let one = !target.name.is_empty();
        let verb = match (method, one) {
            ("GET" | "HEAD", false) if watch => "watch",
            ("GET" | "HEAD", false) => "list",
            ("GET" | "HEAD", true) => "get",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => "create",
        };
        let namespace = match &target.namespace {
            Some(namespace) => namespace,
            // A namespace lies in itself.
            None if target.resource.is("", "namespaces") => &target.name,
            None => "",
        };
        Action::Resource {
            verb,
            group: &target.resource.kind.group,
            resource: &target.resource.kind.plural,
            subresource: &target.subresource,
            namespace,
            name: &target.name,
        }
    }

    /// The action that a review names; `None` when it names neither objects nor a path, or both.
    pub(crate) fn of_review(spec: &'a Value) -> Option<Action<'a>> {
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let text = |value: &'a Value, field: &str| value[field].as_str().unwrap_or_default();
        match (resource.is_object(), path.is_object()) {
            (true, false) => Some(Action::Resource {
                verb: text(resource, "verb"),
                group: text(resource, "group"),
                resource: text(resource, "resource"),
                subresource: text(resource, "subresource"),
                namespace: text(resource, "namespace"),
                name: text(resource, "name"),
            }),
            (false, true) => Some(Action::Path { verb: text(path, "verb"), path: text(path, "path") }),
            _ => None,
        }
    }
}

/// Returns true if an identity may do everything.
pub(crate) fn is_master(identity: &Identity) -> bool {
    identity.groups.iter().any(|group| group == MASTERS)
}

/// Returns true if an identity may do this.
pub(crate) fn allows(identity: &Identity, action: Action<'_>) -> bool {
    if is_master(identity) {
        return true;
    }
    if !identity.groups.iter().any(|group| group == AUTHENTICATED) {
        return false;
    }
    match action {
        Action::Resource { verb: "create", group, resource, subresource: "", .. } => {
            OWN_REVIEWS.iter().any(|(own, resources)| *own == group && resources.contains(&resource))
        }
        Action::Resource { .. } => false,
        Action::Path { verb: "get", path } => DISCOVERY.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == *known,
        }),
        Action::Path { .. } => false,
    }
}

/// Refuses an action that the identity may not do.
pub(crate) fn check(identity: &Identity, action: Action<'_>) -> Result<(), Failure> {
    if allows(identity, action) { Ok(()) } else { Err(denied(identity, action)) }
}

/// The refusal, with the message of a Kubernetes API server.
fn denied(identity: &Identity, action: Action<'_>) -> Failure {
    let user = &identity.name;
    match action {
        Action::Path { verb, path } => {
            Failure::denied("", "", "", &format!("User {user:?} cannot {verb} path {path:?}"))
        }
        Action::Resource { verb, group, resource, subresource, namespace, name } => {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let place = match namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            let why = format!(
                "User {user:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?} {place}"
            );
            Failure::denied(group, resource, name, &why)
        }
    }
}

/// The rules of an identity, as SelfSubjectRulesReview lists them.
pub(crate) fn rules(identity: &Identity) -> Value {
    if is_master(identity) {
        return json!({
            "incomplete": false,
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
        });
    }
    let own = OWN_REVIEWS.iter().map(
        |(group, resources)| json!({ "verbs": ["create"], "apiGroups": [group], "resources": resources }),
    );
    json!({
        "incomplete": false,
        "resourceRules": own.collect::<Vec<_>>(),
        "nonResourceRules": [{ "verbs": ["get"], "nonResourceURLs": DISCOVERY }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource<'a>(verb: &'a str, group: &'a str, resource: &'a str) -> Action<'a> {
        Action::Resource { verb, group, resource, subresource: "", namespace: "default", name: "" }
    }

    #[test]
    fn service_account_may_only_ask_about_itself_and_the_server() {
        let account = Identity::service_account("default", "x");
        for (action, allowed) in [
            (resource("create", "authentication.k8s.io", "selfsubjectreviews"), true),
            (resource("create", "authorization.k8s.io", "selfsubjectaccessreviews"), true),
            (resource("create", "authorization.k8s.io", "subjectaccessreviews"), false),
            (resource("create", "authentication.k8s.io", "tokenreviews"), false),
            (resource("create", "", "selfsubjectreviews"), false),
            (resource("*", "authorization.k8s.io", "selfsubjectaccessreviews"), false),
            (resource("list", "", "pods"), false),
            (resource("get", "", "secrets"), false),
            (Action::Path { verb: "get", path: "/apis/apps/v1" }, true),
            (Action::Path { verb: "get", path: "/openapi/v3" }, true),
            (Action::Path { verb: "post", path: "/api" }, false),
            (Action::Path { verb: "get", path: "/metrics" }, false),
            (Action::Path { verb: "get", path: "/apiserver" }, false),
        ] {
            assert_eq!(allows(&account, action), allowed, "{action:?}");
            assert!(allows(&Identity::admin(), action), "{action:?}");
        }
        let stranger = Identity { name: "x".into(), ..Identity::default() };
        assert!(!allows(&stranger, Action::Path { verb: "get", path: "/api" }));
    }

    #[test]
    fn refusal_has_the_words_of_kubernetes() {
        let account = Identity::service_account("default", "x");
        let message = |action| denied(&account, action).message;
        assert_eq!(
            message(resource("list", "", "pods")),
            "pods is forbidden: User \"system:serviceaccount:default:x\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
        );
        let exec = Action::Resource {
            verb: "create",
            group: "apps",
            resource: "deployments",
            subresource: "scale",
            namespace: "",
            name: "d",
        };
        assert_eq!(
            message(exec),
            "deployments.apps \"d\" is forbidden: User \"system:serviceaccount:default:x\" cannot create resource \"deployments/scale\" in API group \"apps\" at the cluster scope"
        );
        assert_eq!(
            message(Action::Path { verb: "get", path: "/<a>" }),
            "forbidden: User \"system:serviceaccount:default:x\" cannot get path \"/&lt;a&gt;\""
        );
    }
}
