//! Syslog: RFC 5424 with octet counting, over TCP (RFC 6587) and TLS (RFC 5425).
//!
//! The protocol has no acknowledgments, and TCP acknowledges what the receiver's kernel has, not what the receiver has read.
//! So a connection lasts for a short time, and its end is the acknowledgment: the sender ends its direction, and the receiver
//! ends the other one when it has read everything. The kernel of a receiver that dies before that resets the connection,
//! because it still has bytes. Then everything since the last acknowledgment is sent again.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Failure;
use super::destination::ExportOptions;
use super::http::{Place, Stream};
use crate::view::{View, timestamp};
use crate::{Entry, Error, Kind};

/// Time and bytes after which a connection is ended for its acknowledgment.
const SESSION: Duration = Duration::from_secs(1);
const SESSION_BYTES: usize = 8 << 20;
/// Maximum time to write a batch, and for the end of a connection.
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
    session: Option<Session>,
    /// Time after which a connection is ended.
    pub(super) lasts: Duration,
}

/// A connection with bytes that are not acknowledged.
struct Session {
    connection: Box<dyn Stream>,
    began: Instant,
    bytes: usize,
}

impl Syslog {
    pub(super) fn new(host: &str, port: u16, tls: bool, options: &ExportOptions) -> Result<Syslog, Error> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let place = Place::new(host, port, tls, options)?;
        Ok(Syslog { place, host: host_name(&name), session: None, lasts: SESSION })
    }

    /// Writes a batch. After a failure, everything since the last acknowledgment may be lost.
    pub(super) async fn send(&mut self, batch: &[Entry]) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        for entry in batch {
            let message = message(&self.host, entry);
            bytes.extend_from_slice(format!("{} ", message.len()).as_bytes());
            bytes.extend_from_slice(message.as_bytes());
        }
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session { connection: self.place.connect().await?, began: Instant::now(), bytes: 0 },
        };
        stands(&mut session.connection).await?;
        write(&mut session.connection, &bytes).await?;
        session.bytes += bytes.len();
        self.session = Some(session);
        Ok(())
    }

    /// Returns true if it is time for an acknowledgment.
    pub(super) fn is_due(&self) -> bool {
        let is_due =
            |session: &Session| session.began.elapsed() >= self.lasts || session.bytes >= SESSION_BYTES;
        self.session.as_ref().is_some_and(is_due)
    }

    /// Ends the connection. Returns true if the receiver has read what was sent since the last time, and false if nothing was.
    ///
    /// # Errors
    /// The receiver has not ended its direction, so it may not have read everything.
    pub(super) async fn acknowledged(&mut self) -> Result<bool, Failure> {
        let Some(Session { mut connection, .. }) = self.session.take() else { return Ok(false) };
        // A receiver that has ended before has not acknowledged anything.
        stands(&mut connection).await?;
        let ending = async {
            connection.shutdown().await?;
            let mut answer = [0; 64];
            loop {
                match connection.read(&mut answer).await {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    // Some receivers end TLS without a message about that.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        match timeout(WRITE, ending).await {
            Ok(ended) => ended.map(|()| true).map_err(Failure::new),
            Err(_) => Err(Failure::new(format!("the receiver does not end its connection within {WRITE:?}"))),
        }
    }
}

/// Checks that the receiver has not ended a connection. A receiver sends nothing else.
async fn stands(connection: &mut Box<dyn Stream>) -> Result<(), Failure> {
    let mut answer = [0; 64];
    match timeout(Duration::ZERO, connection.read(&mut answer)).await {
        Ok(Ok(0)) => Err(Failure::new("the receiver has closed the connection")),
        Ok(Err(error)) => Err(Failure::new(error)),
        Ok(Ok(_)) | Err(_) => Ok(()),
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
