//! Scans requests before they are sent, and answers before they are passed on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header, response};
use http_body::Body as _;
use http_body_util::BodyExt;
use hutch_policy::Call;
use hutch_scan::{At, Compression, Direction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::calls::{discard, id_of};
use super::{Exchange, Line, Seen, UNREAD, UNREAD_TIME};
use crate::body::Body;
use crate::refusal::Reason;
use crate::room::{Gathering, Held, Kind, Sent};
use crate::scan::{Judged, Passing, Scan, SharedTalk, Watched, compression, is_events, is_message, is_quick};
use crate::values::{MUCH, memory};
use hutch_screen::Found;

/// Maximum bytes of a body that is held as a whole, and of one that is compressed or answers a call of MCP.
const WHOLE: usize = 1 << 20;
const COMPRESSED: usize = 4 << 20;
/// Bytes of a body from which on only some of a sandbox are scanned at a time. So are compressed ones, and those of many values.
const LARGE: usize = 64 << 10;
/// Maximum time for the body of a request or the answer to a call of MCP, or of another answer, to arrive as a whole. Answers
/// that take longer are passed on while they arrive.
const REQUEST: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(2);
/// Time for a stream of events to end, so that it is judged before its head is sent.
const EVENTS: Duration = Duration::from_millis(200);
/// Time for a request of gRPC to end. Longer ones are streams, whose server may answer before they end.
const GRPC: Duration = Duration::from_millis(100);
/// Maximum bytes of the name of a session.
const SESSION: usize = 128;

/// A body, as far as it was read.
enum Gathered {
    Whole(Held, Option<HeaderMap>),
    /// It is longer, or takes longer.
    First(Held, Body),
}

/// Reads a body until it has ended, is too long or takes too long. The time in which it waits for room does not count. `failed`
/// is the reason for one that cannot be read.
async fn gather(
    mut body: Body,
    limit: usize,
    time: Duration,
    mut bytes: Gathering,
    failed: fn(String) -> Reason,
) -> Result<(Gathered, bool), Reason> {
    let (mut deadline, mut trailers) = (Instant::now() + time, None);
    loop {
        let Ok(frame) = timeout_at(deadline, body.frame()).await else {
            return Ok((Gathered::First(bytes.finish(), body), true));
        };
        let Some(frame) = frame.transpose().map_err(|error| failed(error.to_string()))? else { break };
        match frame.into_data() {
            Ok(data) => {
                bytes.push_before(&mut deadline, &data).await?;
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        if bytes.len() > limit {
            return Ok((Gathered::First(bytes.finish(), body), false));
        }
    }
    Ok((Gathered::Whole(bytes.finish(), trailers), false))
}

/// Returns true for a call of MCP or A2A. Its answer is of no use before its end.
fn is_of_protocol(call: &Call) -> bool {
    let is_named = |method: &str| {
        method.contains('/') || method == "initialize" || method.starts_with(|c: char| c.is_ascii_uppercase())
    };
    call.method.as_deref().is_some_and(is_named)
}

/// Headers that declare the compression of single messages within a body.
const OF_MESSAGES: [&str; 2] = ["grpc-encoding", "connect-content-encoding"];

/// Returns the declared compression of a body.
///
/// # Errors
/// It cannot be undone, as that of single messages.
fn declared(headers: &HeaderMap) -> Result<Option<Compression>, ()> {
    let packed = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    match OF_MESSAGES.iter().any(|name| headers.get_all(*name).iter().any(packed)) {
        true => Err(()),
        false => compression(headers),
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let is_one = |kind: &HeaderValue| {
        kind.as_bytes().get(..GRPC.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(GRPC))
    };
    headers.get_all(header::CONTENT_TYPE).iter().any(is_one)
}

/// Waits for the turn of a body that takes much memory when it is scanned.
async fn turn(
    turns: &Arc<Semaphore>,
    compression: Option<Compression>,
    bytes: &[u8],
) -> Option<OwnedSemaphorePermit> {
    // The values of a message need some times its bytes.
    let large = compression.is_some() || bytes.len() > LARGE || memory(bytes) > MUCH;
    if large { turns.clone().acquire_owned().await.ok() } else { None }
}

/// Scans a body elsewhere if that takes long. `turn` is that of the body.
async fn scan_whole(
    turn: Option<OwnedSemaphorePermit>,
    (scan, talk): (&Scan, &SharedTalk),
    direction: Direction,
    compression: Option<Compression>,
    bytes: &Bytes,
) -> (Judged, Option<Vec<u8>>) {
    if compression.is_none() && is_quick(bytes) && !talk.is_busy() {
        return scan.body(talk, direction, compression, bytes);
    }
    let (scan, shared, bytes) = (scan.clone(), talk.clone(), bytes.clone());
    let task = talk.elsewhere(move || {
        // A request that is given up ends no scan.
        let _turn = turn;
        scan.body(&shared, direction, compression, &bytes)
    });
    let failed = |_| {
        let blocked = Some(Found::unreadable(direction, At::Body));
        (Judged { blocked, ..Judged::default() }, None)
    };
    task.await.unwrap_or_else(failed)
}

impl Exchange {
    /// Returns the conversation with the destination: the session that the headers name, or that of the connection.
    pub(super) fn talk(&self, headers: &HeaderMap) -> SharedTalk {
        let session = headers.get("mcp-session-id").map(|value| value.as_bytes()).unwrap_or_default();
        if session.is_empty() {
            return self.conversations.talk(&self.sandbox.memory, self.origin.destination.to_string());
        }
        let session = String::from_utf8_lossy(&session[..session.len().min(SESSION)]);
        self.sandbox.memory.session(self.origin.destination.to_string(), &session)
    }

    /// Records what passes, and returns what is refused.
    fn settle(&self, judged: Judged, line: &Line, calls: &[Call]) -> Result<(), Reason> {
        for reason in judged.passed {
            self.sandbox.refused_request(line.refusal(reason, calls), &line.asked(calls));
        }
        judged.blocked.map_or(Ok(()), |found| Err(Reason::Found(found.into())))
    }

    /// Returns the body after these bytes of it, which are scanned before this returns.
    async fn watch(
        &self,
        (first, rest): (Held, Body),
        (scan, talk): (&Scan, &SharedTalk),
        direction: Direction,
        how: (Passing, Option<Compression>),
        line: &Arc<Line>,
    ) -> Body {
        let (sandbox, line) = (self.sandbox.clone(), line.clone());
        let receiver = move |reason: Reason| match reason {
            Reason::Found(_) if direction == Direction::Outbound => line.end(&sandbox, reason),
            reason => sandbox.refused_request(line.refusal(reason, &[]), &line.asked(&[])),
        };
        let scanned = (scan.clone(), talk.clone());
        let watched = Watched::new(rest, scanned, direction, how, &self.sandbox.room, Box::new(receiver));
        watched.begin(first).await.boxed_unsync()
    }

    fn scan_head(
        &self,
        scan: &Scan,
        talk: &SharedTalk,
        parts: &Parts,
        line: &Line,
        calls: &[Call],
    ) -> Result<(), Reason> {
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let judged = scan.url(talk, target);
        if judged.blocked.is_some() || !judged.passed.is_empty() {
            line.hidden.store(true, Ordering::Relaxed);
        }
        self.settle(judged, line, calls)?;
        self.settle(scan.headers(Direction::Outbound, &parts.headers), line, calls)
    }

    /// Scans a request. Returns its body, and whether its length may change.
    pub(super) async fn scan_request(
        &self,
        scan: &Scan,
        parts: &Parts,
        body: Sent,
        line: &Arc<Line>,
        seen: &mut Seen,
    ) -> Result<(Sent, bool), Reason> {
        let talk = self.talk(&parts.headers);
        if let Err(reason) = self.scan_head(scan, &talk, parts, line, &seen.calls) {
            if !parts.headers.contains_key(header::EXPECT) {
                // A client that could not send all of a body may not read the answer.
                let _ = timeout(UNREAD_TIME, discard(body.into_body(), UNREAD)).await;
            }
            return Err(reason);
        }
        if body.is_empty() {
            return Ok((body, false));
        }
        let unreadable = || Reason::Found(Found::unreadable(Direction::Outbound, At::Body).into());
        let compression = match declared(&parts.headers) {
            Ok(compression) => compression,
            Err(()) if scan.blocks(Direction::Outbound) => return Err(unreadable()),
            Err(()) => None,
        };
        let changes = scan.redacts(Direction::Outbound);
        // A body that is compressed without saying so is recognized by the scanner, and scanned at its end.
        let limit = if compression.is_some() { COMPRESSED } else { WHOLE };
        let gathered = match body {
            Sent::Whole(held, trailers) => Ok((Gathered::Whole(held, trailers), false)),
            Sent::Stream(body) => {
                let time = if is_grpc(&parts.headers) { GRPC } else { REQUEST };
                let bytes = Gathering::new(&self.sandbox.room, Kind::Request);
                gather(body, limit, time, bytes, Reason::Ambiguous).await
            }
        };
        let (held, trailers) = match gathered? {
            (Gathered::Whole(held, trailers), _) => (held, trailers),
            (Gathered::First(first, rest), _) if is_grpc(&parts.headers) => {
                let how = (Passing::Through, compression);
                let body = self.watch((first, rest), (scan, &talk), Direction::Outbound, how, line).await;
                return Ok((Sent::Stream(body), changes));
            }
            (Gathered::First(..), true) if scan.blocks(Direction::Outbound) => {
                return Err(Reason::Ambiguous("its body does not arrive in time".to_owned()));
            }
            (Gathered::First(..), _) if compression.is_some() && scan.blocks(Direction::Outbound) => {
                return Err(unreadable());
            }
            (Gathered::First(first, rest), _) => {
                let how = (Passing::Held, compression);
                let body = self.watch((first, rest), (scan, &talk), Direction::Outbound, how, line).await;
                return Ok((Sent::Stream(body), changes));
            }
        };
        self.scan_held((scan, &talk), (held, trailers), compression, line, seen).await
    }

    /// Scans the body of a request that is held as a whole.
    async fn scan_held(
        &self,
        (scan, talk): (&Scan, &SharedTalk),
        (held, trailers): (Held, Option<HeaderMap>),
        compression: Option<Compression>,
        line: &Line,
        seen: &mut Seen,
    ) -> Result<(Sent, bool), Reason> {
        let bytes = &held.bytes;
        let turn = turn(&self.sandbox.large, compression, bytes).await;
        if compression.is_none() && is_message(bytes) == Some(true) {
            seen.id = seen.id.take().or_else(|| id_of(bytes));
            if seen.calls.is_empty() {
                seen.calls = Call::parse(bytes).unwrap_or_default();
                // The answer can take any time, and needs only their names.
                seen.calls.iter_mut().for_each(Call::forget);
            }
        }
        let (judged, replaced) =
            scan_whole(turn, (scan, talk), Direction::Outbound, compression, bytes).await;
        let in_name = |found: &Found| found.at == At::Body;
        if judged.blocked.iter().chain(judged.passed.iter().filter_map(Reason::found)).any(in_name) {
            // The name of a tool can be what is found.
            seen.calls.clear();
        }
        self.settle(judged, line, &seen.calls)?;
        if let Some(trailers) = &trailers {
            self.settle(scan.headers(Direction::Outbound, trailers), line, &seen.calls)?;
        }
        let changed = replaced.is_some();
        let held = replaced.map_or_else(|| held.clone(), |bytes| held.replaced(bytes));
        Ok((Sent::Whole(held, trailers), changed))
    }

    /// Scans an answer to a request with these headers. Returns its body.
    pub(super) async fn scan_answer(
        &self,
        scan: &Scan,
        of: &HeaderMap,
        parts: &mut response::Parts,
        body: Body,
        line: &Arc<Line>,
        seen: &Seen,
    ) -> Result<Body, Reason> {
        self.settle(scan.headers(Direction::Inbound, &parts.headers), line, &seen.calls)?;
        if body.is_end_stream() {
            return Ok(body);
        }
        let talk = self.talk(of);
        let unreadable = || Reason::Found(Found::unreadable(Direction::Inbound, At::Body).into());
        let compression = match declared(&parts.headers) {
            Ok(compression) => compression,
            Err(()) if scan.blocks(Direction::Inbound) => return Err(unreadable()),
            Err(()) => None,
        };
        // A request that is compressed can have been a message.
        let is_message = seen.calls.iter().any(is_of_protocol) || of.contains_key(header::CONTENT_ENCODING);
        let (passing, time) = match is_events(&parts.headers) {
            true => (Passing::Events, EVENTS),
            false if is_grpc(&parts.headers) => (Passing::Through, Duration::ZERO),
            false if is_message => (Passing::Held, REQUEST),
            false => (Passing::Held, ANSWER),
        };
        let passing = if scan.judges_inbound() { passing } else { Passing::Through };
        let changes = scan.redacts(Direction::Inbound);
        let gathered = match passing {
            Passing::Through => Gathered::First(Held::default(), body),
            _ => {
                let limit = if compression.is_some() || is_message { COMPRESSED } else { WHOLE };
                let bytes = Gathering::new(&self.sandbox.room, Kind::Answer);
                gather(body, limit, time, bytes, Reason::Unreachable).await?.0
            }
        };
        let (held, trailers) = match gathered {
            Gathered::Whole(held, trailers) => (held, trailers),
            Gathered::First(..)
                if scan.blocks(Direction::Inbound)
                    && (compression.is_some() || is_message && passing == Passing::Held) =>
            {
                return Err(unreadable());
            }
            Gathered::First(first, rest) => {
                if changes || passing == Passing::Events {
                    parts.headers.remove(header::CONTENT_LENGTH);
                }
                let how = (passing, compression);
                return Ok(self.watch((first, rest), (scan, &talk), Direction::Inbound, how, line).await);
            }
        };
        let turn = turn(&self.sandbox.large, compression, &held.bytes).await;
        let (judged, replaced) =
            scan_whole(turn, (scan, &talk), Direction::Inbound, compression, &held.bytes).await;
        self.settle(judged, line, &seen.calls)?;
        if replaced.is_some() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        let held = replaced.map_or_else(|| held.clone(), |bytes| held.replaced(bytes));
        Ok(Sent::Whole(held, trailers).into_body())
    }
}
