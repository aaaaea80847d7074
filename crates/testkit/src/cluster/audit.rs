use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

/// The API server's audit log: every write that it has answered, with who asked.
#[derive(Debug, Clone)]
pub struct Audit {
    log: PathBuf,
}

/// One answered write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// User agent as sent, without what follows the first blank.
    pub agent: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// `pods`, or with a subresource `pods/status`.
    pub resource: String,
    /// Empty for what lies in no namespace.
    pub namespace: String,
    /// Empty where the server made up the name.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
}

impl Audit {
    pub(super) fn new(log: PathBuf) -> Self {
        Audit { log }
    }

    /// All writes so far, in the order of the answers.
    ///
    /// # Errors
    /// The log cannot be read, or has a line that is no audit event.
    pub fn writes(&self) -> anyhow::Result<Vec<Write>> {
        let text = std::fs::read_to_string(&self.log).with_context(|| self.log.display().to_string())?;
        // The last line may still be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| parse(line).transpose()).collect()
    }

    /// Writes of that user agent in that namespace that changed something, counted by verb and resource.
    ///
    /// # Errors
    /// As [`Audit::writes`].
    pub fn count(&self, agent: &str, namespace: &str) -> anyhow::Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for write in self.writes()? {
            if write.agent == agent && write.namespace == namespace && write.code < 300 {
                *counts.entry(format!("{} {}", write.verb, write.resource)).or_default() += 1;
            }
        }
        Ok(counts)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<Object>,
    response_status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// Reads a record; `None` for one that is no response or is about no object.
fn parse(line: &str) -> anyhow::Result<Option<Write>> {
    let event: Event = serde_json::from_str(line).with_context(|| format!("audit event {line:?}"))?;
    let Some(object) = event.object_ref.filter(|_| event.stage == "ResponseComplete") else {
        return Ok(None);
    };
    let resource = match object.subresource.as_str() {
        "" => object.resource,
        subresource => format!("{}/{subresource}", object.resource),
    };
    Ok(Some(Write {
        agent: event.user_agent.split(' ').next().unwrap_or_default().to_owned(),
        verb: event.verb,
        resource,
        namespace: object.namespace,
        name: object.name,
        code: event.response_status.map_or(0, |status| status.code),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_a_beginning_is_not() {
        let line = |stage: &str| {
            format!(
                r#"{{"stage":"{stage}","verb":"patch","userAgent":"hutch/1 (linux)","responseStatus":{{"code":200}},
                "objectRef":{{"resource":"sandboxes","subresource":"status","namespace":"n","name":"s"}}}}"#
            )
        };
        let write = parse(&line("ResponseComplete")).unwrap().unwrap();
        assert_eq!(
            (write.agent.as_str(), write.resource.as_str(), write.code),
            ("hutch/1", "sandboxes/status", 200)
        );
        assert_eq!(parse(&line("ResponseStarted")).unwrap(), None);
        assert!(parse("{").is_err());
    }
}
