//! Parts of the responses of all APIs.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// Body of a response.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Makes a body of frames that arrive one by one.
pub(crate) fn stream(
    frames: impl futures::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static,
) -> Body {
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

pub(crate) fn answer(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(content));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(crate) fn json(status: StatusCode, content: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(content) {
        Ok(content) => answer(status, "application/json", content),
        // Encoding fails only for a map with non-string keys, which does not occur.
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, "application/json", error.to_string()),
    }
}
