//! Messages of the `channel.k8s.io` WebSocket protocols: a channel number, then bytes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::SplitSink;
use futures::{Sink, SinkExt};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

/// Maximum messages that wait to be sent; with [`MAX_PAYLOAD`] it bounds the memory for a slow client.
pub(crate) const QUEUE: usize = 16;
/// Maximum payload of a sent message.
const MAX_PAYLOAD: usize = 32 * 1024;
/// Maximum time at the end of a session for the client to read the last messages and close.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// The channel is the first byte of a binary message.
    Binary,
    /// The channel is a digit, the rest base64, in a text message.
    Base64,
}

impl Coding {
    /// Returns the encoding of a subprotocol.
    pub(crate) fn of(subprotocol: &str) -> Self {
        if subprotocol.contains("base64") { Self::Base64 } else { Self::Binary }
    }

    pub(crate) fn encode(self, channel: u8, payload: &[u8]) -> Message {
        match self {
            Self::Binary => {
                let mut message = BytesMut::with_capacity(1 + payload.len());
                message.put_u8(channel);
                message.put_slice(payload);
                Message::Binary(message.freeze())
            }
            Self::Base64 => {
                let mut text = String::from(char::from(b'0'.saturating_add(channel)));
                STANDARD.encode_string(payload, &mut text);
                Message::Text(text.into())
            }
        }
    }

    /// Decodes channel and payload. `None` for a message of another protocol or invalid base64.
    pub(crate) fn decode(self, message: Message) -> Option<(u8, Bytes)> {
        // Clients of the binary protocols may send text messages; their first byte is the channel, too.
        let mut bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::from(text),
            _ => return None,
        };
        let first = *bytes.first()?;
        let rest = bytes.split_off(1);
        match self {
            Self::Binary => Some((first, rest)),
            Self::Base64 => Some((first.checked_sub(b'0')?, STANDARD.decode(&rest).ok()?.into())),
        }
    }
}

/// Sending side of one channel as an `AsyncWrite`.
#[derive(Debug)]
pub(crate) struct ChannelWriter {
    pub(crate) coding: Coding,
    pub(crate) channel: u8,
    pub(crate) queue: PollSender<Message>,
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        const OVER: std::io::ErrorKind = std::io::ErrorKind::BrokenPipe;
        ready!(self.queue.poll_reserve(cx)).map_err(|_| OVER)?;
        let length = buf.len().min(MAX_PAYLOAD);
        let message = self.coding.encode(self.channel, &buf[..length]);
        self.queue.send_item(message).map_err(|_| OVER)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // A channel has no end of its own; the queue ends when all its writers are dropped.
        self.queue.close();
        Poll::Ready(Ok(()))
    }
}

/// Sends the queued messages, then a normal close.
pub(crate) async fn send_all(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Message>) {
    while let Some(message) = queue.recv().await {
        if sink.send(message).await.is_err() {
            return;
        }
    }
    let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    if sink.send(Message::Close(Some(close))).await.is_ok() {
        let _ = std::future::poll_fn(|cx| Pin::new(&mut sink).poll_flush(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        for coding in [Coding::Binary, Coding::Base64] {
            for payload in [&b""[..], b"x", b"\x00\xff\x80"] {
                let message = coding.encode(3, payload);
                assert_eq!(coding.decode(message), Some((3, Bytes::copy_from_slice(payload))));
            }
        }
        assert_eq!(Coding::of("v4.base64.channel.k8s.io"), Coding::Base64);
        assert_eq!(Coding::of(""), Coding::Binary);
    }

    #[test]
    fn malformed_messages_are_not_decoded() {
        assert_eq!(Coding::Binary.decode(Message::Binary(Bytes::new())), None);
        assert_eq!(Coding::Base64.decode(Message::Text("0%%%".into())), None);
        assert_eq!(Coding::Base64.decode(Message::Text("\u{1}AAAA".into())), None);
        assert_eq!(Coding::Binary.decode(Message::Ping(Bytes::new())), None);
    }
}
