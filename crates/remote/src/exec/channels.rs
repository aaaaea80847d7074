//! Session over WebSocket channels: 0 to 2 are the standard streams, 3 is the exit status, 4 terminal sizes.

use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::SplitStream;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use super::follow;
use super::resize::Sizes;
use crate::channel::{ChannelWriter, Coding, LINGER, QUEUE, send_all};
use crate::numbers::{CLOSE, OUTCOME, RESIZE, STDERR, STDIN, STDOUT};
use crate::status::{Verdict, last_word};
use crate::{ByteWriter, ExecRequest, Session, TerminalSize};

/// Maximum messages that wait for the process. A message can be 32 MiB, so only one.
const STDIN_QUEUE: usize = 1;

/// Carries a session until the process has ended or the client has disconnected, which ends the session.
pub(super) async fn run(
    socket: WebSocket,
    name: &str,
    wanted: &ExecRequest,
    session: Session,
    verdict: Verdict,
) {
    let coding = Coding::of(name);
    let (sink, stream) = socket.split();
    let (queue, queued) = mpsc::channel(QUEUE);
    let mut writer = tokio::task::JoinSet::new();
    writer.spawn(send_all(sink, queued));
    let outlet = |channel| ChannelWriter { coding, channel, queue: PollSender::new(queue.clone()) };

    // An empty message signals that the streams are open.
    let hello = if wanted.stdout {
        STDOUT
    } else if wanted.stderr {
        STDERR
    } else {
        OUTCOME
    };
    let _ = queue.send(coding.encode(hello, &[])).await;

    let Session { stdin, stdout, stderr, resize, exit } = session;
    let outputs = [(stdout, STDOUT, wanted.stdout), (stderr, STDERR, wanted.stderr)];
    let outputs = outputs.into_iter().filter(|(.., wanted)| *wanted);
    let outputs = outputs.filter_map(|(reader, channel, _)| Some((reader?, outlet(channel)))).collect();
    let (bytes, pending) = mpsc::channel(STDIN_QUEUE);
    let receive = receive(stream, coding, name.starts_with("v5"), bytes, resize);
    let input = async { tokio::join!(receive, feed(stdin, pending)) };
    tokio::pin!(input);

    let exit = tokio::select! {
        exit = follow(exit, outputs) => exit,
        // The client has disconnected: dropping the session ends the process.
        _ = &mut input => None,
    };
    let Some(exit) = exit else { return };
    let word = last_word(&exit, verdict);
    let text = match word["status"].as_str() {
        _ if status_is_object(name) => word.to_string(),
        // Old clients expect plain text, and only for failures.
        Some("Success") => String::new(),
        _ => word["message"].as_str().unwrap_or_default().to_owned(),
    };
    if !text.is_empty() {
        let _ = queue.send(coding.encode(OUTCOME, text.as_bytes())).await;
    }
    drop(queue);
    // Reads until the client closes: closing with unprocessed input would reset the connection and could lose
    // the last messages.
    let _ = tokio::time::timeout(LINGER, async { tokio::join!(writer.join_next(), input) }).await;
}

/// Returns true if the exit status is a `Status` object; before version 4 it is text.
fn status_is_object(name: &str) -> bool {
    name.starts_with("v4.") || name.starts_with("v5.")
}

/// Receives the client's messages until it disconnects.
async fn receive(
    mut stream: SplitStream<WebSocket>,
    coding: Coding,
    closes: bool,
    stdin: mpsc::Sender<Bytes>,
    resize: Option<mpsc::Sender<TerminalSize>>,
) {
    let mut stdin = Some(stdin);
    let mut sizes = Sizes::default();
    while let Some(Ok(message)) = stream.next().await {
        if matches!(message, Message::Close(_)) {
            // The WebSocket responds to a close itself on the next read.
            continue;
        }
        match coding.decode(message) {
            Some((STDIN, bytes)) => {
                if let Some(open) = &stdin
                    && open.send(bytes).await.is_err()
                {
                    stdin = None;
                }
            }
            Some((RESIZE, bytes)) => {
                for size in sizes.push(&bytes) {
                    if let Some(resize) = &resize {
                        // Without a receiver the process has ended.
                        let _ = resize.send(size).await;
                    }
                }
            }
            Some((CLOSE, bytes)) if closes && bytes.first() == Some(&STDIN) => stdin = None,
            _ => {}
        }
    }
}

/// Writes input to the process, and discards it once the process reads no more. The end of input is end of
/// file.
async fn feed(mut stdin: Option<ByteWriter>, mut pending: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = pending.recv().await {
        if let Some(writer) = &mut stdin {
            let written = async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            };
            if written.await.is_err() {
                stdin = None;
            }
        }
    }
    if let Some(mut writer) = stdin {
        let _ = writer.shutdown().await;
    }
}
