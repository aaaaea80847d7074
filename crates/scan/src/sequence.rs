//! Calls that are dangerous together: classes of single calls, and sequences of classes.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use crate::finding::{At, Finding, Fingerprint, Kind, Severity};
use crate::pattern::Pattern;
use crate::rule::Error;

/// Maximum earlier calls that a sequence can use.
const CALLS: usize = 50;
/// Maximum bytes of arguments that are inspected.
const ARGUMENTS: usize = 64 << 10;
/// Maximum classes.
const CLASSES: usize = 64;

const BUILTIN: &str = include_str!("../rules/sequences.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    class: Vec<ClassText>,
    sequence: Vec<SequenceText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassText {
    id: String,
    tool: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SequenceText {
    id: String,
    steps: Vec<String>,
    severity: Severity,
}

/// Rules about sequences of calls.
#[derive(Debug)]
pub struct Sequences {
    /// Conditions, with the number of the class that each one gives.
    conditions: Vec<(usize, Option<Pattern>, Option<Pattern>)>,
    sequences: Vec<Sequence>,
}

#[derive(Debug)]
struct Sequence {
    id: Arc<str>,
    steps: Vec<usize>,
    severity: Severity,
}

impl Sequences {
    /// Reads rules from TOML.
    ///
    /// # Errors
    /// The text has another form, or a sequence names a class that is missing.
    pub fn parse(text: &str) -> Result<Sequences, Error> {
        let file: File = toml::from_str(text).map_err(|error| Error::Form(error.to_string()))?;
        let mut names: Vec<String> = Vec::new();
        let mut conditions = Vec::new();
        for class in file.class {
            let number = names.iter().position(|name| *name == class.id).unwrap_or(names.len());
            if number == names.len() {
                names.push(class.id.clone());
            }
            let pattern = |field, source: Option<&str>| {
                let checked = source.map(Pattern::checked).transpose();
                let checked = checked.map_err(|error| Error::Regex(class.id.clone(), field, error))?;
                Ok(checked.map(|(pattern, _)| pattern))
            };
            let tool = pattern("tool", class.tool.as_deref())?;
            let arguments = pattern("arguments", class.arguments.as_deref())?;
            if tool.is_none() && arguments.is_none() {
                return Err(Error::Field(class.id, "class", "needs `tool` or `arguments`"));
            }
            conditions.push((number, tool, arguments));
        }
        if names.len() > CLASSES {
            return Err(Error::TooMany);
        }
        let mut sequences = Vec::new();
        for sequence in file.sequence {
            let number = |step: &String| names.iter().position(|name| name == step);
            let Some(steps) = sequence.steps.iter().map(number).collect::<Option<Vec<_>>>() else {
                return Err(Error::Field(sequence.id, "steps", "every step must be the id of a class"));
            };
            if steps.is_empty() || steps.len() > CALLS {
                return Err(Error::Field(sequence.id, "steps", "needs 1 to 50 classes"));
            }
            sequences.push(Sequence { id: sequence.id.into(), steps, severity: sequence.severity });
        }
        Ok(Sequences { conditions, sequences })
    }

    /// Returns the rules of this program.
    pub fn builtin() -> &'static Sequences {
        static BUILT: OnceLock<Sequences> = OnceLock::new();
        BUILT.get_or_init(|| Sequences::parse(BUILTIN).unwrap_or_else(|error| panic!("sequences: {error}")))
    }

    /// Returns the classes of a call, as bits.
    fn classes(&self, tool: &str, arguments: &str) -> u64 {
        let arguments = &arguments.as_bytes()[..arguments.len().min(ARGUMENTS)];
        let holds = |pattern: &Option<Pattern>, text: &[u8]| pattern.as_ref().is_none_or(|p| p.matches(text));
        self.conditions
            .iter()
            .filter(|(_, name, text)| holds(name, tool.as_bytes()) && holds(text, arguments))
            .fold(0, |bits, (number, _, _)| bits | 1 << number)
    }
}

/// The last calls of a session.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    /// Classes of each call.
    last: VecDeque<u64>,
    /// Reported sequences, each with the number of calls since.
    reported: Vec<(Arc<str>, usize)>,
}

impl Calls {
    /// Adds a call, and returns the sequences that it completes. A sequence is reported once in 50 calls.
    pub fn observe(&mut self, rules: &Sequences, tool: &str, arguments: &str) -> Vec<Finding> {
        let classes = rules.classes(tool, arguments);
        self.last.push_back(classes);
        if self.last.len() > CALLS {
            self.last.pop_front();
        }
        self.reported.retain_mut(|(_, since)| {
            *since += 1;
            *since < CALLS
        });
        let mut findings = Vec::new();
        for sequence in &rules.sequences {
            let known = self.reported.iter().any(|(id, _)| *id == sequence.id);
            if known || !self.completes(sequence) {
                continue;
            }
            self.reported.push((sequence.id.clone(), 0));
            findings.push(Finding {
                rule: sequence.id.to_string(),
                kind: Kind::Sequence,
                severity: sequence.severity,
                at: At::ToolArgs,
                name: tool.to_owned(),
                range: None,
                steps: Vec::new(),
                fingerprint: Fingerprint::of(arguments.as_bytes()),
            });
        }
        findings
    }

    /// Reports whether the newest call is the last step, and earlier calls are the steps before it, in their order. Each call is
    /// one step at most: a single command that reads and sends is no sequence.
    fn completes(&self, sequence: &Sequence) -> bool {
        let mut steps = sequence.steps.iter().rev();
        let mut calls = self.last.iter().rev();
        let (Some(newest), Some(last)) = (calls.next(), steps.next()) else { return false };
        if newest >> last & 1 == 0 {
            return false;
        }
        steps.all(|step| calls.any(|classes| classes >> step & 1 == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(calls: &[(&str, &str)]) -> Vec<String> {
        let (rules, mut session) = (Sequences::builtin(), Calls::default());
        let found = calls.iter().flat_map(|(tool, arguments)| session.observe(rules, tool, arguments));
        found.map(|finding| finding.rule).collect()
    }

    #[test]
    fn read_then_send_is_a_sequence_in_this_order_only() {
        let read = ("read_file", r#"{"path": "/home/me/.ssh/id_rsa"}"#);
        let send = ("http_post", r#"{"url": "https://example.com", "body": "x"}"#);
        assert_eq!(observe(&[read, send, send]), ["sequence-read-then-send"]);
        assert_eq!(observe(&[send, read]), [] as [&str; 0]);
        let mut far = vec![read];
        far.extend([("noop", "{}"); 50]);
        far.push(send);
        assert_eq!(observe(&far), [] as [&str; 0]);
    }

    #[test]
    fn sequence_with_an_unknown_class_is_refused() {
        let text = "class = []\n[[sequence]]\nid = 'a'\nsteps = ['x']\nseverity = 'low'";
        assert!(Sequences::parse(text).unwrap_err().to_string().starts_with("rule a: steps"));
    }
}
