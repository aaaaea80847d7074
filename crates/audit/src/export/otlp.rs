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

    pub(super) async fn send(&mut self, batch: &[Entry]) -> Result<(), Failure> {
        let body = Bytes::from(request(batch).to_string());
        let answer = self.client.post("application/json", HeaderMap::new(), body).await?;
        match rejected(&answer) {
            Some((0, message)) => {
                tracing::warn!(message, "collector warns about audit records");
                Ok(())
            }
            Some((count, message)) => {
                let cause = format!("the collector rejects {count} records: {message}");
                Err(Failure { refused: true, ..Failure::new(cause) })
            }
            None => Ok(()),
        }
    }
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
        "resource": {"attributes": [text("service.name", "hutch")]},
        "scopeLogs": [{
            "scope": {"name": "hutch.audit", "version": env!("CARGO_PKG_VERSION")},
            "logRecords": records,
        }],
    }]})
}

/// Returns one record. Its body is the event as written, so the hash can be checked.
fn record(entry: &Entry) -> Option<Value> {
    let line = entry.parsed()?;
    let event = std::str::from_utf8(line.event).ok()?;
    let view = View::parse(line.event);
    // OTLP writes numbers of 64 bits as text.
    let time = view.time().saturating_mul(1_000_000).to_string();
    let (severity, name) = severity(view.severity());
    let kind = view.kind().map_or("unknown", crate::Kind::as_str);
    let mut attributes = vec![
        json!({"key": "hutch.audit.seq", "value": {"intValue": line.seq.to_string()}}),
        text("hutch.audit.prev", &line.prev.to_string()),
        text("hutch.audit.hash", &line.hash.to_string()),
    ];
    if !view.sandbox().is_empty() {
        attributes.push(text("hutch.sandbox", view.sandbox()));
    }
    Some(json!({
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": severity,
        "severityText": name,
        "eventName": format!("hutch.audit.{kind}"),
        "body": {"stringValue": event},
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
