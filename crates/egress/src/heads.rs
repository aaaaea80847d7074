//! Follows the heads of a client's requests of HTTP/1.
//!
//! Of a request with two lengths of its body, the code that decides sees only one: the parser drops the other. Such a request
//! may be an attempt to hide a second one in its body, so it is refused. What cannot be followed is refused too.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum bytes of a head, of what is read ahead of a body, and of what TLS keeps for a receiver that takes nothing. Each
/// connection that is read has several such buffers, and those of a sandbox need less than 32 MiB together.
pub(crate) const HEAD_BYTES: usize = 32 << 10;
/// Maximum headers of a head: as many as the server of HTTP/1 takes.
const HEADERS: usize = 100;
/// Maximum bytes of a line with the size of a chunk, or of a trailer.
const LINE: usize = 16 << 10;

/// Position in the bytes of a client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    /// In a body with a length.
    Body(u64),
    /// In the line with the size of a chunk.
    Size,
    /// In a chunk.
    Chunk(u64),
    /// At the end of a chunk.
    ChunkEnd,
    /// In the lines after the last chunk.
    Trailers,
    /// In something else than requests.
    Elsewhere,
}

#[derive(Debug, Default)]
struct State {
    at: At,
    /// Beginning of a head or a line.
    partial: Vec<u8>,
    /// Of each head that was read and not asked about: it has two lengths.
    heads: VecDeque<bool>,
}

/// The heads of a connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heads(Arc<Mutex<State>>);

impl Heads {
    /// Returns why the next request, in the order of the connection, is refused.
    pub(crate) fn next(&self) -> Result<(), String> {
        match self.state().heads.pop_front() {
            Some(false) => Ok(()),
            Some(true) => Err("two lengths of the body".to_owned()),
            None => Err("its head cannot be followed".to_owned()),
        }
    }

    /// Returns true if every byte so far belongs to a request that has been asked about, and whose body has ended.
    pub(crate) fn are_between(&self) -> bool {
        let state = self.state();
        state.at == At::Head && state.partial.is_empty() && state.heads.is_empty()
    }

    /// Ends the requests of the connection: what follows is something else.
    pub(crate) fn end(&self) {
        self.state().at = At::Elsewhere;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match self.at {
                At::Head => self.head(bytes),
                At::Body(left) => self.skip(bytes, left, At::Body, At::Head),
                At::Chunk(left) => self.skip(bytes, left, At::Chunk, At::ChunkEnd),
                At::Size | At::ChunkEnd | At::Trailers => self.line(bytes),
                At::Elsewhere => return,
            };
            bytes = &bytes[taken.min(bytes.len())..];
        }
    }

    /// Skips bytes of a body.
    fn skip(&mut self, bytes: &[u8], left: u64, more: fn(u64) -> At, next: At) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - taken as u64;
        self.at = if left > 0 { more(left) } else { next };
        taken
    }

    /// Reads a part of a head. Returns how many bytes belong to it.
    fn head(&mut self, bytes: &[u8]) -> usize {
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        // The head may have ended only with a line.
        if !bytes.contains(&b'\n') && self.partial.len() <= HEAD_BYTES {
            return bytes.len();
        }
        let partial = std::mem::take(&mut self.partial);
        let mut headers = [MaybeUninit::uninit(); HEADERS];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(&partial, &mut headers) {
            Ok(httparse::Status::Complete(length)) => {
                let (two, body) = lengths(request.headers);
                self.heads.push_back(two);
                self.at = body;
                length.saturating_sub(before)
            }
            Ok(httparse::Status::Partial) if partial.len() <= HEAD_BYTES => {
                self.partial = partial;
                bytes.len()
            }
            // The server of the connection ends it.
            _ => {
                self.at = At::Elsewhere;
                bytes.len()
            }
        }
    }

    /// Reads a part of a line. Returns how many bytes belong to it.
    fn line(&mut self, bytes: &[u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(bytes.len(), |end| end + 1);
        self.partial.extend_from_slice(&bytes[..taken]);
        if self.partial.len() > LINE {
            self.at = At::Elsewhere;
        } else if end.is_some() {
            let line = std::mem::take(&mut self.partial);
            self.at = after(self.at, line.trim_ascii());
        }
        taken
    }
}

/// Returns the position after a line of a body in chunks.
fn after(at: At, line: &[u8]) -> At {
    match at {
        At::ChunkEnd if line.is_empty() => At::Size,
        At::Trailers if line.is_empty() => At::Head,
        At::Trailers => At::Trailers,
        At::Size => match size(line) {
            Some(0) => At::Trailers,
            Some(size) => At::Chunk(size),
            None => At::Elsewhere,
        },
        _ => At::Elsewhere,
    }
}

/// Returns the size of a chunk.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

/// Returns true if a head has two lengths of its body, and where it continues.
fn lengths(headers: &[httparse::Header<'_>]) -> (bool, At) {
    let named = |name: &'static str| {
        headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    };
    let (lengths, chunked) = (named("content-length").count(), named("transfer-encoding").next().is_some());
    let two = lengths > 1 || (lengths == 1 && chunked);
    let length = named("content-length").next().map_or(Some(0), |value| {
        let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
        digits.parse().ok().filter(|_| !digits.starts_with('+'))
    });
    let body = match (chunked, length) {
        (true, _) => At::Size,
        (false, Some(0)) => At::Head,
        (false, Some(length)) => At::Body(length),
        (false, None) => At::Elsewhere,
    };
    (two, body)
}

/// Follows any bytes as a whole and in pieces. A line ends them, so that nothing is left to be read.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_requests(bytes: &[u8]) {
    let bytes = [bytes, b"\n"].concat();
    let mut whole = State::default();
    whole.pass(&bytes);
    for size in [1, 3, 64] {
        let mut pieces = State::default();
        bytes.chunks(size).for_each(|piece| pieces.pass(piece));
        assert_eq!((&pieces.heads, pieces.at), (&whole.heads, whole.at), "{size}");
        assert!(pieces.partial.len() <= HEAD_BYTES.max(LINE) + size);
    }
}

/// Stream of a client whose heads are followed.
pub(crate) struct Followed<S> {
    stream: S,
    heads: Heads,
}

impl<S> Followed<S> {
    pub(crate) fn new(stream: S, heads: &Heads) -> Followed<S> {
        Followed { stream, heads: heads.clone() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Followed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.heads.state().pass(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Followed<S> {
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
    use super::*;

    /// Requests one after the other, and which of them have two lengths.
    const REQUESTS: [(&str, bool); 9] = [
        ("GET /a HTTP/1.1\r\nHost: a\r\n\r\n", false),
        ("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /", false),
        (
            "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0\r\n\r\nGET /\r\n0\r\nX: y\r\n\r\n",
            false,
        ),
        ("POST /d HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true),
        (
            "POST /e HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 50\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            true,
        ),
        ("POST /f HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", true),
        ("\r\nGET /g HTTP/1.1\r\nContent-Length: 0\r\n\r\n", false),
        ("DELETE /h HTTP/1.1\nHost: a\n\n", false),
        ("GET /i HTTP/1.1\r\n\r\n", false),
    ];

    fn found(bytes: &[u8], step: usize) -> (Vec<bool>, At) {
        let mut state = State::default();
        bytes.chunks(step).for_each(|piece| state.pass(piece));
        (state.heads.into(), state.at)
    }

    #[test]
    fn heads_are_found_however_they_arrive() {
        let bytes = REQUESTS.map(|(text, _)| text).concat().into_bytes();
        let expected = REQUESTS.map(|(_, two)| two).to_vec();
        for step in [1, 2, 3, 7, 64, bytes.len()] {
            assert_eq!(found(&bytes, step), (expected.clone(), At::Head), "{step}");
        }
    }

    #[test]
    fn bytes_that_are_no_request_end_the_search() {
        for (text, heads) in [
            ("\u{1}\r\n\r\nGET / HTTP/1.1\r\n\r\n", 0),
            ("POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nGET / HTTP/1.1\r\n\r\n", 1),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nGET / HTTP/1.1\r\n\r\n", 1),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabGET / HTTP/1.1\r\n\r\n", 1),
        ] {
            let (found, at) = found(text.as_bytes(), 5);
            assert_eq!((found.len(), at), (heads, At::Elsewhere), "{text:?}");
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_BYTES));
        assert_eq!(found(long.as_bytes(), 1000), (Vec::new(), At::Elsewhere));
    }

    #[test]
    fn request_is_allowed_only_with_a_head_of_one_length() {
        let heads = Heads::default();
        heads.state().pass(REQUESTS[3].0.as_bytes());
        heads.state().pass(REQUESTS[0].0.as_bytes());
        assert!(heads.next().unwrap_err().contains("two lengths"));
        assert_eq!(heads.next(), Ok(()));
        assert!(heads.next().unwrap_err().contains("cannot be followed"));
        heads.end();
        heads.state().pass(REQUESTS[0].0.as_bytes());
        assert!(heads.next().is_err());
    }
}
