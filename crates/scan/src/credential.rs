//! Exact values of the credentials of a sandbox, raw and encoded.

use std::fmt;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Minimum bytes of a value. Shorter ones occur by chance.
pub const SHORTEST: usize = 8;

/// Values that must not leave, with a name for each. Its `Debug` output shows the names only.
#[derive(Clone)]
pub struct Credentials {
    names: Vec<String>,
    search: AhoCorasick,
    /// Credential of each pattern of the search.
    owners: Vec<usize>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Prepares the search for values. Values shorter than [`SHORTEST`] are left out.
    ///
    /// # Errors
    /// The values are too large for a search.
    pub fn new<'a>(
        values: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Credentials, aho_corasick::BuildError> {
        let (mut names, mut owners, mut patterns) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            if value.len() < SHORTEST {
                continue;
            }
            for pattern in encodings(value) {
                owners.push(names.len());
                patterns.push(pattern);
            }
            names.push(name.to_owned());
        }
        // The faster kind has some kilobytes for each byte of a value.
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostFirst).kind(Some(AhoCorasickKind::ContiguousNFA));
        let search = builder.build(patterns)?;
        Ok(Credentials { names, search, owners })
    }

    /// Reports whether there is nothing to search.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the places of values in a text, with the names.
    pub(crate) fn find(&self, bytes: &[u8]) -> Vec<(&str, Range<usize>)> {
        if self.is_empty() {
            return Vec::new();
        }
        let name = |at: usize| self.names[self.owners[at]].as_str();
        self.search.find_iter(bytes).map(|found| (name(found.pattern().as_usize()), found.range())).collect()
    }
}

/// Returns a value as it is, reversed, in hexadecimal digits and in base64 from each of three places of a stream.
fn encodings(value: &[u8]) -> Vec<Vec<u8>> {
    let hex = |upper: bool| {
        let digit = |nibble: u8| match (nibble, upper) {
            (0..=9, _) => b'0' + nibble,
            (_, false) => b'a' + nibble - 10,
            (_, true) => b'A' + nibble - 10,
        };
        value.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect::<Vec<_>>()
    };
    let mut all = vec![value.to_vec(), value.iter().rev().copied().collect(), hex(false), hex(true)];
    for url in [false, true] {
        for before in 0..3 {
            let encoded = base64(value, before, url);
            if encoded.len() >= SHORTEST && !all.contains(&encoded) {
                all.push(encoded);
            }
        }
    }
    all
}

/// Returns the digits of base64 that depend on a value alone, when `before` bytes precede it.
fn base64(value: &[u8], before: usize, url: bool) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let bit = |at: usize| value[at / 8] >> (7 - at % 8) & 1;
    // The first digit that holds no bit of the bytes before it.
    let skipped = (6 - before * 8 % 6) % 6;
    let usable = value.len() * 8 - skipped;
    (0..usable / 6)
        .map(|digit| {
            let number = (0..6).fold(0, |number, at| number << 1 | bit(skipped + digit * 6 + at));
            match (number, url) {
                (62, false) => b'+',
                (62, true) => b'-',
                (63, false) => b'/',
                (63, true) => b'_',
                _ => DIGITS[usize::from(number)],
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::base64::Engine;
    use ::base64::engine::general_purpose::{STANDARD, URL_SAFE};

    const VALUE: &[u8] = b"correct-horse?battery>staple";

    #[test]
    fn value_is_found_in_every_encoding() {
        let credentials = Credentials::new([("github", VALUE)]).unwrap();
        for before in ["", "x", "xy", "xyz", "wxyz"] {
            let text = [before.as_bytes(), VALUE, b" and more"].concat();
            for encoded in [STANDARD.encode(&text), URL_SAFE.encode(&text)] {
                let found = credentials.find(encoded.as_bytes());
                assert_eq!(found.len(), 1, "{before}");
                assert_eq!(found[0].0, "github");
            }
        }
        let reversed: Vec<u8> = VALUE.iter().rev().copied().collect();
        assert_eq!(credentials.find(&reversed).len(), 1);
        assert_eq!(credentials.find(b"636f72726563742d686f7273653f626174746572793e737461706c65").len(), 1);
        assert_eq!(credentials.find(b"correct-horse-battery-staple").len(), 0);
    }

    #[test]
    fn debug_output_has_no_value() {
        let credentials = Credentials::new([("github", VALUE), ("short", b"abc".as_slice())]).unwrap();
        let text = format!("{credentials:?}");
        assert!(text.contains("github") && !text.contains("horse") && !text.contains("99, 111"));
        assert!(credentials.find(b"abc").is_empty());
    }
}
