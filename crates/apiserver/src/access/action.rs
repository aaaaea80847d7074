//! The action that a request or a review is about.

use std::fmt;

use serde_json::Value;

use crate::query::{Query, percent_decode};

/// An action on objects, or on a path that is not an object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// A verb on objects of a kind. An empty namespace means all of them, or the cluster's.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
    /// A verb on another path, such as `/version`.
    Path { verb: &'a str, path: &'a str },
}

impl<'a> Action<'a> {
    /// A verb on one object of a kind, or on all of them if the name is empty.
    pub(crate) fn on(verb: &'a str, group: &'a str, resource: &'a str, name: &'a str) -> Action<'a> {
        Action::Resource { verb, group, resource, subresource: "", namespace: "", name }
    }

    /// The same action in a namespace.
    pub(crate) fn inside(self, place: &'a str) -> Action<'a> {
        match self {
            Action::Resource { verb, group, resource, subresource, name, .. } => {
                Action::Resource { verb, group, resource, subresource, namespace: place, name }
            }
            Action::Path { .. } => self,
        }
    }

    /// The same action on a subresource.
    pub(crate) fn below(self, part: &'a str) -> Action<'a> {
        match self {
            Action::Resource { verb, group, resource, namespace, name, .. } => {
                Action::Resource { verb, group, resource, subresource: part, namespace, name }
            }
            Action::Path { .. } => self,
        }
    }

    /// The same action by another verb.
    pub(crate) fn by(self, other: &'a str) -> Action<'a> {
        match self {
            Action::Resource { group, resource, subresource, namespace, name, .. } => {
                Action::Resource { verb: other, group, resource, subresource, namespace, name }
            }
            Action::Path { path, .. } => Action::Path { verb: other, path },
        }
    }

    /// The verb.
    pub(crate) fn verb(&self) -> &'a str {
        match self {
            Action::Resource { verb, .. } | Action::Path { verb, .. } => verb,
        }
    }

    /// The namespace; empty for all of them, the cluster's objects and paths.
    pub(crate) fn namespace(&self) -> &'a str {
        match self {
            Action::Resource { namespace, .. } => namespace,
            Action::Path { .. } => "",
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

/// As in the message of a refusal: `list resource "pods" in API group "" in the namespace "default"`.
impl fmt::Display for Action<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Path { verb, path } => write!(to, "{verb} path {path:?}"),
            Action::Resource { verb, group, resource, subresource, namespace, .. } => {
                let slash = if subresource.is_empty() { "" } else { "/" };
                write!(to, "{verb} resource \"{resource}{slash}{subresource}\" in API group {group:?} ")?;
                match namespace {
                    "" => to.write_str("at the cluster scope"),
                    namespace => write!(to, "in the namespace {namespace:?}"),
                }
            }
        }
    }
}

/// The action of a request, read from its method and path alone: it does not depend on which kinds are served.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestAction {
    /// The decoded path, if it is not an object's.
    path: Option<String>,
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

impl RequestAction {
    /// Reads a request.
    pub(crate) fn of(method: &str, path: &str, query: Option<&Query>) -> RequestAction {
        let decoded = percent_decode(path).unwrap_or_else(|| path.to_owned());
        let read = Self::of_object(method, &decoded, query);
        read.unwrap_or_else(|| RequestAction {
            verb: method.to_ascii_lowercase(),
            path: Some(decoded),
            ..RequestAction::default()
        })
    }

    /// Reads a path below `/api/VERSION` or `/apis/GROUP/VERSION`; `None` for others.
    fn of_object(method: &str, path: &str, query: Option<&Query>) -> Option<RequestAction> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, mut rest) = match segments.as_slice() {
            ["api", _, rest @ ..] if !rest.is_empty() => ("", rest),
            ["apis", group, _, rest @ ..] if !rest.is_empty() => (*group, rest),
            _ => return None,
        };
        let verb = match method {
            // The old form of a watch and of a proxy.
            _ if rest.len() > 1 && matches!(rest[0], "watch" | "proxy") => {
                let verb = rest[0];
                rest = &rest[1..];
                verb
            }
            "POST" => "create",
            "GET" | "HEAD" => "get",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "",
        };
        let mut namespace = "";
        if rest[0] == "namespaces" && rest.len() > 1 {
            namespace = rest[1];
            if rest.len() > 2 && !matches!(rest[2], "status" | "finalize") {
                rest = &rest[2..];
            }
        }
        let at = |index: usize| rest.get(index).copied().unwrap_or_default();
        let mut action = RequestAction {
            path: None,
            verb: verb.into(),
            group: group.into(),
            resource: at(0).into(),
            subresource: if verb == "proxy" { String::new() } else { at(2).into() },
            namespace: namespace.into(),
            name: at(1).into(),
        };
        if action.name.is_empty() {
            action.of_collection(query);
        }
        Some(action)
    }

    /// Distinguishes a list from a watch, and sets the one object that a field selector selects.
    fn of_collection(&mut self, query: Option<&Query>) {
        match self.verb.as_str() {
            "get" => {
                self.verb =
                    if query.is_some_and(|query| query.flag("watch")) { "watch" } else { "list" }.into();
                self.name = query.and_then(selected_name).unwrap_or_default();
            }
            "delete" => self.verb = "deletecollection".into(),
            _ => {}
        }
    }

    /// The action.
    pub(crate) fn action(&self) -> Action<'_> {
        match &self.path {
            Some(path) => Action::Path { verb: &self.verb, path },
            None => Action::Resource {
                verb: &self.verb,
                group: &self.group,
                resource: &self.resource,
                subresource: &self.subresource,
                namespace: &self.namespace,
                name: &self.name,
            },
        }
    }
}

/// The name in a field selector such as `metadata.name=x`.
fn selected_name(query: &Query) -> Option<String> {
    let terms = query.get("fieldSelector")?.split(',');
    let mut names = terms.filter_map(|term| {
        let (field, value) = term.split_once('=').filter(|(field, _)| !field.ends_with('!'))?;
        let value = value.strip_prefix('=').unwrap_or(value);
        (field.trim() == "metadata.name").then(|| value.to_owned())
    });
    names.next().filter(|name| hutch_api::syntax::segment(name, true).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(method: &str, uri: &str) -> String {
        let uri: http::Uri = uri.parse().unwrap();
        let query = Query::of(&uri).unwrap();
        let read = RequestAction::of(method, uri.path(), Some(&query));
        match read.action() {
            Action::Path { verb, path } => format!("{verb} {path}"),
            Action::Resource { verb, group, resource, subresource, namespace, name } => {
                format!("{verb} {group}|{resource}|{subresource}|{namespace}|{name}")
            }
        }
    }

    #[test]
    fn request_is_read_as_a_kubernetes_api_server_reads_it() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/pods", "list |pods|||"),
            ("GET", "/api/v1/pods?watch=1", "watch |pods|||"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list |pods|||x"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name!%3Dx", "list |pods|||"),
            ("GET", "/api/v1/namespaces/default/pods/x", "get |pods||default|x"),
            ("HEAD", "/api/v1/namespaces/default/pods/x", "get |pods||default|x"),
            ("GET", "/api/v1/namespaces/default/pods/x/log", "get |pods|log|default|x"),
            ("POST", "/api/v1/namespaces/default/pods/x/exec", "create |pods|exec|default|x"),
            ("GET", "/api/v1/namespaces", "list |namespaces|||"),
            ("GET", "/api/v1/namespaces/x", "get |namespaces||x|x"),
            ("PUT", "/api/v1/namespaces/x/finalize", "update |namespaces|finalize|x|x"),
            ("DELETE", "/apis/apps/v1/namespaces/d/deployments", "deletecollection apps|deployments||d|"),
            ("PATCH", "/apis/apps/v1/namespaces/d/deployments/x", "patch apps|deployments||d|x"),
            ("GET", "/apis/nothing.example/v1/things/x", "get nothing.example|things|||x"),
            ("GET", "/api/v1/watch/pods", "watch |pods|||"),
            ("GET", "/api/v1/proxy/namespaces/d/pods/x/y", "proxy |pods||d|x"),
            ("GET", "/api/v1", "get /api/v1"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("POST", "/", "post /"),
            ("GET", "/metrics/x%20y", "get /metrics/x y"),
        ] {
            assert_eq!(shown(method, uri), expected, "{method} {uri}");
        }
    }
}
