//! Passes bytes on between two connections.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// Bytes that are read at once in one direction. All connections of a sandbox together hold at most 24 MiB.
const PIECE: usize = 24 << 10;

/// Passes bytes on in both directions until both have ended, or one fails. `first` was read of the client already. `sent`
/// sees the number of bytes before the client's bytes are sent; its error ends both directions.
/// `received` sees the number of bytes of the server.
pub(crate) async fn join<E: From<io::Error>>(
    client: &mut TcpStream,
    server: &mut TcpStream,
    first: &[u8],
    sent: impl Fn(usize) -> Result<(), E>,
    received: impl Fn(usize),
) -> Result<(), E> {
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    if !first.is_empty() {
        sent(first.len())?;
        server.write_all(first).await?;
    }
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let out = pass(from_client, to_server, &sent);
    let received = |bytes| {
        received(bytes);
        Ok(())
    };
    let back = pass(from_server, to_client, &received);
    tokio::try_join!(out, back).map(|_| ())
}

/// Passes bytes on until their end. Memory is held only while there are bytes, since most connections are idle.
async fn pass<E: From<io::Error>>(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    sent: &impl Fn(usize) -> Result<(), E>,
) -> Result<(), E> {
    loop {
        from.readable().await?;
        let mut piece = Vec::with_capacity(PIECE);
        // As long as there are bytes, the memory is used again.
        loop {
            piece.clear();
            match from.try_read_buf(&mut piece) {
                Ok(0) => {
                    // The other direction may continue.
                    to.shutdown().await?;
                    return Ok(());
                }
                Ok(count) => {
                    sent(count)?;
                    to.write_all(&piece).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
