//! Responses in the form of each protocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{Stream, StreamExt};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use prost::Message;
use serde::Serialize;

use super::framing::frame;
use super::protocol::{Codec, Protocol, Wire};
use super::status::{Code, Status};
use crate::answer::{Body, answer, full, stream};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Flag of the last frame of gRPC-Web.
const WEB_TRAILERS: u8 = 0x80;
/// Flag of the last frame of a Connect stream.
const CONNECT_END: u8 = 2;

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct End<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody<'a>>,
}

fn error_body(status: &Status) -> ErrorBody<'_> {
    ErrorBody { code: status.code.name(), message: &status.message }
}

/// Responds with one message, or with a failure.
pub(super) fn one<M: Message + Serialize + 'static>(
    protocol: Protocol,
    result: Result<M, Status>,
) -> Response<Body> {
    match (protocol.wire, result) {
        (_, Err(status)) => failure(protocol, &status),
        (Wire::ConnectUnary, Ok(message)) => match encode(protocol.codec, &message) {
            Ok(content) => answer(StatusCode::OK, protocol.kind, content),
            Err(status) => failure(protocol, &status),
        },
        (_, Ok(message)) => many(protocol, futures::stream::iter([Ok(message)])),
    }
}

/// Responds with messages as they arrive, then with the status.
pub(super) fn many<M: Message + Serialize + 'static>(
    protocol: Protocol,
    messages: impl Stream<Item = Result<M, Status>> + Send + 'static,
) -> Response<Body> {
    let contents = messages.map(move |message| message.and_then(|message| encode(protocol.codec, &message)));
    // Nothing follows the first failure.
    let to_the_end = contents.map(Some).chain(futures::stream::iter([None])).scan(false, |over, next| {
        let ended = std::mem::replace(over, matches!(next, Some(Err(_)) | None));
        std::future::ready((!ended).then_some(next))
    });
    let frames = to_the_end.map(move |next| {
        Ok(match next {
            Some(Ok(content)) => Frame::data(wrapped(protocol, 0, &content)),
            Some(Err(status)) => end(protocol, Some(&status)),
            None => end(protocol, None),
        })
    });
    head(protocol, stream(frames))
}

/// Refuses a unary request for a streaming method.
pub(super) fn no_stream() -> Response<Body> {
    let mut refused = answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, "text/plain", "");
    let kinds = HeaderValue::from_static("application/connect+proto, application/connect+json");
    refused.headers_mut().insert("accept-post", kinds);
    refused
}

/// Responds with only a failure.
pub(super) fn failure(protocol: Protocol, status: &Status) -> Response<Body> {
    match protocol.wire {
        Wire::ConnectUnary => crate::answer::json(status.code.http(), &error_body(status)),
        Wire::ConnectStream => {
            let content = wrapped(protocol, CONNECT_END, &connect_end(Some(status)));
            head(protocol, full(content))
        }
        // Without a message the headers are the trailers.
        Wire::Grpc | Wire::GrpcWeb { .. } => {
            let mut response = head(protocol, full(""));
            response.headers_mut().extend(trailers(Some(status)));
            response
        }
    }
}

fn head(protocol: Protocol, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(protocol.kind));
    match protocol.wire {
        Wire::Grpc | Wire::GrpcWeb { .. } => {
            headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
        }
        Wire::ConnectUnary | Wire::ConnectStream => {}
    }
    response
}

fn end(protocol: Protocol, status: Option<&Status>) -> Frame<Bytes> {
    match protocol.wire {
        Wire::Grpc => Frame::trailers(trailers(status)),
        Wire::GrpcWeb { .. } => {
            let mut text = Vec::new();
            for (name, value) in &trailers(status) {
                text.extend_from_slice(name.as_str().as_bytes());
                text.extend_from_slice(b": ");
                text.extend_from_slice(value.as_bytes());
                text.extend_from_slice(b"\r\n");
            }
            Frame::data(wrapped(protocol, WEB_TRAILERS, &text))
        }
        Wire::ConnectUnary | Wire::ConnectStream => {
            Frame::data(wrapped(protocol, CONNECT_END, &connect_end(status)))
        }
    }
}

fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from(status.map_or(0, |status| status.code as u16)));
    if let Some(text) = status.and_then(|status| HeaderValue::from_str(&status.header_text()).ok()) {
        trailers.insert(GRPC_MESSAGE, text);
    }
    trailers
}

fn connect_end(status: Option<&Status>) -> Vec<u8> {
    serde_json::to_vec(&End { error: status.map(error_body) }).unwrap_or_else(|_| b"{}".to_vec())
}

fn wrapped(protocol: Protocol, flags: u8, content: &[u8]) -> Bytes {
    let framed = frame(flags, content);
    match protocol.wire {
        Wire::GrpcWeb { text: true } => STANDARD.encode(framed).into(),
        _ => framed,
    }
}

fn encode<M: Message + Serialize>(codec: Codec, message: &M) -> Result<Vec<u8>, Status> {
    match codec {
        Codec::Proto => Ok(message.encode_to_vec()),
        Codec::Json => {
            serde_json::to_vec(message).map_err(|error| Status::new(Code::Internal, error.to_string()))
        }
    }
}
