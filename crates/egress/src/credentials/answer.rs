//! Answers of hosts that have values: the placeholder takes the place of each value.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};
use http::response::Parts;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;

use super::Placed;
use super::packed::{self, Form, Packed, Refused};
use super::redact::Redactor;
use crate::body::Body;
use crate::refusal::Reason;
use crate::room::Room;

/// Headers of gRPC and Connect that say how the messages of a body are compressed.
const ENCODINGS_OF_MESSAGES: [&str; 2] = ["grpc-encoding", "connect-content-encoding"];

/// Returns an answer without the values of the request. `parts` are as the server has sent them.
///
/// # Errors
/// It is encoded, or only a part: a value could not be found in it.
pub(crate) fn answer(
    placed: Placed,
    parts: &mut Parts,
    body: Body,
    room: &Arc<Room>,
) -> Result<Body, Reason> {
    if placed.pairs.is_empty() {
        return Ok(body);
    }
    let redactor = Redactor::new(placed.pairs);
    redact(&mut parts.headers, &redactor);
    if http_body::Body::is_end_stream(&body) {
        return Ok(body);
    }
    if let Some(how) = hidden(parts).filter(|_| !placed.only_signed) {
        let why = format!("the answer is {how}, so no credential can be removed from it");
        return Err(Reason::Ambiguous(why));
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    // What may be encoded by its header may be so without it.
    let state = if placed.only_signed { Passing::Plain } else { Passing::Unknown(Vec::new()) };
    let room = room.clone();
    Ok(Redacted { body, redactor, state, room, trailers: None, ended: false }.boxed_unsync())
}

/// Returns how the body is sent in which a value could not be found.
fn hidden(parts: &Parts) -> Option<&'static str> {
    let only = |name: HeaderName, plain: &[&str]| {
        let is_plain = |coding: &str| plain.iter().any(|plain| coding.trim().eq_ignore_ascii_case(plain));
        let is_plain = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.split(',').all(is_plain));
        parts.headers.get_all(name).iter().all(is_plain)
    };
    if !only(header::CONTENT_ENCODING, &["", "identity"]) {
        return Some("compressed");
    }
    if ENCODINGS_OF_MESSAGES.iter().any(|name| !only(HeaderName::from_static(name), &["", "identity"])) {
        return Some("of compressed messages");
    }
    if !only(header::TRANSFER_ENCODING, &["", "identity", "chunked"]) {
        return Some("compressed on its way");
    }
    let kind = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let in_parts = kind.to_ascii_lowercase().starts_with(b"multipart/byteranges");
    let is_part =
        parts.status == StatusCode::PARTIAL_CONTENT || parts.headers.contains_key(header::CONTENT_RANGE);
    (is_part || in_parts).then_some("only a part")
}

/// Removes headers with a value in their name, and redacts the others.
fn redact(headers: &mut HeaderMap, redactor: &Redactor) {
    let named: Vec<HeaderName> =
        headers.keys().filter(|name| redactor.whole(name.as_str().as_bytes()).is_some()).cloned().collect();
    for name in named {
        headers.remove(name);
    }
    for value in headers.values_mut() {
        if let Some(found) = redactor.whole(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&found).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

/// How the bytes of an answer pass.
enum Passing {
    /// It is not known yet: these are the first bytes.
    Unknown(Vec<u8>),
    /// Values are replaced.
    Plain,
    /// It is compressed, and ends at a value.
    Packed(Box<Packed>),
}

struct Redacted {
    body: Body,
    redactor: Redactor,
    state: Passing,
    room: Arc<Room>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl Redacted {
    /// Takes a piece, and returns what may be passed on.
    fn push(&mut self, piece: Bytes) -> Result<Vec<u8>, Refused> {
        let piece = match &mut self.state {
            Passing::Unknown(start) => {
                start.extend_from_slice(&piece);
                match packed::form(start) {
                    Form::Unknown => return Ok(Vec::new()),
                    Form::Plain => {
                        let start = std::mem::take(start);
                        self.state = Passing::Plain;
                        return Ok(self.redactor.push(&start));
                    }
                    Form::Packed(compression) => {
                        let start = std::mem::take(start);
                        let packed =
                            Packed::new(compression, &self.redactor, &self.room).ok_or(Refused::Form)?;
                        self.state = Passing::Packed(Box::new(packed));
                        start.into()
                    }
                }
            }
            _ => piece,
        };
        let Passing::Packed(packed) = &mut self.state else { return Ok(self.redactor.push(&piece)) };
        let passed = packed.push(&piece);
        self.unless_plain(passed)
    }

    /// Returns the rest.
    fn finish(&mut self) -> Result<Vec<u8>, Refused> {
        let mut out = Vec::new();
        match &mut self.state {
            Passing::Unknown(start) => out = self.redactor.push(&std::mem::take(start)),
            Passing::Plain => {}
            Passing::Packed(packed) => {
                let passed = packed.finish();
                out = self.unless_plain(passed)?;
            }
        }
        out.extend(self.redactor.finish());
        Ok(out)
    }

    /// Reads a body as a plain one that has turned out to be that.
    fn unless_plain(&mut self, passed: Result<Vec<u8>, Refused>) -> Result<Vec<u8>, Refused> {
        match (passed, &mut self.state) {
            (Err(Refused::Plain), Passing::Packed(packed)) => {
                let held = packed.held();
                self.state = Passing::Plain;
                Ok(self.redactor.push(&held))
            }
            (passed, _) => passed,
        }
    }
}

impl http_body::Body for Redacted {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        while !this.ended {
            let out = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    this.ended = true;
                    this.finish()
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.push(data),
                    Err(frame) => {
                        this.ended = true;
                        this.trailers = frame.into_trailers().ok();
                        if let Some(trailers) = &mut this.trailers {
                            redact(trailers, &this.redactor);
                        }
                        this.finish()
                    }
                },
            };
            let out = match out {
                Ok(out) => out,
                Err(why) => {
                    (this.ended, this.trailers) = (true, None);
                    tracing::warn!(%why, "an answer of a host with a credential breaks off");
                    return Poll::Ready(Some(Err(why.into())));
                }
            };
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.into()))));
            }
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;
    use crate::credentials::encode::forms;

    #[tokio::test]
    async fn names_and_values_of_trailers_are_redacted() {
        let mut parts = http::Response::new(()).into_parts().0;
        let pairs: [(&'static str, &str); 3] =
            [("x-real-value", "1"), ("x-own", "a Real-Value"), ("x-kept", "2")];
        let pairs = pairs.map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let trailers: HeaderMap = pairs.into_iter().collect();
        let body = Full::new(Bytes::from_static(b"Real-Value")).with_trailers(async { Some(Ok(trailers)) });
        let body = body.map_err(|never| match never {}).boxed_unsync();
        let placed = Placed { pairs: forms("Real-Value", "P"), ..Placed::default() };
        let collected = answer(placed, &mut parts, body, &Arc::default()).unwrap().collect().await.unwrap();
        let trailers = collected.trailers().unwrap();
        assert_eq!(
            (trailers.len(), &trailers["x-own"], &trailers["x-kept"]),
            (2, &"a P".parse().unwrap(), &"2".parse().unwrap())
        );
        assert_eq!(collected.to_bytes(), "P");
    }

    /// Returns the body that a client receives of one without a header that says how it is compressed.
    async fn received(pieces: &[&[u8]], only_signed: bool) -> Result<Bytes, String> {
        let mut parts = http::Response::new(()).into_parts().0;
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        let body = Pieces(pieces.into_iter()).boxed_unsync();
        let placed = Placed { pairs: forms("Real-Value", "P"), only_signed, ..Placed::default() };
        let collected = answer(placed, &mut parts, body, &Arc::default()).unwrap().collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|error| error.to_string())
    }

    type Sent = Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

    struct Pieces(std::vec::IntoIter<Sent>);

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = Box<dyn std::error::Error + Send + Sync>;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Sent>> {
            Poll::Ready(self.0.next())
        }
    }

    #[tokio::test]
    async fn value_in_a_compressed_answer_without_a_header_ends_it() {
        use std::io::Write;

        let gzip = |text: &str| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let (with, without) = (gzip("a Real-Value"), gzip("an archive"));
        for at in [0, 1, 3, 15] {
            let error = received(&[&with[..at], &with[at..]], false).await.unwrap_err();
            assert!(error.contains("a credential is in a compressed answer"), "{error}");
            assert_eq!(received(&[&without[..at], &without[at..]], false).await.unwrap(), without);
        }
        assert!(received(&[b"\x28\xb5\x2f\xfdabc"], false).await.is_err(), "Zstandard");
        assert_eq!(received(&[&with], true).await.unwrap(), with, "a signed request has no secret");
        for (pieces, expected) in [
            (&[b"x".as_slice(), b"^2 Real-Value"] as &[&[u8]], b"x^2 P".as_slice()),
            (&[b"x", b"y Real-", b"Value"], b"xy P"),
            (&[b"(a"], b"(a"),
            (&[b"Real-Value"], b"P"),
        ] {
            assert_eq!(received(pieces, false).await.unwrap(), expected);
        }
    }
}
