//! Requests as rules see them, also while their answers last: conditions can change by themselves.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use http_body::{Frame, SizeHint};
use hutch_policy::{Call, Decision, Destination, Mode, Path, Request, decide_request, has_conditions};
use tokio::time::{Instant, Sleep, sleep};

use super::{Exchange, Line};
use crate::body::Body;
use crate::refusal::{Denial, Reason};
use crate::sandbox::{RECHECK, Rules, Sandbox};

/// Parts of a request that rules judge.
pub(super) struct Judged<'a> {
    pub(super) destination: &'a Destination,
    /// The destination, as text.
    pub(super) host: &'a str,
    pub(super) tls: bool,
    pub(super) parts: (&'a Method, &'a Uri, &'a HeaderMap),
    pub(super) path: &'a Path,
    pub(super) websocket: bool,
    pub(super) length: Option<u64>,
    pub(super) calls: Option<&'a [Call]>,
}

impl<'a> Judged<'a> {
    /// Returns the request for the rules.
    pub(super) fn request(&self) -> Request<'a> {
        let (method, uri, headers) = self.parts;
        let headers = headers.iter();
        Request {
            host: self.host,
            port: self.destination.port.get(),
            method: method.as_str(),
            path: self.path,
            query: uri.query().unwrap_or_default(),
            headers: headers
                .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
                .collect(),
            websocket: self.websocket,
            tls: self.tls,
            length: self.length,
            calls: self.calls,
        }
    }
}

/// A request that was allowed by rules with conditions, until its answer or its WebSocket ends.
pub(super) struct Standing {
    sandbox: Arc<Sandbox>,
    destination: Destination,
    host: String,
    tls: bool,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    path: Path,
    websocket: bool,
    length: Option<u64>,
    calls: Option<Vec<Call>>,
}

impl Standing {
    /// Returns a request that was allowed; `None` if no rule for its destination has a condition.
    pub(super) fn of(
        exchange: &Exchange,
        rules: &Rules,
        parts: &Parts,
        judged: &Judged<'_>,
    ) -> Option<Arc<Standing>> {
        has_conditions(&rules.levels, &exchange.destination).then(|| {
            Arc::new(Standing {
                sandbox: exchange.sandbox.clone(),
                destination: exchange.destination.clone(),
                host: judged.host.to_owned(),
                tls: judged.tls,
                method: parts.method.clone(),
                uri: parts.uri.clone(),
                headers: parts.headers.clone(),
                path: judged.path.clone(),
                websocket: judged.websocket,
                length: judged.length,
                calls: judged.calls.map(<[Call]>::to_vec),
            })
        })
    }

    /// Returns why the rules no longer allow it, if they do not.
    fn denial(&self) -> Option<Denial> {
        let judged = Judged {
            destination: &self.destination,
            host: &self.host,
            tls: self.tls,
            parts: (&self.method, &self.uri, &self.headers),
            path: &self.path,
            websocket: self.websocket,
            length: self.length,
            calls: self.calls.as_deref(),
        };
        let rules = self.sandbox.rules();
        let moment = self.sandbox.moment(&rules.facts);
        let request = judged.request();
        let verdict = decide_request(&rules.levels, &self.destination, &request, &moment);
        let denied = verdict.decision != Decision::Allow;
        denied.then(|| Denial::first(&verdict.opinions, Mode::Enforce).unwrap_or_default())
    }

    /// Waits until the rules no longer allow it, which is reported.
    pub(super) async fn denied(&self, line: &Line) {
        loop {
            sleep(RECHECK).await;
            if let Some(denial) = self.denial() {
                return self.report(line, denial);
            }
        }
    }

    fn report(&self, line: &Line, denial: Denial) {
        let calls = self.calls.as_deref().unwrap_or_default();
        let refusal = line.refusal(Reason::Denied(denial), calls);
        self.sandbox.refused_request(refusal, &line.asked(calls));
    }
}

/// Body of an answer, as long as the rules allow its request.
pub(super) struct WhileAllowed {
    pub(super) body: Body,
    standing: Arc<Standing>,
    line: Arc<Line>,
    next: Pin<Box<Sleep>>,
}

impl WhileAllowed {
    pub(super) fn new(body: Body, standing: Arc<Standing>, line: Arc<Line>) -> WhileAllowed {
        WhileAllowed { body, standing, line, next: Box::pin(sleep(RECHECK)) }
    }
}

impl http_body::Body for WhileAllowed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        while self.next.as_mut().poll(context).is_ready() {
            if let Some(denial) = self.standing.denial() {
                self.standing.report(&self.line, denial);
                return Poll::Ready(Some(Err("its rule no longer allows it".into())));
            }
            self.next.as_mut().reset(Instant::now() + RECHECK);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
