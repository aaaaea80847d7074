//! Scans bodies that are passed on before they have ended.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hutch_scan::{At, Compression, Direction, Finding, Location, OVERLAP, State, redact};
use serde_json::{Value, json};

use super::{Judged, Scan, SharedTalk, scanner};
use crate::body::Body;
use crate::refusal::{REFUSED, Reason};
use hutch_screen::Found;

/// Maximum bytes of an event.
const EVENT: usize = 1 << 20;

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
    /// Bytes that were scanned and wait, and where they begin.
    held: Vec<u8>,
    start: u64,
    redacted: Vec<Finding>,
    ready: VecDeque<Frame<Bytes>>,
    ended: bool,
    /// It ends with an error.
    refused: bool,
}

/// Returns where the last whole event ends.
fn events(bytes: &[u8]) -> usize {
    let ends = |index: usize| {
        let rest = &bytes[index..];
        [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"]
            .iter()
            .find(|end| rest.starts_with(end))
            .map(|end| index + end.len())
    };
    (0..bytes.len()).rev().find_map(ends).unwrap_or(0)
}

impl Watched {
    /// Returns the body after these bytes of it, which were not scanned yet.
    pub(crate) fn new(
        (first, body): (&[u8], Body),
        (scan, talk): (Scan, SharedTalk),
        direction: Direction,
        (passing, compression): (Passing, Option<Compression>),
        receiver: Receiver,
    ) -> Watched {
        let location = Location { at: At::Body, name: String::new(), compression };
        let state = scan.state(direction);
        let mut watched = Watched {
            body,
            scan,
            talk,
            direction,
            passing,
            location,
            state,
            receiver,
            held: Vec::new(),
            start: 0,
            redacted: Vec::new(),
            ready: VecDeque::new(),
            ended: false,
            refused: false,
        };
        watched.take(first);
        watched
    }

    /// Scans bytes, and makes ready what may be passed on.
    fn take(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.ended {
            return;
        }
        self.held.extend_from_slice(bytes);
        if self.passing == Passing::Events {
            let end = match events(&self.held) {
                0 if self.held.len() > EVENT => self.held.len(),
                end => end,
            };
            return self.take_events(end);
        }
        let mut findings = scanner().feed(&mut self.state, &self.location, bytes);
        if self.passing == Passing::Through && self.direction == Direction::Outbound && findings.is_empty() {
            // A match at the end, which would be found with the next bytes.
            findings = scanner().scan_whole(&mut self.scan.state(self.direction), &self.location, bytes);
        }
        if self.judge(findings) {
            let kept = if self.passing == Passing::Held { OVERLAP } else { 0 };
            self.let_pass(self.held.len().saturating_sub(kept));
        }
    }

    fn take_events(&mut self, end: usize) {
        if end == 0 {
            return;
        }
        let rest = self.held.split_off(end);
        let events = std::mem::replace(&mut self.held, rest);
        let (judged, replaced) = self.scan.body(&self.talk, self.direction, None, &events);
        judged.passed.into_iter().for_each(&mut self.receiver);
        match judged.blocked {
            Some(found) => {
                let answer = answer(&events, &found);
                self.refuse(found, answer);
            }
            None => self.ready.push_back(Frame::data(replaced.unwrap_or(events).into())),
        }
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
        self.ready.push_back(Frame::data(bytes.into()));
    }

    /// Scans what is left.
    fn finish(&mut self) {
        if self.ended {
            return;
        }
        if self.passing == Passing::Events {
            self.take_events(self.held.len());
        } else {
            let findings = scanner().finish(&mut self.state);
            if self.judge(findings) {
                self.let_pass(self.held.len());
            }
        }
        self.ended = true;
    }
}

impl Watched {
    fn take_trailers(&mut self, trailers: Frame<Bytes>) {
        self.finish();
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
    let text = std::str::from_utf8(events).ok()?;
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let id = data.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok()).find_map(|value| {
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
                Ok(bytes) => this.take(&bytes),
                Err(trailers) => this.take_trailers(trailers),
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
