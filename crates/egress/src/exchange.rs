//! One request of a sandbox: it is checked, decided, and sent on.

mod calls;
mod counted;
mod line;
mod scanned;
mod seen;
mod standing;
mod upgraded;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use hutch_policy::{
    Call, Decision, Mode, Moment, Path, Session, decide_request, denies_calls, has_conditions,
    judges_requests, reads_calls,
};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::body::{Body, full, without_body};
use crate::check::names;
use crate::credentials::{self, Guarded, Placed, completed, place};
use crate::headers::{head_bytes, is_plain, is_websocket, join_cookies, keep_end_to_end, never_sent};
use crate::heads::Heads;
use crate::origin::Origin;
use crate::refusal::{Denial, REFUSED, Reason, Refusal, WITH_USER, problem};
use crate::room::{Held, Sent};
use crate::sandbox::{Rules, Sandbox};
use crate::scan::{Conversations, Scan};
use crate::upstream::Server;
use crate::values::{MUCH, memory};
use calls::{discard, id_of, read_calls};
use counted::{Limit, Metered, Placing};
use line::Line;
use seen::Seen;
use standing::{Judged, Standing, Watch, WhileAllowed};

/// Maximum bytes, and time, for which the body of a refused request is read before the answer.
const UNREAD: usize = 256 << 10;
const UNREAD_TIME: Duration = Duration::from_secs(2);
/// Reason for a body in which a server may find calls although it cannot be read in one way, where a rule denies some.
const UNREADABLE_CALLS: &str = "its body may have calls of JSON-RPC that cannot be read in one way";
/// Maximum headers of a request, as of HTTP/1.1.
const HEADERS: usize = 100;

/// Requests of one connection.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) sandbox: Arc<Sandbox>,
    /// Where requests go. The client speaks TLS exactly if the server does.
    pub(crate) origin: Arc<Origin>,
    /// Work that remains after its last request, if that was for a WebSocket.
    pub(crate) tunnel: Tunnel,
    /// Heads of the connection, if it is one of HTTP/1.
    pub(crate) heads: Option<Heads>,
    /// Conversations of the connection.
    pub(crate) conversations: Conversations,
    /// The budgets have the next request already: they have counted the connection before it was known to be HTTP.
    pub(crate) counted: Arc<AtomicBool>,
}

/// Work that is left when the requests of a connection have ended.
#[derive(Clone, Default)]
pub(crate) struct Tunnel(Arc<Mutex<Option<Work>>>);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Tunnel {
    fn set(&self, work: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::pin(work));
    }

    /// Waits for the work, if there is any.
    pub(crate) async fn finish(&self) {
        let work = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            work.await;
        }
    }
}

/// A request that is allowed.
struct Accepted {
    rules: Rules,
    limit: Arc<Limit>,
    body: Sent,
    scan: Option<Scan>,
    /// The length of its body may change.
    changes: bool,
    placed: Placed,
    /// Set if its rules have conditions.
    standing: Option<Arc<Standing>>,
    /// Counters by which it was judged.
    judged: Session,
}

/// Answers a request. `followed` says why its head, as it was sent, is refused.
pub(crate) async fn exchange(
    of: Exchange,
    followed: Result<(), String>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let method = if is_plain(request.method()) { request.method().clone() } else { Method::default() };
    let line = Line::new(method, &of.origin, request.uri().path());
    let sends = !request.headers().contains_key(header::EXPECT);
    let of_head = request.method() == Method::HEAD;
    let (line, mut seen) = (Arc::new(line), Seen::default());
    let ends = followed.is_err();
    let served = match followed {
        Ok(()) => of.serve(request, &line, &mut seen).await,
        Err(why) => Err(Reason::Ambiguous(why)),
    };
    Ok(match served.and_then(|response| line.answer().map(|()| response)) {
        Ok(response) => response,
        Err(reason) => {
            // Failures that follow from the end of the body are not reported.
            let ended = line.ended();
            let is_new = ended.is_none();
            let refusal = line.refusal(ended.unwrap_or(reason), &seen.calls);
            if is_new {
                of.sandbox.refused_request(refusal.clone(), &line.asked(&seen.calls));
            }
            let rest = || if is_new { None } else { seen.lent.take_back() };
            if let Some(body) = seen.unread.take().or_else(rest).filter(|_| sends) {
                // A client that could not send all of a body may not read the answer.
                let _ = timeout(UNREAD_TIME, discard(body, UNREAD)).await;
            }
            let mut response = answer(&refusal, &of.sandbox.advice(&refusal), seen.id);
            if ends {
                // It is not certain where the next one begins.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            if of_head { without_body(response) } else { response }
        }
    })
}

/// Waits for the answer to a request, as long as the rules allow it.
async fn answered(
    sending: impl Future<Output = Result<Response<Incoming>, Reason>>,
    standing: &Arc<Standing>,
    (sandbox, line): (&Sandbox, &Line),
) -> Result<Response<Incoming>, Reason> {
    let response = tokio::select! {
        response = sending => response?,
        reason = standing.denied() => {
            line.end(sandbox, reason.clone());
            return Err(reason);
        }
    };
    standing.answered_by(response.extensions().get::<Server>());
    standing.later_denial().map_or(Ok(response), Err)
}

/// Returns the path of a request that means the same to every server.
fn path_of(parts: &Parts) -> Result<Path, String> {
    if let Some((name, _)) = parts.headers.iter().find(|(_, value)| value.to_str().is_err()) {
        return Err(format!("the header {name} is not text"));
    }
    let path = match parts.uri.path() {
        "*" if parts.method == Method::OPTIONS => "/",
        path => path,
    };
    Path::read(path).map_err(|error| error.to_string())
}

/// Returns the answer to a refused request: a problem with this advice, or an error of JSON-RPC to a call with this id.
pub(crate) fn answer(refusal: &Refusal, advice: &str, id: Option<serde_json::Value>) -> Response<Body> {
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
    answer_with(status, refusal, advice, id)
}

/// Returns the answer as [`answer`] does, with another status.
pub(crate) fn answer_with(
    status: StatusCode,
    refusal: &Refusal,
    advice: &str,
    id: Option<serde_json::Value>,
) -> Response<Body> {
    let (kind, text) = match id {
        None => ("application/problem+json", problem(refusal, status.as_u16(), advice)),
        Some(id) => {
            let message = format!("refused {}: {}", refusal.destination, refusal.reason);
            let error = serde_json::json!({"jsonrpc": "2.0", "id": id, "error": {"code": REFUSED, "message": message}});
            ("application/json", error.to_string())
        }
    };
    let mut response = Response::new(full(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl Exchange {
    async fn serve(
        &self,
        mut request: Request<Incoming>,
        line: &Arc<Line>,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Reason> {
        // Before it waits: the heads of all streams would take much memory.
        if request.headers().len() > HEADERS {
            return Err(Reason::Ambiguous(format!("its head has more than {HEADERS} headers")));
        }
        // Never closed. Others wait for their turn.
        let place = self.sandbox.requests.clone().acquire_owned().await.ok();
        let websocket = is_websocket(&request);
        let upgrade = websocket.then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        seen.unread = Some(body);
        join_cookies(&mut parts.headers);
        self.check(&parts).map_err(Reason::Ambiguous)?;
        let mut accepted = self.decide(&parts, line, websocket, seen).await?;
        let room = &self.sandbox.room;
        if accepted.placed.reads_body() {
            let completed = completed(&mut accepted.placed, &parts.headers, accepted.body, room);
            accepted.body = Box::pin(completed).await?;
        }
        // It may have been waited for the body.
        if let Some(reason) = accepted.standing.as_ref().and_then(|standing| standing.later_denial()) {
            return Err(reason);
        }
        let (http2, rules) = (parts.version == Version::HTTP_2, accepted.rules.clone());
        let by = accepted.judged;
        let (scan, standing) = (accepted.scan.clone(), accepted.standing.clone());
        let (sent, placed) = self.request(&parts, accepted, line, websocket)?;
        self.sandbox.records.uses(&placed.used, &self.origin.destination).await?;
        let of = parts.headers;
        let sending = self.sandbox.upstream().send(sent, &self.origin, http2, by);
        let mut response = match &standing {
            Some(standing) => answered(sending, standing, (&self.sandbox, line)).await?,
            None => sending.await?,
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let unwanted = || Reason::Ambiguous("the server switches to another protocol".to_owned());
            let upgrade = upgrade.ok_or_else(unwanted)?;
            let both = (upgrade, hyper::upgrade::on(&mut response));
            self.connect(both, line.clone(), (rules, standing), (&of, scan));
            let (mut parts, _) = response.into_parts();
            keep_end_to_end(&mut parts.headers, true);
            return Ok(Response::from_parts(parts, full(Bytes::new())));
        }
        let (mut parts, body) = response.into_parts();
        let sandbox = self.sandbox.clone();
        let body = Placing { body, sandbox, _place: place }.boxed_unsync();
        let body = match standing {
            Some(standing) => WhileAllowed::new(body, standing, line.clone()).boxed_unsync(),
            None => body,
        };
        let mut body = credentials::answer(placed, &mut parts, body, &self.sandbox.room)?;
        keep_end_to_end(&mut parts.headers, false);
        // It names another way to the server, which would not be read.
        parts.headers.remove(header::ALT_SVC);
        parts.version = Version::default();
        // The words of the status: no rule reads them.
        parts.extensions.clear();
        if let Some(scan) = scan {
            body = Box::pin(self.scan_answer(&scan, &of, &mut parts, body, line, seen)).await?;
        }
        Ok(Response::from_parts(parts, body))
    }

    /// Checks that the request is for the destination, and ends at the same place for every server.
    fn check(&self, parts: &Parts) -> Result<(), String> {
        never_sent(&parts.method, &parts.headers).map_or(Ok(()), Err)?;
        let mut hosts = parts.headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (_, Some(_)) => return Err("two hosts".to_owned()),
            (Some(host), None) => Some(host.to_str().map_err(|_| "its host is not text".to_owned())?),
            (None, None) => None,
        };
        let authority = parts.uri.authority().map(http::uri::Authority::as_str);
        if host.is_none() && authority.is_none() {
            return Err("it names no host".to_owned());
        }
        for name in host.iter().chain(&authority) {
            if name.contains('@') {
                return Err(WITH_USER.to_owned());
            }
            if !names(name, &self.origin.destination) {
                return Err(format!("it is for {name:?}"));
            }
        }
        let lengths = parts.headers.get_all(header::CONTENT_LENGTH).iter().count();
        if lengths > 1 || (lengths == 1 && parts.headers.contains_key(header::TRANSFER_ENCODING)) {
            return Err("two lengths of the body".to_owned());
        }
        Ok(())
    }

    /// Returns the path by which these rules decide. One that servers read in several ways is refused where a rule decides
    /// about requests, or could do so while the request lasts. Elsewhere the host alone counts.
    fn path(&self, parts: &Parts, rules: &Rules) -> Result<Path, Reason> {
        let destination = &self.origin.destination;
        let decides =
            || has_conditions(&rules.levels, destination) || judges_requests(&rules.levels, destination);
        match path_of(parts) {
            Err(why) if decides() => Err(Reason::Ambiguous(why)),
            Err(_) => Path::read("/").map_err(|error| Reason::Ambiguous(error.to_string())),
            Ok(path) => Ok(path),
        }
    }

    /// Returns what is scanned of requests to the destination.
    fn scan(&self, rules: &Rules, moment: &Moment<'_>) -> Option<Scan> {
        let destination = &self.origin.destination;
        let scan = Scan::of(&rules.levels, Some((destination, moment)))?;
        Some(scan.with_credentials(&rules.credentials, Some(destination)))
    }

    /// Returns the moment for the next request, which may be counted already.
    fn moment<'a>(&self, rules: &'a Rules) -> Moment<'a> {
        match self.counted.load(Ordering::Relaxed) {
            true => self.sandbox.moment_of_allowed(&rules.facts),
            false => self.sandbox.moment(&rules.facts),
        }
    }

    /// Decides about the request, and takes its body if it is accepted. Reads its calls if a rule judges them.
    async fn decide(
        &self,
        parts: &Parts,
        line: &Arc<Line>,
        websocket: bool,
        seen: &mut Seen,
    ) -> Result<Accepted, Reason> {
        // As its head gives it, also where another level needs the body: one more level must change nothing for the others.
        let length = match &seen.unread {
            Some(body) if !body.is_end_stream() => body.size_hint().exact(),
            _ => Some(0),
        };
        let reads = length != Some(0) && reads_calls(&self.sandbox.rules().levels, &self.origin.destination);
        if reads {
            // Before its body is read.
            self.path(parts, &self.sandbox.rules())?;
        }
        let (held, are_calls) = match seen.unread.take_if(|_| reads) {
            Some(body) => {
                Box::pin(self.read_calls(parts, body, seen)).await.map(|(held, are)| (Some(held), are))?
            }
            None => (None, false),
        };
        let bytes = held.as_ref().map_or(0, |held| held.bytes.len());
        // After the body was read: the rules may have changed meanwhile.
        let rules = self.sandbox.rules();
        let path = self.path(parts, &rules)?;
        let judged = Judged {
            origin: &self.origin,
            parts: (&parts.method, &parts.uri, &parts.headers),
            path: &path,
            websocket,
            length,
            calls: are_calls.then_some(seen.calls.as_slice()),
        };
        let request = judged.request();
        let moment = self.moment(&rules);
        let verdict = decide_request(&rules.levels, &self.origin.destination, &request, &moment);
        if let Some(denial) = Denial::first(&verdict.opinions, Mode::Observe) {
            let refusal = line.refusal(Reason::Observed(denial), &seen.calls);
            self.sandbox.refused_request(refusal, &line.asked(&seen.calls));
        }
        if verdict.decision != Decision::Allow {
            let denial = Denial::first(&verdict.opinions, Mode::Enforce).unwrap_or_default();
            return Err(Reason::Denied(denial));
        }
        let placed =
            place((&rules.credentials, &rules.levels), parts, &self.origin.destination, &request, &moment)?;
        if !self.counted.swap(false, Ordering::Relaxed) {
            self.sandbox.usage.request(&rules.levels, &self.origin.destination)?;
        }
        self.sandbox.usage.sent(&rules.levels, head_bytes(parts))?;
        let ground = self.sandbox.records.ground(&verdict.opinions);
        let limit = Arc::new(Limit::new(verdict.max_body));
        let standing = Standing::of(self, &rules, (parts, bytes), (&judged, &moment, &limit));
        // The answer can take any time.
        seen.forget();
        let unread = seen.unread.take().filter(|body| !body.is_end_stream());
        let lent = unread.map(|body| Sent::Stream(seen.lent.lend(body)));
        let read = held.map(|held| Sent::Whole(held, None));
        let mut body = read.or(lent).unwrap_or_else(|| Sent::Whole(Held::default(), None));
        let (scan, mut changes) = (self.scan(&rules, &moment), false);
        if let Some(scan) = &scan {
            (body, changes) = Box::pin(self.scan_request(scan, parts, body, line, seen)).await?;
        }
        self.sandbox
            .allowed(&self.origin.destination, Some(&line.asked(&seen.calls)), ground.as_ref())
            .await?;
        Ok(Accepted { limit, body, scan, changes, placed, standing, judged: moment.session, rules })
    }

    /// Reads a body for its calls. Returns it, and whether it is one of calls.
    async fn read_calls(
        &self,
        parts: &Parts,
        body: Incoming,
        seen: &mut Seen,
    ) -> Result<(Held, bool), Reason> {
        let held = read_calls(parts, body, &self.sandbox.room).await?;
        if memory(&held.bytes) > MUCH {
            seen.turn = self.sandbox.large.clone().acquire_owned().await.ok();
        }
        seen.id = id_of(&held.bytes);
        let calls = Call::parse(&held.bytes);
        let is_denied = || denies_calls(&self.sandbox.rules().levels, &self.origin.destination);
        if calls.is_none() && is_denied() && Call::may_be_in(&held.bytes) {
            return Err(Reason::Ambiguous(UNREADABLE_CALLS.to_owned()));
        }
        let are_calls = calls.is_some();
        seen.calls = calls.unwrap_or_default();
        Ok((held, are_calls))
    }

    /// Returns the request that is sent to the server.
    fn request(
        &self,
        parts: &Parts,
        accepted: Accepted,
        line: &Arc<Line>,
        websocket: bool,
    ) -> Result<(Request<Body>, Placed), Reason> {
        let Accepted { rules, limit, body, scan, changes, mut placed, standing, judged: _ } = accepted;
        let uri = self.origin.uri(placed.target.as_ref().or(parts.uri.path_and_query()))?;
        let mut headers = placed.headers.take().unwrap_or_else(|| parts.headers.clone());
        let trailers = headers.get(header::TE).is_some_and(|value| value == "trailers");
        keep_end_to_end(&mut headers, websocket);
        headers.remove(header::HOST);
        // The answer to it has been given when the body is read.
        headers.remove(header::EXPECT);
        if trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        if changes {
            headers.remove(header::CONTENT_LENGTH);
        }
        if scan.is_some() {
            // So that the answer can be read while it arrives.
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.remove("grpc-accept-encoding");
            headers.remove("connect-accept-encoding");
        }
        if scan.is_some() || !rules.credentials.issued.is_empty() {
            // Messages that are compressed cannot be read.
            headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
        placed.sign(&parts.method, &uri, &mut headers)?;
        let body = match body.is_empty() {
            true => full(Bytes::new()),
            false => {
                let (sandbox, line) = (self.sandbox.clone(), line.clone());
                let (reporter, of) = (sandbox.clone(), line.clone());
                let report = Arc::new(move |reason| of.end(&reporter, reason));
                let body = Guarded::body(body.into_body(), std::mem::take(&mut placed.foreign), report);
                let watch = standing.map(Watch::new);
                Metered { body, limit, sandbox, line, watch }.boxed_unsync()
            }
        };
        if !body.is_end_stream()
            && body.size_hint().exact().is_none()
            && !headers.contains_key(header::CONTENT_LENGTH)
        {
            // Without it, hyper sends none for methods that rarely have one.
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let mut request = Request::new(body);
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) =
            (parts.method.clone(), uri, headers);
        Ok((request, placed))
    }
}
