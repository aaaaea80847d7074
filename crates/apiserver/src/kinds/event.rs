//! Events have two faces, `v1` and `events.k8s.io/v1`, over the same stored objects.

use serde_json::{Map, Value};

/// Field names in the core group's Event, and in that of `events.k8s.io`. All others are the same in both.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// A stored (core) Event as `events.k8s.io/v1` shows it.
pub(crate) fn core_to_events(event: Value) -> Value {
    rename(event, "events.k8s.io/v1", |name| NAMES.iter().find(|n| n.0 == name).map(|n| n.1))
}

/// An Event of `events.k8s.io/v1` as it is stored.
pub(crate) fn events_to_core(event: Value) -> Value {
    rename(event, "v1", |name| NAMES.iter().find(|n| n.1 == name).map(|n| n.0))
}

fn rename(event: Value, api_version: &str, new_name: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(fields) = event else { return event };
    let mut renamed = Map::new();
    for (name, value) in fields {
        let name = new_name(&name).map_or(name, Into::into);
        renamed.insert(name, value);
    }
    if renamed.contains_key("apiVersion") {
        renamed.insert("apiVersion".into(), api_version.into());
    }
    Value::Object(renamed)
}
