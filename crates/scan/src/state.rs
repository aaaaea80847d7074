//! State of a scan over chunks: overlap, structures, compressed bodies, values of earlier messages.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::compression;
use crate::credential::Credentials;
use crate::earlier::{MESSAGE, Messages};
use crate::finding::{At, Compression, Direction, Finding, Fingerprint, Kind, Location, Severity, Step};
use crate::injection;
use crate::joins;
use crate::scanner::{Hit, Hits, Scanner, Subject};
use crate::shell;
use crate::view::View;

/// Bytes of a stream that are scanned again together with the next chunk. A match longer than this can be missed when a chunk
/// ends inside it.
pub const OVERLAP: usize = 4096;
/// Maximum bytes that are scanned at a time.
const BLOCK: usize = 256 << 10;
/// Maximum bytes of a compressed body.
const COMPRESSED: usize = 4 << 20;
/// Maximum streams of a state.
const STREAMS: usize = 256;
/// Maximum findings of one part, and of those maximum hints, which have the lowest severity. More findings, but not more hints,
/// make the part too complex: what is behind them was not judged.
const REPORTED: usize = 1024;
const HINTS: usize = 256;
/// Maximum bytes of a value that is read as a command.
const COMMAND: usize = 64 << 10;
/// Headers that carry the credential of a request.
const CREDENTIAL_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "private-token"];
/// Others that carry one, and whose names say so.
const OF_TOKENS: [&str; 5] =
    ["x-auth-token", "x-access-token", "apikey", "x-goog-api-key", "ocp-apim-subscription-key"];

/// State of the scan of one direction of a connection, or of one message. A clone is what a caller returns to if it does not
/// send a message after all.
#[derive(Debug, Clone)]
pub struct State {
    direction: Direction,
    credentials: Option<Arc<Credentials>>,
    ignored: Arc<HashSet<Fingerprint>>,
    bound: bool,
    /// Values of earlier bodies count.
    bodies: bool,
    streams: BTreeMap<Location, Stream>,
    earlier: Messages,
}

#[derive(Default, Clone)]
struct Stream {
    /// Bytes before the tail.
    start: u64,
    tail: Vec<u8>,
    /// A match ended where the tail ends.
    cut: bool,
    /// Start of the stream, to be read as a structure.
    whole: Vec<u8>,
    compressed: Option<(Compression, Vec<u8>)>,
    full: bool,
    reported: Vec<Reported>,
    /// Hints among them.
    hints: usize,
    /// There are more.
    overfull: bool,
    injection: Vec<Hit>,
    /// Ranges of these hits.
    injected: Vec<Option<Range<u64>>>,
}

impl Stream {
    /// Reports once that there are too many findings.
    fn overfull(&mut self, location: &Location, is_so: bool, findings: &mut Vec<Finding>) {
        if is_so && !self.overfull {
            self.overfull = true;
            findings.push(too_complex(location));
        }
    }
}

/// A hit that was reported.
#[derive(Clone)]
struct Reported {
    rule: Arc<str>,
    fingerprint: Fingerprint,
    range: Range<u64>,
    severity: Severity,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("bytes", &(self.start + self.tail.len() as u64))
            .finish_non_exhaustive()
    }
}

impl State {
    /// Returns the state of a scan that has seen nothing.
    pub fn new(direction: Direction) -> State {
        State {
            direction,
            credentials: None,
            ignored: Arc::default(),
            bound: false,
            bodies: false,
            streams: BTreeMap::new(),
            earlier: Messages::default(),
        }
    }

    /// Searches for exact values, too.
    pub fn with_credentials(mut self, credentials: Arc<Credentials>) -> State {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the exact values for what follows.
    pub fn set_credentials(&mut self, credentials: Option<Arc<Credentials>>) {
        self.credentials = credentials;
    }

    /// Ignores values with these fingerprints, such as placeholders of credentials.
    pub fn ignoring(mut self, values: Arc<HashSet<Fingerprint>>) -> State {
        self.ignored = values;
        self
    }

    /// Sets whether the destination may receive a credential, so that one in its header is no finding.
    pub fn bound(mut self, bound: bool) -> State {
        self.bound = bound;
        self
    }

    /// Has the short values of a body count together with those of earlier bodies.
    pub fn joining_bodies(mut self) -> State {
        self.bodies = true;
        self
    }
}

impl Scanner {
    /// Scans the next chunk of a part, and returns new findings. A match that ends with the chunk is a finding of the next call.
    pub fn feed(&self, state: &mut State, location: &Location, chunk: &[u8]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut stream = match state.streams.remove(location) {
            Some(stream) => stream,
            None if state.streams.len() >= STREAMS => Stream::default(),
            None => Stream::default(),
        };
        if location.compression.is_none() && location.at != At::Frame {
            let room = joins::STRUCTURE.saturating_sub(stream.whole.len());
            stream.whole.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
        for block in chunk.chunks(BLOCK) {
            self.block(state, location, &mut stream, block, false, &mut findings);
        }
        if location.at == At::Frame {
            self.structure(state, location, &mut stream, chunk, &mut findings);
        }
        if state.streams.len() < STREAMS {
            state.streams.insert(location.clone(), stream);
        }
        findings
    }

    /// Ends all parts of a message. Values of frames, URLs, hosts and tool arguments are joined with those of later messages.
    pub fn finish(&self, state: &mut State) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (location, mut stream) in std::mem::take(&mut state.streams) {
            let whole = std::mem::take(&mut stream.whole);
            self.end(state, &location, &mut stream, &whole, &mut findings);
        }
        findings
    }

    /// Scans a part that is complete.
    pub fn scan_whole(&self, state: &mut State, location: &Location, bytes: &[u8]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut stream = Stream::default();
        let blocks = bytes.len().div_ceil(BLOCK);
        for (number, block) in bytes.chunks(BLOCK).enumerate() {
            self.block(state, location, &mut stream, block, number + 1 == blocks, &mut findings);
        }
        stream.cut = false;
        let whole = if location.compression.is_none() { bytes } else { &[] };
        self.end(state, location, &mut stream, whole, &mut findings);
        if location.at == At::Frame {
            self.structure(state, location, &mut stream, bytes, &mut findings);
        }
        findings
    }

    /// Ends a part, of which `whole` is to be read as a structure.
    fn end(
        &self,
        state: &mut State,
        location: &Location,
        stream: &mut Stream,
        whole: &[u8],
        findings: &mut Vec<Finding>,
    ) {
        if let Some((compression, bytes)) = stream.compressed.take()
            && !stream.full
        {
            let mut hits = Hits::default();
            self.scan_compressed(&state.subject(location, true), compression, &bytes, &mut hits);
            state.report(location, stream, hits, false, findings);
        }
        if stream.cut {
            let tail = std::mem::take(&mut stream.tail);
            let mut hits = Hits::default();
            self.scan(&state.subject(location, true), View::root(&tail), false, &mut hits);
            state.report(location, stream, hits, true, findings);
        }
        if location.at != At::Frame {
            self.structure(state, location, stream, whole, findings);
        }
        if let Some(score) = injection::score(&stream.injection, location.at) {
            let hit = Hit { severity: score.severity, ..stream.injection[score.hit].clone() };
            findings.push(finding(location, &hit, stream.injected[score.hit].clone()));
        }
    }

    /// Scans one block together with the end of the one before it.
    fn block(
        &self,
        state: &State,
        location: &Location,
        stream: &mut Stream,
        block: &[u8],
        last: bool,
        findings: &mut Vec<Finding>,
    ) {
        if stream.start == 0 && stream.tail.is_empty() && stream.compressed.is_none() {
            let is_read = |form: &Compression| match form {
                // What a sandbox gets as an archive is a package, and no text for a model.
                Compression::Zip => state.direction == Direction::Outbound,
                _ => true,
            };
            let known = compression::recognized(block).filter(is_read);
            let known = known.filter(|_| matches!(location.at, At::Body | At::Frame));
            stream.compressed = location.compression.or(known).map(|compression| (compression, Vec::new()));
            if state.direction == Direction::Outbound
                && matches!(location.at, At::Body | At::Frame)
                && compression::is_undecodable(block)
            {
                findings.push(too_complex(location));
            }
        }
        if let Some((compression, bytes)) = &mut stream.compressed {
            if bytes.len() + block.len() <= COMPRESSED {
                bytes.extend_from_slice(block);
            } else if *compression == Compression::Zip {
                // As above: the files at its start count.
                bytes.extend_from_slice(&block[..COMPRESSED - bytes.len()]);
            } else if !stream.full {
                stream.full = true;
                findings.push(too_complex(location));
            }
            // A body whose form was guessed is also scanned as it is.
            if location.compression.is_some() {
                return;
            }
        }
        let joined;
        let bytes = if stream.tail.is_empty() {
            block
        } else {
            joined = [stream.tail.as_slice(), block].concat();
            &joined
        };
        let mut hits = Hits::default();
        let nameless = is_named_for_credentials(location);
        self.scan(&state.subject(location, last), View::root(bytes), nameless, &mut hits);
        stream.cut = hits.cut;
        let kept = if last { 0 } else { bytes.len().min(OVERLAP) };
        let tail = bytes[bytes.len() - kept..].to_vec();
        let moved = (bytes.len() - kept) as u64;
        state.report(location, stream, hits, true, findings);
        stream.start += moved;
        stream.tail = tail;
    }

    /// Scans the fields of a structure.
    fn structure(
        &self,
        state: &mut State,
        location: &Location,
        stream: &mut Stream,
        bytes: &[u8],
        findings: &mut Vec<Finding>,
    ) {
        let short = bytes.len() <= MESSAGE && state.direction == Direction::Outbound;
        for joined in joins::views(location, bytes) {
            let mut hits = Hits::default();
            let subject = Subject { message: short, ..state.subject(location, true) };
            let nameless = joined.nameless || is_named_for_credentials(location);
            self.scan(&subject, joined.view, nameless, &mut hits);
            // Ranges of a structure count from its own start.
            let start = std::mem::replace(&mut stream.start, 0);
            state.report(location, stream, hits, location.at != At::Frame, findings);
            stream.start = start;
        }
        if location.at == At::ToolArgs {
            for command in joins::values(location, bytes, COMMAND) {
                let Some(view) = shell::view(&command, 0..bytes.len()) else { continue };
                let mut hits = Hits::default();
                self.scan(&state.subject(location, true), view, false, &mut hits);
                state.report(location, stream, hits, false, findings);
            }
        }
        let is_message = match location.at {
            At::Body => state.bodies && bytes.len() <= MESSAGE,
            at => matches!(at, At::Frame | At::Url | At::Host | At::ToolArgs),
        };
        if is_message {
            self.with_earlier(state, location, stream, bytes, findings);
        }
    }

    /// Scans short values together with those of earlier messages.
    fn with_earlier(
        &self,
        state: &mut State,
        location: &Location,
        stream: &mut Stream,
        bytes: &[u8],
        findings: &mut Vec<Finding>,
    ) {
        let (all, phrase) = state.earlier.remember(location, bytes);
        if let Some(text) = phrase {
            let mut hits = Hits::default();
            let view = View::root(&text).after(Step::Join);
            self.scan(&state.subject(location, true), view, true, &mut hits);
            hits.list.retain(|hit| hit.kind == Kind::Financial);
            hits.list.iter_mut().for_each(|hit| hit.range = 0..bytes.len());
            state.report(location, stream, hits, false, findings);
        }
        for joined in all {
            let mut hits = Hits::default();
            let view = View::root(&joined.text).after(Step::Join);
            self.scan(&state.subject(location, true), view, true, &mut hits);
            // An exact value is no accident.
            hits.list.retain(|hit| {
                !matches!(hit.kind, Kind::Secret | Kind::Shell)
                    || joined.is_of_both(&hit.range, hit.steps.len() == 1)
            });
            hits.list.iter_mut().for_each(|hit| hit.range = 0..bytes.len());
            state.report(location, stream, hits, false, findings);
        }
    }
}

impl State {
    fn subject<'a>(&'a self, location: &'a Location, last: bool) -> Subject<'a> {
        Subject {
            direction: self.direction,
            location,
            credentials: self.credentials.as_deref(),
            last,
            message: false,
        }
    }

    /// Turns hits into findings, unless they are known. With `ranges` their ranges count from the tail of the stream.
    fn report(
        &self,
        location: &Location,
        stream: &mut Stream,
        hits: Hits,
        ranges: bool,
        findings: &mut Vec<Finding>,
    ) {
        stream.overfull(location, hits.overfull, findings);
        for hit in hits.list {
            if self.ignored.contains(&hit.fingerprint) || (self.bound && is_credential_header(location, &hit))
            {
                continue;
            }
            if hit.kind == Kind::TooComplex && self.direction == Direction::Inbound {
                continue;
            }
            let whole = 0..u64::MAX;
            let range =
                ranges.then(|| stream.start + hit.range.start as u64..stream.start + hit.range.end as u64);
            let place = range.clone().unwrap_or(whole);
            // What is too complex cannot be replaced, and the value of a credential never is.
            let (is_credential, is_hint) = (hit.kind == Kind::Credential, hit.severity == Severity::Low);
            let range = range.filter(|_| hit.kind != Kind::TooComplex);
            let known = stream.reported.iter().any(|known| {
                known.rule == hit.rule
                    && known.fingerprint == hit.fingerprint
                    && known.severity >= hit.severity
                    && (known.range.start < place.end && place.start < known.range.end
                        || known.range == place
                        || is_credential)
            });
            let full = match is_hint {
                true => stream.hints >= HINTS,
                false => stream.reported.len() - stream.hints >= REPORTED && !is_credential,
            };
            if known || full {
                stream.overfull(location, full && !known && !is_hint, findings);
                continue;
            }
            stream.hints += usize::from(is_hint);
            let (rule, fingerprint, severity) = (hit.rule.clone(), hit.fingerprint, hit.severity);
            stream.reported.push(Reported { rule, fingerprint, range: place, severity });
            if hit.kind == Kind::Injection {
                let start = if ranges { stream.start } else { 0 };
                stream.injection.push(Hit { place: hit.place.map(|place| start + place), ..hit });
                stream.injected.push(range);
                continue;
            }
            findings.push(finding(location, &hit, range));
        }
    }
}

/// Reports whether a part is a header whose name says that it carries a credential: its name proves nothing about its value.
fn is_named_for_credentials(location: &Location) -> bool {
    let is_name = |name: &&str| location.name.eq_ignore_ascii_case(name);
    location.at == At::Header
        && OF_TOKENS.iter().chain(&CREDENTIAL_HEADERS).filter(|name| **name != "cookie").any(is_name)
}

fn is_credential_header(location: &Location, hit: &Hit) -> bool {
    location.at == At::Header
        && hit.kind == Kind::Secret
        && CREDENTIAL_HEADERS.iter().any(|name| location.name.eq_ignore_ascii_case(name))
}

fn finding(location: &Location, hit: &Hit, range: Option<Range<u64>>) -> Finding {
    Finding {
        rule: hit.rule.to_string(),
        kind: hit.kind,
        severity: hit.severity,
        at: location.at,
        name: location.name.clone(),
        range,
        steps: hit.steps.clone(),
        fingerprint: hit.fingerprint,
    }
}

fn too_complex(location: &Location) -> Finding {
    Finding {
        rule: "too-complex".to_owned(),
        kind: Kind::TooComplex,
        severity: Severity::High,
        at: location.at,
        name: location.name.clone(),
        range: None,
        steps: Vec::new(),
        fingerprint: Fingerprint::of(b""),
    }
}

/// Replaces the ranges of findings in a piece of a part that starts at `offset`.
pub fn redact(bytes: &[u8], offset: u64, findings: &[Finding]) -> Vec<u8> {
    let length = bytes.len() as u64;
    let local = |place: u64| usize::try_from(place.saturating_sub(offset).min(length)).unwrap_or(bytes.len());
    let mut ranges: Vec<_> = findings
        .iter()
        .filter_map(|finding| Some((finding.range.clone()?, finding.rule.as_str())))
        .map(|(range, rule)| (local(range.start)..local(range.end), rule))
        .filter(|(range, _)| !range.is_empty())
        .collect();
    ranges.sort_by_key(|(range, _)| range.start);
    let mut redacted = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for (range, rule) in ranges {
        if range.start >= at {
            redacted.extend_from_slice(&bytes[at..range.start]);
            redacted.extend_from_slice(format!("[redacted: {rule}]").as_bytes());
        }
        at = at.max(range.end);
    }
    redacted.extend_from_slice(&bytes[at..]);
    redacted
}
