//! Logs of OpenTelemetry over gRPC: `LogsService/Export`, as unary calls on a connection that stays open.

mod message;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::time::timeout;

use self::message::{ExportAnswer, ExportRequest, RetryInfo, Status};
use super::Failure;
use super::destination::ExportOptions;
use super::http::{ANSWER, ANSWER_MAX, Place, headers, shown};
use super::otlp::partial;
use crate::{Entry, Error};

/// Method that is called.
const METHOD: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Codes of a status.
const OK: i32 = 0;
const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const RESOURCE_EXHAUSTED: i32 = 8;
const OUT_OF_RANGE: i32 = 11;

pub(super) struct Grpc {
    place: Place,
    uri: Uri,
    headers: HeaderMap,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Grpc {
    pub(super) fn new(host: &str, port: u16, tls: bool, options: &ExportOptions) -> Result<Grpc, Error> {
        let (scheme, named) = (if tls { "https" } else { "http" }, bracketed(host));
        let uri = format!("{scheme}://{named}:{port}{METHOD}").parse();
        let uri = uri.map_err(|_| Error::Destination(format!("{host}: is not a host")))?;
        Ok(Grpc {
            place: Place::new(host, port, tls, options)?.with_protocol(b"h2"),
            uri,
            headers: headers(options.headers.as_deref().unwrap_or_default())?,
            connection: None,
        })
    }

    pub(super) async fn send(&mut self, batch: &[Entry]) -> Result<u64, Failure> {
        let body = framed(&ExportRequest::of(batch));
        let mut request = Request::post(&self.uri).body(Full::new(body)).map_err(Failure::new)?;
        let all = request.headers_mut();
        all.extend(self.headers.clone());
        all.insert(header::TE, HeaderValue::from_static("trailers"));
        all.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        all.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("hutch/", env!("CARGO_PKG_VERSION"))),
        );
        let called = timeout(ANSWER, self.call(request)).await;
        let called = called.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {ANSWER:?}"))));
        if called.is_err() {
            self.connection = None;
        }
        Ok(match called?.partial_success {
            Some(found) if found.rejected > 0 || !found.message.is_empty() => {
                partial(u64::try_from(found.rejected).unwrap_or(0), &shown(&found.message, &self.headers))
            }
            _ => 0,
        })
    }

    async fn call(&mut self, request: Request<Full<Bytes>>) -> Result<ExportAnswer, Failure> {
        let mut sender = match self.connection.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => {
                let stream = TokioIo::new(self.place.connect().await?);
                let made = handshake(TokioExecutor::new(), stream).await.map_err(Failure::new)?;
                // It ends with the connection; its error reaches the request too.
                tokio::spawn(made.1);
                made.0
            }
        };
        sender.ready().await.map_err(Failure::new)?;
        let (head, body) = sender.send_request(request).await.map_err(Failure::new)?.into_parts();
        if !head.status.is_success() {
            return Err(Failure::new(format!("the receiver answers {}", head.status)));
        }
        let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(Failure::new)?;
        self.connection = Some(sender);
        // An answer without a message has the status in its head.
        let status = body.trailers().filter(|trailers| trailers.contains_key("grpc-status"));
        outcome(status.unwrap_or(&head.headers), &self.headers)?;
        let body = body.to_bytes();
        let message =
            whole(&body).ok_or_else(|| Failure::new("the receiver answers without a whole message"))?;
        ExportAnswer::decode(message).map_err(Failure::new)
    }
}

/// Returns a host as it stands before a port.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Returns the message of an answer that has one, not compressed, of the stated length.
fn whole(body: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = body.split_at_checked(PREFIX)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?);
    (prefix[0] == 0 && usize::try_from(length) == Ok(message.len())).then_some(message)
}

/// Returns a message that is not compressed, with its length.
fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.freeze()
}

/// Judges the status of a call that had these `headers`.
fn outcome(fields: &HeaderMap, headers: &HeaderMap) -> Result<(), Failure> {
    let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
    let code: i32 = text("grpc-status").and_then(|code| code.parse().ok()).unwrap_or(UNKNOWN);
    if code == OK {
        return Ok(());
    }
    let message = shown(text("grpc-message").unwrap_or("no message"), headers);
    let requested = text("grpc-status-details-bin").and_then(retry_after);
    Err(Failure {
        retry_after: requested,
        refused: matches!(code, INVALID_ARGUMENT | OUT_OF_RANGE),
        is_large: code == RESOURCE_EXHAUSTED && requested.is_none(),
        ..Failure::new(format!("the receiver answers status {code}: {message}"))
    })
}

/// Returns the pause that the details of a status request.
fn retry_after(details: &str) -> Option<std::time::Duration> {
    let bytes = STANDARD.decode(details).or_else(|_| STANDARD_NO_PAD.decode(details)).ok()?;
    let details = Status::decode(&*bytes).ok()?.details;
    let info = details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay?;
    let nanos = u32::try_from(delay.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(std::time::Duration::new(u64::try_from(delay.seconds).ok()?, nanos))
}

/// Reads any message, and any fields of a status.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_answer(bytes: &[u8]) {
    if let Some(found) = whole(bytes).and_then(|message| ExportAnswer::decode(message).ok()?.partial_success)
    {
        super::http::any_text(found.message.as_bytes());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = retry_after(text.trim());
    }
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let secrets = headers(&format!("authorization: Bearer {}", super::http::SECRET)).expect("headers");
    let field = |name| (http::HeaderName::from_static(name), value.clone());
    let fields = HeaderMap::from_iter(["grpc-status", "grpc-message", "grpc-status-details-bin"].map(field));
    if let Err(failure) = outcome(&fields, &secrets) {
        assert!(failure.cause.len() < 2 * crate::TEXT_MAX && !failure.cause.contains(super::http::SECRET));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::message::{Any, Delay};
    use super::*;

    #[test]
    fn answer_needs_a_whole_message_that_is_not_compressed() {
        assert_eq!(whole(&[0, 0, 0, 0, 0]), Some(&[][..]));
        assert_eq!(whole(&[0, 0, 0, 0, 2, 7, 8]), Some(&[7, 8][..]));
        for other in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 7], &[0, 0, 0, 0, 0, 7]] {
            assert_eq!(whole(other), None, "{other:?}");
        }
    }

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (http::HeaderName::from_static(name), value.parse::<HeaderValue>().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn status_decides_whether_a_batch_is_sent_again_or_refused() {
        assert!(outcome(&fields(&[("grpc-status", "0")]), &HeaderMap::new()).is_ok());
        for (code, refused) in [("3", true), ("11", true), ("14", false), ("16", false), ("x", false)] {
            let failure =
                outcome(&fields(&[("grpc-status", code), ("grpc-message", "why")]), &HeaderMap::new());
            let failure = failure.unwrap_err();
            assert_eq!(failure.refused, refused, "{code}");
            assert!(failure.cause.ends_with("why") && failure.retry_after.is_none(), "{}", failure.cause);
        }
        assert!(outcome(&HeaderMap::new(), &HeaderMap::new()).unwrap_err().cause.contains("status 2"));
    }

    #[test]
    fn pause_that_a_receiver_requests_is_in_the_details_of_a_status() {
        let delay = |seconds, nanos| {
            let value = RetryInfo { retry_delay: Some(Delay { seconds, nanos }) }.encode_to_vec();
            let any = Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value };
            STANDARD_NO_PAD.encode(Status { details: vec![any] }.encode_to_vec())
        };
        assert_eq!(retry_after(&delay(2, 500_000_000)), Some(Duration::from_millis(2500)));
        assert_eq!(retry_after(&delay(-2, 0)), None);
        assert_eq!(retry_after(&delay(2, -1)), None);
        assert_eq!(retry_after("!"), None);
    }
}
