//! Sets of field paths, in memory and in the form of `managedFields[].fieldsV1`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value};

use crate::field_path::{MAX_FINDINGS, shortened, start};

/// Deepest path that is read from a stored set.
const MAX_DEPTH: usize = 200;

/// A set of field paths. Steps are kept as they are written: `f:NAME` a field, `k:{...}` an item found by its keys,
/// `v:VALUE` an item that is a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// True if the path that ends here is in the set.
    member: bool,
    below: BTreeMap<String, FieldSet>,
}

/// One step of a path, as text.
pub(super) type Step = String;

impl FieldSet {
    /// Returns true if the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    pub(super) fn below(&self) -> &BTreeMap<Step, FieldSet> {
        &self.below
    }

    pub(super) fn at(&self, step: &str) -> Option<&FieldSet> {
        self.below.get(step)
    }

    /// Adds the path that ends here.
    pub(super) fn add(&mut self) {
        self.member = true;
    }

    /// Adds the paths of a set that begins below a step.
    pub(super) fn attach(&mut self, step: Step, set: FieldSet) {
        match self.below.entry(step) {
            Entry::Occupied(mut entry) => entry.get_mut().union(&set),
            Entry::Vacant(entry) => {
                if !set.is_empty() {
                    entry.insert(set);
                }
            }
        }
    }

    pub(super) fn insert(&mut self, path: &[Step]) {
        let mut node = self;
        for step in path {
            node = node.below.entry(step.clone()).or_default();
        }
        node.member = true;
    }

    /// All that is in either.
    pub(super) fn union(&mut self, other: &FieldSet) {
        self.member |= other.member;
        for (step, set) in &other.below {
            self.below.entry(step.clone()).or_default().union(set);
        }
    }

    /// The paths in this set and not in the other.
    pub(super) fn without(&self, other: &FieldSet) -> FieldSet {
        let mut rest = FieldSet { member: self.member && !other.member, below: BTreeMap::new() };
        for (step, set) in &self.below {
            let set = other.at(step).map_or_else(|| set.clone(), |other| set.without(other));
            if !set.is_empty() {
                rest.below.insert(step.clone(), set);
            }
        }
        rest
    }

    /// The paths in both sets.
    pub(super) fn common(&self, other: &FieldSet) -> FieldSet {
        let mut both = FieldSet { member: self.member && other.member, below: BTreeMap::new() };
        for (step, set) in &self.below {
            let set = other.at(step).map(|other| set.common(other)).unwrap_or_default();
            if !set.is_empty() {
                both.below.insert(step.clone(), set);
            }
        }
        both
    }

    /// True if the path that ends here is in the set.
    pub(super) fn is_member(&self) -> bool {
        self.member
    }

    /// The first 100 paths, as messages write them: `.spec.ports[port=80,protocol="TCP"].name`. At each level those that end
    /// there come first, which is the order of a real API server.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        if self.member {
            paths.push(String::new());
        }
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    /// Adds the paths below a prefix, which is as it was afterwards.
    fn collect(&self, prefix: &mut String, paths: &mut Vec<String>) {
        let members = self.below.iter().filter(|(_, set)| set.member);
        let room = MAX_FINDINGS.saturating_sub(paths.len());
        let path = |(step, _): (&Step, _)| shortened(format!("{prefix}{}", start(&step_text(step))));
        paths.extend(members.take(room).map(path));
        let length = prefix.len();
        for (step, set) in &self.below {
            if paths.len() >= MAX_FINDINGS {
                return;
            }
            prefix.push_str(start(&step_text(step)));
            set.collect(prefix, paths);
            prefix.truncate(length);
        }
    }

    /// The JSON of `fieldsV1`.
    pub(crate) fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.below.is_empty() {
            map.insert(".".into(), Value::Object(Map::new()));
        }
        for (step, set) in &self.below {
            map.insert(step.clone(), set.to_fields_v1());
        }
        Value::Object(map)
    }

    /// Reads the JSON of `fieldsV1`, without invalid paths.
    pub(crate) fn from_fields_v1(fields: &Value) -> FieldSet {
        FieldSet { member: false, below: Self::read_below(fields, 0) }
    }

    fn read(fields: &Value, depth: usize) -> FieldSet {
        let empty = fields.as_object().is_none_or(Map::is_empty);
        FieldSet { member: empty || fields.get(".").is_some(), below: Self::read_below(fields, depth) }
    }

    fn read_below(fields: &Value, depth: usize) -> BTreeMap<Step, FieldSet> {
        let steps = fields.as_object().into_iter().flatten().filter(|_| depth < MAX_DEPTH);
        let steps = steps.filter(|(step, _)| matches!(step.get(..2), Some("f:" | "k:" | "v:" | "i:")));
        let sets = steps.map(|(step, value)| (step.clone(), Self::read(value, depth + 1)));
        sets.filter(|(_, set)| !set.is_empty()).collect()
    }
}

/// A step as messages write it.
pub(super) fn step_text(step: &str) -> String {
    let (kind, rest) = step.split_at(step.len().min(2));
    match kind {
        "f:" => format!(".{rest}"),
        "v:" => format!("[={rest}]"),
        "k:" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        _ => format!("[{rest}]"),
    }
}
