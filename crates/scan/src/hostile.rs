//! Hostile tests of the scanner, from arbitrary bytes.

use std::sync::{Arc, OnceLock};

use crate::credential::Credentials;
use crate::finding::{At, Compression, Direction, Location};
use crate::host::Hosts;
use crate::mcp::{Pins, Session};
use crate::rule::RuleSet;
use crate::scanner::Scanner;
use crate::sequence::{Calls, Sequences};
use crate::state::{State, redact};

fn scanner() -> &'static Scanner {
    static SCANNER: OnceLock<Scanner> = OnceLock::new();
    SCANNER.get_or_init(Scanner::builtin)
}

fn state(direction: Direction) -> State {
    let credentials = Credentials::new([("a", b"correct-horse-battery".as_slice())]);
    State::new(direction).with_credentials(Arc::new(credentials.expect("one short value")))
}

/// Scans any bytes as any part, whole and in chunks. Ranges of findings lie inside the part, and can be redacted.
pub fn parts(bytes: &[u8]) {
    let selector = usize::from(bytes.first().copied().unwrap_or(0));
    let at = At::ALL[selector % At::ALL.len()];
    let direction = if selector & 0x80 == 0 { Direction::Outbound } else { Direction::Inbound };
    let bytes = bytes.get(1..).unwrap_or_default();
    let location = Location::named(at, "a");
    let mut whole = state(direction);
    let findings = scanner().scan_whole(&mut whole, &location, bytes);
    for finding in &findings {
        let range = finding.range.clone().unwrap_or(0..0);
        assert!(range.start <= range.end && range.end <= bytes.len() as u64, "{finding:?}");
    }
    let redacted = redact(bytes, 0, &findings);
    assert!(!findings.is_empty() || redacted == bytes);
    let mut chunks = state(direction);
    for chunk in bytes.chunks(selector / 4 + 1) {
        scanner().feed(&mut chunks, &location, chunk);
    }
    scanner().finish(&mut chunks);
}

/// Decompresses any bytes in every form.
pub fn compressed(bytes: &[u8]) {
    for compression in [Compression::Gzip, Compression::Deflate, Compression::Brotli, Compression::Zstd] {
        scanner().scan_whole(&mut state(Direction::Outbound), &Location::compressed(compression), bytes);
    }
}

/// Reads any bytes as messages of MCP, as a host name and as a call.
pub fn messages(bytes: &[u8]) {
    let mut session = Session::new(state(Direction::Outbound), state(Direction::Inbound), Pins::default());
    session.scan(scanner(), Direction::Outbound, bytes);
    session.scan(scanner(), Direction::Inbound, bytes);
    let text = String::from_utf8_lossy(bytes);
    Hosts::default().observe(scanner(), &mut state(Direction::Outbound), &text, 0);
    let (tool, arguments) = text.split_once(' ').unwrap_or((&text, ""));
    Calls::default().observe(Sequences::builtin(), tool, arguments);
}

/// Reads any bytes as a rule set, and scans them with it.
pub fn rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(set) = RuleSet::parse(text) else { return };
    let Ok(scanner) = Scanner::new(vec![set]) else { return };
    scanner.scan_whole(&mut state(Direction::Outbound), &Location::new(At::Body), bytes);
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("scan_parts", super::parts);
        feed("scan_compressed", super::compressed);
        feed("scan_messages", super::messages);
        feed("scan_rules", super::rules);
    }
}
