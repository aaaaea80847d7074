//! Access log: one entry for each request, written when its response has been sent or abandoned, and its
//! metrics. The only headers are the user agent and the request id. No query and no body: nothing that could
//! hold a secret.

mod sink;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::time::Sleep;

pub use sink::LogSink;

use crate::observe::audit::{self, Answered, Exchange, Trail};
use crate::observe::metrics::{self, Metrics, OTHER_NAMESPACES};
use crate::observe::trace::{Span, cut};
use crate::pace::Current;
use crate::refusal::Refusal;

/// Maximum characters of a client's request id; a longer one is replaced.
const ID_LONGEST: usize = 128;
/// Status that is logged if the client disconnects before the response.
const CLIENT_GONE: u16 = 499;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Destination of the access log.
#[derive(Clone)]
pub enum AccessLog {
    /// No access log.
    Off,
    /// `tracing` events with target `hutch_router::access`.
    Tracing,
    /// JSON lines in a [`LogSink`].
    Lines(Arc<LogSink>),
}

/// Returns the client's request id if it consists of printable characters without spaces, else a new one.
pub(crate) fn request_id<B>(request: &Request<B>) -> HeaderValue {
    let mut given = request.headers().get_all(REQUEST_ID).iter();
    if let (Some(only), None) = (given.next(), given.next())
        && (1..=ID_LONGEST).contains(&only.len())
        && only.as_bytes().iter().all(u8::is_ascii_graphic)
        && let Ok(copy) = HeaderValue::from_bytes(only.as_bytes())
    {
        return copy;
    }
    let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
    let random = rand::random::<[u8; 16]>();
    let digits: Vec<u8> = random.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
    // Hexadecimal digits are always a valid value.
    HeaderValue::from_maybe_shared(Bytes::from(digits)).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

/// Access log entry in progress. It is written on drop.
pub(crate) struct Line {
    // Copies of the logged texts: a slice of a request would keep its whole read buffer for the lifetime of
    // an upgraded connection.
    method: Method,
    path: Box<str>,
    client: Option<HeaderValue>,
    agent: Option<Box<str>>,
    target: Option<(String, String)>,
    id: HeaderValue,
    status: StatusCode,
    answered: bool,
    sent: u64,
    begun: Instant,
    log: AccessLog,
    metrics: Metrics,
    /// Request of the connection, for its duration.
    current: Current,
    span: Option<Span>,
    /// Record of the audit log that is not written yet.
    trail: Option<Trail>,
}

#[derive(Serialize)]
struct Entry<'a> {
    level: &'a str,
    ts: f64,
    msg: &'a str,
    method: &'a str,
    path: &'a str,
    status: u16,
    duration_ms: f64,
    client_ip: &'a str,
    sandbox_id: &'a str,
    sandbox_namespace: &'a str,
    bytes_out: u64,
    user_agent: &'a str,
    request_id: &'a str,
}

impl Line {
    pub(crate) fn begin<B>(
        request: &Request<B>,
        id: HeaderValue,
        client: Option<HeaderValue>,
        (log, metrics): (&AccessLog, &Metrics),
        current: Current,
        (span, trail): (Option<Span>, Option<Trail>),
    ) -> Line {
        metrics.0.inflight.inc();
        Line {
            method: request.method().clone(),
            path: cut(request.uri().path()).into(),
            client,
            agent: request.headers().get(USER_AGENT).and_then(|agent| Some(cut(agent.to_str().ok()?).into())),
            target: None,
            id,
            status: StatusCode::OK,
            answered: false,
            sent: 0,
            begun: Instant::now(),
            log: log.clone(),
            metrics: metrics.clone(),
            current,
            span,
            trail,
        }
    }

    pub(crate) fn names(&mut self, namespace: &str, sandbox: &str, port: u16) {
        self.target = Some((namespace.to_owned(), sandbox.to_owned()));
        if let Some(trail) = &mut self.trail {
            trail.port = Some(port);
        }
    }

    /// Records the uid of the Sandbox that has responded.
    pub(crate) fn reaches(&mut self, uid: &str) {
        if let Some(trail) = &mut self.trail {
            trail.uid = Some(uid.into());
        }
    }

    /// Records the reason of a refusal.
    pub(crate) fn refuses(&mut self, refusal: &Refusal) {
        if let Some(trail) = &mut self.trail {
            let denied = matches!(refusal, Refusal::Unauthenticated | Refusal::Forbidden);
            trail.refused = Some((refusal.public().1, denied));
            if *refusal == Refusal::Unauthenticated {
                trail.caller = "".into();
            }
        }
    }

    /// Reads the body of a request, if the audit log does.
    pub(crate) async fn read(&mut self, request: Request<Body>) -> Request<Body> {
        if !self.trail.as_ref().is_some_and(|trail| trail.log.reads_body(&self.exchange(trail))) {
            return request;
        }
        let (head, body) = request.into_parts();
        let (read, body) = audit::read(body).await;
        if let Some(trail) = &mut self.trail {
            trail.body = Some(read);
            let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            trail.content_type = kind.map(|kind| cut(kind).into());
        }
        Request::from_parts(head, body)
    }

    /// Waits until the audit log permits to send the request.
    pub(crate) async fn permitted(&self) -> Result<(), Refusal> {
        let before = |trail: &Trail| trail.log.before(&self.exchange(trail));
        match self.trail.as_ref().and_then(before) {
            None => Ok(()),
            Some(permitted) => permitted.await.map_err(Refusal::NotRecorded),
        }
    }

    fn exchange<'a>(&'a self, trail: &'a Trail) -> Exchange<'a> {
        Exchange {
            caller: &trail.caller,
            source: self.client.as_ref().and_then(|address| address.to_str().ok()),
            method: cut(self.method.as_str()),
            path: &self.path,
            user_agent: self.agent.as_deref(),
            sandbox: self.target.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str())),
            uid: trail.uid.as_deref(),
            port: trail.port,
            body: trail.body.as_deref(),
            content_type: trail.content_type.as_deref(),
        }
    }

    /// Adds the request to the audit log, once.
    fn audit(&mut self, status: StatusCode) {
        let Some(trail) = self.trail.take() else { return };
        let refused = trail.refused.as_ref();
        let answered = Answered {
            status: status.as_u16(),
            refused: refused.map(|(reason, _)| reason.as_str()),
            denied: refused.is_some_and(|(_, denied)| *denied),
        };
        trail.log.after(&self.exchange(&trail), &answered);
    }

    /// Follows the response to its end. `rest` is the remaining time of the request, if that is bounded.
    pub(crate) fn follow(mut self, response: Response<Body>, rest: Option<Duration>) -> Response<Body> {
        self.answer(response.status());
        let (mut head, body) = response.into_parts();
        head.headers.insert(REQUEST_ID, self.id.clone());
        let deadline = rest.map(|rest| Box::pin(tokio::time::sleep(rest)));
        self.current.offered();
        Response::from_parts(head, Body::new(Counted { body, deadline, line: self }))
    }

    /// Records the status when the response starts.
    pub(crate) fn answer(&mut self, status: StatusCode) {
        self.status = status;
        self.answered = true;
        self.audit(status);
    }

    /// Returns the request id for a response that this entry does not follow.
    pub(crate) fn id(&self) -> HeaderValue {
        self.id.clone()
    }

    pub(crate) fn count(&mut self, bytes: u64) {
        self.sent += bytes;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        let gone = StatusCode::from_u16(CLIENT_GONE).unwrap_or(StatusCode::BAD_REQUEST);
        let status = if self.answered { self.status } else { gone };
        self.audit(status);
        let namespace = self.target.as_ref().map_or(OTHER_NAMESPACES, |(namespace, _)| namespace);
        let labels = [metrics::method(&self.method), status.as_str(), self.metrics.label(namespace)];
        self.metrics.0.inflight.dec();
        self.metrics.0.requests.with_label_values(&labels).inc();
        self.metrics.0.duration.with_label_values(&labels).observe(took.as_secs_f64());
        if let Some(span) = &self.span {
            let target = self.target.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
            span.end(status, self.answered, target);
        }
        if matches!(self.log, AccessLog::Off) {
            return;
        }
        let client = self.client.as_ref().and_then(|address| address.to_str().ok()).unwrap_or("-");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            level: "info",
            ts: since.as_secs_f64(),
            msg: "request",
            method: cut(self.method.as_str()),
            path: &self.path,
            status: status.as_u16(),
            duration_ms: (took.as_secs_f64() * 1e6).round() / 1e3,
            client_ip: client,
            sandbox_id: self.target.as_ref().map_or("-", |(_, sandbox)| sandbox),
            sandbox_namespace: namespace,
            bytes_out: self.sent,
            user_agent: self.agent.as_deref().unwrap_or("-"),
            request_id: self.id.to_str().unwrap_or("-"),
        };
        match &self.log {
            AccessLog::Off => {}
            AccessLog::Tracing => trace(&entry),
            AccessLog::Lines(sink) => sink.put(&entry),
        }
    }
}

fn trace(entry: &Entry<'_>) {
    tracing::info!(
        target: "hutch_router::access",
        method = entry.method,
        path = entry.path,
        status = entry.status,
        duration_ms = entry.duration_ms,
        client_ip = entry.client_ip,
        sandbox_id = entry.sandbox_id,
        sandbox_namespace = entry.sandbox_namespace,
        bytes_out = entry.bytes_out,
        user_agent = entry.user_agent,
        request_id = entry.request_id,
        "request"
    );
}

struct Counted {
    body: Body,
    deadline: Option<Pin<Box<Sleep>>>,
    line: Line,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "the time of the request is over");
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        self.line.current.taken();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.line.current.offered();
            self.line.count(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_request_ids_are_kept() {
        let id = |values: &[&str]| {
            let mut request = Request::new(());
            for value in values {
                request.headers_mut().append(REQUEST_ID, value.parse().unwrap());
            }
            request_id(&request).to_str().unwrap().to_owned()
        };
        assert_eq!(id(&["a-1/b"]), "a-1/b");
        for replaced in [&[][..], &[""], &["a b"], &["a", "b"], &[&"x".repeat(129)]] {
            let fresh = id(replaced);
            assert!(fresh.len() == 32 && fresh.bytes().all(|byte| byte.is_ascii_hexdigit()), "{replaced:?}");
            assert_ne!(fresh, id(replaced));
        }
    }

    #[test]
    fn long_texts_are_truncated() {
        assert_eq!(cut(&"x".repeat(300)).len(), 256);
        assert_eq!(cut(&"\u{e9}".repeat(200)).len(), 256);
        assert_eq!(cut("x"), "x");
    }
}
