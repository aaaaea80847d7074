//! Connection that records activity when bytes move.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hutch_kubelet::Duplex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::activity::Tracked;

/// Connection to a Sandbox with an idle timeout. An open but silent connection does not count as activity.
pub(crate) struct ActivityStream {
    stream: Box<dyn Duplex>,
    tracked: Arc<Tracked>,
}

impl ActivityStream {
    pub(crate) fn new(stream: Box<dyn Duplex>, tracked: Arc<Tracked>) -> ActivityStream {
        ActivityStream { stream, tracked }
    }

    fn note(&self, moved: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(moved, Poll::Ready(Ok(1..))) {
            self.tracked.touch();
        }
        moved
    }
}

impl AsyncRead for ActivityStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut *self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.tracked.touch();
        }
        read
    }
}

impl AsyncWrite for ActivityStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write_vectored(context, pieces);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}
