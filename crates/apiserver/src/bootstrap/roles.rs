//! Roles and bindings that exist from the start, and are brought up to date at each start as a Kubernetes API server
//! does: missing rules and subjects are added, unless the object has `rbac.authorization.kubernetes.io/autoupdate: "false"`.

use futures::future::try_join_all;
use hutch_store::Error as StoreError;
use serde_json::{Value, json};

use crate::access::rule::{Rule, uncovered};
use crate::access::{self, GROUP};
use crate::core::Core;
use crate::{Error, admission, meta, object};

/// The roles of Kubernetes that concern what is served here, and those for the kinds of Agent Sandbox.
const DEFAULTS: &str = include_str!("roles.json");
/// Annotation that opts out with the value `false`.
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Creates and updates the default objects and those of the configuration.
pub(crate) async fn run(core: &Core, configured: &[Value]) -> Result<(), Error> {
    let defaults: Vec<Value> =
        serde_json::from_str(DEFAULTS).map_err(|error| Error::Bootstrap(error.to_string()))?;
    try_join_all(defaults.iter().chain(configured).map(|object| reconcile(core, object))).await?;
    access::reconcile_aggregated(&core.access).await;
    Ok(())
}

async fn reconcile(core: &Core, wanted: &Value) -> Result<(), Error> {
    let kind = wanted["kind"].as_str().unwrap_or_default();
    let collection = format!("{}s.{}", kind.to_lowercase(), GROUP);
    let namespace = Some(meta::text(wanted, "namespace")).filter(|namespace| !namespace.is_empty());
    let key = object::key(namespace, meta::text(wanted, "name"));
    let mut wanted = wanted.clone();
    admission::rbac::default_references(&mut wanted);
    let Some(entry) = core.store.get(&collection, &key) else {
        return create(core, &collection, &key, wanted).await;
    };
    let stored = entry.value.value();
    if stored["metadata"]["annotations"][AUTO_UPDATE] == "false" {
        return Ok(());
    }
    if stored["roleRef"] != wanted["roleRef"] {
        // A binding cannot change its role.
        core.store.delete(&collection, &key, entry.revision, stored).await?;
        return create(core, &collection, &key, wanted).await;
    }
    let next = merged(&stored, &wanted);
    if next != stored {
        core.store.update(&collection, &key, entry.revision, next).await?;
    }
    Ok(())
}

async fn create(core: &Core, collection: &str, key: &str, mut object: Value) -> Result<(), Error> {
    core.fill_metadata(&mut object);
    match core.store.create(collection, key, object).await {
        Ok(_) | Err(StoreError::Exists) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The stored object with what it lacks of the wanted one.
fn merged(stored: &Value, wanted: &Value) -> Value {
    let mut next = stored.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            if next["metadata"][field][key].is_null() {
                next["metadata"][field][key] = value.clone();
            }
        }
    }
    match wanted["kind"].as_str() {
        Some("Role" | "ClusterRole") => merge_rules(&mut next, wanted),
        _ => {
            for subject in wanted["subjects"].as_array().into_iter().flatten() {
                add(&mut next, "subjects", subject);
            }
        }
    }
    next
}

fn merge_rules(next: &mut Value, wanted: &Value) {
    let owned = Rule::all_of(next);
    for rule in uncovered(&owned.iter().collect::<Vec<_>>(), &Rule::all_of(wanted)) {
        add(next, "rules", &rule.to_value());
    }
    let selectors = wanted.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    for selector in selectors.into_iter().flatten() {
        if !next["aggregationRule"].is_object() {
            next["aggregationRule"] = json!({});
        }
        add(&mut next["aggregationRule"], "clusterRoleSelectors", selector);
    }
}

/// Adds an element to a list that lacks it.
fn add(object: &mut Value, field: &str, element: &Value) {
    match object[field].as_array_mut() {
        Some(list) if list.contains(element) => {}
        Some(list) => list.push(element.clone()),
        None => object[field] = json!([element]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rules_subjects_and_labels_are_added() {
        let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
        let role = |verbs: &[&str], labels: Value| {
            let rules: Vec<Value> = verbs.iter().map(|verb| rule(verb)).collect();
            json!({"kind": "ClusterRole", "metadata": {"labels": labels}, "rules": rules})
        };
        let next = merged(
            &role(&["get", "delete"], json!({"a": "own"})),
            &role(&["get", "list"], json!({"a": "b", "c": "d"})),
        );
        assert_eq!(next, role(&["get", "delete", "list"], json!({"a": "own", "c": "d"})));
        assert_eq!(merged(&next, &next), next);
        let binding = |names: &[&str]| {
            let subjects: Vec<Value> =
                names.iter().map(|name| json!({"kind": "User", "name": name})).collect();
            json!({"kind": "ClusterRoleBinding", "metadata": {}, "subjects": subjects})
        };
        assert_eq!(merged(&binding(&["x"]), &binding(&["y", "x"])), binding(&["x", "y"]));
    }
}
