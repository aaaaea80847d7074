//! Events of the log itself. Their class is the base event of the schema.

use std::time::SystemTime;

use serde_json::{Map, Value};

use super::{Decision, Event, Kind, Severity, Verdict};
use crate::text::Text;

/// Maximum exporters that an event names.
const UNSENT_MAX: usize = 32;

/// Reason why segments are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The log is larger than its bound.
    Size,
    /// The records are older than their bound.
    Age,
    /// The log is larger than its hard bound, although an exporter has not sent these records.
    HardBound,
}

/// Event of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent<'a> {
    /// The writer has started.
    Opened,
    /// The writer stops in order.
    Closed,
    /// The last line of the log was incomplete and was cut off.
    Torn {
        /// Segment.
        segment: &'a str,
        /// Bytes that were cut off.
        bytes: u64,
    },
    /// The last line of the log is damaged. It was left in place.
    Damaged {
        /// Segment.
        segment: &'a str,
    },
    /// Records are not in the log that a signed head covers, or that were on the disk.
    Missing {
        /// First of them.
        first: u64,
        /// Last of them.
        last: u64,
    },
    /// Records were lost, since the writer did not keep up.
    Lost {
        /// Number of them.
        records: u64,
    },
    /// Segments are deleted.
    Removed {
        /// First record.
        first: u64,
        /// Last record.
        last: u64,
        /// Reason.
        why: Removal,
        /// Exporters that have not sent all of them, with the number of records that each one has not sent.
        unsent: &'a [(String, u64)],
    },
    /// Signature of the record before this one.
    Head {
        /// Text that is signed.
        statement: &'a str,
        /// Signature in hexadecimal.
        signature: &'a str,
    },
}

impl Event {
    /// Returns an event of the log.
    pub fn log(time: SystemTime, what: &LogEvent<'_>) -> Event {
        let verdict = Verdict::of(Decision::Logged);
        let mut event = Event::new(time, Kind::Log, 99, Some(&verdict));
        let (name, message, severity) = describe(what);
        event.severity_id = severity as u8;
        event.message = Some(Text::long(&message));
        event.unmapped = details(what);
        event.named(name)
    }
}

fn describe(what: &LogEvent<'_>) -> (&'static str, String, Severity) {
    let one = |name, message: &str, severity| (name, message.to_owned(), severity);
    match what {
        LogEvent::Opened => one("opened", "the audit log is opened", Severity::Informational),
        LogEvent::Closed => one("closed", "the audit log is closed in order", Severity::Informational),
        LogEvent::Head { .. } => one("head", "signature of the record before", Severity::Informational),
        LogEvent::Torn { segment, bytes } => {
            let message = format!("the last line of {segment} was incomplete; {bytes} bytes were cut off");
            ("torn", message, Severity::Low)
        }
        LogEvent::Damaged { segment } => {
            ("damaged", format!("the last line of {segment} is damaged"), Severity::High)
        }
        LogEvent::Missing { first, last } => {
            ("missing", format!("records {first} to {last} were written and are missing"), Severity::Critical)
        }
        LogEvent::Lost { records } => {
            ("lost", format!("{records} records were lost, since the log did not keep up"), Severity::High)
        }
        LogEvent::Removed { first, last, why, unsent } => {
            let text = format!("records {first} to {last} are deleted: {}", reason(*why));
            match unsent.is_empty() {
                true => ("removed", text, Severity::Informational),
                false => {
                    let unsent = unsent.iter().map(|(name, records)| format!("{name} ({records} records)"));
                    let unsent = unsent.collect::<Vec<_>>().join(", ");
                    ("removed", format!("{text}; not sent by {unsent}"), Severity::High)
                }
            }
        }
    }
}

fn reason(why: Removal) -> &'static str {
    match why {
        Removal::Size => "the log is larger than its bound",
        Removal::Age => "they are older than their bound",
        Removal::HardBound => "the log is larger than its hard bound",
    }
}

/// Returns the numbers of an event, for programs.
fn details(what: &LogEvent<'_>) -> Map<String, Value> {
    let pairs: Vec<(&str, Value)> = match what {
        LogEvent::Opened | LogEvent::Closed => Vec::new(),
        LogEvent::Torn { segment, bytes } => vec![("segment", (*segment).into()), ("bytes", (*bytes).into())],
        LogEvent::Damaged { segment } => vec![("segment", (*segment).into())],
        LogEvent::Missing { first, last } => vec![("first", (*first).into()), ("last", (*last).into())],
        LogEvent::Lost { records } => vec![("records", (*records).into())],
        LogEvent::Removed { first, last, unsent, .. } => {
            vec![
                ("removed_first", (*first).into()),
                ("removed_last", (*last).into()),
                (
                    "unsent",
                    unsent
                        .iter()
                        .take(UNSENT_MAX)
                        .map(|(name, records)| (name.clone(), Value::from(*records)))
                        .collect(),
                ),
            ]
        }
        LogEvent::Head { statement, signature } => {
            vec![("statement", (*statement).into()), ("signature", (*signature).into())]
        }
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
