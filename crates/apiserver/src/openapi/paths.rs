//! The paths of a kind, with the verbs and query parameters that each takes.

use serde_json::{Map, Value, json};

use super::{DELETE_OPTIONS, component, gvk, reference};
use crate::kinds::{Kind, Subresource};

/// Media types of a patch that every kind takes.
const PATCHES: &[&str] =
    &["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
/// The one that only built-in kinds take.
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Adds all paths of a kind.
pub(super) fn add(kind: &Kind, paths: &mut Map<String, Value>) {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let base = format!("{root}/{}", kind.api_version());
    let body = component(kind);
    if kind.namespaced && kind.verbs.contains(&"list") {
        let list = operation(kind, "list", None, "list", &format!("{body}List"));
        paths.insert(format!("{base}/{}", kind.plural), json!({"get": list}));
    }
    let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{base}{scope}/{}", kind.plural);
    let mut operations = path_item(kind, &["namespace"]);
    for verb in kind.verbs {
        match *verb {
            "list" => {
                operations.insert("get".into(), operation(kind, "list", None, "list", &format!("{body}List")))
            }
            "create" => operations.insert("post".into(), operation(kind, "create", None, "post", &body)),
            "deletecollection" => operations.insert(
                "delete".into(),
                operation(kind, "deletecollection", None, "deletecollection", &body),
            ),
            _ => None,
        };
    }
    paths.insert(collection.clone(), Value::Object(operations));
    if kind.is_review() {
        return;
    }
    let mut operations = path_item(kind, &["namespace", "name"]);
    for (method, verb) in [("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete")] {
        if kind.verbs.contains(&verb) {
            operations.insert(method.into(), operation(kind, verb, None, verb, &body));
        }
    }
    paths.insert(format!("{collection}/{{name}}"), Value::Object(operations));
    for sub in &kind.subresources {
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), subresource(kind, sub, &body));
    }
}

fn subresource(kind: &Kind, sub: &Subresource, own: &str) -> Value {
    let body = super::body_definition(&sub.body.0, &sub.body.2).unwrap_or(own);
    let mut operations = path_item(kind, &["namespace", "name"]);
    for verb in &sub.verbs {
        let method = match *verb {
            "create" => "post",
            "update" => "put",
            other => other,
        };
        operations.insert(method.into(), operation(kind, verb, Some(sub), verb, body));
    }
    Value::Object(operations)
}

/// A path's own parameters: its namespace and name.
fn path_item(kind: &Kind, names: &[&str]) -> Map<String, Value> {
    let parameters: Vec<_> = names
        .iter()
        .filter(|name| kind.namespaced || **name != "namespace")
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    let mut item = Map::new();
    item.insert("parameters".into(), parameters.into());
    item
}

fn query(name: &str, kind: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn parameters(verb: &str) -> Vec<Value> {
    let selection = || {
        let text = ["labelSelector", "fieldSelector", "continue", "resourceVersion", "resourceVersionMatch"];
        let mut list: Vec<_> = text.into_iter().map(|name| query(name, "string")).collect();
        list.extend(["limit", "timeoutSeconds"].map(|name| query(name, "integer")));
        list.extend(["watch", "allowWatchBookmarks", "sendInitialEvents"].map(|name| query(name, "boolean")));
        list
    };
    let writing = || ["dryRun", "fieldManager", "fieldValidation"].map(|name| query(name, "string")).to_vec();
    let deleting = || {
        vec![
            query("dryRun", "string"),
            query("gracePeriodSeconds", "integer"),
            query("propagationPolicy", "string"),
        ]
    };
    match verb {
        "list" => selection(),
        "create" | "update" => writing(),
        "patch" => [writing(), vec![query("force", "boolean")]].concat(),
        "delete" => deleting(),
        "deletecollection" => [selection(), deleting()].concat(),
        _ => Vec::new(),
    }
}

/// `action` is the word of `x-kubernetes-action`.
fn operation(kind: &Kind, verb: &str, sub: Option<&Subresource>, action: &str, body: &str) -> Value {
    let action = match action {
        "update" => "put",
        "create" => "post",
        other => other,
    };
    let subject = match sub {
        Some(sub) => json!({"group": sub.body.0, "version": sub.body.1, "kind": sub.body.2}),
        None => gvk(kind),
    };
    let mut parts: Vec<String> =
        vec![verb.into(), kind.group.replace('.', "_"), kind.version.clone(), kind.plural.clone()];
    parts.extend(sub.map(|s| s.name.clone()));
    parts.retain(|part| !part.is_empty());
    let mut operation = json!({
        "operationId": parts.join("-"),
        "tags": [kind.api_version().replace('/', "_")],
        "parameters": parameters(verb),
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference(body)}}},
            "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": subject,
    });
    let any = json!({"schema": {"type": "object"}});
    let content: Map<String, Value> = match verb {
        "patch" => {
            let strategic = (!kind.is_custom()).then_some(STRATEGIC);
            PATCHES.iter().copied().chain(strategic).map(|media| (media.to_string(), any.clone())).collect()
        }
        "create" | "update" => {
            [("*/*".to_string(), json!({"schema": reference(body)}))].into_iter().collect()
        }
        "delete" | "deletecollection" => {
            [("*/*".to_string(), json!({"schema": reference(DELETE_OPTIONS)}))].into_iter().collect()
        }
        _ => return operation,
    };
    operation["requestBody"] = json!({"content": content});
    operation
}
