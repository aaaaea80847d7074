//! The output of a process, read as fast as it is taken, to the end that counts: that of the process, not that of
//! whatever it left behind holding its pipes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Exit;
use super::ring::Ring;

/// After the process has ended, what it has written is in its pipes already. Others who hold them may write on for as
/// long as they never pause longer than this...
const SILENCE_LIMIT: Duration = Duration::from_millis(100);
/// ...and not longer than this in all.
const LINGER_LIMIT: Duration = Duration::from_secs(5);

/// Which of its outputs a process wrote to. A terminal has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What a process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It wrote.
    Output(Source, Bytes),
    /// So many bytes that it wrote are lost to this reader.
    Dropped(u64),
    /// It ended; nothing comes after.
    Exit(Exit),
}

/// Tells those who read its output that a process has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended(watch::Receiver<Option<Instant>>);

/// The other side of [`Ended`].
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
    /// Returns when the process has ended and nothing more is to be waited for.
    async fn silence(&self) {
        let mut told = self.0.clone();
        match told.wait_for(Option::is_some).await.map(|at| *at) {
            Ok(Some(at)) => {
                tokio::time::sleep_until((Instant::now() + SILENCE_LIMIT).min(at + LINGER_LIMIT)).await
            }
            // Nobody will tell: the output counts to its own end.
            _ => std::future::pending().await,
        }
    }

    /// Reads some, `most` bytes at most; 0 at the end.
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

/// Where output goes.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    /// To whoever started the process, who is waited for.
    Client(tokio::sync::mpsc::Sender<Event>),
    /// Into a ring, which takes everything.
    Ring(Arc<Ring>),
}

impl Sink {
    /// Whether there is anybody to give more to.
    async fn put(&self, source: Source, content: Bytes) -> bool {
        match self {
            Sink::Client(client) => client.send(Event::Output(source, content)).await.is_ok(),
            Sink::Ring(ring) => {
                ring.push(source, &content);
                true
            }
        }
    }

    /// Returns when nobody wants the process any more.
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

/// Moves one output to the sink, `chunk` bytes at most at once, until it ends or nobody takes it.
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
    async fn output_after_the_end_is_read_until_it_pauses() {
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
    async fn who_never_pauses_is_cut_off_all_the_same() {
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
