//! Scans bodies that are passed on before they have ended.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hutch_scan::{At, Compression, Direction, Finding, Location, OVERLAP, State, redact};
use serde_json::json;

use super::elsewhere::Elsewhere;
use super::message::{RPC_BYTES, has_name_of_rpc, may_be_json, values};
use super::{AT_ONCE, Judged, Scan, SharedTalk, is_quick, scanner};
use crate::body::Body;
use crate::refusal::{REFUSED, Reason};
use crate::room::{Held, Parts, Room};
use crate::wide;
use hutch_screen::Found;

/// Maximum bytes of an event.
const EVENT: usize = 1 << 20;
/// Bytes at the end of an event, at most.
const BLANK_LINE: usize = 4;

/// Way in which a body is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The last bytes are held, so that a match that begins in them is found before they are sent.
    Held,
    /// Nothing is held: the other side may wait for each byte. What was sent before a match cannot be taken back.
    Through,
    /// Events are held until each one is whole.
    Events,
}

/// Receives findings. One that is refused is the end of the body.
pub(crate) type Receiver = Box<dyn FnMut(Reason) + Send>;

/// Body that is scanned while it is passed on.
pub(crate) struct Watched {
    body: Body,
    scan: Scan,
    talk: SharedTalk,
    direction: Direction,
    passing: Passing,
    location: Location,
    state: State,
    receiver: Receiver,
    /// It is JSON that is too long to be read as a message. It is refused if it is one.
    no_message: bool,
    /// Bytes that were scanned and wait, and where they begin.
    held: Vec<u8>,
    start: u64,
    room: Parts,
    /// First bytes, whose room is taken until they are passed on.
    first: Option<Held>,
    redacted: Vec<Finding>,
    ready: VecDeque<Frame<Bytes>>,
    /// Scan on another thread. Nothing is ready meanwhile.
    scanning: Option<Elsewhere<Scanned>>,
    /// Its end is scanned on another thread: it has many bytes, or is decompressed then.
    ends_slowly: bool,
    /// Trailers that wait for the scan of what is before them.
    trailers: Option<Frame<Bytes>>,
    ended: bool,
    /// It ends with an error.
    refused: bool,
}

/// Result of a scan.
enum Scanned {
    /// These events, and the outcome for them.
    Events(Vec<u8>, (Judged, Option<Vec<u8>>)),
    /// The state after a part of another body, and what is found in it.
    Part(State, Vec<Finding>),
}

/// Returns where the last whole event ends; 0 if none ends after the first `searched` bytes.
fn events(bytes: &[u8], searched: usize) -> usize {
    let ends = |index: usize| {
        let rest = &bytes[index..];
        [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"]
            .iter()
            .find(|end| rest.starts_with(end))
            .map(|end| index + end.len())
    };
    // What ends there may have begun before.
    let start = searched.saturating_sub(BLANK_LINE - 1);
    (start..bytes.len()).rev().find_map(ends).unwrap_or(0)
}

impl Watched {
    /// Returns a body, of which nothing was scanned yet.
    pub(crate) fn new(
        body: Body,
        (scan, talk): (Scan, SharedTalk),
        direction: Direction,
        (passing, compression): (Passing, Option<Compression>),
        room: &Arc<Room>,
        receiver: Receiver,
    ) -> Watched {
        let location = Location { at: At::Body, name: String::new(), compression };
        let state = scan.state(direction);
        let whole = passing == Passing::Held && compression.is_none() && direction == Direction::Outbound;
        let no_message = whole && scan.blocks(direction);
        Watched {
            body,
            scan,
            talk,
            direction,
            passing,
            location,
            state,
            receiver,
            no_message,
            held: Vec::new(),
            start: 0,
            room: Parts::new(room),
            first: None,
            redacted: Vec::new(),
            ready: VecDeque::new(),
            scanning: None,
            ends_slowly: compression.is_some(),
            trailers: None,
            ended: false,
            refused: false,
        }
    }

    /// Scans the first bytes, which were read from the body before.
    pub(crate) async fn begin(mut self, first: Held) -> Watched {
        if self.no_message && wide::is_json(&first.bytes) {
            // It is too long to know whether it is a message.
            self.refuse(Found::unreadable(self.direction, At::Body), None);
            return self;
        }
        self.no_message &= may_be_json(&first.bytes);
        let bytes = first.bytes.clone();
        self.first = Some(first);
        self.take(bytes);
        std::future::poll_fn(|context| self.poll_scanned(context)).await;
        self
    }

    /// Scans bytes, and makes ready what may be passed on.
    fn take(&mut self, bytes: Bytes) {
        if bytes.is_empty() || self.ended {
            return;
        }
        let searched = self.held.len();
        self.held.extend_from_slice(&bytes);
        if self.no_message && has_name_of_rpc(&self.held[searched.saturating_sub(RPC_BYTES)..]) {
            return self.refuse(Found::unreadable(self.direction, At::Body), None);
        }
        if self.passing == Passing::Events {
            let has_room = self.first.is_some() || self.room.hold(self.held.len());
            let end = match events(&self.held, searched) {
                0 if self.held.len() <= EVENT && has_room => 0,
                0 if self.scan.blocks(self.direction) => {
                    return self.refuse(Found::unreadable(self.direction, At::Body), None);
                }
                0 => self.held.len(),
                end => end,
            };
            return self.take_events(end);
        }
        // A match at the end, which would be found with the next bytes.
        let whole = self.passing == Passing::Through && self.direction == Direction::Outbound;
        let whole = whole.then(|| self.scan.state(self.direction));
        self.ends_slowly |= hutch_scan::magic(&bytes).is_some();
        self.scan_part(is_quick(&bytes), move |state, location| {
            let findings = scanner().feed(state, location, &bytes);
            match whole {
                Some(mut whole) if findings.is_empty() => scanner().scan_whole(&mut whole, location, &bytes),
                _ => findings,
            }
        });
    }

    /// Scans a part of a body that has no events, or its end: on another thread if that takes long.
    fn scan_part(
        &mut self,
        is_quick: bool,
        scan: impl FnOnce(&mut State, &Location) -> Vec<Finding> + Send + 'static,
    ) {
        if is_quick {
            let findings = scan(&mut self.state, &self.location);
            return self.settle_part(findings);
        }
        let mut state = std::mem::replace(&mut self.state, State::new(self.direction));
        let location = self.location.clone();
        self.scanning = Some(self.talk.places.run(move || {
            let findings = scan(&mut state, &location);
            Scanned::Part(state, findings)
        }));
    }

    fn settle_part(&mut self, findings: Vec<Finding>) {
        let kept = if self.passing == Passing::Held && !self.ended { OVERLAP } else { 0 };
        if self.judge(findings) {
            self.let_pass(self.held.len().saturating_sub(kept));
        }
    }

    fn take_events(&mut self, end: usize) {
        if end == 0 {
            return;
        }
        let rest = self.held.split_off(end);
        let events = std::mem::replace(&mut self.held, rest);
        if is_quick(&events) && !self.talk.is_busy() {
            let outcome = self.scan.body(&self.talk, self.direction, None, &events);
            return self.settle_events(events, outcome);
        }
        let (scan, talk, direction) = (self.scan.clone(), self.talk.clone(), self.direction);
        self.scanning = Some(self.talk.places.run(move || {
            let outcome = scan.body(&talk, direction, None, &events);
            Scanned::Events(events, outcome)
        }));
    }

    fn settle_events(&mut self, events: Vec<u8>, (judged, replaced): (Judged, Option<Vec<u8>>)) {
        judged.passed.into_iter().for_each(&mut self.receiver);
        match judged.blocked {
            Some(found) => {
                let answer = answer(&events, &found);
                self.refuse(found, answer);
            }
            None => self.make_ready(replaced.unwrap_or(events)),
        }
        // What is passed on needs none.
        let _ = self.room.hold(self.held.len());
    }

    /// Returns false if the body ends here.
    fn judge(&mut self, findings: Vec<Finding>) -> bool {
        let Judged { blocked, redacted, passed } = self.scan.judge(self.direction, findings);
        passed.into_iter().for_each(&mut self.receiver);
        if let Some(found) = blocked {
            self.refuse(found, None);
            return false;
        }
        self.scan.replaced(self.direction, &redacted).into_iter().for_each(&mut self.receiver);
        self.redacted.extend(redacted);
        true
    }

    fn refuse(&mut self, found: Found, answer: Option<Bytes>) {
        (self.receiver)(Reason::Found(found.into()));
        self.ended = true;
        self.held = Vec::new();
        self.refused = answer.is_none();
        self.ready.clear();
        self.ready.extend(answer.map(Frame::data));
    }

    /// Makes the first bytes ready that are held. None is cut out of what is to be replaced.
    fn let_pass(&mut self, count: usize) {
        let end = self.start + count as u64;
        let cut = self.redacted.iter().filter_map(|finding| finding.range.clone());
        let cut = cut.filter(|range| range.start < end && end < range.end).map(|range| range.start);
        let end = cut.min().unwrap_or(end).max(self.start);
        let count = usize::try_from(end - self.start).unwrap_or(0);
        if count == 0 {
            return;
        }
        let rest = self.held.split_off(count);
        let bytes = redact(&std::mem::replace(&mut self.held, rest), self.start, &self.redacted);
        self.start = end;
        self.redacted.retain(|finding| finding.range.as_ref().is_none_or(|range| range.end > end));
        self.make_ready(bytes);
    }

    fn make_ready(&mut self, bytes: Vec<u8>) {
        let bytes = match &self.first {
            Some(first) => first.replaced(bytes).bytes,
            None => bytes.into(),
        };
        self.ready.push_back(Frame::data(bytes));
    }

    /// Scans what is left.
    fn finish(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if self.passing == Passing::Events {
            self.take_events(self.held.len());
        } else {
            let length = usize::try_from(self.start).unwrap_or(usize::MAX).saturating_add(self.held.len());
            let is_quick = length <= AT_ONCE && !self.ends_slowly;
            self.scan_part(is_quick, |state, _| scanner().finish(state));
        }
    }

    /// Waits for the scan on another thread, and makes ready what may be passed on.
    fn poll_scanned(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(scanning) = &mut self.scanning else { return Poll::Ready(()) };
        let scanned = ready!(Pin::new(scanning).poll(context));
        self.scanning = None;
        match scanned {
            Ok(Scanned::Events(events, outcome)) => self.settle_events(events, outcome),
            Ok(Scanned::Part(state, findings)) => {
                self.state = state;
                self.settle_part(findings);
            }
            Err(_) => self.refuse(Found::unreadable(self.direction, At::Body), None),
        }
        Poll::Ready(())
    }

    fn take_trailers(&mut self, trailers: Frame<Bytes>) {
        let judged = trailers.trailers_ref().map(|headers| self.scan.headers(self.direction, headers));
        let Judged { blocked, passed, .. } = judged.unwrap_or_default();
        passed.into_iter().for_each(&mut self.receiver);
        match blocked {
            _ if self.refused => {}
            Some(found) => self.refuse(found, None),
            None => self.ready.push_back(trailers),
        }
    }
}

/// Returns the event that takes the place of a refused one, if a client waits for an answer with its id.
fn answer(events: &[u8], found: &Found) -> Option<Bytes> {
    let id = values(events)?.into_iter().find_map(|value| {
        let answers = value.get("method").is_none() && value.get("jsonrpc").is_some();
        value.get("id").filter(|id| answers && (id.is_number() || id.is_string())).cloned()
    })?;
    let error = json!({"code": REFUSED, "message": format!("refused: {found}")});
    let event = json!({"jsonrpc": "2.0", "id": id, "error": error});
    Some(format!("event: message\ndata: {event}\n\n").into())
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        loop {
            ready!(this.poll_scanned(context));
            if let Some(trailers) = this.trailers.take() {
                this.take_trailers(trailers);
            }
            if let Some(frame) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if std::mem::take(&mut this.refused) {
                return Poll::Ready(Some(Err("refused by the scanner".into())));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)).transpose()? else {
                this.finish();
                continue;
            };
            match frame.into_data() {
                Ok(bytes) => {
                    this.first = None;
                    this.take(bytes);
                }
                Err(trailers) => {
                    this.finish();
                    this.trailers = Some(trailers);
                }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hutch_policy::{Authority, Level};

    use super::*;

    #[test]
    fn end_of_an_event_is_searched_in_new_bytes_only() {
        for end in ["\n\n", "\r\n\r\n", "\r\r"] {
            let bytes = [&b"data: 1"[..], end.as_bytes(), b"data: 2"].concat();
            let after = 7 + end.len();
            for searched in 0..after {
                assert_eq!(events(&bytes, searched), after, "{searched} {end:?}");
            }
            assert_eq!(events(&bytes, bytes.len()), 0, "{end:?}");
        }
    }

    /// A body that enters and ends with these bytes.
    fn watched(passing: Passing, rest: &'static [u8]) -> Watched {
        let rules = Some(serde_json::from_str("{}").unwrap());
        let level = Level { scanner: rules, ..Level::new(Authority::Cluster, "p", None) };
        let talk = (Scan::of(&[level], None).unwrap(), SharedTalk::default());
        let rest = crate::body::full(Bytes::from_static(rest));
        Watched::new(rest, talk, Direction::Inbound, (passing, None), &Arc::default(), Box::new(|_| ()))
    }

    #[test]
    fn long_parts_of_a_body_are_scanned_on_another_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = |count| Bytes::from(format!("data: {}\n\n", "some words of a text, ".repeat(count)));
        for passing in [Passing::Events, Passing::Held, Passing::Through] {
            for (bytes, elsewhere) in [(bytes(1), false), (bytes(AT_ONCE / 10), true)] {
                let mut watched = watched(passing, b"data: end");
                let whole = runtime.block_on(async {
                    watched.take(bytes.clone());
                    assert_eq!(watched.scanning.is_some(), elsewhere, "{passing:?}");
                    watched.collect().await.unwrap().to_bytes()
                });
                assert!(whole == [&bytes[..], b"data: end"].concat(), "{passing:?} {}", whole.len());
            }
        }
    }

    #[test]
    fn short_body_that_begins_as_compressed_is_decompressed_on_another_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0];
        assert!(!is_quick(&gzip) && is_quick(&gzip[1..]));
        for (first, elsewhere) in [(&gzip[..], true), (&gzip[1..], false)] {
            let mut watched = watched(Passing::Held, b"");
            runtime.block_on(async {
                watched.take(Bytes::copy_from_slice(first));
                std::future::poll_fn(|context| watched.poll_scanned(context)).await;
                watched.finish();
                assert_eq!(watched.scanning.is_some(), elsewhere);
                std::future::poll_fn(|context| watched.poll_scanned(context)).await;
            });
        }
    }
}
