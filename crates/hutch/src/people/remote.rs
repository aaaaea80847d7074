//! A command in a container, over the channels of a WebSocket: 0 to 2 are its standard streams, 3 is its outcome, 4
//! the size of its terminal.
//!
//! Both directions are independent, so that a command which writes before it has read everything is not held up.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt, Stream, StreamExt};
use hutch_remote::numbers::{CLOSE, OUTCOME, RESIZE, STDERR, STDIN, STDOUT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::api_error;
use super::sandbox::{Cluster, Target};
use super::stdio::Piece;

/// Something is sent at least so often, or proxies would take the connection for dead.
const PING: Duration = Duration::from_secs(30);

/// Exit statuses, as shells and `hutch run` use them.
pub(super) const CANNOT_START: u8 = 125;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What goes into a command.
#[derive(Debug)]
pub(super) enum Input {
    Bytes(Bytes),
    /// The end of standard input.
    End,
    Size {
        columns: u16,
        rows: u16,
    },
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this status, 128 and a signal's number included.
    Exited(u8),
    /// It did not start: the status that stands for that, and why.
    NotStarted(u8, String),
    /// Nobody takes what it writes.
    Unread,
}

/// What is to be started.
pub(super) struct Command {
    pub(super) argv: Vec<String>,
    pub(super) stdin: bool,
    pub(super) tty: bool,
}

/// A command that has been asked for.
pub(super) struct Session<S> {
    socket: S,
    closes: bool,
}

/// Starts it.
pub(super) async fn start(
    cluster: &Cluster,
    target: &Target,
    command: Command,
) -> anyhow::Result<
    Session<impl Stream<Item = Result<Message, Error>> + Sink<Message, Error = Error> + Send + use<>>,
> {
    let parameters = AttachParams {
        container: Some(target.container.clone()),
        stdin: command.stdin,
        stdout: true,
        // A terminal has one output.
        stderr: !command.tty,
        tty: command.tty,
        ..AttachParams::default()
    };
    let request = kube::core::Request::new(cluster.pods.resource_url());
    let request = request.exec(&target.pod, command.argv, &parameters).context("the request")?;
    let connection = cluster.client.connect(request).await.map_err(api_error)?;
    Ok(Session { closes: connection.supports_stream_close(), socket: connection.into_stream() })
}

impl<S> Session<S>
where
    S: Stream<Item = Result<Message, Error>> + Sink<Message, Error = Error> + Send,
{
    /// Carries it until it has ended. Dropping this leaves the command alone, and Hutch's node ends it then.
    pub(super) async fn run(
        self,
        input: mpsc::Receiver<Input>,
        output: mpsc::Sender<Piece>,
    ) -> anyhow::Result<Ended> {
        let (sink, stream) = self.socket.split();
        let sent = async {
            // What cannot be sent shows in what does not come back.
            let _ = send(sink, input, self.closes).await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            ended = receive(stream, output) => ended,
            () = sent => bail!("the connection ended"),
        }
    }
}

async fn send<S>(
    mut sink: SplitSink<S, Message>,
    mut input: mpsc::Receiver<Input>,
    closes: bool,
) -> Result<(), Error>
where
    S: Sink<Message, Error = Error>,
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
                // Before version 5 nothing less than the end of the connection ends the input.
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

async fn receive<S>(mut stream: SplitStream<S>, output: mpsc::Sender<Piece>) -> anyhow::Result<Ended>
where
    S: Stream<Item = Result<Message, Error>>,
{
    let lost = "the connection ended before the command did; the command may go on";
    while let Some(message) = stream.next().await {
        let Message::Binary(mut bytes) = message.context(lost)? else { continue };
        if bytes.len() < 2 {
            continue;
        }
        let payload = bytes.split_off(1);
        let piece = match bytes[0] {
            STDOUT => Piece::Stdout(payload),
            STDERR => Piece::Stderr(payload),
            OUTCOME => return outcome(&payload),
            _ => continue,
        };
        if output.send(piece).await.is_err() {
            return Ok(Ended::Unread);
        }
    }
    bail!("{lost}")
}

/// Reads the `Status` that ends a session.
fn outcome(bytes: &[u8]) -> anyhow::Result<Ended> {
    let status: Status = serde_json::from_slice(bytes).context("the API server's word on how it ended")?;
    if status.status.as_deref() == Some("Success") {
        return Ok(Ended::Exited(0));
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    if status.reason.as_deref() == Some("NonZeroExitCode") {
        let code = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let code = code.and_then(|cause| cause.message).and_then(|text| text.parse::<i32>().ok());
        let code = code.context("the API server did not tell the exit status")?;
        // As the kernel and every shell cut it; a failure stays one.
        let low = u8::try_from(code & 0xff).unwrap_or(u8::MAX);
        return Ok(Ended::Exited(if low == 0 { u8::MAX } else { low }));
    }
    let message = status.message.unwrap_or_default();
    ensure!(!message.is_empty(), "the command could not be started, and the API server did not say why");
    Ok(Ended::NotStarted(status_of(&message), message))
}

/// Which status stands for it. The texts are those of Hutch's node, runc, crun and runsc.
fn status_of(message: &str) -> u8 {
    let message = message.to_ascii_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if !message.contains("exec") || says(&["working directory", "chdir", "cwd"]) {
        CANNOT_START
    } else if says(&["command not found", "executable file not found", "no such file or directory"]) {
        NOT_FOUND
    } else if says(&["permission denied", "exec format error", "is a directory"]) {
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
    fn the_outcome_is_the_commands_own_status() {
        assert_eq!(outcome(br#"{"status":"Success"}"#).expect("an outcome"), Ended::Exited(0));
        assert_eq!(failure("NonZeroExitCode", "", "3"), Ended::Exited(3));
        assert_eq!(failure("NonZeroExitCode", "", "137"), Ended::Exited(137));
        assert_eq!(failure("NonZeroExitCode", "", "256"), Ended::Exited(255));
        assert!(outcome(b"garbage").is_err());
    }

    #[test]
    fn a_command_that_does_not_start_has_a_status_that_tells_why() {
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
