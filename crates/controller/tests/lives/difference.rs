//! Where two looks differ, and which of it is meant.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::kind;
use super::normal::Look;
use super::script::Script;

/// A difference that is meant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allowed {
    /// `Kind/name` or `events`; a star stands for anything.
    object: String,
    /// JSON pointer into the object, or the start of one; of an event the whole line. A star stands for anything.
    #[serde(default)]
    at: String,
    /// How the row of docs/differences.md begins in which the reason is.
    see: String,
}

/// One place in which two looks differ.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    pub(crate) object: String,
    pub(crate) at: String,
    pub(crate) recorded: Option<Value>,
    pub(crate) got: Option<Value>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
        let (recorded, got) = (text(&self.recorded), text(&self.got));
        write!(f, "{} {}\n      recorded {recorded}\n      got      {got}", self.object, self.at)
    }
}

impl Allowed {
    /// Returns whether this row covers the difference. A row for a kind covers both of its versions, unless it names one.
    pub(crate) fn covers(&self, difference: &Difference) -> bool {
        let (kind, name) = difference.object.split_once('/').unwrap_or((&difference.object, ""));
        let plain = format!("{}/{name}", kind::plain(kind));
        (matches(&self.object, &difference.object) || matches(&self.object, &plain))
            && (matches(&self.at, &difference.at) || matches(&format!("{}/*", self.at), &difference.at))
    }
}

/// Those that hold for every life.
pub(crate) fn general(folder: &Path) -> anyhow::Result<Vec<Allowed>> {
    let file = folder.join("differences.yaml");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    serde_saphyr::from_str(&text).context("differences.yaml")
}

/// A line for each reason that docs/differences.md lacks.
pub(crate) fn without_reason(scripts: &[Script], general: &[Allowed]) -> anyhow::Result<Vec<String>> {
    let all: Vec<&Allowed> = scripts.iter().flat_map(|script| &script.differs).chain(general).collect();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/differences.md");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let rows: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("| ")).collect();
    let missing: BTreeSet<&str> = all
        .iter()
        .map(|allowed| allowed.see.as_str())
        .filter(|see| !rows.iter().any(|row| row.starts_with(see)))
        .collect();
    Ok(missing.iter().map(|see| format!("docs/differences.md has no row that begins with {see:?}")).collect())
}

/// A line for each that no life needed.
pub(crate) fn unused(general: &[Allowed], used: &[Allowed]) -> Vec<String> {
    let idle = general.iter().filter(|allowed| !used.contains(allowed));
    idle.map(|allowed| format!("differences.yaml: no life shows this any more: {allowed:?}")).collect()
}

pub(crate) fn between(recorded: &Look, got: &Look) -> Vec<Difference> {
    let mut found = Vec::new();
    for name in recorded.keys().chain(got.keys()).collect::<BTreeSet<_>>() {
        compare(name, "", recorded.get(name), got.get(name), &mut found);
    }
    found
}

/// Events that only one of the two has.
pub(crate) fn between_events(recorded: &BTreeSet<String>, got: &BTreeSet<String>) -> Vec<Difference> {
    let one = |line: &String, recorded: bool| Difference {
        object: "events".into(),
        at: line.clone(),
        recorded: recorded.then(|| true.into()),
        got: (!recorded).then(|| true.into()),
    };
    let lost = recorded.difference(got).map(|line| one(line, true));
    lost.chain(got.difference(recorded).map(|line| one(line, false))).collect()
}

fn compare(
    object: &str,
    at: &str,
    recorded: Option<&Value>,
    got: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    match (recorded, got) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                compare(object, &below(at, key), a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if is_conditions(a) && is_conditions(b) => {
            let kinds = a.iter().chain(b).filter_map(kind_of);
            for kind in kinds.collect::<BTreeSet<_>>() {
                let of = |list: &'_ [Value]| list.iter().find(|c| kind_of(c) == Some(kind)).cloned();
                compare(object, &format!("{at}/{kind}"), of(a).as_ref(), of(b).as_ref(), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                compare(object, &format!("{at}/{index}"), a.get(index), b.get(index), found);
            }
        }
        (a, b) if a == b => {}
        // What only one of the two has is named by its parts, so that each can be meant for itself.
        (Some(Value::Object(map)), None) if is_part(at, map) => {
            for (key, value) in map {
                compare(object, &below(at, key), Some(value), None, found);
            }
        }
        (None, Some(Value::Object(map))) if is_part(at, map) => {
            for (key, value) in map {
                compare(object, &below(at, key), None, Some(value), found);
            }
        }
        (a, b) => found.push(Difference {
            object: object.to_owned(),
            at: at.to_owned(),
            recorded: a.cloned(),
            got: b.cloned(),
        }),
    }
}

fn below(at: &str, key: &str) -> String {
    format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn is_part(at: &str, map: &Map<String, Value>) -> bool {
    !at.is_empty() && !map.is_empty()
}

/// A list of conditions is a map by type; their order says nothing.
fn is_conditions(items: &[Value]) -> bool {
    items.iter().all(|item| kind_of(item).is_some() && item["status"].is_string())
}

fn kind_of(condition: &Value) -> Option<&str> {
    condition["type"].as_str()
}

/// A star stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|tail| {
            tail.char_indices().map(|(i, _)| i).chain([tail.len()]).any(|i| matches(rest, &tail[i..]))
        }),
    }
}
