//! A command in a container, over the channels of a WebSocket: its standard streams, its outcome and the size of its
//! terminal.
//!
//! Both directions are independent, so a command can write before it has read all of its input.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt, Stream, StreamExt};
use hutch_remote::numbers::{CLOSE, OUTCOME, RESIZE, STDERR, STDIN, STDOUT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use kube::client::Connection;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::{Error, Sandboxes, Target};

/// Maximum time without a message: proxies close idle connections.
const PING: Duration = Duration::from_secs(30);

/// Exit status of a command that could not be started, as of `hutch run`.
pub const CANNOT_START: u8 = 125;
/// Exit statuses as of shells.
const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// Input of a command.
#[derive(Debug)]
pub enum Input {
    /// Bytes for standard input.
    Bytes(Bytes),
    /// End of standard input.
    End,
    /// Size of the terminal.
    Size {
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
}

/// Output of a command.
#[derive(Debug)]
pub enum Output {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error; empty with a terminal.
    Stderr(Bytes),
}

/// Outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Exit status; 128 and the number of the signal that ended the command.
    Exited(u8),
    /// The command did not start: the exit status of a shell in this case, and the reason, which is untrusted text.
    NotStarted(u8, String),
    /// The receiver of the output was dropped.
    OutputClosed,
}

/// A command to start.
#[derive(Clone, Debug)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Connect standard input.
    pub stdin: bool,
    /// Give the command a terminal.
    pub tty: bool,
}

/// A requested command.
pub struct Session {
    connection: Connection,
}

impl Sandboxes {
    /// Requests a command. It runs without regard to the readiness of its Sandbox.
    ///
    /// # Errors
    /// The API server refuses the request, or the container is not running.
    pub async fn exec(&self, target: &Target, command: Command) -> Result<Session, Error> {
        let parameters = AttachParams {
            container: Some(target.container.clone()),
            stdin: command.stdin,
            stdout: true,
            // A terminal has one output.
            stderr: !command.tty,
            tty: command.tty,
            ..AttachParams::default()
        };
        let request = kube::core::Request::new(self.pods.resource_url());
        let request = request.exec(&target.pod, command.argv, &parameters).map_err(Error::Request)?;
        Ok(Session { connection: self.client.connect(request).await? })
    }
}

impl Session {
    /// Transfers input and output until the command has ended. Dropping the future closes the connection, which ends the
    /// command on Hutch's node.
    ///
    /// # Errors
    /// The connection ended before the command, or the API server did not report how the command ended.
    pub async fn run(
        self,
        input: mpsc::Receiver<Input>,
        output: mpsc::Sender<Output>,
    ) -> Result<Ended, Error> {
        let closes = self.connection.supports_stream_close();
        let (sink, stream) = self.connection.into_stream().split();
        let sent = async {
            // The outcome reports what could not be sent.
            let _ = send(sink, input, closes).await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            ended = receive(stream, output) => ended,
            () = sent => Err(Error::Disconnected),
        }
    }
}

async fn send<S>(
    mut sink: SplitSink<S, Message>,
    mut input: mpsc::Receiver<Input>,
    closes: bool,
) -> Result<(), tungstenite::Error>
where
    S: Sink<Message, Error = tungstenite::Error>,
{
    let mut open = true;
    loop {
        let message = tokio::select! {
            input = input.recv(), if open => match input {
                Some(Input::Bytes(bytes)) => message(STDIN, &bytes),
                Some(Input::Size { columns, rows }) => {
                    message(RESIZE, json!({"Width": columns, "Height": rows}).to_string().as_bytes())
                }
                Some(Input::End) if closes => message(CLOSE, &[STDIN]),
                // Before version 5 of the protocol, only the end of the connection ends the input.
                Some(Input::End) => Message::Close(None),
                None => {
                    open = false;
                    continue;
                }
            },
            () = tokio::time::sleep(PING) => Message::Ping(Bytes::new()),
        };
        sink.send(message).await?;
    }
}

fn message(channel: u8, payload: &[u8]) -> Message {
    let mut message = BytesMut::with_capacity(1 + payload.len());
    message.put_u8(channel);
    message.put_slice(payload);
    Message::Binary(message.freeze())
}

async fn receive<S>(mut stream: SplitStream<S>, output: mpsc::Sender<Output>) -> Result<Ended, Error>
where
    S: Stream<Item = Result<Message, tungstenite::Error>>,
{
    while let Some(message) = stream.next().await {
        let Message::Binary(mut bytes) = message.map_err(|error| Error::Lost(Some(Box::new(error))))? else {
            continue;
        };
        if bytes.len() < 2 {
            continue;
        }
        let payload = bytes.split_off(1);
        let piece = match bytes[0] {
            STDOUT => Output::Stdout(payload),
            STDERR => Output::Stderr(payload),
            OUTCOME => return outcome(&payload),
            _ => continue,
        };
        if output.send(piece).await.is_err() {
            return Ok(Ended::OutputClosed);
        }
    }
    Err(Error::Lost(None))
}

/// Reads the `Status` that ends a session.
fn outcome(bytes: &[u8]) -> Result<Ended, Error> {
    let status: Status = serde_json::from_slice(bytes)
        .map_err(|error| Error::Outcome("the API server's word on how it ended", Some(error)))?;
    if status.status.as_deref() == Some("Success") {
        return Ok(Ended::Exited(0));
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    if status.reason.as_deref() == Some("NonZeroExitCode") {
        let code = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let code = code.and_then(|cause| cause.message).and_then(|text| text.parse::<i32>().ok());
        let code = code.ok_or(Error::Outcome("the API server did not tell the exit status", None))?;
        // Truncated as by the kernel and every shell, but a failure remains a failure.
        let low = u8::try_from(code & 0xff).unwrap_or(u8::MAX);
        return Ok(Ended::Exited(if low == 0 { u8::MAX } else { low }));
    }
    match status.message.filter(|message| !message.is_empty()) {
        Some(message) => Ok(Ended::NotStarted(status_of(&message), message)),
        None => {
            let problem = "the command could not be started, and the API server did not say why";
            Err(Error::Outcome(problem, None))
        }
    }
}

/// Returns the exit status of a shell for the message of a failed start by Hutch's node, runc, crun or runsc.
fn status_of(message: &str) -> u8 {
    let message = message.to_ascii_lowercase();
    let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if !message.contains("exec") || has(&["working directory", "chdir", "cwd"]) {
        CANNOT_START
    } else if has(&["command not found", "executable file not found", "no such file or directory"]) {
        NOT_FOUND
    } else if has(&["permission denied", "exec format error", "is a directory"]) {
        CANNOT_EXECUTE
    } else {
        CANNOT_START
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(reason: &str, message: &str, code: &str) -> Ended {
        let status = json!({"status": "Failure", "reason": reason, "message": message,
            "details": {"causes": [{"reason": "ExitCode", "message": code}]}});
        outcome(status.to_string().as_bytes()).expect("an outcome")
    }

    #[test]
    fn outcome_has_the_status_of_the_command() {
        assert_eq!(outcome(br#"{"status":"Success"}"#).expect("an outcome"), Ended::Exited(0));
        assert_eq!(failure("NonZeroExitCode", "", "3"), Ended::Exited(3));
        assert_eq!(failure("NonZeroExitCode", "", "137"), Ended::Exited(137));
        assert_eq!(failure("NonZeroExitCode", "", "256"), Ended::Exited(255));
        assert!(outcome(b"garbage").is_err());
    }

    #[test]
    fn reason_of_a_failed_start_determines_the_status() {
        let prefix = "Internal error occurred: error executing command in container: ";
        for (text, status) in [
            ("exec: \"x\": command not found", 127),
            ("OCI runtime exec failed: exec: \"x\": executable file not found in $PATH: unknown", 127),
            ("exec: \"/x\": Permission denied (os error 13)", 126),
            ("exec: \"x\": working directory /gone: No such file or directory (os error 2)", 125),
            ("container is not running", 125),
        ] {
            let message = format!("{prefix}{text}");
            assert_eq!(failure("InternalError", &message, ""), Ended::NotStarted(status, message.clone()));
        }
    }
}
