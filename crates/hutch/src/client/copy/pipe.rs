//! Streams of bytes between a thread that packs or unpacks and the connection.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use futures::{SinkExt, stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};
use tokio_util::sync::PollSender;

/// Maximum queued pieces of a stream.
const QUEUE: usize = 8;
/// Maximum bytes of a piece.
const CHUNK: usize = 32 * 1024;

/// Bytes from a sandbox, for a thread that unpacks.
pub(super) struct Incoming {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
    count: Arc<AtomicU64>,
}

impl Incoming {
    /// Also returns the writer for the bytes.
    pub(super) fn new(count: Arc<AtomicU64>) -> (Incoming, impl AsyncWrite) {
        let (to, pieces) = mpsc::channel(QUEUE);
        let to = PollSender::new(to).sink_map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
        (Incoming { pieces, piece: Bytes::new(), count }, SinkWriter::new(CopyToBytes::new(to)))
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let Some(piece) = self.pieces.blocking_recv() else { return Ok(0) };
            self.piece = piece;
        }
        let count = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Bytes for a sandbox, from a thread that packs.
pub(super) struct Outgoing {
    to: mpsc::Sender<Bytes>,
    chunk: BytesMut,
    count: Arc<AtomicU64>,
}

impl Outgoing {
    /// Also returns the reader of the bytes. It fails at the end of a stream that was not finished.
    pub(super) fn new(count: Arc<AtomicU64>) -> (Outgoing, impl AsyncRead) {
        let (to, mut pieces) = mpsc::channel::<Bytes>(QUEUE);
        let pieces = stream::poll_fn(move |context| {
            pieces.poll_recv(context).map(|piece| match piece {
                Some(piece) if piece.is_empty() => None,
                piece => Some(piece.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))),
            })
        });
        (Outgoing { to, chunk: BytesMut::with_capacity(CHUNK), count }, StreamReader::new(pieces))
    }

    /// Ends the stream; an empty piece marks the end.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.to.blocking_send(Bytes::new()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..count]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, BytesMut::with_capacity(CHUNK)).freeze();
        self.count.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        self.to.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
