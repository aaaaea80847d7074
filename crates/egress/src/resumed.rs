//! Connection of a client of which some bytes were read already. They are read again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::refusal::{close, reset};

/// A connection that is read from its beginning.
pub(crate) struct Resumed {
    stream: TcpStream,
    /// Bytes that were read already, and will be read again.
    first: Vec<u8>,
}

impl Resumed {
    pub(crate) fn new(stream: TcpStream, first: Vec<u8>) -> Resumed {
        Resumed { stream, first }
    }

    /// Makes every end of the connection an error for its client but an orderly one, so that the end of this process does not
    /// look like the end of an answer.
    pub(crate) fn break_unless_closed(&self) {
        reset(&self.stream);
    }

    /// Makes the end of the connection an orderly one again.
    pub(crate) fn end(&self) {
        close(&self.stream);
    }
}

impl AsyncRead for Resumed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..count]);
        match count < self.first.len() {
            true => drop(self.first.drain(..count)),
            // Without its memory, which the connection would keep.
            false => self.first = Vec::new(),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Resumed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn first_bytes_are_read_again_and_then_take_no_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"def").await.unwrap();
        let mut resumed = Resumed::new(listener.accept().await.unwrap().0, b"abc".to_vec());
        let mut read = [0; 2];
        for (expected, memory) in [(b"ab", true), (b"cd", false), (b"ef", false)] {
            resumed.read_exact(&mut read).await.unwrap();
            assert_eq!((&read, resumed.first.capacity() > 0), (expected, memory));
        }
    }
}
