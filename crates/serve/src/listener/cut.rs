//! A stream that ends when its connection is closed, wherever it has gone meanwhile.

use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::Connection;

/// An upgraded connection has left HTTP and belongs to the task that upgraded it. This ends it all the same.
pub(super) struct Cut<S> {
    stream: S,
    connection: Connection,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Cut<S> {
    pub(super) fn new(stream: S, connection: &Connection) -> Cut<S> {
        let closed = Box::pin(connection.until_evicted());
        Cut { stream, connection: connection.clone(), closed }
    }

    fn open(&self) -> std::io::Result<()> {
        if self.connection.is_closed() {
            return Err(Error::new(ErrorKind::ConnectionAborted, "the connection was closed"));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cut<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(self.open());
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cut<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.open()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.open()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::table::{Connections, Table};
    use super::*;

    #[tokio::test]
    async fn closing_a_connection_ends_a_read_that_waits_and_later_writes() {
        let table = Table::new(2);
        let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let (place, other) = (table.admit(peer).unwrap(), table.admit(peer).unwrap());
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut stream = Cut::new(ours, place.connection());
        let connections = Connections::default();
        place.connection().closed_by(&connections);
        place.connection().closed_by(&Connections::default());
        stream.write_all(b"x").await.unwrap();
        let close = async {
            tokio::task::yield_now().await;
            connections.close();
        };
        let (read, ()) = tokio::join!(stream.read_u8(), close);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(stream.write_all(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert!(!other.connection().is_closed());
    }
}
