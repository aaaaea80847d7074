//! A sandbox with little overhead: it reads requests, responds with `ok`, and echoes after an upgrade.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Size of the read buffer.
const PIECE: usize = 64 << 10;
const OK: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"status\":\"ok\"}";
const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";

/// Serves on a free port of loopback, for as long as the process lives.
pub(crate) async fn start() -> std::io::Result<u16> {
    let socket = TcpListener::bind("127.0.0.1:0").await?;
    let port = socket.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                // A connection that ends is the router's business.
                let _ = serve(stream).await;
            });
        }
    });
    Ok(port)
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut filled = 0;
    loop {
        let head = loop {
            if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            let count = stream.read(&mut buffer[filled..]).await?;
            if count == 0 {
                return Ok(());
            }
            filled += count;
        };
        let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        if text.contains("\r\nupgrade: websocket\r\n") {
            stream.write_all(SWITCHED).await?;
            return echo(stream, buffer).await;
        }
        let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut left = (head + length).saturating_sub(filled);
        while left > 0 {
            let most = left.min(PIECE);
            left -= stream.read_exact(&mut buffer[..most]).await?;
        }
        // The load sends one request at a time: nothing follows.
        filled = 0;
        stream.write_all(OK).await?;
    }
}

async fn echo(mut stream: TcpStream, mut buffer: Vec<u8>) -> std::io::Result<()> {
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}
