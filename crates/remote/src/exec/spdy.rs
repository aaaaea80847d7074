//! Session over SPDY/3.1: one stream for each of the standard streams, the exit status and terminal sizes.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::follow;
use super::resize::Sizes;
use crate::spdy::{Connection, StreamReader, StreamWriter};
use crate::status::{Verdict, last_word};
use crate::{ByteWriter, ExecRequest, Session, TerminalSize};

/// Maximum time for a client to open its requested streams.
const STREAMS_WITHIN: Duration = Duration::from_secs(30);
/// Maximum bytes of one read of terminal sizes.
const SIZES: usize = 512;

type Halves = Option<(StreamReader, StreamWriter)>;

#[derive(Default)]
struct Streams {
    stdin: Halves,
    stdout: Halves,
    stderr: Halves,
    outcome: Halves,
    resize: Halves,
}

impl Streams {
    /// Accepts streams until all that the request and the version require are open.
    async fn gather(connection: &mut Connection, wanted: &ExecRequest, version: &str) -> Option<Self> {
        let resizes = wanted.tty && (version.starts_with("v4") || version.starts_with("v3"));
        let mut streams = Self::default();
        loop {
            let open = [
                (true, &streams.outcome),
                (wanted.stdin, &streams.stdin),
                (wanted.stdout, &streams.stdout),
                (wanted.stderr, &streams.stderr),
                (resizes, &streams.resize),
            ];
            if open.iter().all(|(wanted, halves)| !wanted || halves.is_some()) {
                return Some(streams);
            }
            let stream = connection.accept().await?;
            let place = match stream.header("streamtype") {
                Some("error") => &mut streams.outcome,
                Some("stdin") if wanted.stdin => &mut streams.stdin,
                Some("stdout") if wanted.stdout => &mut streams.stdout,
                Some("stderr") if wanted.stderr => &mut streams.stderr,
                Some("resize") if resizes => &mut streams.resize,
                // Dropping it refuses the stream.
                _ => continue,
            };
            *place = Some(stream.accept().await);
        }
    }
}

/// Carries a session until the process has ended or the client has disconnected, which ends the session.
pub(super) async fn run<T>(io: T, version: &str, wanted: &ExecRequest, session: Session, verdict: Verdict)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut connection = Connection::open(io);
    let gone = connection.gone();
    let gathered =
        tokio::time::timeout(STREAMS_WITHIN, Streams::gather(&mut connection, wanted, version)).await;
    let Ok(Some(streams)) = gathered else {
        tracing::debug!("client did not open the streams of its session in time");
        return connection.close().await;
    };
    let Session { stdin, stdout, stderr, resize, exit } = session;
    // The writing halves of the inputs stay open: their end would make the client stop sending.
    let (input, input_end) = streams.stdin.unzip();
    let (sizes, sizes_end) = streams.resize.unzip();
    let outputs = [(stdout, streams.stdout), (stderr, streams.stderr)];
    // The reading halves carry nothing, but dropping them before the writing half has ended would be a reset.
    let (outputs, unread): (Vec<_>, Vec<_>) = outputs
        .into_iter()
        .filter_map(|(output, halves)| halves.zip(output))
        .map(|((reader, writer), output)| ((output, writer), reader))
        .unzip();
    let inputs = async {
        tokio::join!(feed(input, stdin), resize_with(sizes, resize));
        std::future::pending::<()>().await;
    };
    let exit = tokio::select! {
        exit = follow(exit, outputs) => exit,
        () = inputs => None,
        // Dropping the session ends the process.
        () = gone.cancelled() => None,
    };
    if let (Some(exit), Some((_reader, mut outcome))) = (exit, streams.outcome) {
        let word = last_word(&exit, verdict);
        let text = match word["status"].as_str() {
            _ if version.starts_with("v4") => word.to_string(),
            // Old clients expect plain text, and only for failures.
            Some("Success") => String::new(),
            _ => word["message"].as_str().unwrap_or_default().to_owned(),
        };
        let mut ends = [input_end, sizes_end];
        let said = async {
            outcome.write_all(text.as_bytes()).await?;
            outcome.shutdown().await?;
            for end in ends.iter_mut().flatten() {
                end.shutdown().await?;
            }
            std::io::Result::Ok(())
        };
        // A client that has disconnected does not need the exit status.
        let _ = said.await;
        connection.close().await;
    }
    drop(unread);
}

async fn feed(input: Option<StreamReader>, stdin: Option<ByteWriter>) {
    let (Some(mut input), Some(mut stdin)) = (input, stdin) else { return };
    // After a failed write the rest of the input is read and discarded, so that it does not block the
    // connection.
    if tokio::io::copy(&mut input, &mut stdin).await.is_ok() {
        let _ = stdin.shutdown().await;
    } else {
        let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
    }
}

async fn resize_with(sizes: Option<StreamReader>, resize: Option<mpsc::Sender<TerminalSize>>) {
    let Some(mut stream) = sizes else { return };
    let mut sizes = Sizes::default();
    let mut buffer = [0; SIZES];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        for size in sizes.push(&buffer[..length]) {
            if let Some(resize) = &resize {
                // Without a receiver the process has ended.
                let _ = resize.send(size).await;
            }
        }
    }
}
