//! Passes a WebSocket on. One that has to end early gets a close frame, so that the client learns why.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Maximum time to send the close frame.
const CLOSE: Duration = Duration::from_millis(500);
/// Maximum bytes of a reason in a close frame.
const REASON: usize = 123;
/// Status of a close frame: the message violates a policy.
const POLICY_VIOLATION: u16 = 1008;

/// Where the frames stand that are sent in one direction.
#[derive(Debug, Default)]
struct Frames {
    /// Beginning of a frame, up to its length and its mask.
    head: Vec<u8>,
    /// Bytes that are left of the frame's content.
    left: u64,
    /// Bytes are being written, so that it is not known where they end.
    writing: bool,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= count as u64;
                bytes = &bytes[count..];
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            if let Some(length) = length(&self.head) {
                self.left = length;
                self.head.clear();
            }
        }
    }

    /// Returns true if a frame may be sent now.
    fn are_whole(&self) -> bool {
        self.head.is_empty() && self.left == 0 && !self.writing
    }
}

/// Returns the length of a frame's content once its head is complete.
pub(crate) fn length(head: &[u8]) -> Option<u64> {
    let second = *head.get(1)?;
    let mask = if second & 0x80 != 0 { 4 } else { 0 };
    let (size, length) = match second & 0x7f {
        126 => (4, u64::from(u16::from_be_bytes(*head.get(2..)?.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*head.get(2..)?.first_chunk()?)),
        short => (2, u64::from(short)),
    };
    (head.len() == size + mask).then_some(length)
}

/// Follows any bytes as a whole and in pieces. A frame that is sent where they end is read as one.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_frames(bytes: &[u8]) {
    let mut whole = Frames::default();
    whole.pass(bytes);
    for size in [1, 3, 64] {
        let mut pieces = Frames::default();
        bytes.chunks(size).for_each(|piece| pieces.pass(piece));
        assert_eq!((&pieces.head, pieces.left), (&whole.head, whole.left), "{size}");
    }
    assert!(whole.head.len() < 14);
    if whole.are_whole() {
        let frame = close(&String::from_utf8_lossy(bytes));
        assert!(frame.len() <= 127);
        whole.pass(&frame);
        assert!(whole.are_whole());
    }
}

fn close(reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let text = &reason.as_bytes()[..end];
    let mut frame = vec![0x88, text.len() as u8 + 2];
    frame.extend(POLICY_VIOLATION.to_be_bytes());
    frame.extend(text);
    frame
}

/// Judges the bytes of one direction before they are passed on.
pub(crate) trait Gate {
    /// Takes bytes. Returns others that are passed on instead, if there are any.
    ///
    /// # Errors
    /// The reason why the WebSocket ends.
    fn pass(&mut self, bytes: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>, String>> + Send;
}

/// Reason why a WebSocket ends.
enum Ended {
    /// A side failed.
    Failed,
    Refused(String),
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Ended {
        Ended::Failed
    }
}

/// Passes bytes on in both directions until both have ended, one fails, or `ended` gives a reason. `sent` judges the client's
/// bytes, and `received` the server's.
pub(crate) async fn join(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Unpin,
    mut sent: impl Gate,
    mut received: impl Gate,
    ended: impl Future<Output = String>,
) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let mut frames = Frames::default();
    let out = async {
        let mut piece = vec![0; PIECE];
        loop {
            match from_client.read(&mut piece).await? {
                0 => return Ok(to_server.shutdown().await?),
                count => {
                    let passed = sent.pass(&piece[..count]).await.map_err(Ended::Refused)?;
                    to_server.write_all(passed.as_deref().unwrap_or(&piece[..count])).await?;
                    to_server.flush().await?;
                }
            }
        }
    };
    let back = async {
        let mut piece = vec![0; PIECE];
        loop {
            match from_server.read(&mut piece).await? {
                0 => return Ok(to_client.shutdown().await?),
                count => {
                    let passed = received.pass(&piece[..count]).await.map_err(Ended::Refused)?;
                    let passed = passed.as_deref().unwrap_or(&piece[..count]);
                    frames.writing = true;
                    to_client.write_all(passed).await?;
                    to_client.flush().await?;
                    frames.writing = false;
                    frames.pass(passed);
                }
            }
        }
    };
    let refused = tokio::select! {
        done = async { tokio::try_join!(out, back) } => match done {
            Err(Ended::Refused(reason)) => reason,
            _ => return,
        },
        reason = ended => reason,
    };
    if frames.are_whole() {
        let _ = timeout(CLOSE, async {
            to_client.write_all(&close(&refused)).await?;
            to_client.shutdown().await
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_followed_across_pieces() {
        let mut bytes = vec![0x81, 5];
        bytes.extend(b"hello");
        bytes.extend([0x82, 126, 1, 0]);
        bytes.extend([0; 256]);
        bytes.extend([0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        bytes.extend(vec![0; 65_536]);
        bytes.extend([0x89, 0x82, 1, 2, 3, 4, 9, 9]);
        bytes.extend([0x8a, 0]);
        for size in [1, 2, 3, 7, 1000, bytes.len()] {
            let mut frames = Frames::default();
            let mut whole = 0;
            for piece in bytes.chunks(size) {
                frames.pass(piece);
                whole += usize::from(frames.are_whole());
            }
            assert!(frames.are_whole(), "{size}");
            assert!(size != 1 || whole == 5, "{whole}");
        }
        assert_eq!(&close("é".repeat(100).as_str())[..4], [0x88, 124, 0x03, 0xf0]);
    }

    /// Refuses more than so many bytes at once.
    struct AtMost(usize);

    impl Gate for AtMost {
        async fn pass(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
            if bytes.len() > self.0 { Err("too much".to_owned()) } else { Ok(None) }
        }
    }

    #[tokio::test]
    async fn refused_bytes_end_it_with_a_close_frame() {
        let ((mut client, ours), (theirs, mut server)) = (tokio::io::duplex(1024), tokio::io::duplex(1024));
        let (sent, received) = (AtMost(3), AtMost(usize::MAX));
        let task = tokio::spawn(join(ours, theirs, sent, received, std::future::pending()));
        client.write_all(b"abc").await.unwrap();
        let mut piece = [0; 3];
        server.read_exact(&mut piece).await.unwrap();
        server.write_all(&[0x81, 1, b'x']).await.unwrap();
        client.read_exact(&mut piece).await.unwrap();
        client.write_all(b"abcd").await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, close("too much"));
        task.await.unwrap();
        assert_eq!(server.read(&mut piece).await.unwrap(), 0, "no byte of it is sent");
    }
}
