//! Passes bytes on between two connections.
//!
//! Single pieces are copied. While bytes come in bulk, the kernel moves them through a pipe and they are not copied.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::descriptors::{Descriptors, PIPE, Places};

/// Bytes that are read at once in one direction. All connections of a sandbox together hold at most 24 MiB.
const PIECE: usize = 24 << 10;
/// Full pieces, one after the other, after which a direction gets a pipe.
const BULK: usize = 4;
/// Bytes that a pipe holds.
const BYTES: usize = 256 << 10;
/// Time without bytes after which the other end is looked for.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum time without bytes for which a direction keeps its pipe.
const LULL: Duration = Duration::from_millis(10);
/// Pipes of this process: together 8 MiB. A direction that gets none copies.
static PIPES: Semaphore = Semaphore::const_new(32);

/// Passes bytes on in both directions until both have ended, or one fails. `descriptors` are for pipes. `first` was read of
/// the client already. `sent` sees the number of bytes before the client's bytes are sent; its error ends both directions.
/// `received` sees the number of bytes of the server.
pub(crate) async fn join<E: From<io::Error>>(
    descriptors: &Descriptors,
    client: &mut TcpStream,
    server: &mut TcpStream,
    first: Vec<u8>,
    sent: impl Fn(usize) -> Result<(), E>,
    received: impl Fn(usize),
) -> Result<(), E> {
    for end in [&*client, &*server] {
        let _ = end.set_nodelay(true);
        keep_alive(end);
    }
    if !first.is_empty() {
        sent(first.len())?;
        server.write_all(&first).await?;
    }
    drop(first);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let out = pass(descriptors, from_client, to_server, &sent);
    let received = |bytes| {
        received(bytes);
        Ok(())
    };
    let back = pass(descriptors, from_server, to_client, &received);
    tokio::try_join!(out, back).map(|_| ())
}

/// Has the kernel find out that the other end of an idle connection is gone, such as behind a router that has forgotten it. What
/// the client does to that end reaches this process only.
pub(crate) fn keep_alive(stream: &TcpStream) {
    // One that cannot be found dead is as good as it was.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, IDLE);
}

/// Passes bytes on until their end. Memory is held only while there are bytes, since most connections are idle.
async fn pass<E: From<io::Error>>(
    descriptors: &Descriptors,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    sent: &impl Fn(usize) -> Result<(), E>,
) -> Result<(), E> {
    loop {
        let ended = match copy(&mut from, &mut to, sent).await? {
            Passed::Ended => true,
            Passed::Bulk => match Pipe::new(descriptors) {
                // Not part of the memory of every connection.
                Some(pipe) => Box::pin(splice(&pipe, from.as_ref(), to.as_ref(), sent)).await?,
                None => false,
            },
        };
        if ended {
            // The other direction may continue.
            to.shutdown().await?;
            return Ok(());
        }
    }
}

/// Reason why copying has stopped.
enum Passed {
    /// Many bytes wait.
    Bulk,
    /// No further bytes will come.
    Ended,
}

/// Copies bytes until many wait.
async fn copy<E: From<io::Error>>(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    sent: &impl Fn(usize) -> Result<(), E>,
) -> Result<Passed, E> {
    let mut full = 0;
    while full < BULK {
        let piece = read(from).await?;
        if piece.is_empty() {
            return Ok(Passed::Ended);
        }
        sent(piece.len())?;
        to.write_all(&piece).await?;
        full = if piece.len() < PIECE { 0 } else { full + 1 };
    }
    Ok(Passed::Bulk)
}

/// Waits for bytes, and reads them: none if no further ones will come. While it waits it holds no memory.
async fn read(from: &mut ReadHalf<'_>) -> io::Result<Vec<u8>> {
    poll_fn(|context| {
        let mut piece = Vec::with_capacity(PIECE);
        // A part of a piece shows the runtime that no more bytes wait, without another system call.
        ready!(pin!(from.read_buf(&mut piece)).poll(context))?;
        Poll::Ready(Ok(piece))
    })
    .await
}

/// Moves bytes through a pipe as long as there are many. Returns `true` if no further bytes will come.
async fn splice<E: From<io::Error>>(
    pipe: &Pipe,
    from: &TcpStream,
    to: &TcpStream,
    sent: &impl Fn(usize) -> Result<(), E>,
) -> Result<bool, E> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        // Two sides that are always ready would keep this thread from all other work.
        tokio::task::consume_budget().await;
        let taken = from.try_io(Interest::READABLE, || {
            Ok(rustix::pipe::splice(from, None, &pipe.input, None, BYTES, flags)?)
        });
        let mut left = match taken {
            Ok(0) => return Ok(true),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match timeout(LULL, from.readable()).await {
                    Ok(readable) => readable?,
                    Err(_) => return Ok(false),
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        sent(left)?;
        while left > 0 {
            to.writable().await?;
            let moved = to.try_io(Interest::WRITABLE, || {
                Ok(rustix::pipe::splice(&pipe.output, None, to, None, left, flags)?)
            });
            match moved {
                Ok(count) => left -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A pipe, and its places among the pipes and the descriptors of the process.
struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
    _places: (SemaphorePermit<'static>, Places),
}

impl Pipe {
    /// Returns a new pipe, unless there are too many.
    fn new(descriptors: &Descriptors) -> Option<Pipe> {
        let places = (PIPES.try_acquire().ok()?, descriptors.take(PIPE).ok()?);
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A user can have too many large ones; a smaller one does as well.
        let _ = fcntl_setpipe_size(&input, BYTES);
        Some(Pipe { output, input, _places: places })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (one, listener.accept().await.unwrap().0)
    }

    /// Bytes that differ from place to place.
    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[tokio::test]
    async fn many_bytes_arrive_as_they_were_sent_in_both_directions() {
        const LENGTH: usize = 8 << 20;
        let ((mut client, mut inside), (mut outside, mut server)) = (pair().await, pair().await);
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let joined = async {
            let sent = |count| {
                counts[0].fetch_add(count, Ordering::Relaxed);
                Ok::<_, io::Error>(())
            };
            let received = |count| {
                counts[1].fetch_add(count, Ordering::Relaxed);
            };
            join(&Descriptors::default(), &mut inside, &mut outside, b"first".to_vec(), sent, received).await
        };
        async fn talk(stream: &mut TcpStream, says: &[u8], hears: Vec<u8>) {
            let (mut reader, mut writer) = stream.split();
            let write = async {
                writer.write_all(says).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let mut heard = Vec::new();
            let read = async { reader.read_to_end(&mut heard).await.unwrap() };
            tokio::join!(write, read);
            assert!(heard == hears, "{} bytes of {}", heard.len(), hears.len());
        }
        let (out, back) = (bytes(LENGTH), bytes(LENGTH / 2));
        let heard = [b"first", &out[..]].concat();
        let (joined, (), ()) =
            tokio::join!(joined, talk(&mut client, &out, back.clone()), talk(&mut server, &back, heard));
        joined.unwrap();
        assert_eq!(counts.map(AtomicUsize::into_inner), [LENGTH + 5, LENGTH / 2]);
    }

    #[tokio::test]
    async fn pipe_takes_descriptors_and_without_them_bytes_are_copied() {
        for (limit, pipes) in [(6, 1), (0, 0)] {
            let descriptors = Descriptors::of(Some(limit));
            let made: Vec<Pipe> = std::iter::from_fn(|| Pipe::new(&descriptors)).collect();
            assert_eq!(made.len(), pipes, "{limit}");
        }
        let ((mut client, mut inside), (mut outside, mut server)) = (pair().await, pair().await);
        let sent = bytes(1 << 20);
        let joined = async {
            let none = Descriptors::of(Some(0));
            join(&none, &mut inside, &mut outside, Vec::new(), |_| Ok::<_, io::Error>(()), |_| ()).await
        };
        let write = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let read = async {
            server.read_to_end(&mut heard).await.unwrap();
            server.shutdown().await.unwrap();
        };
        let (joined, (), ()) = tokio::join!(joined, write, read);
        joined.unwrap();
        assert!(heard == sent, "{} bytes", heard.len());
    }

    #[tokio::test]
    async fn bytes_above_a_budget_are_not_sent_however_many_come() {
        const BUDGET: usize = 3 << 20;
        let ((mut client, mut inside), (mut outside, mut server)) = (pair().await, pair().await);
        let total = AtomicUsize::new(0);
        let joined = async {
            let sent = |count| match total.fetch_add(count, Ordering::Relaxed) + count > BUDGET {
                true => Err(io::Error::other("over")),
                false => Ok(()),
            };
            let result =
                join(&Descriptors::default(), &mut inside, &mut outside, Vec::new(), sent, |_| ()).await;
            drop((inside, outside));
            result
        };
        let write = async { client.write_all(&bytes(8 << 20)).await };
        let mut heard = Vec::new();
        let read = async { server.read_to_end(&mut heard).await };
        let (joined, written, _) = tokio::join!(joined, write, read);
        assert!(joined.is_err() && written.is_err());
        assert!(heard.len() <= BUDGET && heard.len() > BUDGET - 2 * BYTES, "{}", heard.len());
        assert!(heard == bytes(8 << 20)[..heard.len()]);
    }
}
