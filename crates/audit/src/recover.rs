//! State of a log when it is opened, also after a crash.
//!
//! A line that a crash has cut is overwritten by the record that reports it. Whatever contradicts a signed head is left in
//! place, and the log continues in a new segment after the last record that was signed, or was on the disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Error;
use crate::event::LogEvent;
use crate::folder::{HEAD, Segment, durable, segments};
use crate::head::{Head, Statement};
use crate::line::{Hash, LINE_MAX, parse};

/// End of a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Number of the last record; zero in an empty log.
    pub(crate) seq: u64,
    /// Its hash.
    pub(crate) hash: Hash,
    /// Segment that continues, and where; none if a new one is to be made.
    pub(crate) segment: Option<(Segment, u64)>,
    /// Irregularities that the next records report.
    pub(crate) found: Vec<Found>,
}

/// Irregularity of a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Torn { segment: String, bytes: u64 },
    Damaged { segment: String },
    Missing { first: u64, last: u64 },
}

impl Found {
    pub(crate) fn event(&self) -> LogEvent<'_> {
        match self {
            Found::Torn { segment, bytes } => LogEvent::Torn { segment, bytes: *bytes },
            Found::Damaged { segment } => LogEvent::Damaged { segment },
            Found::Missing { first, last } => LogEvent::Missing { first: *first, last: *last },
        }
    }
}

/// Last lines of a segment.
#[derive(Debug)]
struct Ending {
    /// Number and hash of the last intact record.
    last: Option<(u64, Hash)>,
    /// Complete lines after it.
    damaged: u64,
    /// Bytes up to the end of the last complete line.
    complete: u64,
    /// Bytes after it.
    torn: u64,
}

/// Finds the end of a log.
pub(crate) fn tail(folder: &Path) -> Result<Tail, Error> {
    let segments = segments(folder)?;
    let head = last_head(folder)?;
    let mut tail = Tail { seq: 0, hash: Hash::default(), segment: None, found: Vec::new() };
    for segment in segments.iter().rev() {
        let ending = ending(segment)?;
        let name = segment.name();
        let is_last = tail.segment.is_none() && tail.found.is_empty();
        if is_last && ending.damaged == 0 {
            tail.segment = Some((segment.clone(), ending.complete));
        }
        if ending.damaged > 0 {
            tail.found.push(Found::Damaged { segment: name });
        } else if ending.torn > 0 && is_last {
            tail.found.push(Found::Torn { segment: name, bytes: ending.torn });
        }
        if let Some((seq, hash)) = ending.last {
            (tail.seq, tail.hash) = (tail.seq.max(seq + ending.damaged), hash);
            break;
        }
        tail.seq = tail.seq.max((segment.first + ending.damaged).saturating_sub(1));
    }
    continue_after(head, &mut tail);
    miss(durable(folder), &mut tail);
    Ok(tail)
}

/// Takes the last signed head into account, and whether the last segment may continue.
fn continue_after(head: Option<Statement>, tail: &mut Tail) {
    if let Some(head) = head
        && head.seq > tail.seq
    {
        // The incomplete line stays in place.
        tail.found.retain(|found| !matches!(found, Found::Torn { .. }));
        tail.found.push(Found::Missing { first: tail.seq + 1, last: head.seq });
        (tail.seq, tail.hash, tail.segment) = (head.seq, head.hash, None);
    }
    // An empty segment continues only if its name is the number of the next record.
    if let Some((segment, 0)) = &tail.segment
        && segment.first != tail.seq + 1
    {
        tail.segment = None;
    }
}

/// Takes the number of the last record on the disk into account: no number is used twice, also if no head is left.
fn miss(durable: Option<u64>, tail: &mut Tail) {
    if let Some(last) = durable.filter(|last| *last > tail.seq) {
        tail.found.push(Found::Missing { first: tail.seq + 1, last });
        (tail.seq, tail.segment) = (last, None);
    }
}

/// Returns the statement of the last head. Its signature is checked by verification alone.
fn last_head(folder: &Path) -> Result<Option<Statement>, Error> {
    let path = folder.join(HEAD);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Head::parse(&bytes).and_then(|head| head.statement())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(&path)(error)),
    }
}

/// Reads as much of the end of a segment as holds its last record.
fn ending(segment: &Segment) -> Result<Ending, Error> {
    let file = File::open(&segment.path).map_err(Error::file(&segment.path))?;
    let length = segment.length()?;
    // Two lines: one that is complete, and one that is not. More only if a line is damaged.
    let mut window = (2 * LINE_MAX as u64 + 2).min(length);
    loop {
        let start = length - window;
        let mut bytes = vec![0; usize::try_from(window).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, start).map_err(Error::file(&segment.path))?;
        let ending = last_lines(&bytes, start);
        if ending.last.is_some() || window == length {
            return Ok(ending);
        }
        window = length;
    }
}

/// Finds the last intact record in the last bytes of a segment.
fn last_lines(bytes: &[u8], start: u64) -> Ending {
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // Without any end of a line, everything is one incomplete line.
    let torn = (bytes.len() - complete) as u64;
    let mut ending = Ending { last: None, damaged: 0, complete: start + complete as u64, torn };
    let mut lines: Vec<&[u8]> = bytes[..complete].split_inclusive(|byte| *byte == b'\n').collect();
    if start > 0 && !lines.is_empty() {
        // The first one may have begun before.
        lines.remove(0);
    }
    for line in lines.into_iter().rev() {
        match parse(&line[..line.len() - 1]).filter(|line| line.is_intact()) {
            Some(line) => {
                ending.last = Some((line.seq, line.hash));
                break;
            }
            None => ending.damaged += 1,
        }
    }
    ending
}
