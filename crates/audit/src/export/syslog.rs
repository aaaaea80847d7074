//! Syslog: RFC 5424 with octet counting, over TCP (RFC 6587) and TLS (RFC 5425).
//!
//! The protocol has no acknowledgments. A batch counts as received when the connection still stands some time after it was
//! written; after a lost connection, the batch before is sent again too.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Failure;
use super::destination::ExportOptions;
use super::http::{Place, Stream};
use crate::view::{View, timestamp};
use crate::{Entry, Error, Kind};

/// Time after which a batch counts as received.
const SETTLE: Duration = Duration::from_millis(200);
/// Maximum time to write a batch.
const WRITE: Duration = Duration::from_secs(30);
/// Facility: log audit.
const FACILITY: u8 = 13;
/// Name of the structured data. The number is the one of RFC 5612, for names that are not registered.
const DATA: &str = "hutch@32473";
/// Maximum bytes of a host name.
const HOST_MAX: usize = 255;

pub(super) struct Syslog {
    place: Place,
    host: String,
    connection: Option<Box<dyn Stream>>,
    /// Batch before, which is sent again after a lost connection.
    before: Vec<u8>,
}

impl Syslog {
    pub(super) fn new(host: &str, port: u16, tls: bool, options: &ExportOptions) -> Result<Syslog, Error> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let place = Place::new(host, port, tls, options)?;
        Ok(Syslog { place, host: host_name(&name), connection: None, before: Vec::new() })
    }

    pub(super) async fn send(&mut self, batch: &[Entry]) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        for entry in batch {
            let message = message(&self.host, entry);
            bytes.extend_from_slice(format!("{} ", message.len()).as_bytes());
            bytes.extend_from_slice(message.as_bytes());
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut connection = self.place.connect().await?;
                write(&mut connection, &self.before).await?;
                connection
            }
        };
        write(&mut connection, &bytes).await?;
        let mut answer = [0; 64];
        // A receiver sends nothing, except the end.
        match timeout(SETTLE, connection.read(&mut answer)).await {
            Ok(Ok(0)) => return Err(Failure::new("the receiver has closed the connection")),
            Ok(Err(error)) => return Err(Failure::new(error)),
            Ok(Ok(_)) | Err(_) => {}
        }
        (self.connection, self.before) = (Some(connection), bytes);
        Ok(())
    }
}

async fn write(connection: &mut Box<dyn Stream>, bytes: &[u8]) -> Result<(), Failure> {
    let writing = async {
        connection.write_all(bytes).await?;
        connection.flush().await
    };
    match timeout(WRITE, writing).await {
        Ok(written) => written.map_err(Failure::new),
        Err(_) => Err(Failure::new(format!("the receiver does not read within {WRITE:?}"))),
    }
}

/// Returns the message of a record.
fn message(host: &str, entry: &Entry) -> String {
    let view = View::parse(entry.event());
    let (seq, hash) = entry.record.unwrap_or_default();
    let priority = FACILITY * 8 + severity(view.severity());
    let kind = view.kind().map_or("-", Kind::as_str);
    let event = String::from_utf8_lossy(entry.event());
    let time = timestamp(view.time());
    format!(r#"<{priority}>1 {time} {host} hutch - {kind} [{DATA} seq="{seq}" hash="{hash}"] {event}"#)
}

/// Returns the severity of syslog for one of the schema.
fn severity(id: u8) -> u8 {
    match id {
        0 | 1 => 6,
        2 => 5,
        3 => 4,
        4 => 3,
        5 => 2,
        _ => 1,
    }
}

/// Returns a name as a header of a message may have it.
fn host_name(name: &str) -> String {
    let name: String = name.chars().filter(char::is_ascii_graphic).take(HOST_MAX).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_the_form_of_rfc_5424() {
        let event = r#"{"class_uid":4001,"severity_id":3,"time":1700000000123,"metadata":{"event_code":"connection"}}"#;
        let mut line = Vec::new();
        let hash = crate::line::append(&mut line, 9, &crate::Hash::default(), event.as_bytes());
        line.pop();
        let entry = Entry { segment: "s".into(), number: 1, line, record: Some((9, hash)) };
        let expected = format!(
            "<108>1 2023-11-14T22:13:20.123Z box hutch - connection [hutch@32473 seq=\"9\" hash=\"{hash}\"] {event}"
        );
        assert_eq!(message("box", &entry), expected);
        assert_eq!(host_name("a b\nc"), "abc");
        assert_eq!(host_name(" "), "-");
    }
}
