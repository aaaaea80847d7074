//! How a life went, as it is kept in the repository: after each step the objects that have changed, one to a line, each as a
//! merge patch to what it was before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::normal::Look;

#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Answer {
    /// After each step what is new or otherwise than before; null for what is gone.
    steps: Vec<BTreeMap<String, Value>>,
    pub(crate) events: BTreeSet<String>,
}

impl Answer {
    pub(crate) fn new(looks: &[Look], events: BTreeSet<String>) -> Answer {
        let mut before = Value::from(Map::new());
        let mut steps = Vec::new();
        for look in looks {
            let now: Value = look.iter().map(|(name, object)| (name.clone(), object.clone())).collect();
            let patch = difference(&before, &now).unwrap_or_default();
            steps.push(patch.as_object().cloned().unwrap_or_default().into_iter().collect());
            before = now;
        }
        Answer { steps, events }
    }

    /// Everything that there was after each step.
    pub(crate) fn looks(&self) -> Vec<Look> {
        let mut now = Value::from(Map::new());
        let mut looks = Vec::new();
        for step in &self.steps {
            let patch: Value = step.iter().map(|(name, patch)| (name.clone(), patch.clone())).collect();
            json_patch::merge(&mut now, &patch);
            looks.push(now.as_object().cloned().unwrap_or_default().into_iter().collect());
        }
        looks
    }
}

/// The JSON merge patch from one to the other, nothing where they are equal. Neither has a null in it.
fn difference(before: &Value, now: &Value) -> Option<Value> {
    let (Some(old), Some(new)) = (before.as_object(), now.as_object()) else {
        return (before != now).then(|| now.clone());
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let other = new.iter().filter_map(|(key, value)| match old.get(key) {
        Some(before) => difference(before, value).map(|patch| (key.clone(), patch)),
        None => Some((key.clone(), value.clone())),
    });
    let patch: Map<String, Value> = gone.chain(other).collect();
    (!patch.is_empty()).then(|| patch.into())
}

pub(crate) fn read(file: &Path) -> anyhow::Result<BTreeMap<String, Answer>> {
    match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Puts these in the place of those of the same name.
pub(crate) fn update(file: &Path, new: BTreeMap<String, Answer>) -> anyhow::Result<()> {
    let mut answers = read(file)?;
    answers.extend(new);
    std::fs::write(file, text(&answers)?).with_context(|| file.display().to_string())
}

/// JSON with a line for each object, so that a change can be read.
fn text(answers: &BTreeMap<String, Answer>) -> anyhow::Result<String> {
    let lives: Result<Vec<String>, std::fmt::Error> = answers
        .iter()
        .map(|(name, answer)| {
            let mut life = String::new();
            writeln!(life, "{}: {{\"steps\": [", Value::from(name.as_str()))?;
            let steps: Vec<String> = answer.steps.iter().map(step).collect();
            writeln!(life, "{}\n],\"events\": [", steps.join(",\n"))?;
            let events: Vec<String> =
                answer.events.iter().map(|event| Value::from(event.as_str()).to_string()).collect();
            write!(life, "{}\n]}}", events.join(",\n"))?;
            Ok(life)
        })
        .collect();
    Ok(format!("{{\n{}\n}}\n", lives?.join(",\n")))
}

fn step(changes: &BTreeMap<String, Value>) -> String {
    let lines: Vec<String> =
        changes.iter().map(|(name, patch)| format!("{}: {patch}", Value::from(name.as_str()))).collect();
    format!("{{{}}}", lines.join(",\n"))
}
