//! One stream of a connection as an `AsyncRead` and an `AsyncWrite`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use super::headers::Fields;
use super::link::{Link, Outgoing};

/// Maximum data frame that is sent.
const MAX_DATA: usize = 32 * 1024;

/// Stream that the peer has opened and the server has not accepted yet. Dropping it refuses it.
#[derive(Debug)]
pub(crate) struct Stream {
    id: u32,
    fields: Fields,
    reader: StreamReader,
    writer: StreamWriter,
    outgoing: mpsc::Sender<Outgoing>,
}

impl Stream {
    pub(crate) fn new(id: u32, fields: Fields, link: &Arc<Link>, outgoing: mpsc::Sender<Outgoing>) -> Self {
        let reader = StreamReader { id, link: Arc::clone(link) };
        let writer = StreamWriter { id, link: Arc::clone(link), outgoing: PollSender::new(outgoing.clone()) };
        Self { id, fields, reader, writer, outgoing }
    }

    /// Number of the stream: odd, increasing.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns a header of the stream, by its name in lower case. Of several values the first.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(n, _)| n == name)?;
        value.split('\0').next()
    }

    /// Accepts the stream.
    pub(crate) async fn accept(self) -> (StreamReader, StreamWriter) {
        // Fails after the end of the connection, which the halves then report.
        let _ = self.outgoing.send(Outgoing::Reply(self.id)).await;
        (self.reader, self.writer)
    }
}

/// Reading half of a stream. A reset is an error, not an end.
#[derive(Debug)]
pub(crate) struct StreamReader {
    id: u32,
    link: Arc<Link>,
}

impl AsyncRead for StreamReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.link.poll_read(self.id, cx, buf)
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.link.drop_reader(self.id);
    }
}

/// Writing half of a stream. A shutdown is the end; dropping it before that resets the stream.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    id: u32,
    link: Arc<Link>,
    outgoing: PollSender<Outgoing>,
}

const OVER: std::io::ErrorKind = std::io::ErrorKind::BrokenPipe;

impl AsyncWrite for StreamWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let wanted = buf.len().min(MAX_DATA);
        // Checks the window before and after: a place in the queue must not be held while a window is closed.
        ready!(self.link.poll_window(self.id, cx, wanted))?;
        ready!(self.outgoing.poll_reserve(cx)).map_err(|_| OVER)?;
        let Poll::Ready(open) = self.link.poll_window(self.id, cx, wanted) else {
            self.outgoing.abort_send();
            return Poll::Pending;
        };
        let length = open?;
        self.link.sent(self.id, length);
        let data = Outgoing::Data { id: self.id, fin: false, bytes: Bytes::copy_from_slice(&buf[..length]) };
        self.outgoing.send_item(data).map_err(|_| OVER)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // The writing task flushes whenever its queue is empty.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.outgoing.poll_reserve(cx)).map_err(|_| OVER)?;
        let id = self.id;
        self.outgoing.send_item(Outgoing::Data { id, fin: true, bytes: Bytes::new() }).map_err(|_| OVER)?;
        self.link.write_done(id);
        Poll::Ready(Ok(()))
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.link.drop_writer(self.id);
    }
}
