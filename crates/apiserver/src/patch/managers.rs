//! `metadata.managedFields`: who owns which fields.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::field_set::FieldSet;

/// The most managers with operation `Update`; the oldest beyond it become one.
pub(crate) const MAX_UPDATERS: usize = 10;
/// The name of that one.
const ANCIENT: &str = "ancient-changes";

/// Operation by which a manager owns its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Manager {
    pub(super) name: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) time: Option<String>,
    pub(super) fields: FieldSet,
}

impl Manager {
    /// Returns true if both entries are of one manager. An applier keeps its entry when it moves to another version.
    pub(super) fn is_same(&self, other: &Manager) -> bool {
        (&self.name, self.operation, &self.subresource) == (&other.name, other.operation, &other.subresource)
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// The manager in the words of a conflict.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text = format!("{text} using {}", self.api_version);
            if let Some(time) = &self.time {
                text = format!("{text} at {time}");
            }
        }
        text
    }
}

/// A time as `managedFields` holds it.
pub(super) fn time_text(now: Timestamp) -> String {
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// Reads the entries of an object.
pub(super) fn read(object: &Value) -> Vec<Manager> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_string();
    let manager = |entry: &Value| {
        let operation = match entry["operation"].as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        Some(Manager {
            name: text(entry, "manager"),
            operation,
            api_version: text(entry, "apiVersion"),
            subresource: text(entry, "subresource"),
            time: entry["time"].as_str().map(Into::into),
            fields: FieldSet::from_fields_v1(&entry["fieldsV1"]),
        })
    };
    entries.into_iter().flatten().filter_map(manager).collect()
}

/// Writes the entries into an object: appliers first, each group by time; those that own nothing are left out.
pub(super) fn write(object: &mut Value, mut managers: Vec<Manager>) {
    managers.retain(|manager| !manager.fields.is_empty());
    cap(&mut managers);
    managers.sort_by(|a, b| {
        let key = |m: &Manager| {
            (m.operation, m.time.clone(), m.name.clone(), m.api_version.clone(), m.subresource.clone())
        };
        key(a).cmp(&key(b))
    });
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    if managers.is_empty() {
        metadata.remove("managedFields");
        return;
    }
    let entry = |manager: Manager| {
        let mut entry = Map::new();
        let operation = if manager.operation == Operation::Apply { "Apply" } else { "Update" };
        entry.insert("manager".into(), manager.name.into());
        entry.insert("operation".into(), operation.into());
        entry.insert("apiVersion".into(), manager.api_version.into());
        entry.extend(manager.time.map(|time| ("time".to_string(), time.into())));
        entry.insert("fieldsType".into(), "FieldsV1".into());
        entry.insert("fieldsV1".into(), manager.fields.to_fields_v1());
        if !manager.subresource.is_empty() {
            entry.insert("subresource".into(), manager.subresource.into());
        }
        Value::Object(entry)
    };
    metadata.insert("managedFields".into(), managers.into_iter().map(entry).collect());
}

/// Joins the oldest updaters of the main resource when there are too many.
fn cap(managers: &mut Vec<Manager>) {
    let capped = |m: &Manager| m.operation == Operation::Update && m.subresource.is_empty();
    let mut surplus = managers.iter().filter(|m| capped(m)).count().saturating_sub(MAX_UPDATERS);
    if surplus == 0 {
        return;
    }
    managers.sort_by_key(|m| (!capped(m), m.time.clone(), m.name != ANCIENT));
    // The bucket takes one place itself.
    surplus += 1;
    let mut bucket = managers.remove(0);
    for _ in 1..surplus {
        let old = managers.remove(0);
        bucket.fields.union(&old.fields);
        bucket.time = old.time;
    }
    bucket.name = ANCIENT.into();
    managers.push(bucket);
}

/// Returns true if a client requests to forget all owners: `managedFields: []` or `[{}]`.
pub(super) fn is_reset(object: &Value) -> bool {
    match object.pointer("/metadata/managedFields").and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => *entry == json!({}),
        _ => false,
    }
}

/// The object without fields that have no owner: its identity and the fields that the server writes.
pub(super) fn ownable(object: &Value) -> Value {
    const SERVER: &[&str] = &[
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let Value::Object(fields) = object else { return Value::Null };
    let mut fields = fields.clone();
    fields.remove("apiVersion");
    fields.remove("kind");
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.retain(|name, _| !SERVER.contains(&name.as_str()));
    }
    Value::Object(fields)
}
