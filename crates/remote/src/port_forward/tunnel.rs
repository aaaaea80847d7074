//! WebSocket whose binary messages are a stream of bytes.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::{Buf, Bytes};
use futures::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads and writes through binary messages; a close message is the end, a text message an error.
pub(super) struct Tunnel {
    socket: WebSocket,
    /// Rest of the current message.
    message: Bytes,
    closing: bool,
}

impl Tunnel {
    pub(super) fn new(socket: WebSocket) -> Self {
        Self { socket, message: Bytes::new(), closing: false }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        while self.message.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.message = bytes,
                Some(Ok(Message::Text(_))) => {
                    let text = "text message in a tunnel";
                    return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, text)));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(Error::other(error))),
            }
        }
        let length = self.message.len().min(buf.remaining());
        buf.put_slice(&self.message[..length]);
        self.message.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(Error::other)?;
        let message = Message::Binary(Bytes::copy_from_slice(buf));
        Pin::new(&mut self.socket).start_send(message).map_err(Error::other)?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.closing {
            ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(Error::other)?;
            let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
            self.closing = true;
            Pin::new(&mut self.socket).start_send(Message::Close(Some(close))).map_err(Error::other)?;
        }
        Pin::new(&mut self.socket).poll_flush(cx).map_err(Error::other)
    }
}
