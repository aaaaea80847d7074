//! Logs of OpenTelemetry: `POST /v1/logs` with JSON.

use bytes::Bytes;
use http::{HeaderMap, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Failure;
use super::destination::ExportOptions;
use super::http::Client;
use crate::view::View;
use crate::{Entry, Error};

/// Attribute with the number of a record.
pub(super) const SEQ: &str = "hutch.audit.seq";
/// Names of the resource and of the scope.
pub(super) const SERVICE: (&str, &str) = ("service.name", "hutch");
pub(super) const SCOPE: &str = "hutch.audit";

pub(super) struct Otlp {
    client: Client,
}

/// Answer of a collector.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Answer {
    partial_success: Option<Partial>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Partial {
    /// A number, which JSON of protobuf writes as text.
    rejected_log_records: Value,
    error_message: String,
}

impl Otlp {
    pub(super) fn new(uri: &Uri, options: &ExportOptions) -> Result<Otlp, Error> {
        Ok(Otlp { client: Client::new(uri, options)? })
    }

    pub(super) async fn send(&mut self, batch: &[Entry]) -> Result<u64, Failure> {
        let body = Bytes::from(request(batch).to_string());
        let answer = self.client.post("application/json", HeaderMap::new(), body).await?;
        Ok(rejected(&answer).map_or(0, |(count, message)| partial(count, &self.client.shown(&message))))
    }
}

/// Reports an answer that names rejected records, or has a message. Returns the number of those records: by the protocol,
/// such a batch is not sent again.
pub(super) fn partial(count: u64, message: &str) -> u64 {
    tracing::warn!(rejected = count, message, "collector warns about audit records");
    count
}

/// Returns the number of records that a collector rejects, and its message.
fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let partial = serde_json::from_slice::<Answer>(answer).ok()?.partial_success?;
    let count = match &partial.rejected_log_records {
        Value::String(text) => text.parse().unwrap_or(0),
        number => number.as_u64().unwrap_or(0),
    };
    (count > 0 || !partial.error_message.is_empty()).then_some((count, partial.error_message))
}

/// Returns the body of a request.
fn request(batch: &[Entry]) -> Value {
    let records: Vec<Value> = batch.iter().filter_map(record).collect();
    json!({"resourceLogs": [{
        "resource": {"attributes": [text(SERVICE.0, SERVICE.1)]},
        "scopeLogs": [{
            "scope": {"name": SCOPE, "version": env!("CARGO_PKG_VERSION")},
            "logRecords": records,
        }],
    }]})
}

/// Content of a record.
pub(super) struct LogRecord<'a> {
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    /// Number and name.
    pub(super) severity: (u8, &'static str),
    pub(super) name: String,
    /// The event as written, so the hash can be checked.
    pub(super) event: &'a str,
    pub(super) seq: u64,
    /// Attributes that are texts.
    pub(super) texts: Vec<(&'static str, String)>,
}

impl LogRecord<'_> {
    /// Takes the content of a line.
    pub(super) fn of(entry: &Entry) -> Option<LogRecord<'_>> {
        let line = entry.parsed()?;
        let view = View::parse(line.event);
        let mut texts =
            vec![("hutch.audit.prev", line.prev.to_string()), ("hutch.audit.hash", line.hash.to_string())];
        if !view.sandbox().is_empty() {
            texts.push(("hutch.sandbox", view.sandbox().to_owned()));
        }
        Some(LogRecord {
            time: view.time().saturating_mul(1_000_000),
            severity: severity(view.severity()),
            name: format!("hutch.audit.{}", view.kind().map_or("unknown", crate::Kind::as_str)),
            event: std::str::from_utf8(line.event).ok()?,
            seq: line.seq,
            texts,
        })
    }
}

/// Returns one record.
fn record(entry: &Entry) -> Option<Value> {
    let record = LogRecord::of(entry)?;
    // OTLP writes numbers of 64 bits as text.
    let (time, (severity, name)) = (record.time.to_string(), record.severity);
    let mut attributes = vec![json!({"key": SEQ, "value": {"intValue": record.seq.to_string()}})];
    attributes.extend(record.texts.iter().map(|(key, value)| text(key, value)));
    Some(json!({
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": severity,
        "severityText": name,
        "eventName": record.name,
        "body": {"stringValue": record.event},
        "attributes": attributes,
    }))
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// Returns number and name of a severity of the schema.
fn severity(id: u8) -> (u8, &'static str) {
    match id {
        0..=2 => (9, "INFO"),
        3 => (13, "WARN"),
        4 => (17, "ERROR"),
        _ => (21, "FATAL"),
    }
}

/// Reads any answer of a collector.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_answer(bytes: &[u8]) {
    if let Some((_, message)) = rejected(bytes) {
        super::http::any_text(message.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_success_is_recognized() {
        let rejects = |text: &str| rejected(text.as_bytes()).map(|(count, _)| count);
        assert_eq!(rejects(r#"{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"x"}}"#), Some(3));
        assert_eq!(rejects(r#"{"partialSuccess":{"rejectedLogRecords":2}}"#), Some(2));
        assert_eq!(rejects(r#"{"partialSuccess":{"errorMessage":"slow"}}"#), Some(0));
        assert_eq!(rejects(r#"{"partialSuccess":{}}"#), None);
        assert_eq!(rejects("{}"), None);
        assert_eq!(rejects(""), None);
    }
}
