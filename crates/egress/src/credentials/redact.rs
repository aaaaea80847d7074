//! Puts placeholders in the place of values, in bytes that arrive in pieces.
//!
//! A value is found in any mixture of the escapes that [`escapes`] knows. What is kept back at the end of a piece depends on
//! the class of its characters alone, never on how much of a value they are: else the lengths of pieces would reveal it.

use zeroize::Zeroizing;

use super::encode::{ESCAPES, escapes};

/// Maximum bytes by which escapes stand for one byte of a value.
const ESCAPED: usize = 8;
/// Maximum readings of a text that are tried for each byte of a value.
const READINGS: usize = 8;

/// Bytes to find, and what takes their place. The bytes are secret.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) value: Zeroizing<Vec<u8>>,
    pub(crate) placeholder: Vec<u8>,
}

/// Bytes of one answer. The end of a piece is kept back while a value may stand across it.
pub(crate) struct Redactor {
    /// The longest first: of values that begin at the same place it counts.
    pairs: Vec<Pair>,
    /// Of each byte, the pairs whose value begins with it, in order.
    firsts: Box<[Vec<usize>; 256]>,
    /// Of each two bytes, a bit that says that a value may begin with them.
    starts: Box<[u64; 1024]>,
    /// Maximum bytes that are kept back.
    longest: usize,
    /// No value has a byte that separates tokens.
    are_tokens: bool,
    kept: Zeroizing<Vec<u8>>,
}

/// Returns true for bytes of tokens and of their escapes.
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=%\\&#;:@!$*^|?\0".contains(&byte)
}

/// Returns the bytes of a text that stand for one of a value, which may have lost its case.
fn plain(of_value: u8) -> [u8; 2] {
    match of_value {
        b' ' => [b' ', b'+'],
        byte => [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()],
    }
}

/// Returns the number of two bytes.
fn place(first: u8, next: u8) -> usize {
    usize::from(u16::from_be_bytes([first, next]))
}

impl Redactor {
    pub(crate) fn new(mut pairs: Vec<Pair>) -> Redactor {
        pairs.retain(|pair| !pair.value.is_empty());
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.value.len()));
        let mut firsts = Box::new([const { Vec::new() }; 256]);
        let mut starts = Box::new([0; 1024]);
        let mut start = |first: u8, next: u8| {
            let place = place(first, next);
            starts[place / 64] |= 1_u64 << (place % 64);
        };
        for (index, pair) in pairs.iter().enumerate() {
            for byte in plain(pair.value[0]) {
                firsts[usize::from(byte)].push(index);
                firsts[usize::from(byte)].dedup();
                match pair.value.get(1) {
                    Some(second) => {
                        plain(*second).into_iter().chain(ESCAPES).for_each(|next| start(byte, next))
                    }
                    None => (0..=255).for_each(|next| start(byte, next)),
                }
            }
        }
        for next in (0..=255).filter(|_| !pairs.is_empty()) {
            let quoted = b"\"'/".contains(&next) && !firsts[usize::from(next)].is_empty();
            for (first, escapes) in [
                (b'%', next.is_ascii_hexdigit()),
                (b'&', next == b'#' || next.is_ascii_alphabetic()),
                (b'\\', quoted || b"xu\\".contains(&next)),
            ] {
                if escapes {
                    start(first, next);
                }
            }
        }
        // Rounded: it says little about the length of a value.
        let longest = pairs.first().map_or(0, |pair| (pair.value.len() * ESCAPED).next_power_of_two());
        let are_tokens = pairs.iter().all(|pair| pair.value.iter().all(|byte| is_of_token(*byte)));
        Redactor { pairs, firsts, starts, longest, are_tokens, kept: Zeroizing::default() }
    }

    /// Returns one for other bytes.
    pub(crate) fn anew(&self) -> Redactor {
        Redactor::new(self.pairs.clone())
    }

    /// Takes a piece of bytes that cannot be changed. Returns true if a value begins before the end that is kept back.
    pub(crate) fn search(&mut self, piece: &[u8]) -> bool {
        let mut bytes = std::mem::take(&mut self.kept);
        bytes.extend_from_slice(piece);
        let end = bytes.len() - self.open_end(&bytes);
        let found = self.has_before(&bytes, end);
        self.kept.extend_from_slice(&bytes[end..]);
        found
    }

    /// Returns true if a value is in the end that was kept back.
    pub(crate) fn search_end(&mut self) -> bool {
        let bytes = std::mem::take(&mut self.kept);
        self.has_before(&bytes, bytes.len())
    }

    /// Returns the number of bytes that are kept back.
    pub(crate) fn open(&self) -> usize {
        self.kept.len()
    }

    /// Returns true if a value begins before `end`.
    fn has_before(&self, bytes: &[u8], end: usize) -> bool {
        (0..end).any(|from| self.may_start(&bytes[from..]) && self.starting(&bytes[from..]).is_some())
    }

    /// Takes a piece, and returns what may be passed on.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.kept);
        bytes.extend_from_slice(piece);
        let (out, rest) = self.pass(&bytes, bytes.len() - self.open_end(&bytes));
        self.kept.extend_from_slice(&bytes[rest..]);
        out
    }

    /// Returns the rest.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.kept);
        self.pass(&bytes, bytes.len()).0
    }

    /// Returns a whole text with its values replaced; `None` if it has none.
    pub(crate) fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.has_before(bytes, bytes.len()).then(|| self.pass(bytes, bytes.len()).0)
    }

    /// Returns the bytes at the end of a text in which a value may begin that is not complete.
    fn open_end(&self, bytes: &[u8]) -> usize {
        let end = &bytes[bytes.len().saturating_sub(self.longest)..];
        match self.are_tokens {
            true => end.iter().rev().take_while(|byte| is_of_token(**byte)).count(),
            false => end.len(),
        }
    }

    /// Returns false if no value begins with these bytes.
    fn may_start(&self, bytes: &[u8]) -> bool {
        let [first, next, ..] = bytes else { return true };
        let place = place(*first, *next);
        self.starts[place / 64] >> (place % 64) & 1 == 1
    }

    /// Returns what takes the place of the value with which the bytes begin, and the bytes that it takes.
    fn starting(&self, bytes: &[u8]) -> Option<(&Pair, usize)> {
        let first = *bytes.first()?;
        let escaped = ESCAPES.contains(&first).then(|| escapes(bytes)).into_iter().flatten();
        let escaped = escaped.flat_map(|escape| &self.firsts[usize::from(escape.bytes()[0])]);
        let mut found: Option<(usize, usize)> = None;
        for index in self.firsts[usize::from(first)].iter().chain(escaped).copied() {
            if found.is_none_or(|(longer, _)| index < longer) {
                found = length(bytes, &self.pairs[index].value).map(|length| (index, length)).or(found);
            }
        }
        found.map(|(index, length)| (&self.pairs[index], length))
    }

    /// Replaces the values that begin before `end`. Returns the text, and where the rest begins.
    fn pass(&self, bytes: &[u8], end: usize) -> (Vec<u8>, usize) {
        let mut out = Vec::with_capacity(end);
        let (mut at, mut copied) = (0, 0);
        while at < end {
            if !self.may_start(&bytes[at..]) {
                at += 1;
                continue;
            }
            match self.starting(&bytes[at..]) {
                Some((pair, length)) => {
                    out.extend_from_slice(&bytes[copied..at]);
                    out.extend_from_slice(&pair.placeholder);
                    at += length;
                    copied = at;
                }
                None => at += 1,
            }
        }
        out.extend_from_slice(&bytes[copied..at]);
        (out, at)
    }
}

/// Returns the bytes that the value takes at the beginning of a text, each of its bytes as it is or in an escape. Of several
/// readings the longest escapes count.
fn length(text: &[u8], value: &[u8]) -> Option<usize> {
    let (mut at, mut of) = (0, 0);
    // Other readings: bytes of the text, and of the value.
    let mut others: Vec<(usize, usize)> = Vec::new();
    // A value that looks like escapes has readings without end.
    for _ in 0..(value.len() + 1) * READINGS {
        if of == value.len() {
            return Some(at);
        }
        let byte = text.get(at).copied();
        let mut next = byte.filter(|byte| plain(value[of]).contains(byte)).map(|_| (at + 1, of + 1));
        if byte.is_some_and(|byte| ESCAPES.contains(&byte)) {
            for escape in escapes(&text[at..]) {
                let after = of + escape.bytes().len();
                if value.get(of..after).is_some_and(|value| value.eq_ignore_ascii_case(escape.bytes())) {
                    others.extend(next.replace((at + escape.length, after)));
                }
            }
        }
        (at, of) = next.or_else(|| others.pop())?;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::credentials::encode::forms;

    fn redactor(pairs: &[(&str, &str)]) -> Redactor {
        let pair = |(value, placeholder): &(&str, &str)| Pair {
            value: Zeroizing::new(value.as_bytes().to_vec()),
            placeholder: placeholder.as_bytes().to_vec(),
        };
        Redactor::new(pairs.iter().map(pair).collect())
    }

    #[test]
    fn value_is_redacted_wherever_a_piece_ends() {
        let text = b"a secret-1 b secret-12 c secret- secresecret-1";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut redactor = redactor(&[("secret-1", "P"), ("secret-12", "Q")]);
                let mut out = redactor.push(&text[..first]);
                out.extend(redactor.push(&text[first..second]));
                out.extend(redactor.push(&text[second..]));
                out.extend(redactor.finish());
                assert_eq!(String::from_utf8(out).unwrap(), "a P b Q c secret- secreP", "{first} {second}");
            }
        }
    }

    #[test]
    fn whole_text_without_a_value_is_unchanged() {
        let redactor = redactor(&[("secret", "P"), ("", "empty")]);
        assert_eq!(redactor.whole(b"nothing"), None);
        assert_eq!(redactor.whole(b"xsecretx").unwrap(), b"xPx");
    }

    #[test]
    fn lengths_of_pieces_do_not_say_how_much_of_a_value_was_guessed() {
        for value in ["secret-value", "secret value, with \"more\""] {
            let lengths = |guess: &str| -> Vec<usize> {
                let mut redactor = redactor(&[(value, "P")]);
                let pieces = ["data: ", guess, "tail", &"x".repeat(300), "\n\n", guess];
                pieces.iter().map(|piece| redactor.push(piece.as_bytes()).len()).collect()
            };
            let right = lengths(&value[..8]);
            for wrong in ["secret-X", "seXXXXXX", "%5cXXXXX", "XXXXXXXX"] {
                let wrong: String = wrong.chars().take(6).collect::<String>() + &value[6..8];
                assert_eq!(lengths(&wrong), right, "{wrong}");
            }
        }
    }

    #[test]
    fn line_of_a_stream_is_passed_on_at_once() {
        let mut redactor = redactor(&[("secret-value", "P")]);
        assert_eq!(redactor.push(b"data: {\"a\": \"secret-value\"}\n\n"), b"data: {\"a\": \"P\"}\n\n");
    }

    #[test]
    fn escaped_value_is_redacted() {
        let value = "a/b+\"c\\d%e&f'g h";
        let redactor = redactor(&[(value, "P")]);
        let hex: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let unicode: String = value.bytes().map(|byte| format!("\\u{byte:04X}")).collect();
        for text in [
            value,
            r#"a\/b+\"c\\d%e&f'g h"#,
            r#"a\\/b+\\\"c\\\\d%e&f'g h"#,
            "a%2fb%2B%22c%5cd%25e%26f%27g+h",
            "a%252fb%252B%2522c%255cd%2525e%2526f%2527g%2520h",
            "a/b+&quot;c\\d%e&amp;f&#39;g h",
            "a&#x2F;b&#43;&#34;c\\d%e&amp;f&apos;g&#x0020;h",
            "a/b+%22c\\d%25e&f'g h",
            &hex,
            &unicode,
            &value.to_uppercase(),
            &unicode.replace('\\', "\\\\"),
        ] {
            let found = redactor.whole(format!("<{text}>").as_bytes());
            assert_eq!(found.as_deref(), Some(b"<P>".as_slice()), "{text}");
        }
    }

    #[test]
    fn value_in_another_encoding_is_redacted() {
        let value = "Real-Value?>";
        let redactor = Redactor::new(forms(value, "P"));
        let wide: Vec<u8> = value.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for (text, expected) in [
            (b"x5265616C2D56616C75653F3E.".as_slice(), b"x50.".as_slice()),
            (b"x5265616c2d56616c75653f3e.", b"x50."),
            (&wide, b"\0P"),
            (b"HTTP_REAL-VALUE?>", b"HTTP_P"),
        ] {
            assert_eq!(redactor.whole(text).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn value_that_looks_like_an_escape_is_redacted_in_every_form() {
        let value = r"x%41\u0041&amp;y%25";
        let redactor = redactor(&[(value, "P")]);
        for text in [
            value,
            r"x%2541%5cu0041%26amp;y%2525",
            r"x%41\\\\u0041&amp;y%25",
            r"x%41\\u0041&amp;amp;y%25",
            r"x%252541%255cu0041%2526amp%253by%252525",
        ] {
            assert_eq!(redactor.whole(text.as_bytes()).as_deref(), Some(b"P".as_slice()), "{text}");
        }
    }

    #[test]
    fn text_with_many_readings_is_read_in_time() {
        let value = "%25".repeat(200);
        let redactor = redactor(&[(&value, "P"), (&"\\".repeat(400), "Q")]);
        let begun = std::time::Instant::now();
        redactor.whole(format!("{}x", "%25".repeat(199)).as_bytes());
        redactor.whole(format!("{}x", "\\".repeat(399)).as_bytes());
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{:?}", begun.elapsed());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn pieces_are_redacted_as_the_whole_is(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("s%cr/t".to_owned()), Just("s%25cr%2ft".to_owned()), Just(r"s%cr\/t".to_owned()),
                    Just("s%cr".to_owned()), Just(forms("s%cr/t", "P")[4].value.iter().map(|b| char::from(*b)).collect()),
                    "[s%cr/t &;\\\\2]{0,6}", "[x\n ]{0,40}",
                ],
                0..20,
            ),
            cuts in proptest::collection::vec(1_usize..30, 0..40),
        ) {
            let text = parts.concat();
            let whole = Redactor::new(forms("s%cr/t", "P"));
            let expected = whole.whole(text.as_bytes()).unwrap_or_else(|| text.clone().into_bytes());
            let (mut redactor, mut rest, mut out) = (Redactor::new(forms("s%cr/t", "P")), text.as_bytes(), Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                out.extend(redactor.push(piece));
                rest = after;
            }
            out.extend(redactor.push(rest));
            out.extend(redactor.finish());
            prop_assert_eq!(out, expected);
        }
    }
}
