//! Upgraded connections.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hutch_serve::Shutdown;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::observe::journal::Line;

/// Maximum time that one direction of an upgraded connection continues after the other has ended. A lost peer
/// and one that has only nothing more to send cannot be distinguished.
const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(300);
/// Maximum bytes of one read.
const PIECE: usize = 64 << 10;

thread_local! {
    /// Buffer between a read and the following write, shared on a thread. A silent connection has no buffer
    /// of its own.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// Joins two connections after both have switched protocols, until either ends or the shutdown.
pub(crate) fn join(client: OnUpgrade, backend: OnUpgrade, shutdown: Shutdown, mut line: Line) {
    tokio::spawn(async move {
        let joined = async {
            let (client, backend) = tokio::try_join!(client, backend)?;
            let ended = copy(&mut TokioIo::new(client), &mut TokioIo::new(backend), &mut line).await;
            if let Err(error) = ended {
                tracing::debug!(%error, "upgraded connection ended early");
            }
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            () = shutdown.wait() => {}
            result = joined => if let Err(error) = result {
                tracing::debug!(%error, "connection did not switch protocols");
            }
        }
    });
}

async fn copy<A, B>(client: &mut A, backend: &mut B, line: &mut Line) -> std::io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut up, mut down) = (Direction::default(), Direction::default());
    let mut both = async |one_is_enough: bool| {
        poll_fn(|context| {
            let upwards = up.poll(context, client, backend);
            let downwards = down.poll(context, backend, client);
            match (upwards, downwards) {
                (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
                (Poll::Pending, Poll::Pending) => Poll::Pending,
                _ if one_is_enough => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            }
        })
        .await
    };
    let ended = match both(true).await {
        Ok(()) => tokio::time::timeout(HALF_CLOSED_LIMIT, both(false)).await.unwrap_or(Ok(())),
        failed => failed,
    };
    line.count(down.passed);
    ended
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    /// Bytes that were read and not written yet.
    pending: Vec<u8>,
    written: usize,
    passed: u64,
    unflushed: bool,
    ended: bool,
    done: bool,
}

impl Direction {
    /// Copies until the end of `from` and forwards the end.
    fn poll<R, W>(&mut self, context: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<std::io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        loop {
            while self.written < self.pending.len() {
                let rest = &self.pending[self.written..];
                let count = ready!(Pin::new(&mut *to).poll_write(context, rest))?;
                self.written += taken(count)?;
            }
            if !self.pending.is_empty() {
                (self.pending, self.written) = (Vec::new(), 0);
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(context))?;
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            match self.step(context, from, to)? {
                Poll::Ready(()) => {}
                Poll::Pending if self.unflushed => {
                    ready!(Pin::new(&mut *to).poll_flush(context))?;
                    self.unflushed = false;
                    return Poll::Pending;
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads a piece and writes as much of it as possible without waiting.
    fn step<R, W>(&mut self, context: &mut Context<'_>, from: &mut R, to: &mut W) -> std::io::Result<Poll<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut piece = ReadBuf::new(scratch);
            match Pin::new(from).poll_read(context, &mut piece) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(read) => read?,
            }
            let read = piece.filled();
            if read.is_empty() {
                self.ended = true;
                return Ok(Poll::Ready(()));
            }
            self.passed += read.len() as u64;
            self.unflushed = true;
            let mut written = 0;
            while written < read.len() {
                match Pin::new(&mut *to).poll_write(context, &read[written..]) {
                    Poll::Ready(count) => written += taken(count?)?,
                    Poll::Pending => {
                        self.pending = read[written..].to_vec();
                        break;
                    }
                }
            }
            Ok(Poll::Ready(()))
        })
    }
}

/// Fails if a writer accepts no bytes; retrying it would loop forever.
fn taken(count: usize) -> std::io::Result<usize> {
    if count == 0 { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(count) }
}
