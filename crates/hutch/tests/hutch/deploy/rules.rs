//! RBAC: grants of an account, and the access that a request needs.

use std::collections::BTreeSet;

use http::Method;
use http::request::Parts;
use serde_json::Value;

use super::manifests::{of_kind, text};

/// One verb on one resource, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    /// `group/resource[/subresource]`; the core group is empty.
    pub(crate) resource: String,
    pub(crate) verb: String,
    /// Only in this namespace.
    pub(crate) namespace: Option<String>,
    /// Only objects of these names.
    pub(crate) names: Vec<String>,
}

/// Access that a request needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Access {
    pub(crate) resource: String,
    pub(crate) verb: &'static str,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
}

/// The grants of a ServiceAccount of `agent-sandbox-system`, without those of the roles that are left out.
pub(crate) fn granted(objects: &[Value], account: &str, without: &[&str]) -> Vec<Grant> {
    let bindings = of_kind(objects, "ClusterRoleBinding").into_iter().chain(of_kind(objects, "RoleBinding"));
    let mut grants = Vec::new();
    for binding in bindings {
        let ours = binding["subjects"].as_array().expect("subjects").iter().any(|subject| {
            subject["kind"] == "ServiceAccount"
                && subject["name"] == account
                && subject["namespace"] == "agent-sandbox-system"
        });
        let (kind, name) = (text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
        if !ours || without.contains(&name) {
            continue;
        }
        let namespace = binding["metadata"]["namespace"].as_str().map(str::to_owned);
        let role = of_kind(objects, kind)
            .into_iter()
            .find(|role| {
                role["metadata"]["name"] == name
                    && (kind == "ClusterRole"
                        || role["metadata"]["namespace"].as_str() == namespace.as_deref())
            })
            .unwrap_or_else(|| panic!("{kind} {name} is bound and not there"));
        grants.extend(rules(role, namespace.as_deref()));
    }
    grants
}

fn rules(role: &Value, namespace: Option<&str>) -> Vec<Grant> {
    let strings = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().expect("text").to_owned()).collect()
    };
    let mut grants = Vec::new();
    for rule in role["rules"].as_array().expect("rules") {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                for verb in strings(&rule["verbs"]) {
                    grants.push(Grant {
                        resource: format!("{group}/{resource}"),
                        verb,
                        namespace: namespace.map(str::to_owned),
                        names: strings(&rule["resourceNames"]),
                    });
                }
            }
        }
    }
    grants
}

impl Grant {
    pub(crate) fn allows(&self, access: &Access) -> bool {
        self.resource == access.resource
            && self.verb == access.verb
            && (self.namespace.is_none() || self.namespace == access.namespace)
            && (self.names.is_empty() || access.name.as_ref().is_some_and(|name| self.names.contains(name)))
    }

    /// `group/resource verb`.
    pub(crate) fn short(&self) -> String {
        format!("{} {}", self.resource, self.verb)
    }
}

pub(crate) fn short(grants: &[Grant]) -> BTreeSet<String> {
    grants.iter().map(Grant::short).collect()
}

/// Returns the access that an API server checks; `None` for discovery, which every user may read.
pub(crate) fn access(parts: &Parts) -> Option<Access> {
    let words: Vec<&str> = parts.uri.path().split('/').filter(|word| !word.is_empty()).collect();
    let (group, rest) = match words.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let (plural, name, sub) = match rest {
        [] => return None,
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some((*name).to_owned()), None),
        [plural, name, sub @ ..] => (plural, Some((*name).to_owned()), Some(sub.join("/"))),
    };
    let watch = parts.uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    let verb = match (&parts.method, name.is_some()) {
        (&Method::GET, _) if watch => "watch",
        (&Method::GET, true) => "get",
        (&Method::GET, false) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, true) => "delete",
        (&Method::DELETE, false) => "deletecollection",
        (method, _) => panic!("no verb for {method}"),
    };
    let sub = sub.map(|sub| format!("/{sub}")).unwrap_or_default();
    Some(Access { resource: format!("{group}/{plural}{sub}"), verb, namespace, name })
}
