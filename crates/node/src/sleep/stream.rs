//! A connection into a Pod that keeps it awake while bytes move, and wakes it when some are sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::StreamError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Busy;
use crate::live::Live;

/// A connection. One that is open and silent does not count.
pub(crate) struct Counted<S> {
    stream: S,
    live: Arc<Live>,
    /// Bytes are to be sent into a Pod that is being thawed.
    entering: Option<BoxFuture<'static, Result<Busy, StreamError>>>,
}

impl<S> Counted<S> {
    pub(crate) fn new(stream: S, live: Arc<Live>) -> Counted<S> {
        Counted { stream, live, entering: None }
    }

    fn poll_enter(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Busy>> {
        if self.entering.is_none() {
            if let Some(busy) = self.live.enter_now() {
                return Poll::Ready(Ok(busy));
            }
            let live = self.live.clone();
            self.entering = Some(async move { live.enter().await }.boxed());
        }
        let Some(entering) = &mut self.entering else { return Poll::Pending };
        let entered = ready!(entering.poll_unpin(context));
        self.entering = None;
        Poll::Ready(entered.map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.live.gate.touch();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Held over the write, so that the bytes reach processes that run.
        let _busy = ready!(self.poll_enter(context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Closing an idle connection must not thaw the Pod; the end waits like the bytes of a slow reader.
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let _busy = ready!(self.poll_enter(context))?;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
