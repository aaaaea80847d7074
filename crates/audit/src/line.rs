//! Format of a line of the log: `{"seq":N,"prev":"HEX","hash":"HEX","event":EVENT}`. Pure.
//!
//! `hash` is the SHA-256 of the 32 bytes of `prev` and the bytes of the event as written. A line is accepted in exactly
//! this form, so every changed byte is found: in the form, in the hash, or in the order of the numbers.

use std::fmt;

use aws_lc_rs::digest;

use crate::hex::hex;

/// Maximum bytes of a line without its end.
pub const LINE_MAX: usize = crate::event::EVENT_MAX + 256;

/// SHA-256 of a record, or 32 zeros before the first one.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Returns the hash of a record that follows this one.
    pub fn then(&self, event: &[u8]) -> Hash {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.0);
        context.update(event);
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        Hash(hash)
    }

    /// Parses 64 digits in lower case.
    pub(crate) fn parse(text: &[u8]) -> Option<Hash> {
        let mut hash = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, digits) in hash.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(digits[0])? << 4 | digit(digits[1])?;
        }
        Some(Hash(hash))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Number; each record has the next one.
    pub seq: u64,
    /// Hash of the record before.
    pub prev: Hash,
    /// Hash of this record.
    pub hash: Hash,
    /// Event as written.
    pub event: &'a [u8],
}

/// Adds the line of a record. Returns its hash.
pub(crate) fn append(to: &mut Vec<u8>, seq: u64, prev: &Hash, event: &[u8]) -> Hash {
    let hash = prev.then(event);
    to.extend_from_slice(format!(r#"{{"seq":{seq},"prev":"{prev}","hash":"{hash}","event":"#).as_bytes());
    to.extend_from_slice(event);
    to.extend_from_slice(b"}\n");
    hash
}

/// Parses a line without its end. Returns `None` for one that this program would not write. Its hash is not checked.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    if line.len() > LINE_MAX {
        return None;
    }
    let rest = line.strip_prefix(br#"{"seq":"#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = rest.split_at(digits);
    // A number has one form.
    if number.is_empty() || (number[0] == b'0' && number.len() > 1) {
        return None;
    }
    let seq = std::str::from_utf8(number).ok()?.parse().ok()?;
    let rest = rest.strip_prefix(br#","prev":""#)?;
    let (prev, rest) = rest.split_at_checked(64)?;
    let rest = rest.strip_prefix(br#"","hash":""#)?;
    let (hash, rest) = rest.split_at_checked(64)?;
    let event = rest.strip_prefix(br#"","event":"#)?.strip_suffix(b"}")?;
    let is_object = event.first() == Some(&b'{') && event.last() == Some(&b'}');
    is_object.then_some(Line { seq, prev: Hash::parse(prev)?, hash: Hash::parse(hash)?, event })
}

impl Line<'_> {
    /// Returns true if the hash is the one of the event.
    pub fn is_intact(&self) -> bool {
        self.prev.then(self.event) == self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_one_form() {
        let mut line = Vec::new();
        let hash = append(&mut line, 7, &Hash::default(), br#"{"a":1}"#);
        assert_eq!(line.pop(), Some(b'\n'));
        let parsed = parse(&line).unwrap();
        assert_eq!((parsed.seq, parsed.hash, parsed.event), (7, hash, &br#"{"a":1}"#[..]));
        assert!(parsed.is_intact());
        let text = String::from_utf8(line).unwrap();
        for (from, to) in [
            ("\"seq\":7", "\"seq\":07"),
            ("\"seq\":7", "\"seq\": 7"),
            ("\"seq\":7", "\"seq\":99999999999999999999"),
            ("0000\",\"hash", "000\",\"hash"),
            ("\"prev\":\"00", "\"prev\":\"0G"),
            ("\"event\":{", "\"event\":["),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            assert_eq!(parse(changed.as_bytes()), None, "{changed}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut line = Vec::new();
        append(&mut line, 12, &Hash([0xab; 32]), br#"{"class_uid":0,"message":"hello"}"#);
        line.pop();
        for bit in 0..line.len() * 8 {
            let mut changed = line.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let found = parse(&changed).is_none_or(|line| line.seq != 12 || !line.is_intact());
            assert!(found, "bit {bit}: {}", String::from_utf8_lossy(&changed));
        }
    }
}
