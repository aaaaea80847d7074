//! Records on their way from the front to the root process, over a stream.
//!
//! A record has a head of 13 bytes: its kind, a number and its length. The answer to one that must be on the disk has the
//! same number.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_apiserver::{Audit, Make};
use hutch_audit::Record;
use hutch_audit::event::EVENT_MAX;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{OwnedReadHalf, OwnedWriteHalf, UnixStream};

/// Records that wait to be sent.
const QUEUE: usize = 4096;
/// Time for which records are gathered, as each batch costs calls of the system and a flush of the disk. The root process
/// does not wait for more. A record that is awaited ends it.
const GATHER: Duration = Duration::from_millis(9);
/// Bytes that are sent and received at once.
pub(super) const BUFFER: usize = 64 << 10;
const LOST: u8 = 0;
const RECORD: u8 = 1;
const DURABLE: u8 = 2;

/// Message of the front.
pub(super) enum Frame {
    /// So many records were lost.
    Lost(u64),
    Record(Vec<u8>),
    /// A record that is answered when it is on the disk, with the number of the answer.
    Durable(u64, Vec<u8>),
}

/// Answer to [`Frame::Durable`].
pub(super) struct Answer {
    pub(super) id: u64,
    pub(super) written: bool,
}

impl Frame {
    /// Reads the next one; `None` at the end.
    pub(super) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
        let mut head = [0; 13];
        match reader.read_exact(&mut head).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [kind, number @ .., a, b, c, d] = head;
        let (number, length) = (u64::from_le_bytes(number), u32::from_le_bytes([a, b, c, d]) as usize);
        if length > EVENT_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an audit record that is too long"));
        }
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).await?;
        match kind {
            LOST => Ok(Some(Frame::Lost(number))),
            RECORD => Ok(Some(Frame::Record(bytes))),
            DURABLE => Ok(Some(Frame::Durable(number, bytes))),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown kind of audit record")),
        }
    }
}

/// Record that waits to be sent.
enum Waiter {
    /// It is made when it is sent.
    Later(Make),
    /// It is answered when it is on the disk, with this number.
    Durable(u64, Record),
}

impl Waiter {
    fn put(self, to: &mut Vec<u8>) {
        match self {
            Waiter::Later(make) => put(to, RECORD, 0, make().as_bytes()),
            Waiter::Durable(number, record) => put(to, DURABLE, number, record.as_bytes()),
        }
    }
}

fn put(to: &mut Vec<u8>, kind: u8, number: u64, bytes: &[u8]) {
    to.push(kind);
    to.extend_from_slice(&number.to_le_bytes());
    to.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Returns the stream of a socket.
pub(super) fn stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Sends answers until there are no more.
pub(super) async fn answer(mut writer: OwnedWriteHalf, mut answers: mpsc::Receiver<Answer>) {
    while let Some(Answer { id, written }) = answers.recv().await {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8] = u8::from(written);
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

type Waiting = Mutex<HashMap<u64, oneshot::Sender<bool>>>;

/// The log as the front has it.
pub(in crate::up) struct FrontLog {
    strict: bool,
    frames: mpsc::Sender<Waiter>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lost: AtomicU64,
    last: AtomicU64,
    /// Callers that wait for an answer; none once the other end has gone.
    waiting: Waiting,
    /// A record is awaited.
    urgent: Notify,
    gone: std::sync::atomic::AtomicBool,
}

impl FrontLog {
    /// Takes the socket to the root process.
    pub(in crate::up) fn new(socket: OwnedFd, strict: bool) -> io::Result<FrontLog> {
        let (reader, writer) = stream(socket)?.into_split();
        let (frames, queue) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared::default());
        tokio::spawn(send(writer, queue, shared.clone()));
        tokio::spawn(receive(reader, shared.clone()));
        Ok(FrontLog { strict, frames, shared })
    }
}

impl FrontLog {
    /// Returns a future that waits for room in the queue, if there is little.
    pub(super) fn room(&self) -> Option<BoxFuture<'static, ()>> {
        if self.frames.capacity() > QUEUE / 2 {
            return None;
        }
        let frames = self.frames.clone();
        // It gives its place back at once: many waiters need no more than the first half of the queue.
        Some(async move { drop(frames.reserve_many(QUEUE / 4).await) }.boxed())
    }
}

async fn send(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Waiter>, shared: Arc<Shared>) {
    let mut bytes = Vec::with_capacity(BUFFER + EVENT_MAX);
    while let Some(first) = queue.recv().await {
        if !matches!(first, Waiter::Durable(..)) {
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = shared.urgent.notified() => {}
            }
        }
        let mut next = Some(first);
        while let Some(frame) = next {
            frame.put(&mut bytes);
            next = queue.try_recv().ok();
            let lost = if next.is_none() { shared.lost.swap(0, Ordering::Relaxed) } else { 0 };
            if lost > 0 {
                put(&mut bytes, LOST, lost, &[]);
            }
            if next.is_none() || bytes.len() >= BUFFER {
                if writer.write_all(&bytes).await.is_err() {
                    return;
                }
                bytes.clear();
            }
        }
    }
}

async fn receive(mut reader: OwnedReadHalf, shared: Arc<Shared>) {
    let mut bytes = [0; 9];
    while reader.read_exact(&mut bytes).await.is_ok() {
        let [id @ .., written] = bytes;
        let waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = { waiting }.remove(&u64::from_le_bytes(id));
        if let Some(answer) = answer {
            let _ = answer.send(written == 1);
        }
    }
    shared.gone.store(true, Ordering::SeqCst);
    shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

pub(super) const REFUSED: &str = "the audit log cannot be written, so nothing is done";

impl Audit for FrontLog {
    fn is_strict(&self) -> bool {
        self.strict
    }

    fn record(&self, record: Record) -> BoxFuture<'static, Result<(), String>> {
        let (frames, shared) = (self.frames.clone(), self.shared.clone());
        if !self.strict {
            return self.enqueue(Box::new(move || record)).map(Ok).boxed();
        }
        async move {
            let id = shared.last.fetch_add(1, Ordering::Relaxed) + 1;
            let (answer, answered) = oneshot::channel();
            shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
            if shared.gone.load(Ordering::SeqCst) {
                shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                return Err(REFUSED.to_owned());
            }
            let sent = frames.send(Waiter::Durable(id, record)).await.is_ok();
            shared.urgent.notify_one();
            match sent && answered.await == Ok(true) {
                true => Ok(()),
                false => Err(REFUSED.to_owned()),
            }
        }
        .boxed()
    }

    fn enqueue(&self, make: Make) -> BoxFuture<'static, ()> {
        let frames = self.frames.clone();
        // A server whose root process has gone ends.
        async move { drop(frames.send(Waiter::Later(make)).await) }.boxed()
    }

    fn push(&self, make: Make) {
        if self.frames.try_send(Waiter::Later(make)).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::of_front;
    use super::*;

    /// Reads any bytes as the stream of a front that an enemy has taken over. What is recorded is one line about its callers.
    fn any_frames(bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(Ok(Some(frame))) = Frame::read(&mut rest).now_or_never() {
            let (Frame::Record(bytes) | Frame::Durable(_, bytes)) = frame else { continue };
            assert!(bytes.len() <= EVENT_MAX);
            let Ok(record) = of_front(bytes) else { continue };
            let kind = hutch_audit::View::parse(record.as_bytes()).kind();
            assert!(!record.as_bytes().contains(&b'\n'), "{record:?}");
            assert!(
                !matches!(kind, None | Some(hutch_audit::Kind::Log | hutch_audit::Kind::Lifecycle)),
                "{record:?}"
            );
        }
    }

    #[test]
    fn any_stream_of_a_front_is_read() {
        hutch_testkit::hostile::feed("hutch_audit_wire", any_frames);
    }
}
