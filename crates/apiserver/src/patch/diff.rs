//! Objects seen as field paths: what an object holds, and what differs between two.

use serde_json::{Map, Value};

use super::PatchError;
use super::field_set::{FieldSet, Step, step_text};
use super::managers::ownable;
use crate::kinds::{Field, ListType, Shape};

/// Differences between two objects.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Diff {
    pub(super) changed: FieldSet,
    pub(super) removed: FieldSet,
}

/// Merge strategy of a value, by its shape and its own type.
pub(super) enum Structure<'v> {
    /// As a whole.
    Leaf,
    /// Field by field.
    Map(&'v Map<String, Value>),
    /// Item by item.
    List(&'v [Value], ListType),
}

pub(super) fn structure<'v>(value: &'v Value, shape: Shape<'_>) -> Structure<'v> {
    match value {
        Value::Object(map) if !shape.is_atomic_map() => Structure::Map(map),
        Value::Array(items) => match shape.list_type() {
            ListType::Atomic => Structure::Leaf,
            list_type => Structure::List(items, list_type),
        },
        _ => Structure::Leaf,
    }
}

/// The step that leads to an item of a list. Keys that are left out have their default, or are no part of it.
pub(super) fn item_step(item: &Value, list_type: &ListType, items: Shape<'_>) -> Step {
    match list_type {
        ListType::Map(keys) => {
            let mut found = Map::new();
            for key in keys {
                let value = item.get(key).or_else(|| items.child(key).default_value());
                found.extend(value.map(|value| (key.clone(), value.clone())));
            }
            format!("k:{}", Value::Object(found))
        }
        _ => format!("v:{item}"),
    }
}

/// The fields that an object sets, of those that can be owned.
pub(super) fn fields(object: &Value, shape: Shape<'_>) -> Result<FieldSet, PatchError> {
    let set = add_fields(&ownable(object), shape, &mut Vec::new())?;
    Ok(set.without(&unowned()))
}

/// Paths that cannot have an owner: the object itself and its metadata as a whole.
pub(super) fn unowned() -> FieldSet {
    let mut set = FieldSet::default();
    set.insert(&[]);
    set.insert(&["f:metadata".to_string()]);
    set
}

fn add_fields(value: &Value, shape: Shape<'_>, path: &mut Vec<Step>) -> Result<FieldSet, PatchError> {
    let mut set = FieldSet::default();
    match structure(value, shape) {
        Structure::Leaf => set.add(),
        Structure::Map(map) => {
            for (name, child) in map {
                // A key of a map is something in itself; a field of a struct is what is in it.
                let (below, is_key) = match shape.field(name) {
                    Field::Known(below) => (below, !shape.is_struct_field(name)),
                    _ => (Shape::OPEN, true),
                };
                path.push(format!("f:{name}"));
                let mut fields = add_fields(child, below, path)?;
                if is_key || child.is_null() || child.as_object().is_some_and(Map::is_empty) {
                    fields.add();
                }
                set.attach(path.pop().unwrap_or_default(), fields);
            }
        }
        Structure::List(items, list_type) => {
            let below = shape.items();
            let mut seen = std::collections::BTreeSet::new();
            for item in items {
                check_item(item, &list_type, below, path)?;
                let step = item_step(item, &list_type, below);
                if seen.contains(&step) {
                    return refuse(path, &format!("duplicate entries for key {}", step_text(&step)));
                }
                path.push(step.clone());
                seen.insert(step);
                let mut fields = match list_type {
                    ListType::Map(_) => add_fields(item, below, path)?,
                    _ => FieldSet::default(),
                };
                fields.add();
                set.attach(path.pop().unwrap_or_default(), fields);
            }
        }
    }
    Ok(set)
}

fn check_item(item: &Value, list_type: &ListType, items: Shape<'_>, path: &[Step]) -> Result<(), PatchError> {
    let ListType::Map(keys) = list_type else { return Ok(()) };
    if !item.is_object() {
        return refuse(path, "an item of an associative list must be an object");
    }
    if keys.iter().any(|key| item.get(key).is_some() || items.child(key).default_value().is_some()) {
        return Ok(());
    }
    let keys: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
    let keys = keys.join(" ");
    let what = format!(
        "associative list with keys has an element that omits all key fields [{keys}] (and doesn't have default values \
         for any key fields)"
    );
    refuse(path, &what)
}

fn refuse<T>(path: &[Step], what: &str) -> Result<T, PatchError> {
    let mut set = FieldSet::default();
    set.insert(path);
    let path = set.paths().into_iter().next().unwrap_or_default();
    Err(PatchError::Malformed(format!("{path}: {what}")))
}

/// Compares the fields of two objects that can have an owner; a null field counts as absent.
pub(super) fn diff(before: &Value, after: &Value, shape: Shape<'_>) -> Diff {
    let mut diff = compare(Some(&ownable(before)), Some(&ownable(after)), shape);
    diff.changed = diff.changed.without(&unowned());
    diff
}

/// Returns the differences of two values at the same place.
fn compare(before: Option<&Value>, after: Option<&Value>, shape: Shape<'_>) -> Diff {
    let mut diff = Diff::default();
    let (before, after) = (before.filter(|v| !v.is_null()), after.filter(|v| !v.is_null()));
    match (before, after) {
        (None, None) => {}
        (Some(old), None) => {
            diff.removed.add();
            compare_children(Some(old), None, shape, &mut diff);
        }
        (None, Some(new)) => {
            diff.changed.add();
            compare_children(None, Some(new), shape, &mut diff);
        }
        (Some(old), Some(new)) if old == new => {}
        (Some(old), Some(new)) => {
            let alike = std::mem::discriminant(&structure(old, shape))
                == std::mem::discriminant(&structure(new, shape));
            if alike && !matches!(structure(old, shape), Structure::Leaf) {
                compare_children(Some(old), Some(new), shape, &mut diff);
            } else {
                diff.changed.add();
                compare_children(Some(old), None, shape, &mut diff);
                compare_children(None, Some(new), shape, &mut diff);
            }
        }
    }
    diff
}

/// The steps below a value, with the value and the shape at each.
fn children<'v, 's>(value: Option<&'v Value>, shape: Shape<'s>) -> Vec<(Step, &'v Value, Shape<'s>)> {
    match value.map(|value| structure(value, shape)) {
        Some(Structure::Map(map)) => {
            map.iter().map(|(name, child)| (format!("f:{name}"), child, shape.child(name))).collect()
        }
        Some(Structure::List(items, list_type)) => {
            let below = shape.items();
            // Items of a set are compared as a whole.
            let inner = if list_type == ListType::Set { Shape::OPEN } else { below };
            items.iter().map(|item| (item_step(item, &list_type, below), item, inner)).collect()
        }
        Some(Structure::Leaf) | None => Vec::new(),
    }
}

fn compare_children(before: Option<&Value>, after: Option<&Value>, shape: Shape<'_>, diff: &mut Diff) {
    let (before, after) = (children(before, shape), children(after, shape));
    let index: std::collections::HashMap<&str, &Value> =
        after.iter().map(|(step, value, _)| (step.as_str(), *value)).collect();
    let known: std::collections::HashSet<&str> = before.iter().map(|(step, ..)| step.as_str()).collect();
    let old = before
        .iter()
        .map(|(step, old, below)| (step, compare(Some(old), index.get(step.as_str()).copied(), *below)));
    let new = after.iter().filter(|(step, ..)| !known.contains(step.as_str()));
    let new = new.map(|(step, new, below)| (step, compare(None, Some(new), *below)));
    for (step, below) in old.chain(new) {
        diff.changed.attach(step.clone(), below.changed);
        diff.removed.attach(step.clone(), below.removed);
    }
}
