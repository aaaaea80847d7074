//! Roles and bindings: defaults of references, and the checks of Kubernetes.

use serde_json::Value;

use super::default;
use super::names::invalid;
use crate::access::GROUP;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;
use crate::selector::LabelSelector;

/// Sets the API groups of `roleRef` and `subjects`.
pub(crate) fn default_references(object: &mut Value) {
    if object["roleRef"].is_object() {
        default_group(&mut object["roleRef"], GROUP);
    }
    for subject in super::items(object, "subjects") {
        if subject["kind"] == "User" || subject["kind"] == "Group" {
            default_group(subject, GROUP);
        }
    }
}

fn default_group(reference: &mut Value, group: &str) {
    if reference["apiGroup"] == "" {
        reference["apiGroup"] = Value::Null;
    }
    default(reference, "apiGroup", group);
}

/// Completes and checks a role or a binding.
pub(crate) fn check(kind: &Kind, before: Option<&Value>, object: &mut Value) -> Result<(), Failure> {
    default_references(object);
    if list(&object["subjects"]).is_empty()
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("subjects");
    }
    let causes = match kind.plural.as_str() {
        "roles" => rules(object, true),
        "clusterroles" => {
            let mut causes = rules(object, false);
            aggregation(object, &mut causes);
            causes
        }
        "rolebindings" => binding(before, object, true),
        _ => binding(before, object, false),
    };
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn rules(object: &Value, namespaced: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, rule) in list(&object["rules"]).iter().enumerate() {
        let field = |name: &str| format!("rules[{index}].{name}");
        let empty = |name: &str| list(&rule[name]).is_empty();
        if empty("verbs") {
            causes.push(Cause::required(field("verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            let paths = &rule["nonResourceURLs"];
            if namespaced {
                let why = "namespaced rules cannot apply to non-resource URLs";
                causes.push(Cause::invalid(field("nonResourceURLs"), paths, why));
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                let why = "rules cannot apply to both regular resources and non-resource URLs";
                causes.push(Cause::invalid(field("nonResourceURLs"), paths, why));
            }
            continue;
        }
        if empty("apiGroups") {
            let why = "resource rules must supply at least one api group";
            causes.push(Cause::required(field("apiGroups"), why));
        }
        if empty("resources") {
            let why = "resource rules must supply at least one resource";
            causes.push(Cause::required(field("resources"), why));
        }
    }
    causes
}

fn aggregation(object: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "aggregationRule.clusterRoleSelectors";
    if !object["aggregationRule"].is_object() {
        return;
    }
    let selectors = list(&object["aggregationRule"]["clusterRoleSelectors"]);
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        causes.push(Cause::required(FIELD, why));
    }
    for (index, selector) in selectors.iter().enumerate() {
        if LabelSelector::from_object(selector).is_err() {
            causes.push(Cause::invalid(format!("{FIELD}[{index}]"), selector, "invalid label selector."));
        }
    }
}

/// A value that is not one of those that are supported.
fn unsupported(field: String, value: &str, supported: &[&str]) -> Cause {
    let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
    let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
    Cause::new("FieldValueNotSupported", field, message)
}

fn binding(before: Option<&Value>, object: &Value, namespaced: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let role = |name: &str| object["roleRef"][name].as_str().unwrap_or_default();
    if role("apiGroup") != GROUP {
        causes.push(unsupported("roleRef.apiGroup".into(), role("apiGroup"), &[GROUP]));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&role("kind")) {
        causes.push(unsupported("roleRef.kind".into(), role("kind"), kinds));
    }
    match role("name") {
        "" => causes.push(Cause::required("roleRef.name", "")),
        name => causes.extend(invalid("roleRef.name", name, hutch_api::syntax::segment(name, true))),
    }
    for (index, subject) in list(&object["subjects"]).iter().enumerate() {
        check_subject(subject, namespaced, &format!("subjects[{index}]"), &mut causes);
    }
    if before.is_some_and(|before| before["roleRef"] != object["roleRef"]) {
        let shown = format!(
            "{{\"APIGroup\":{:?},\"Kind\":{:?},\"Name\":{:?}}}",
            role("apiGroup"),
            role("kind"),
            role("name")
        );
        causes.push(Cause::shown("roleRef", &shown, "cannot change roleRef"));
    }
    causes
}

fn check_subject(subject: &Value, namespaced: bool, field: &str, causes: &mut Vec<Cause>) {
    let text = |name: &str| subject[name].as_str().unwrap_or_default();
    if text("name").is_empty() {
        causes.push(Cause::required(format!("{field}.name"), ""));
    }
    match text("kind") {
        "ServiceAccount" => {
            if !text("name").is_empty() {
                let wrong = hutch_api::syntax::subdomain(text("name"));
                causes.extend(invalid(&format!("{field}.name"), text("name"), wrong));
            }
            if !text("apiGroup").is_empty() {
                causes.push(unsupported(format!("{field}.apiGroup"), text("apiGroup"), &[""]));
            }
            if !namespaced && text("namespace").is_empty() {
                causes.push(Cause::required(format!("{field}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if text("apiGroup") != GROUP {
                causes.push(unsupported(format!("{field}.apiGroup"), text("apiGroup"), &[GROUP]));
            }
        }
        kind => {
            let kinds = ["ServiceAccount", "User", "Group"];
            causes.push(unsupported(format!("{field}.kind"), kind, &kinds));
        }
    }
}
