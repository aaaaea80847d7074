//! One call: its protocol, its deadline, its messages.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use hyper::{Request, Response};
use prost::Message;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::framing::{Deframer, MESSAGE_LIMIT, too_long};
use super::protocol::{Codec, Protocol, Wire};
use super::reply;
use super::status::{Code, Status};
use crate::answer::Body;
use crate::content::Content;

/// Request with a decoded head.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) protocol: Protocol,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) deadline: Option<Instant>,
    pub(super) incoming: Messages,
}

/// Messages of a request, in order.
#[derive(Debug)]
pub(super) struct Messages {
    protocol: Protocol,
    body: Content,
    deframer: Deframer,
    done: bool,
}

impl Call {
    pub(super) fn new(protocol: Protocol, request: Request<Content>) -> Result<Call, Status> {
        let (head, body) = request.into_parts();
        let deframer = Deframer::new(protocol.wire == Wire::GrpcWeb { text: true });
        let incoming = Messages { protocol, body, deframer, done: false };
        let path = head.uri.path().to_owned();
        let mut call = Call { protocol, path, headers: head.headers, deadline: None, incoming };
        let encodings = ["grpc-encoding", "connect-content-encoding", CONTENT_ENCODING.as_str()];
        let encoded =
            encodings.iter().filter_map(|name| call.headers.get(*name)).find(|value| *value != "identity");
        if let Some(encoding) = encoded {
            let message = format!("messages encoded as {encoding:?} are not understood; identity is");
            return Err(Status::new(Code::Unimplemented, message));
        }
        // A deadline too far away for the clock is no limit.
        call.deadline = time_limit(&call.headers)?.and_then(|limit| Instant::now().checked_add(limit));
        Ok(call)
    }

    /// Responds with only a failure.
    pub(super) fn refuse(&self, status: Status) -> Response<Body> {
        reply::failure(self.protocol, &status)
    }

    pub(super) fn unknown(&self) -> Response<Body> {
        self.refuse(Status::new(Code::Unimplemented, format!("there is no method {}", self.path)))
    }

    /// Runs one step of the response, within the deadline.
    pub(super) async fn in_time<T>(
        deadline: Option<Instant>,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        match deadline {
            None => work.await,
            Some(deadline) => tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| Err(late())),
        }
    }
}

pub(super) fn late() -> Status {
    Status::new(Code::DeadlineExceeded, "the call took longer than its deadline")
}

impl Messages {
    /// Returns the next message; `None` after the last.
    pub(super) async fn next<M: Message + Default + DeserializeOwned>(
        &mut self,
    ) -> Result<Option<M>, Status> {
        let bytes = match self.protocol.wire {
            Wire::ConnectUnary => self.whole().await?,
            _ => self.framed().await?,
        };
        bytes.map(|bytes| decode(self.protocol.codec, &bytes)).transpose()
    }

    /// Returns the message of a unary call.
    pub(super) async fn only<M: Message + Default + DeserializeOwned>(&mut self) -> Result<M, Status> {
        let missing = || Status::new(Code::InvalidArgument, "the request holds no message");
        let message = self.next().await?.ok_or_else(missing)?;
        match self.framed_again().await? {
            false => Ok(message),
            true => Err(Status::new(Code::InvalidArgument, "the request holds more than one message")),
        }
    }

    async fn framed_again(&mut self) -> Result<bool, Status> {
        if self.protocol.wire == Wire::ConnectUnary {
            return Ok(false);
        }
        Ok(self.framed().await?.is_some())
    }

    async fn framed(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.deframer.next()? {
                return Ok(Some(message));
            }
            match self.piece().await? {
                Some(piece) => self.deframer.push(&piece)?,
                None if self.deframer.is_empty() => return Ok(None),
                None => return Err(Status::new(Code::InvalidArgument, "the request ends within a message")),
            }
        }
    }

    async fn whole(&mut self) -> Result<Option<Bytes>, Status> {
        if self.done {
            return Ok(None);
        }
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            if all.len() + piece.len() > MESSAGE_LIMIT {
                return Err(too_long(all.len() + piece.len()));
            }
            all.extend_from_slice(&piece);
        }
        Ok(Some(all.into()))
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        while !self.done {
            match self.body.frame().await {
                None => self.done = true,
                Some(Err(error)) => {
                    let message = format!("the request broke off: {error}");
                    return Err(Status::new(Code::InvalidArgument, message));
                }
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
        Ok(None)
    }
}

pub(super) fn decode<M: Message + Default + DeserializeOwned>(
    codec: Codec,
    bytes: &[u8],
) -> Result<M, Status> {
    let wrong =
        |error: String| Status::new(Code::InvalidArgument, format!("the message is not understood: {error}"));
    match codec {
        Codec::Proto => M::decode(bytes).map_err(|error| wrong(error.to_string())),
        // An empty body is a message without fields.
        Codec::Json if bytes.is_empty() => Ok(M::default()),
        Codec::Json => serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string())),
    }
}

/// Parses the deadline of the client: `grpc-timeout` (digits and a unit) or `connect-timeout-ms`.
pub(super) fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let wrong =
        |name: &str, text: &str| Status::new(Code::InvalidArgument, format!("{name} {text:?} is not a time"));
    if let Some(text) = text("grpc-timeout") {
        return grpc_time(text).ok_or_else(|| wrong("grpc-timeout", text)).map(Some);
    }
    let Some(text) = text("connect-timeout-ms") else { return Ok(None) };
    let digits = !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    let read = text.parse().ok().filter(|_| digits).map(Duration::from_millis);
    read.ok_or_else(|| wrong("connect-timeout-ms", text)).map(Some)
}

fn grpc_time(text: &str) -> Option<Duration> {
    let (unit, digits) = text.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn deadlines() {
        for (name, text, expected) in [
            ("grpc-timeout", "5S", Some(Duration::from_secs(5))),
            ("grpc-timeout", "99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("grpc-timeout", "250m", Some(Duration::from_millis(250))),
            ("connect-timeout-ms", "1500", Some(Duration::from_millis(1500))),
            ("grpc-timeout", "", None),
            ("grpc-timeout", "S", None),
            ("grpc-timeout", "5", None),
            ("grpc-timeout", "-5S", None),
            ("grpc-timeout", "123456789S", None),
            ("grpc-timeout", "5é", None),
            ("connect-timeout-ms", "1.5", None),
            ("connect-timeout-ms", "+1", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, hyper::header::HeaderValue::from_bytes(text.as_bytes()).unwrap());
            assert_eq!(time_limit(&headers).ok().flatten(), expected, "{name}: {text}");
        }
        assert_eq!(time_limit(&HeaderMap::new()), Ok(None));
    }

    proptest! {
        #[test]
        fn any_timeout_is_parsed_or_refused(text in "\\PC{0,12}") {
            let _ = grpc_time(&text);
        }
    }
}
