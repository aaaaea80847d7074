//! Rights of snapshots: their images hold every secret of a Sandbox.
//!
//! A snapshot is restored where an annotation names it. Who writes one anew needs the verb `restore` on the snapshot,
//! whichever object has it: every template from which a component of this program makes Pods counts. Components copy only
//! what a user was allowed to write, and are exempt. The same verb is needed to make a snapshot that an object names already.

use std::collections::{BTreeMap, BTreeSet};

use hutch_api::annotation::{
    AFTER_RESTORE, POD_SNAPSHOT, RESTORE_FROM, RESTORE_POLICY, SHARES_GENERATORS, SUSPEND_KEEPS,
};
use hutch_api::state::Retention;
use hutch_api::{EXTENSIONS_GROUP, state, syntax};
use hutch_store::Page;
use serde_json::Value;

use crate::access::{self, Action};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Annotations that are checked.
const KEYS: [&str; 6] =
    [RESTORE_FROM, POD_SNAPSHOT, SUSPEND_KEEPS, SHARES_GENERATORS, AFTER_RESTORE, RESTORE_POLICY];
/// Groups of the kinds that a Sandbox is made from.
const OF_SANDBOXES: [&str; 2] = [hutch_api::GROUP, EXTENSIONS_GROUP];
/// Values of the annotation that says what a suspend keeps.
const KEEPS: [&str; 2] = [state::KEEPS_MEMORY, state::KEEPS_FILES];

/// Checks the snapshots that a new or changed object of a user names, or is.
///
/// # Errors
/// The user may not restore from one of them, or a value is invalid.
pub(crate) fn check(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if !call.external {
        return Ok(());
    }
    let kind = call.kind();
    let is_changed = before.is_none_or(|before| before.get("spec") != object.get("spec"));
    match (kind.group.as_str(), kind.plural.as_str()) {
        // Also their owners and finalizers: they decide whether the memory of a Sandbox is found.
        (state::GROUP, state::SANDBOX_SNAPSHOTS)
            if is_changed || state::is_suspend(meta::text(object, "name")) =>
        {
            if before.is_none() {
                named_before(call, object)?;
            }
            snapshot(call, object)
        }
        (state::GROUP, state::SANDBOX_FORKS) if is_changed => {
            fork(call, object)?;
            super::fork::check(call, object)
        }
        ("", "namespaces") => namespace(call, object),
        _ if makes_pods(kind) => {
            super::fork::keep(call, before, object)?;
            annotations(call, before, object)
        }
        _ => Ok(()),
    }
}

/// Returns true for Pods and for objects from which Pods are made.
fn makes_pods(kind: &Kind) -> bool {
    match kind.group.as_str() {
        "" => matches!(kind.plural.as_str(), "pods" | "podtemplates" | "replicationcontrollers"),
        "apps" | "batch" | hutch_api::GROUP | EXTENSIONS_GROUP => true,
        _ => false,
    }
}

fn annotations(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let old = before.map(marks).unwrap_or_default();
    for (field, (key, value)) in marks(object) {
        if old.get(&field).is_some_and(|(_, old)| *old == value) {
            continue;
        }
        let invalid = |why: &str| {
            let cause = Cause::invalid(field.as_str(), value, why);
            Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]))
        };
        let text = value.as_str().unwrap_or_default();
        let wrong = match key {
            SUSPEND_KEEPS if !KEEPS.contains(&text) => Some("must be `memory` or `files`".to_owned()),
            SHARES_GENERATORS if !matches!(text, "true" | "false") => {
                Some("must be `true` or `false`".to_owned())
            }
            AFTER_RESTORE => state::after_restore(text).err(),
            RESTORE_POLICY => state::RestorePolicy::read(Some(text)).err(),
            POD_SNAPSHOT if !OF_SANDBOXES.contains(&call.kind().group.as_str()) => Some(format!(
                "is for Sandboxes, and for what they are made from; elsewhere use {RESTORE_FROM}"
            )),
            _ => None,
        };
        if let Some(why) = wrong {
            return invalid(&why);
        }
        // An empty name restores nothing: it takes precedence over that of a template.
        let is_name = key == POD_SNAPSHOT || (key == RESTORE_FROM && !text.is_empty());
        if !is_name {
            continue;
        }
        if let Some(why) = syntax::subdomain(text).first() {
            return invalid(&format!("must be the name of a SandboxSnapshot of this namespace: {why}"));
        }
        may_restore(call, object, &field, text)?;
    }
    Ok(())
}

/// Checks the bounds of the snapshots of a namespace.
fn namespace(call: &Call, object: &Value) -> Result<(), Failure> {
    let texts = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let texts = texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let texts: BTreeMap<String, String> = texts.collect();
    let Err((key, why)) = Retention::of(&texts) else { return Ok(()) };
    let field = format!("metadata.annotations[{key}]");
    let cause = Cause::invalid(field.as_str(), &texts.get(key).cloned().into(), &why);
    Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]))
}

/// Returns the annotations about snapshots in an object, wherever they stand: by their field.
fn marks(object: &Value) -> BTreeMap<String, (&'static str, &Value)> {
    let mut found = BTreeMap::new();
    gather(object, "", &mut found);
    found
}

fn gather<'a>(value: &'a Value, path: &str, found: &mut BTreeMap<String, (&'static str, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, part) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if name == "annotations" {
                    for key in KEYS {
                        found.extend(part.get(key).map(|value| (format!("{path}[{key}]"), (key, value))));
                    }
                }
                gather(part, &path, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                gather(item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// Checks a snapshot of a user.
fn snapshot(call: &Call, object: &Value) -> Result<(), Failure> {
    let name = meta::text(object, "name");
    if state::is_suspend(name) {
        let causes = vec![Cause::forbidden("metadata.name", &reserved())];
        return Err(Failure::forbidden(call.kind(), name, &format!("metadata.name: {}", reserved()), causes));
    }
    if object["spec"]["afterwards"] != "Stop" {
        return Ok(());
    }
    let sandbox = object["spec"]["source"]["sandbox"].as_str().unwrap_or_default();
    let update = Action::on("update", hutch_api::GROUP, "sandboxes", sandbox);
    allow(call, object, "spec.afterwards", update, sandbox)
}

/// Checks the name of a new snapshot: a Sandbox of an object that has named it before starts from it.
fn named_before(call: &Call, object: &Value) -> Result<(), Failure> {
    let name = meta::text(object, "name");
    let names = |other: &Value| {
        other["spec"]["source"]["snapshot"].as_str() == Some(name)
            || marks(other).values().any(|(key, value)| {
                matches!(*key, RESTORE_FROM | POD_SNAPSHOT) && value.as_str() == Some(name)
            })
    };
    let served = call.core.registry.served();
    let restores =
        |kind: &Kind| makes_pods(kind) || (kind.group == state::GROUP && kind.plural == state::SANDBOX_FORKS);
    let collections: BTreeSet<&str> = served
        .resources()
        .filter(|resource| resource.kind.namespaced && restores(&resource.kind))
        .map(|resource| &*resource.collection)
        .collect();
    let prefix = call.prefix();
    let is_named = |collection: &&str| {
        let page = Page { prefix: &prefix, ..Page::default() };
        call.store.list(collection, page).entries.iter().any(|entry| names(&entry.value.value()))
    };
    match collections.iter().any(is_named) {
        true => may_restore(call, object, "metadata.name", name),
        false => Ok(()),
    }
}

/// Checks the snapshot from which the Sandboxes of a fork start. That of a Sandbox has the name of the fork.
fn fork(call: &Call, object: &Value) -> Result<(), Failure> {
    let source = &object["spec"]["source"];
    if let Some(name) = source["snapshot"].as_str() {
        return may_restore(call, object, "spec.source.snapshot", name);
    }
    let name = meta::text(object, "name");
    let field = "spec.source.sandbox";
    allow(call, object, field, Action::on("create", state::GROUP, state::SANDBOX_SNAPSHOTS, ""), name)?;
    may_restore(call, object, field, name)
}

fn may_restore(call: &Call, object: &Value, field: &str, name: &str) -> Result<(), Failure> {
    if state::is_suspend(name) {
        let causes = vec![Cause::forbidden(field, &reserved())];
        let why = format!("{field}: {}", reserved());
        return Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &why, causes));
    }
    allow(call, object, field, Action::on("restore", state::GROUP, state::SANDBOX_SNAPSHOTS, name), name)
}

fn reserved() -> String {
    format!("snapshots whose names begin with `{}` are the server's own", state::SUSPEND_PREFIX)
}

/// Refuses an object with a field that needs an action which the caller may not do.
pub(super) fn allow(
    call: &Call,
    object: &Value,
    field: &str,
    action: Action<'_>,
    on: &str,
) -> Result<(), Failure> {
    let action = action.inside(call.namespace.as_deref().unwrap_or_default());
    let decision = call.core.access.decide(&call.identity, &action);
    access::record(&call.identity, &action, &decision);
    if decision.allowed {
        return Ok(());
    }
    let verb = action.verb();
    let why = format!("{field}: User {:?} cannot {action}: {on:?}", call.identity.name);
    let causes = vec![Cause::forbidden(field, &format!("needs the verb {verb:?} on {on:?}"))];
    Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &why, causes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_are_found_in_every_template() {
        let mark = json!({"annotations": {RESTORE_FROM: "s", SUSPEND_KEEPS: "memory", "other": "x"}});
        for (object, path) in [
            (json!({"metadata": mark}), "metadata"),
            (json!({"spec": {"podTemplate": {"metadata": mark}}}), "spec.podTemplate.metadata"),
            (json!({"spec": {"additionalPodMetadata": mark}}), "spec.additionalPodMetadata"),
            (json!({"spec": {"template": {"metadata": mark}}}), "spec.template.metadata"),
            (json!({"data": {"spec": [{"template": {"metadata": mark}}]}}), "data.spec[0].template.metadata"),
        ] {
            let found = marks(&object);
            let fields: Vec<_> = found.keys().cloned().collect();
            let expected = [RESTORE_FROM, SUSPEND_KEEPS].map(|key| format!("{path}.annotations[{key}]"));
            assert_eq!(fields, expected);
        }
        let elsewhere =
            json!({"metadata": {"labels": {RESTORE_FROM: "s"}, "annotations": {"a": RESTORE_FROM}}});
        assert!(marks(&elsewhere).is_empty());
    }
}
