//! State shared by the tasks and streams of one connection: the streams' buffers and windows.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::ReadBuf;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::frame::{Fault, code};

/// Maximum number of open streams; a port-forward needs two for each of its connections.
pub(crate) const MAX_STREAMS: usize = 512;
/// Buffered bytes of one stream, and the window announced to the peer.
pub(crate) const STREAM_BUFFER: usize = 256 * 1024;
/// Maximum buffered bytes of all streams of a connection. A peer that ignores windows (kubectl does) is
/// slowed down here because the server stops reading.
pub(crate) const CONNECTION_BUFFER: usize = 4 * 1024 * 1024;
/// Initial window of the protocol, for streams and the connection.
pub(crate) const INITIAL_WINDOW: i64 = 64 * 1024;
/// Minimum consumed bytes before credits are sent, so that small reads do not cost a frame each.
const CREDIT_STEP: u32 = STREAM_BUFFER as u32 / 4;
const MAX_WINDOW: i64 = i32::MAX as i64;

/// End of the peer's half of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    Reset,
}

/// Entry of the writing task's queue.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Reply(u32),
    Data { id: u32, fin: bool, bytes: Bytes },
    Reset { id: u32, code: u32 },
    Pong(u32),
    Close { code: u32 },
}

#[derive(Debug, Default)]
struct Entry {
    inbox: BytesMut,
    end: Option<End>,
    reader_gone: bool,
    writer_done: bool,
    writer_gone: bool,
    /// The writer was dropped without finishing.
    cut_short: bool,
    window: i64,
    consumed: u32,
    read_waker: Option<Waker>,
    write_waker: Option<Waker>,
}

#[derive(Debug)]
struct State {
    streams: HashMap<u32, Entry>,
    /// Highest stream number that the peer opened.
    last: u32,
    buffered: usize,
    consumed: u32,
    credits: BTreeMap<u32, u32>,
    resets: Vec<u32>,
    /// Set once the peer sends a window update. Clients based on moby/spdystream (kubectl, client-go) never
    /// send one, so windows bind only from the first on; otherwise a stream would end after 64 KiB.
    enforced: bool,
    window: i64,
    initial_window: i64,
    over: bool,
}

/// State shared by the two tasks of a connection and its streams.
#[derive(Debug)]
pub(crate) struct Link {
    state: Mutex<State>,
    /// Notified when a buffer has room.
    space: Notify,
    /// Notified when credits or resets wait for the writing task.
    pub(crate) nudge: Notify,
    /// Canceled when the peer can send no more.
    pub(crate) gone: CancellationToken,
}

impl Link {
    pub(crate) fn new() -> Self {
        let state = State {
            streams: HashMap::new(),
            last: 0,
            buffered: 0,
            consumed: 0,
            credits: BTreeMap::new(),
            resets: Vec::new(),
            enforced: false,
            window: INITIAL_WINDOW,
            initial_window: INITIAL_WINDOW,
            over: false,
        };
        Self {
            state: Mutex::new(state),
            space: Notify::new(),
            nudge: Notify::new(),
            gone: CancellationToken::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic during a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream of the peer: `false` if there are too many.
    pub(crate) fn open(&self, id: u32, fin: bool) -> Result<bool, Fault> {
        let mut state = self.state();
        if id.is_multiple_of(2) || id <= state.last {
            return Err(Fault::StreamId(id));
        }
        state.last = id;
        if state.streams.len() >= MAX_STREAMS {
            return Ok(false);
        }
        let end = fin.then_some(End::Finished);
        let window = state.initial_window;
        state.streams.insert(id, Entry { end, window, ..Entry::default() });
        Ok(true)
    }

    /// Returns the highest stream number that the peer opened.
    pub(crate) fn last(&self) -> u32 {
        self.state().last
    }

    /// Appends bytes to a stream's buffer, waiting for room. Bytes of a stream without a reader are
    /// discarded.
    pub(crate) async fn deliver(&self, id: u32, bytes: &[u8]) -> Result<(), Fault> {
        loop {
            let room = self.space.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut state = self.state();
                if id > state.last {
                    return Err(Fault::NeverOpened(id));
                }
                let fits = state.buffered + bytes.len() <= CONNECTION_BUFFER;
                match state.streams.get_mut(&id) {
                    Some(entry) if !entry.reader_gone && entry.end.is_none() => {
                        if fits && entry.inbox.len() + bytes.len() <= STREAM_BUFFER {
                            entry.inbox.extend_from_slice(bytes);
                            wake(&mut entry.read_waker);
                            state.buffered += bytes.len();
                            return Ok(());
                        }
                    }
                    _ => {
                        self.credit(&mut state, None, bytes.len());
                        return Ok(());
                    }
                }
            }
            room.await;
        }
    }

    /// Records that the peer sends no more on this stream.
    pub(crate) fn finish(&self, id: u32) {
        self.end(id, End::Finished);
    }

    /// Records that the peer reset the stream, in both directions.
    pub(crate) fn reset(&self, id: u32) {
        self.end(id, End::Reset);
    }

    fn end(&self, id: u32, end: End) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(entry) = state.streams.get_mut(&id) else { return };
        if entry.end == Some(End::Reset) {
            return;
        }
        entry.end = Some(end);
        wake(&mut entry.read_waker);
        if end == End::Reset {
            state.buffered -= entry.inbox.len();
            entry.inbox.clear();
            entry.writer_done = true;
            wake(&mut entry.write_waker);
            self.space.notify_waiters();
        }
        self.release(state, id);
    }

    /// Ends the connection: all streams end as if reset.
    pub(crate) fn hang_up(&self) {
        let mut state = self.state();
        state.over = true;
        for entry in state.streams.values_mut() {
            entry.end.get_or_insert(End::Reset);
            wake(&mut entry.read_waker);
            wake(&mut entry.write_waker);
        }
        drop(state);
        self.gone.cancel();
    }

    /// Reads from a stream's buffer.
    pub(crate) fn poll_read(
        &self,
        id: u32,
        cx: &Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(entry) = state.streams.get_mut(&id) else {
            return Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()));
        };
        if entry.inbox.is_empty() {
            return match entry.end {
                Some(End::Finished) => Poll::Ready(Ok(())),
                Some(End::Reset) => Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into())),
                None => {
                    entry.read_waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
        }
        let length = entry.inbox.len().min(buf.remaining());
        buf.put_slice(&entry.inbox[..length]);
        entry.inbox.advance(length);
        state.buffered -= length;
        self.credit(state, Some(id), length);
        drop(guard);
        self.space.notify_waiters();
        Poll::Ready(Ok(()))
    }

    fn credit(&self, state: &mut State, id: Option<u32>, length: usize) {
        // A length is at most one buffer, and counters are reset at a quarter of that.
        let length = length as u32;
        let mut due = false;
        if let Some((id, entry)) = id.and_then(|id| Some((id, state.streams.get_mut(&id)?))) {
            entry.consumed += length;
            if entry.consumed >= CREDIT_STEP && entry.end.is_none() {
                *state.credits.entry(id).or_default() += std::mem::take(&mut entry.consumed);
                due = true;
            }
        }
        state.consumed += length;
        if state.consumed >= CREDIT_STEP {
            *state.credits.entry(0).or_default() += std::mem::take(&mut state.consumed);
            due = true;
        }
        if due {
            self.nudge.notify_one();
        }
    }

    /// Returns how many bytes the stream may send now, at most `wanted`. Pending while its window is closed.
    pub(crate) fn poll_window(
        &self,
        id: u32,
        cx: &Context<'_>,
        wanted: usize,
    ) -> Poll<std::io::Result<usize>> {
        let mut guard = self.state();
        let state = &mut *guard;
        let over = state.over;
        let entry = state.streams.get_mut(&id).filter(|entry| !entry.writer_done && !over);
        let Some(entry) = entry else { return Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())) };
        if !state.enforced {
            return Poll::Ready(Ok(wanted));
        }
        let open = entry.window.min(state.window);
        if open > 0 {
            return Poll::Ready(Ok(wanted.min(usize::try_from(open).unwrap_or(wanted))));
        }
        entry.write_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Records queued bytes of a stream: its windows shrink, whether or not they bind yet.
    pub(crate) fn sent(&self, id: u32, length: usize) {
        let mut state = self.state();
        state.window = state.window.saturating_sub(length as i64);
        if let Some(entry) = state.streams.get_mut(&id) {
            entry.window = entry.window.saturating_sub(length as i64);
        }
    }

    /// Adds credits of the peer. `Ok(false)` if a stream's window overflows, which ends that stream.
    pub(crate) fn widen(&self, id: u32, delta: u32) -> Result<bool, Fault> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.enforced = true;
        let delta = i64::from(delta);
        if id == 0 {
            state.window += delta;
            if state.window > MAX_WINDOW {
                return Err(Fault::Window);
            }
            state.streams.values_mut().for_each(|entry| wake(&mut entry.write_waker));
        } else if let Some(entry) = state.streams.get_mut(&id) {
            entry.window += delta;
            if entry.window > MAX_WINDOW {
                return Ok(false);
            }
            wake(&mut entry.write_waker);
        }
        Ok(true)
    }

    /// Applies another initial window of the peer, which also changes those of open streams.
    pub(crate) fn resize(&self, initial: u32) -> Result<(), Fault> {
        let initial = i64::from(initial);
        if initial > MAX_WINDOW {
            return Err(Fault::Window);
        }
        let mut guard = self.state();
        let state = &mut *guard;
        state.enforced = true;
        let delta = initial - std::mem::replace(&mut state.initial_window, initial);
        for entry in state.streams.values_mut() {
            entry.window = (entry.window + delta).min(MAX_WINDOW);
            wake(&mut entry.write_waker);
        }
        Ok(())
    }

    /// Finishes the server's half of the stream: everything was queued.
    pub(crate) fn write_done(&self, id: u32) {
        if let Some(entry) = self.state().streams.get_mut(&id) {
            entry.writer_done = true;
        }
    }

    /// Records that the stream has no reader any more.
    pub(crate) fn drop_reader(&self, id: u32) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(entry) = state.streams.get_mut(&id) else { return };
        entry.reader_gone = true;
        let length = entry.inbox.len();
        entry.inbox.clear();
        state.buffered -= length;
        self.credit(state, None, length);
        self.release(state, id);
        drop(guard);
        self.space.notify_waiters();
    }

    /// Records that the stream has no writer any more. A writer that was not shut down resets the stream.
    pub(crate) fn drop_writer(&self, id: u32) {
        let mut guard = self.state();
        let Some(entry) = guard.streams.get_mut(&id) else { return };
        entry.writer_gone = true;
        entry.cut_short = !std::mem::replace(&mut entry.writer_done, true);
        self.release(&mut guard, id);
    }

    /// Removes a stream that is finished in both directions, and resets one that its owner dropped before.
    fn release(&self, state: &mut State, id: u32) {
        let Some(entry) = state.streams.get(&id) else { return };
        let unused = entry.reader_gone && entry.writer_gone;
        if unused && entry.end.is_some() && !entry.cut_short {
            state.remove(id);
        } else if unused || entry.cut_short {
            state.resets.push(id);
            self.nudge.notify_one();
        }
    }

    /// Credits to send: stream number (0 is the connection) and bytes.
    pub(crate) fn take_credits(&self) -> BTreeMap<u32, u32> {
        std::mem::take(&mut self.state().credits)
    }

    /// Streams to reset, which also closes them.
    pub(crate) fn take_resets(&self) -> Vec<u32> {
        let mut guard = self.state();
        let state = &mut *guard;
        let resets = std::mem::take(&mut state.resets);
        resets.into_iter().filter(|id| state.remove(*id)).collect()
    }

    /// The server's own reset closes the stream.
    pub(crate) fn forget(&self, id: u32) {
        self.reset(id);
        self.state().remove(id);
    }
}

impl State {
    fn remove(&mut self, id: u32) -> bool {
        let Some(entry) = self.streams.remove(&id) else { return false };
        self.buffered -= entry.inbox.len();
        self.credits.remove(&id);
        for waker in [entry.read_waker, entry.write_waker].into_iter().flatten() {
            waker.wake();
        }
        true
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Code with which the server abandons a stream.
pub(crate) const GIVEN_UP: u32 = code::CANCEL;
