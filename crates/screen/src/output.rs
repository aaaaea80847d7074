//! Output that is scanned while it is passed on, with a bounded number of bytes held.

use std::collections::HashSet;
use std::ops::Range;

use hutch_policy::ScanAction;
use hutch_scan::{At, Direction, Finding, Fingerprint, Kind, Location, OVERLAP, State};

use crate::action::Screen;
use crate::found::Found;
use crate::report::{Origin, Tally, report};
use crate::scanner;

/// Bytes that are held at most before some are passed on.
const HELD: usize = 2 * OVERLAP;
/// Maximum findings of one output that are reported.
const REPORTED: usize = 1000;

/// How far output is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// To the bytes in which a match may have begun.
    Window,
    /// To the end of the last whole line.
    Line,
    /// To the end.
    End,
}

/// Output of a process or of a port of a sandbox.
#[derive(Debug)]
pub struct Output {
    screen: Screen,
    origin: Origin,
    /// The last bytes that were passed on, as they came.
    before: Vec<u8>,
    held: Vec<u8>,
    /// Rules and values that were reported.
    reported: HashSet<(String, Fingerprint)>,
    tally: Tally,
    /// A body that began as compressed ones do, until its end.
    compressed: Option<State>,
    begun: bool,
    /// `true` if matches are replaced where they would be refused.
    lines: bool,
    /// `true` if matches are refused where they would be replaced.
    keeps_length: bool,
}

impl Output {
    /// Returns output that has not begun.
    pub fn new(screen: Screen, origin: Origin) -> Output {
        let lines = screen.door() == hutch_policy::Door::Logs;
        let (before, held, reported) = (Vec::new(), Vec::new(), HashSet::new());
        let tally = Tally::new(screen.recorder(), origin.clone(), screen.door());
        Output {
            screen,
            origin,
            before,
            held,
            reported,
            tally,
            compressed: None,
            begun: false,
            lines,
            keeps_length: false,
        }
    }

    /// Refuses what would be replaced, for a form in which the number of bytes has a meaning.
    pub fn keep_length(&mut self) {
        self.keeps_length = true;
    }

    /// Takes bytes, which are held until [`Output::pass`].
    pub fn take(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.begun, true) && !self.lines && is_compressed(bytes) {
            self.compressed = Some(State::new(Direction::Outbound));
        }
        self.held.extend_from_slice(bytes);
    }

    /// Returns true if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns true if so much is held that some should be passed on.
    pub fn is_full(&self) -> bool {
        self.held.len() > HELD
    }

    /// Changes what the levels say.
    pub fn set(&mut self, screen: Screen) {
        self.screen = screen;
    }

    /// Returns the bytes that may be passed on now, with what was replaced. Findings are reported.
    ///
    /// # Errors
    /// What ends the output. Nothing more of it may be passed on. A log does not end: the whole line is replaced.
    pub fn pass(&mut self, until: Until) -> Result<Vec<u8>, Found> {
        let end = match until {
            Until::End => self.held.len(),
            Until::Window => self.held.len().saturating_sub(OVERLAP),
            Until::Line => self.held.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1),
        };
        if end == 0 {
            return Ok(Vec::new());
        }
        let start = self.before.len();
        let text = [self.before.as_slice(), &self.held].concat();
        let place = Location::new(At::Output);
        let findings = scanner().scan_whole(&mut State::new(Direction::Outbound), &place, &text);
        let end = start + if until == Until::End { end } else { uncut(&findings, start, end) };
        let replaced = self.judge(findings, &text, start, end)?;
        self.decompressed(&text[start..end])?;
        let passed = replace(&text, start..end, replaced);
        self.held.drain(..end - start);
        self.before = text[end.saturating_sub(OVERLAP)..end].to_vec();
        Ok(passed)
    }

    /// Returns the rest.
    ///
    /// # Errors
    /// As [`Output::pass`].
    pub fn finish(&mut self) -> Result<Vec<u8>, Found> {
        // What a compressed body contains is known at its end, which is therefore passed on last.
        if let Some(mut state) = self.compressed.take() {
            let findings = scanner().feed(&mut state, &Location::new(At::Body), &self.held);
            self.refuse(findings)?;
            let findings = scanner().finish(&mut state);
            self.refuse(findings)?;
        }
        self.pass(Until::End)
    }

    /// Returns the ranges to replace, of the bytes from `start` to `end`.
    fn judge(
        &mut self,
        findings: Vec<Finding>,
        text: &[u8],
        start: usize,
        end: usize,
    ) -> Result<Vec<(Range<usize>, String)>, Found> {
        let mut replaced = Vec::new();
        for finding in findings {
            let range = finding.range.as_ref().map(|range| local(range.start, text)..local(range.end, text));
            // What is passed on later is found again.
            if range.as_ref().is_some_and(|range| range.end <= start || range.start >= end) {
                continue;
            }
            let Some((action, found)) = self.action(&finding) else { continue };
            let key = (finding.rule.clone(), finding.fingerprint);
            // It may be found in what was passed on. What cannot be scanned may also be in what is held, so it does not pass.
            let holds = is_opaque(&finding) && action > ScanAction::Log;
            if range.is_none() && !holds && self.reported.contains(&key) {
                continue;
            }
            let is_new = self.is_new(key);
            match action {
                ScanAction::Log => {}
                ScanAction::Redact | ScanAction::Block => {
                    let whole = || lines(text, &finding, start..end);
                    let range = match action {
                        ScanAction::Redact if !self.keeps_length => range,
                        _ => None,
                    };
                    let Some(range) = range.or_else(|| self.lines.then(whole)) else {
                        return Err(self.refused(found));
                    };
                    replaced.push((range.start.max(start)..range.end.min(end), finding.rule));
                }
            }
            self.tally.add(&found, action);
            if is_new {
                report(&self.origin, self.screen.door(), &found, action);
            }
        }
        Ok(replaced)
    }

    /// Scans what a body that looks compressed contains, as far as it is known.
    fn decompressed(&mut self, passed: &[u8]) -> Result<(), Found> {
        let Some(mut state) = self.compressed.take() else { return Ok(()) };
        let findings = scanner().feed(&mut state, &Location::new(At::Body), passed);
        self.compressed = Some(state);
        self.refuse(findings)
    }

    /// Refuses findings that have no place in the bytes.
    fn refuse(&mut self, findings: Vec<Finding>) -> Result<(), Found> {
        for finding in findings.into_iter().filter(|finding| !finding.steps.is_empty() || is_opaque(finding))
        {
            let Some((action, found)) = self.action(&finding) else { continue };
            if action > ScanAction::Log {
                return Err(self.refused(found));
            }
            self.tally.add(&found, action);
            if self.is_new((finding.rule, finding.fingerprint)) {
                report(&self.origin, self.screen.door(), &found, action);
            }
        }
        Ok(())
    }

    /// Reports a finding that ends the output.
    fn refused(&mut self, found: Found) -> Found {
        self.tally.add(&found, ScanAction::Block);
        report(&self.origin, self.screen.door(), &found, ScanAction::Block);
        found
    }

    fn action(&self, finding: &Finding) -> Option<(ScanAction, Found)> {
        let (action, policy) = self.screen.action(finding)?;
        Some((action, Found::new(Direction::Outbound, finding, policy)))
    }

    /// Returns true if a finding is to be reported.
    fn is_new(&mut self, key: (String, Fingerprint)) -> bool {
        self.reported.len() < REPORTED && self.reported.insert(key)
    }
}

fn is_opaque(finding: &Finding) -> bool {
    finding.kind == Kind::TooComplex
}

/// Returns true if bytes begin as compressed ones do.
fn is_compressed(bytes: &[u8]) -> bool {
    hutch_scan::magic(bytes).is_some()
}

fn local(place: u64, text: &[u8]) -> usize {
    usize::try_from(place).unwrap_or(text.len()).min(text.len())
}

/// Returns how many of the held bytes can be passed on without a part of a match: up to `end`, or less.
fn uncut(findings: &[Finding], start: usize, end: usize) -> usize {
    let mut end = start + end;
    let ranges: Vec<Range<usize>> = findings
        .iter()
        .filter_map(|finding| finding.range.clone())
        .filter_map(|range| Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?))
        .collect();
    while let Some(first) =
        ranges.iter().filter(|range| range.start < end && end < range.end).min_by_key(|r| r.start)
    {
        // A match that began before what is held is not waited for.
        if first.start <= start {
            break;
        }
        end = first.start;
    }
    end - start
}

/// Returns the whole lines of a match; all of `held` if its place is not known.
fn lines(text: &[u8], finding: &Finding, held: Range<usize>) -> Range<usize> {
    let Some(range) = &finding.range else { return without_end(text, held) };
    let range = local(range.start, text)..local(range.end, text);
    let start = text[..range.start].iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
    let after = text[range.end..].iter().position(|byte| *byte == b'\n');
    start..after.map_or(text.len(), |place| range.end + place)
}

/// Returns a range without a line feed at its end.
fn without_end(text: &[u8], range: Range<usize>) -> Range<usize> {
    let ends = text[range.clone()].last() == Some(&b'\n');
    range.start..range.end - usize::from(ends)
}

/// Returns a part of a text, with the name of the rule in place of each range.
fn replace(text: &[u8], part: Range<usize>, mut replaced: Vec<(Range<usize>, String)>) -> Vec<u8> {
    replaced.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    let mut passed = Vec::with_capacity(part.len());
    let mut at = part.start;
    for (range, rule) in replaced {
        if range.start >= at && !range.is_empty() {
            passed.extend_from_slice(&text[at..range.start]);
            passed.extend_from_slice(format!("[redacted: {rule}]").as_bytes());
        }
        at = at.max(range.end);
    }
    passed.extend_from_slice(&text[at..part.end.max(at)]);
    passed
}

#[cfg(test)]
mod tests;
