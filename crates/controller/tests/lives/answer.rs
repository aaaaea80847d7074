//! How a life went, as it is kept in the repository: after each step the objects that have changed, one to a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::normal::Look;

#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Answer {
    /// After each step what is new or otherwise than before; nothing for what is gone.
    pub(crate) steps: Vec<BTreeMap<String, Option<Value>>>,
    pub(crate) events: BTreeSet<String>,
}

impl Answer {
    pub(crate) fn new(looks: &[Look], events: BTreeSet<String>) -> Answer {
        let mut before = &Look::new();
        let mut steps = Vec::new();
        for look in looks {
            let gone =
                before.keys().filter(|name| !look.contains_key(*name)).map(|name| (name.clone(), None));
            let new = look.iter().filter(|(name, object)| before.get(*name) != Some(object));
            steps.push(gone.chain(new.map(|(name, object)| (name.clone(), Some(object.clone())))).collect());
            before = look;
        }
        Answer { steps, events }
    }

    /// Everything that there was after each step.
    pub(crate) fn looks(&self) -> Vec<Look> {
        let mut look = Look::new();
        let mut looks = Vec::new();
        for step in &self.steps {
            for (name, object) in step {
                match object {
                    Some(object) => drop(look.insert(name.clone(), object.clone())),
                    None => drop(look.remove(name)),
                }
            }
            looks.push(look.clone());
        }
        looks
    }
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

fn step(changes: &BTreeMap<String, Option<Value>>) -> String {
    let lines: Vec<String> = changes
        .iter()
        .map(|(name, object)| {
            let object = object.as_ref().map_or("null".into(), Value::to_string);
            format!("{}: {object}", Value::from(name.as_str()))
        })
        .collect();
    format!("{{{}}}", lines.join(",\n"))
}
