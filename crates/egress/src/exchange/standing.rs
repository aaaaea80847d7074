//! Requests as rules see them, also while their answers last: conditions can change by themselves.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use http_body::{Frame, SizeHint};
use hutch_policy::{
    Call, Decision, Destination, Level, Mode, Moment, Path, Request, closes_addresses, decide_request,
    has_conditions, scanners,
};
use tokio::time::{Instant, Sleep, sleep_until};

use super::counted::Limit;
use super::{Exchange, Line};
use crate::body::Body;
use crate::origin::Origin;
use crate::refusal::{Denial, Reason};
use crate::sandbox::{RECHECK, Rules, Sandbox};
use crate::upstream::Server;

/// Parts of a request that rules judge.
pub(super) struct Judged<'a> {
    pub(super) origin: &'a Arc<Origin>,
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
            host: &self.origin.host,
            port: self.origin.destination.port.get(),
            method: method.as_str(),
            path: self.path,
            query: uri.query().unwrap_or_default(),
            headers: headers
                .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
                .collect(),
            websocket: self.websocket,
            tls: self.origin.tls,
            length: self.length,
            calls: self.calls,
        }
    }
}

/// Maximum bytes of a body whose calls are judged again. Those of a longer one are judged once: they take much memory and time.
const CALLS: usize = 4096;
/// Time between two evaluations, in times of their cost, and its maximum: so they take little of the process.
const REST: u32 = 1000;
const REST_MAX: Duration = Duration::from_secs(10);

/// A request that was allowed by rules with conditions, until its answer or its WebSocket ends.
pub(super) struct Standing {
    sandbox: Arc<Sandbox>,
    origin: Arc<Origin>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    path: Path,
    websocket: bool,
    length: Option<u64>,
    calls: Option<Vec<Call>>,
    /// Its calls are short enough to be judged again.
    is_short: bool,
    /// Names of the policies that scan it.
    scanned: Vec<String>,
    /// The limit of its body.
    limit: Arc<Limit>,
    decided: Instant,
    /// Known when its answer begins.
    server: OnceLock<Server>,
}

impl Standing {
    /// Returns a request that was allowed, with the bytes of its calls; `None` if no condition can close it.
    pub(super) fn of(
        exchange: &Exchange,
        rules: &Rules,
        (parts, bytes): (&Parts, usize),
        (judged, moment, limit): (&Judged<'_>, &Moment<'_>, &Arc<Limit>),
    ) -> Option<Arc<Standing>> {
        let is_short = judged.calls.is_none() || bytes <= CALLS;
        let destination = &exchange.origin.destination;
        let changes = has_conditions(&rules.levels, destination) || closes_addresses(&rules.levels);
        let scanned =
            || enforced(&rules.levels, (destination, moment)).map(|level| level.name.clone()).collect();
        changes.then(|| {
            Arc::new(Standing {
                sandbox: exchange.sandbox.clone(),
                origin: exchange.origin.clone(),
                method: parts.method.clone(),
                uri: parts.uri.clone(),
                headers: parts.headers.clone(),
                path: judged.path.clone(),
                websocket: judged.websocket,
                length: judged.length,
                calls: judged.calls.filter(|_| is_short).map(<[Call]>::to_vec),
                is_short,
                scanned: scanned(),
                limit: limit.clone(),
                decided: Instant::now(),
                server: OnceLock::new(),
            })
        })
    }

    /// Keeps the server that answers it.
    pub(super) fn answered_by(&self, server: Option<&Server>) {
        if let Some(server) = server {
            let _ = self.server.set(*server);
        }
    }

    /// Returns [`Standing::denial`] if some time has passed since it was decided. One that is sent and answered at once was
    /// judged without itself among those that were made.
    pub(super) fn later_denial(&self) -> Option<Reason> {
        if self.decided.elapsed() < RECHECK { None } else { self.denial() }
    }

    /// Returns why the rules no longer allow it, or the server to which it was sent, if they do not.
    pub(super) fn denial(&self) -> Option<Reason> {
        let judged = Judged {
            origin: &self.origin,
            parts: (&self.method, &self.uri, &self.headers),
            path: &self.path,
            websocket: self.websocket,
            length: self.length,
            calls: self.calls.as_deref(),
        };
        let rules = self.sandbox.rules();
        let moment = self.sandbox.moment_of_allowed(&rules.facts);
        let request = judged.request();
        let verdict = decide_request(&rules.levels, &self.origin.destination, &request, &moment);
        if self.is_short && verdict.decision != Decision::Allow {
            return Some(Reason::Denied(Denial::first(&verdict.opinions, Mode::Enforce).unwrap_or_default()));
        }
        if self.is_short {
            self.limit.set(verdict.max_body);
        }
        let destination = &self.origin.destination;
        let mut scanning = enforced(&rules.levels, (destination, &moment));
        if let Some(level) = scanning.find(|level| !self.scanned.contains(&level.name)) {
            let why = format!("the scanner of policy {:?} reads what is sent from now on", level.name);
            return Some(Reason::OtherName(why));
        }
        self.sandbox.closed_server(destination, *self.server.get()?, &rules, &moment)
    }

    /// Waits until the rules no longer allow it.
    pub(super) async fn denied(self: &Arc<Self>) -> Reason {
        let mut watch = Watch::new(self.clone());
        loop {
            sleep_until(watch.next).await;
            if let Some(reason) = watch.denied() {
                return reason;
            }
        }
    }
}

/// Returns the levels that decide and scan a destination.
fn enforced<'a>(
    levels: &'a [Arc<Level>],
    at: (&'a Destination, &'a Moment<'a>),
) -> impl Iterator<Item = &'a Level> {
    scanners(levels, Some(at)).map(|(level, _)| level).filter(|level| level.mode == Mode::Enforce)
}

/// Times at which a request is judged again.
pub(super) struct Watch {
    standing: Arc<Standing>,
    next: Instant,
}

impl Watch {
    pub(super) fn new(standing: Arc<Standing>) -> Watch {
        Watch { standing, next: Instant::now() + RECHECK }
    }

    /// Judges the request if it is time. Returns why it is no longer allowed.
    pub(super) fn denied(&mut self) -> Option<Reason> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        let denial = self.standing.denial();
        let end = Instant::now();
        self.next = end + RECHECK.max(((end - now) * REST).min(REST_MAX));
        denial
    }
}

/// Body of an answer, as long as the rules allow its request.
pub(super) struct WhileAllowed {
    body: Body,
    watch: Watch,
    line: Arc<Line>,
    sleep: Pin<Box<Sleep>>,
}

impl WhileAllowed {
    pub(super) fn new(body: Body, standing: Arc<Standing>, line: Arc<Line>) -> WhileAllowed {
        let watch = Watch::new(standing);
        let sleep = Box::pin(sleep_until(watch.next));
        WhileAllowed { body, watch, line, sleep }
    }
}

impl http_body::Body for WhileAllowed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        while this.sleep.as_mut().poll(context).is_ready() {
            if let Some(reason) = this.watch.denied() {
                let error = reason.to_string();
                this.line.end(&this.watch.standing.sandbox, reason);
                return Poll::Ready(Some(Err(error.into())));
            }
            this.sleep.as_mut().reset(this.watch.next);
        }
        Pin::new(&mut this.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
