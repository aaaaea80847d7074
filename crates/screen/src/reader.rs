//! A stream of bytes that is scanned while it is read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use crate::found::Found;
use crate::output::{Output, Until};

/// Read at once, in bytes.
const CHUNK: usize = 16 << 10;

/// Stream that is scanned. Bytes are held for a bounded time, so that a match that comes in pieces is found.
pub struct Reader<R> {
    inner: R,
    output: Output,
    hold: Duration,
    /// Runs while something is held.
    timer: Pin<Box<Sleep>>,
    timing: bool,
    ready: Vec<u8>,
    taken: usize,
    ended: bool,
    /// Closed with the stream.
    refused: Option<mpsc::Sender<Box<Found>>>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Returns a stream that holds bytes for so long. What ends it is sent to `refused`.
    pub fn new(inner: R, output: Output, hold: Duration, refused: mpsc::Sender<Box<Found>>) -> Reader<R> {
        let timer = Box::pin(sleep(hold));
        let (timing, ready, taken, ended) = (false, Vec::new(), 0, false);
        Reader { inner, output, hold, timer, timing, ready, taken, ended, refused: Some(refused) }
    }

    /// Makes bytes ready that may be passed on.
    fn pass(&mut self, until: Option<Until>) {
        let passed = match until {
            Some(until) => self.output.pass(until),
            None => self.output.finish(),
        };
        match passed {
            Ok(bytes) => self.ready.extend(bytes),
            Err(found) => {
                // It holds one; a second end changes nothing.
                let _ = self.refused.as_ref().map(|refused| refused.try_send(Box::new(found)));
                self.ended = true;
            }
        }
        self.timing &= !self.output.is_empty();
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.output.is_empty() {
            self.timer.as_mut().reset(Instant::now() + self.hold);
            self.timing = true;
        }
        self.output.take(bytes);
        while self.output.is_full() && !self.ended {
            self.pass(Some(Until::Window));
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Reader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.taken < this.ready.len() {
                let rest = &this.ready[this.taken..];
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..count]);
                this.taken += count;
                return Poll::Ready(Ok(()));
            }
            (this.ready, this.taken) = (Vec::new(), 0);
            if this.ended {
                this.refused = None;
                return Poll::Ready(Ok(()));
            }
            if this.timing && this.timer.as_mut().poll(context).is_ready() {
                this.timing = false;
                this.pass(Some(Until::End));
                continue;
            }
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            match ready!(Pin::new(&mut this.inner).poll_read(context, &mut chunk)) {
                Ok(()) if !chunk.filled().is_empty() => this.take(chunk.filled()),
                end => {
                    this.pass(None);
                    this.ended = true;
                    if this.ready.is_empty() {
                        this.refused = None;
                        return Poll::Ready(end);
                    }
                }
            }
        }
    }
}
