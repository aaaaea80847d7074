//! CustomResourceDefinitions. Those of Agent Sandbox, of policies, snapshots and forks, and two of the snapshots of GKE, are
//! built in: they are there from the start, and a user may apply definitions of another release of the same names, but what is
//! served stays.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Annotation on built-in definitions: which text they were made from.
const MARK: &str = "hutch.dev/built-in";

/// A definition that is there from the start.
pub(crate) struct BuiltIn {
    pub(crate) name: &'static str,
    /// Distinguishes this text from that of another release.
    pub(crate) mark: &'static str,
    pub(crate) json: &'static str,
}

/// Made from the published YAML by the build script.
pub(crate) const BUILT_IN: &[BuiltIn] = include!(concat!(env!("OUT_DIR"), "/definitions.rs"));

/// Returns true if the definition of that name is built in.
pub(crate) fn is_builtin(name: &str) -> bool {
    BUILT_IN.iter().any(|builtin| builtin.name == name)
}

pub(crate) fn is_marked(definition: &Value, mark: &str) -> bool {
    definition["metadata"]["annotations"][MARK].as_str() == Some(mark)
}

pub(crate) fn set_mark(definition: &mut Value, mark: &str) {
    super::map(&mut definition["metadata"], "annotations").insert(MARK.into(), mark.into());
}

pub(crate) fn create(kind: &Kind, object: &mut Value, now: Timestamp) -> Result<(), Failure> {
    if let Some(cause) = unsupported(&object["spec"]) {
        return Err(Failure::invalid(kind, meta::text(object, "name"), vec![cause]));
    }
    complete(kind, object, now)
}

fn complete(kind: &Kind, object: &mut Value, now: Timestamp) -> Result<(), Failure> {
    default_names(object);
    super::default(&mut object["spec"], "conversion", json!({ "strategy": "None" }));
    if let Err(problem) = Kind::from_crd(object) {
        let cause = Cause::new("FieldValueInvalid", problem.path, problem.message);
        return Err(Failure::invalid(kind, meta::text(object, "name"), vec![cause]));
    }
    establish(object, now);
    Ok(())
}

/// Returns what objects of several versions need and do not get: only their name would be changed.
fn unsupported(spec: &Value) -> Option<Cause> {
    let served =
        spec["versions"].as_array().into_iter().flatten().filter(|version| version["served"] == true);
    let strategy = &spec["conversion"]["strategy"];
    if *strategy == "Webhook" && served.count() > 1 {
        let why = "hutch up calls no webhooks for conversion: serve one version, or use None if the versions have the same fields";
        return Some(Cause::invalid("spec.conversion.strategy", strategy, why));
    }
    let preserve = &spec["preserveUnknownFields"];
    let why = "must be false, or use x-kubernetes-preserve-unknown-fields in a schema";
    (*preserve == true).then(|| Cause::invalid("spec.preserveUnknownFields", preserve, why))
}

pub(crate) fn update(kind: &Kind, old: &Value, object: &mut Value, now: Timestamp) -> Result<(), Failure> {
    let name = meta::text(object, "name").to_owned();
    if is_builtin(&name) {
        // Conversion is done here whatever it says; who keeps it, such as a webhook, finds what it wrote.
        let conversion =
            object.pointer("/spec/conversion").filter(|conversion| conversion.is_object()).cloned();
        object["spec"] = old["spec"].clone();
        if let Some(conversion) = conversion {
            object["spec"]["conversion"] = conversion;
        }
        object["status"] = old["status"].clone();
        if let Some(mark) = old["metadata"]["annotations"][MARK].as_str() {
            set_mark(object, mark);
        }
        return Ok(());
    }
    for (field, pointer) in [("spec.group", "/spec/group"), ("spec.scope", "/spec/scope")] {
        let value = object.pointer(pointer).cloned().unwrap_or_default();
        if old.pointer(pointer) != Some(&value) {
            let cause = Cause::invalid(field, &value, "field is immutable");
            return Err(Failure::invalid(kind, &name, vec![cause]));
        }
    }
    let status = old["status"].clone();
    // What was stored before this was refused can be changed and deleted.
    if unsupported(&old["spec"]).is_some() {
        complete(kind, object, now)?;
    } else {
        create(kind, object, now)?;
    }
    // Versions that were ever stored stay named until someone has rewritten the objects.
    let mut stored = status["storedVersions"].as_array().cloned().unwrap_or_default();
    for version in object["status"]["storedVersions"].as_array().into_iter().flatten() {
        if !stored.contains(version) {
            stored.push(version.clone());
        }
    }
    if let Some(conditions) = status.get("conditions") {
        object["status"]["conditions"] = conditions.clone();
    }
    object["status"]["storedVersions"] = stored.into();
    Ok(())
}

fn default_names(object: &mut Value) {
    let names = &mut object["spec"]["names"];
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if !kind.is_empty() {
        super::default(names, "singular", kind.to_lowercase());
        super::default(names, "listKind", format!("{kind}List"));
    }
}

/// The status that says that the kinds are served: here they are as soon as the definition is stored.
pub(crate) fn establish(object: &mut Value, now: Timestamp) {
    super::default(meta_value(object), "generation", 1);
    let now = meta::seconds(now);
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message,
        })
    };
    let storage = object.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let stored: Vec<Value> = storage
        .filter(|version| version["storage"] == Value::Bool(true))
        .map(|version| version["name"].clone())
        .collect();
    object["status"] = json!({
        "acceptedNames": object["spec"]["names"],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": stored,
    });
}

fn meta_value(object: &mut Value) -> &mut Value {
    let _ = meta::metadata(object);
    &mut object["metadata"]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: objects of another version got a new name of their version, and no other field was converted.
    #[test]
    fn versions_that_a_webhook_converts_are_refused() {
        let field = |strategy: &str, served: [bool; 2], preserve: bool| {
            let versions = served.map(|served| json!({"name": "v1", "served": served}));
            let conversion = json!({ "strategy": strategy });
            let spec =
                json!({"versions": versions, "conversion": conversion, "preserveUnknownFields": preserve});
            unsupported(&spec).map(|cause| cause.field)
        };
        assert_eq!(field("Webhook", [true, true], false).as_deref(), Some("spec.conversion.strategy"));
        assert_eq!(field("Webhook", [true, false], false), None, "nothing to convert");
        assert_eq!(field("None", [true, true], false), None);
        assert_eq!(field("None", [true, true], true).as_deref(), Some("spec.preserveUnknownFields"));
    }
}
