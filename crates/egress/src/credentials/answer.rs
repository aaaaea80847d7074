//! Answers of hosts that have values: the placeholder takes the place of each value.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderValue;
use http::header::{self, HeaderMap};
use http::response::Parts;
use http_body::Frame;
use http_body_util::BodyExt;

use super::Placed;
use super::redact::Redactor;
use crate::body::Body;
use crate::refusal::Reason;

/// Returns an answer without the values of the request.
///
/// # Errors
/// The server has compressed it although it was not to.
pub(crate) fn answer(placed: Placed, parts: &mut Parts, body: Body) -> Result<Body, Reason> {
    if placed.pairs.is_empty() {
        return Ok(body);
    }
    let redactor = Redactor::new(placed.pairs);
    redact(&mut parts.headers, &redactor);
    if http_body::Body::is_end_stream(&body) {
        return Ok(body);
    }
    let identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !parts.headers.get_all(header::CONTENT_ENCODING).iter().all(identity) {
        let why = "the answer is compressed, so no credential can be removed from it";
        return Err(Reason::Ambiguous(why.to_owned()));
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Redacted { body, redactor, trailers: None, ended: false }.boxed_unsync())
}

fn redact(headers: &mut HeaderMap, redactor: &Redactor) {
    for value in headers.values_mut() {
        if let Some(found) = redactor.whole(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&found).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

struct Redacted {
    body: Body,
    redactor: Redactor,
    trailers: Option<HeaderMap>,
    ended: bool,
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
                    this.redactor.finish()
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.redactor.push(&data),
                    Err(frame) => {
                        this.ended = true;
                        this.trailers = frame.into_trailers().ok();
                        if let Some(trailers) = &mut this.trailers {
                            redact(trailers, &this.redactor);
                        }
                        this.redactor.finish()
                    }
                },
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
