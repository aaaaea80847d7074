//! Server-side apply: an object's wanted fields, merged into what others own.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::PatchError;
use super::diff::{Structure, diff, fields, item_step, structure};
use super::field_set::FieldSet;
use super::managers::{self, Manager, Operation};
use crate::kinds::{Kind, ListType, Shape};

/// Parameters of an apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applier<'a> {
    /// The field manager, a parameter that every apply must have.
    pub manager: &'a str,
    /// Take fields that others own rather than fail.
    pub force: bool,
    /// Such as `status`; empty for the object itself.
    pub subresource: &'a str,
    /// The time of the write.
    pub now: Timestamp,
}

/// A field that another manager owns and that the applied object would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The manager, in the words of messages: `"kubectl" using apps/v1 at 2026-01-01T00:00:00Z`.
    pub manager: String,
    /// The field, such as `.spec.replicas`.
    pub path: String,
}

impl Conflict {
    /// The type of the cause that stands for it in a `Status`.
    pub(crate) const CAUSE: &'static str = "FieldManagerConflict";

    /// The message of that cause.
    pub(crate) fn message(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

/// The message of a 409 for conflicts.
pub(super) fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.path);
    }
    let mut managers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for conflict in conflicts {
        managers.entry(&conflict.manager).or_default().push(&conflict.path);
    }
    let mut lines = Vec::new();
    for (manager, paths) in managers {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(paths.into_iter().map(|path| format!("- {path}")));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies an object to what is stored (`None`: it is created). Gives the new object with its `managedFields`; the
/// caller compares it with the old one to see whether anything changed.
///
/// The applied object must not have `managedFields`. Its `status` is left out where `/status` is for that.
pub(crate) fn apply(
    current: Option<&Value>,
    applied: &Value,
    applier: Applier<'_>,
    kind: &Kind,
) -> Result<Value, PatchError> {
    if applied
        .pointer("/metadata/managedFields")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
    {
        return Err(PatchError::Malformed("metadata.managedFields must be nil".into()));
    }
    let shape = kind.shape();
    let applied = &within_reach(applied, applier.subresource, kind);
    let wanted = fields(applied, shape).map_err(|error| {
        let text = |pointer: &str| applied.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        PatchError::Malformed(format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): {error}",
            text("/metadata/namespace"),
            text("/metadata/name"),
            kind.api_version(),
            kind.kind
        ))
    })?;
    let mut own = Manager {
        name: applier.manager.into(),
        operation: Operation::Apply,
        api_version: kind.api_version(),
        subresource: applier.subresource.into(),
        time: Some(managers::time_text(applier.now)),
        fields: wanted,
    };
    let Some(current) = current else {
        let mut created = applied.clone();
        managers::write(&mut created, vec![own]);
        return Ok(created);
    };
    let mut others = managers_of(current, &own, shape);
    let last = others.iter().position(|manager| manager.is_same(&own)).map(|place| others.remove(place));

    let mut merged = merge(current, applied, shape);
    if let Some(last) = &last {
        let mut owned = own.fields.clone();
        others.iter().for_each(|manager| owned.union(&manager.fields));
        prune(&mut merged, &last.fields, &owned, shape);
        if (&last.fields, &last.api_version) == (&own.fields, &own.api_version) {
            own.time.clone_from(&last.time);
        }
    }
    let changes = diff(current, &merged, shape);
    let mut conflicts = Vec::new();
    for manager in &mut others {
        let taken = manager.fields.common(&changes.changed);
        let conflict = |path| Conflict { manager: manager.describe(), path };
        conflicts.extend(taken.paths().into_iter().map(conflict));
        manager.fields = manager.fields.without(&taken).without(&changes.removed);
    }
    if !conflicts.is_empty() && !applier.force {
        return Err(PatchError::Conflict(conflicts));
    }
    others.push(own);
    managers::write(&mut merged, others);
    Ok(merged)
}

/// The part of an applied object that its path may set.
fn within_reach(applied: &Value, subresource: &str, kind: &Kind) -> Value {
    let mut applied = applied.clone();
    if let Value::Object(fields) = &mut applied {
        let part = match subresource {
            "status" => Some("status"),
            "ephemeralcontainers" => Some("spec"),
            _ => None,
        };
        if let Some(part) = part {
            fields.retain(|name, _| {
                matches!(name.as_str(), "apiVersion" | "kind" | "metadata") || name == part
            });
            if let (Some(Value::Object(spec)), "spec") = (fields.get_mut(part), part) {
                spec.retain(|name, _| name == "ephemeralContainers");
            }
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata.retain(|name, _| {
                    matches!(name.as_str(), "name" | "namespace" | "uid" | "resourceVersion")
                });
            }
        } else if kind.has_status {
            fields.remove("status");
        }
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.remove("managedFields");
        }
    }
    applied
}

/// The managers of the stored object. All that was there before the first apply belongs to one that says so.
fn managers_of(current: &Value, own: &Manager, shape: Shape<'_>) -> Vec<Manager> {
    let managers = managers::read(current);
    if !managers.is_empty() || current.pointer("/metadata/managedFields").is_some_and(|m| !m.is_null()) {
        return managers;
    }
    let fields = fields(current, shape).unwrap_or_default();
    let name = "before-first-apply".to_string();
    vec![Manager { name, operation: Operation::Update, fields, subresource: String::new(), ..own.clone() }]
}

/// The stored value with the applied one laid over it.
fn merge(old: &Value, new: &Value, shape: Shape<'_>) -> Value {
    match (structure(old, shape), structure(new, shape)) {
        (Structure::Map(old), Structure::Map(new)) => {
            let mut merged = old.clone();
            for (name, value) in new {
                let value = match old.get(name) {
                    Some(old) => merge(old, value, shape.child(name)),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Structure::List(old, list_type), Structure::List(new, _)) => {
            Value::Array(merge_list(old, new, &list_type, shape.items()))
        }
        _ => new.clone(),
    }
}

/// Items of both lists: those that were applied in their order, the others where they stood. Where an applied item
/// and another compete for a place, the one that was there comes first.
fn merge_list(old: &[Value], new: &[Value], list_type: &ListType, items: Shape<'_>) -> Vec<Value> {
    let steps =
        |list: &[Value]| list.iter().map(|item| item_step(item, list_type, items)).collect::<Vec<_>>();
    let (old_steps, new_steps) = (steps(old), steps(new));
    let places: BTreeMap<&str, usize> =
        old_steps.iter().enumerate().rev().map(|(at, step)| (step.as_str(), at)).collect();
    let sent: BTreeSet<&str> = new_steps.iter().map(String::as_str).collect();
    let mut shared = new_steps.iter().filter(|step| places.contains_key(step.as_str())).peekable();
    let mut merged = Vec::with_capacity(old.len() + new.len());
    let mut kept = 0;
    for (step, item) in new_steps.iter().zip(new) {
        // Old items go out before an applied one, up to the next item that is in both lists and still to come.
        while let Some(other) = old_steps.get(kept) {
            if !sent.contains(other.as_str()) {
                merged.push(old[kept].clone());
            } else if shared.peek() == Some(&other) {
                break;
            }
            kept += 1;
        }
        if shared.peek() == Some(&step) {
            shared.next();
        }
        merged.push(match places.get(step.as_str()) {
            Some(at) if *list_type != ListType::Set => merge(&old[*at], item, items),
            _ => item.clone(),
        });
    }
    let rest = old_steps.iter().zip(old).skip(kept).filter(|(step, _)| !sent.contains(step.as_str()));
    merged.extend(rest.map(|(_, item)| item.clone()));
    merged
}

/// Removes fields that the applier had set and that have no owner any more. `owned` holds the fields of all owners.
///
/// A field of a struct stays as long as anything in it has an owner. A key of a map and an item of a list are something
/// in themselves: they go with their last owner, whatever else is in them.
fn prune(value: &mut Value, last: &FieldSet, owned: &FieldSet, shape: Shape<'_>) {
    let nothing = FieldSet::default();
    let list_type = shape.list_type();
    match value {
        Value::Object(map) if !shape.is_atomic_map() => {
            for (step, last) in last.below() {
                let Some(name) = step.strip_prefix("f:") else { continue };
                let owned = owned.at(step).unwrap_or(&nothing);
                let unwanted = if shape.is_struct_field(name) {
                    // `metadata` holds the identity, which has no owner.
                    owned.is_empty() && name != "metadata"
                } else {
                    last.is_member() && !owned.is_member()
                };
                if unwanted {
                    map.remove(name);
                } else if let Some(value) = map.get_mut(name) {
                    prune(value, last, owned, shape.child(name));
                }
            }
        }
        Value::Array(list) if list_type != ListType::Atomic => {
            let items = shape.items();
            list.retain_mut(|item| {
                let step = item_step(item, &list_type, items);
                let Some(last) = last.at(&step) else { return true };
                let owned = owned.at(&step).unwrap_or(&nothing);
                let wanted = owned.is_member() || !last.is_member();
                if wanted {
                    prune(item, last, owned, items);
                }
                wanted
            });
        }
        _ => {}
    }
}
