//! Reads the output of a process as fast as the client accepts it, until the process ends. Other processes
//! that hold its pipes do not extend that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Exit;
use super::ring::Ring;

/// When a process has ended, its own output is in its pipes already. Other holders of the pipes may continue
/// to write until they pause longer than this...
const SILENCE_LIMIT: Duration = Duration::from_millis(100);
/// ...and at most this long in total.
const LINGER_LIMIT: Duration = Duration::from_secs(5);

/// Output stream of a process. A terminal has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Event of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Output.
    Output(Source, Bytes),
    /// Number of output bytes that are lost to this reader.
    Dropped(u64),
    /// Exit; the last event.
    Exit(Exit),
}

/// Notifies the readers of the output that a process has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended(watch::Receiver<Option<Instant>>);

/// Receiving side of [`Ending`].
#[derive(Debug)]
pub(super) struct Ending(watch::Sender<Option<Instant>>);

impl Ending {
    pub(super) fn pair() -> (Ending, Ended) {
        let (sender, receiver) = watch::channel(None);
        (Ending(sender), Ended(receiver))
    }

    pub(super) fn tell(&self) {
        self.0.send_replace(Some(Instant::now()));
    }
}

impl Ended {
    /// Returns when the process has ended and its output has paused or run out of time.
    async fn silence(&self) {
        let mut told = self.0.clone();
        match told.wait_for(Option::is_some).await.map(|at| *at) {
            Ok(Some(at)) => {
                tokio::time::sleep_until((Instant::now() + SILENCE_LIMIT).min(at + LINGER_LIMIT)).await
            }
            // No notification will come: the output is read to its own end.
            _ => std::future::pending().await,
        }
    }

    /// Reads at most `most` bytes; 0 at the end.
    pub(super) async fn read(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        into: &mut BytesMut,
        most: usize,
    ) -> io::Result<usize> {
        let mut into = into.limit(most);
        tokio::select! {
            biased;
            count = from.read_buf(&mut into) => count,
            () = self.silence() => Ok(0),
        }
    }
}

/// Destination of output.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    /// The client that started the process. Reading waits for it.
    Client(tokio::sync::mpsc::Sender<Event>),
    /// A ring, which never blocks.
    Ring(Arc<Ring>),
}

impl Sink {
    /// Returns true if the destination accepts more.
    pub(super) async fn put(&self, source: Source, content: Bytes) -> bool {
        match self {
            Sink::Client(client) => client.send(Event::Output(source, content)).await.is_ok(),
            Sink::Ring(ring) => {
                ring.push(source, &content);
                true
            }
        }
    }

    /// Returns when the client has disconnected.
    pub(super) async fn abandoned(&self) {
        match self {
            Sink::Client(client) => client.closed().await,
            Sink::Ring(_) => std::future::pending().await,
        }
    }

    pub(super) async fn end(&self, exit: Exit) {
        match self {
            Sink::Client(client) => drop(client.send(Event::Exit(exit)).await),
            Sink::Ring(ring) => ring.end(exit),
        }
    }
}

/// Copies one output to the sink, at most `chunk` bytes at a time, until it ends or the client disconnects.
pub(super) async fn pump(
    from: Option<impl AsyncRead + Unpin>,
    source: Source,
    sink: &Sink,
    chunk: usize,
    ended: &Ended,
) {
    let Some(mut from) = from else { return };
    let mut read = BytesMut::new();
    loop {
        if read.capacity() < chunk / 2 {
            read.reserve(chunk);
        }
        let count = ended.read(&mut from, &mut read, chunk).await.unwrap_or(0);
        if count == 0 || !sink.put(source, read.split().freeze()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_output_is_read_until_it_pauses() {
        let (ending, ended) = Ending::pair();
        let (mut writer, mut reader) = tokio::io::duplex(1 << 10);
        let mut read = BytesMut::new();
        ending.tell();
        tokio::io::AsyncWriteExt::write_all(&mut writer, b"last words").await.unwrap();
        assert_eq!(ended.read(&mut reader, &mut read, 1 << 10).await.unwrap(), 10);
        assert_eq!(
            ended.read(&mut reader, &mut read, 1 << 10).await.unwrap(),
            0,
            "the writer is silent, not gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn endless_late_output_is_cut_off() {
        let (ending, ended) = Ending::pair();
        let (mut writer, mut reader) = tokio::io::duplex(1);
        let chatter = async {
            loop {
                tokio::time::sleep(SILENCE_LIMIT / 2).await;
                if tokio::io::AsyncWriteExt::write_all(&mut writer, b"x").await.is_err() {
                    return;
                }
            }
        };
        let reading = async {
            ending.tell();
            let mut read = BytesMut::new();
            while ended.read(&mut reader, &mut read, 1 << 10).await.unwrap() > 0 {}
            drop(reader);
            read.len()
        };
        let (count, ()) = tokio::join!(reading, chatter);
        assert!((50..=100).contains(&count), "{count}");
    }
}
