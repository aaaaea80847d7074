//! A stream of bytes between a thread that packs or unpacks and the connection.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::mpsc;

use crate::people::remote::Input;

/// Bytes that are sent at a time.
const CHUNK: usize = 32 * 1024;

/// What comes out of a sandbox.
pub(super) struct Incoming {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
    count: Arc<AtomicU64>,
}

impl Incoming {
    pub(super) fn new(pieces: mpsc::Receiver<Bytes>, count: Arc<AtomicU64>) -> Incoming {
        Incoming { pieces, piece: Bytes::new(), count }
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

/// What goes into a sandbox.
pub(super) struct Outgoing {
    to: mpsc::Sender<Input>,
    chunk: BytesMut,
    count: Arc<AtomicU64>,
}

impl Outgoing {
    pub(super) fn new(to: mpsc::Sender<Input>, count: Arc<AtomicU64>) -> Outgoing {
        Outgoing { to, chunk: BytesMut::with_capacity(CHUNK), count }
    }

    /// Tells the other side that this is all. Without it, it has to take the stream for broken.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.to.blocking_send(Input::End).map_err(|_| io::ErrorKind::BrokenPipe.into())
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
        self.to.blocking_send(Input::Bytes(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
