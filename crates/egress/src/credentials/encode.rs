//! Forms of a text in which clients send it and servers answer with it.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use zeroize::Zeroizing;

use super::redact::Pair;

/// Returns the text with everything but letters, digits, `-`, `.`, `_` and `~` as percent codes.
pub(super) fn percent(text: &str) -> String {
    percent_bytes(text.as_bytes())
}

/// Returns the bytes as [`percent`] does.
pub(super) fn percent_bytes(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for byte in bytes.iter().copied() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Returns the bytes with percent codes decoded. An invalid code stays.
pub(super) fn without_percent(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.contains(&b'%') {
        return Cow::Borrowed(bytes);
    }
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

/// Returns the text as it stands between the quotes of JSON.
pub(super) fn json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Bytes with which escapes begin.
pub(super) const ESCAPES: [u8; 3] = *b"%\\&";

/// Bytes for which an escape stands.
pub(super) struct Escape {
    bytes: [u8; 4],
    count: usize,
    /// Bytes of the escape.
    pub(super) length: usize,
}

impl Escape {
    fn of(character: char, length: usize) -> Escape {
        let mut bytes = [0; 4];
        let count = character.encode_utf8(&mut bytes).len();
        Escape { bytes, count, length }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// Reads the escapes with which a text may begin: a percent code, one of JSON or of JavaScript, or a reference of HTML.
/// Percent codes and those of JSON may be escaped once more, so that there are several readings.
pub(super) fn escapes(text: &[u8]) -> impl Iterator<Item = Escape> {
    let readings = match text.first() {
        Some(b'%') => {
            [percent_code(text, 1), percent_code(text, 3).filter(|_| text.starts_with(b"%25")), None]
        }
        Some(b'\\') => [backslash(text, 1), backslash(text, 2), backslash(text, 3)],
        Some(b'&') => [reference(text), None, None],
        _ => [None, None, None],
    };
    readings.into_iter().flatten()
}

fn percent_code(text: &[u8], from: usize) -> Option<Escape> {
    let byte = number(text, from, 2, 16)?;
    Some(Escape { bytes: [byte as u8, 0, 0, 0], count: 1, length: from + 2 })
}

/// Reads what follows this many backslashes.
fn backslash(text: &[u8], count: usize) -> Option<Escape> {
    if text.get(..count)?.iter().any(|byte| *byte != b'\\') {
        return None;
    }
    match text.get(count)? {
        byte @ (b'"' | b'/' | b'\'') => Some(Escape::of(char::from(*byte), count + 1)),
        b'\\' if count != 2 => Some(Escape::of('\\', count + 1)),
        b'x' => Some(Escape::of(char::from_u32(number(text, count + 1, 2, 16)?)?, count + 3)),
        b'u' => {
            let (high, length) = (number(text, count + 1, 4, 16)?, count + 5);
            if let Some(character) = char::from_u32(high) {
                return Some(Escape::of(character, length));
            }
            let follows = text[length..].starts_with(&text[..=count]);
            match number(text, length + count + 1, 4, 16)? {
                low @ 0xdc00..0xe000 if follows && high < 0xdc00 => {
                    let point = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                    Some(Escape::of(char::from_u32(point)?, 2 * length))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn reference(text: &[u8]) -> Option<Escape> {
    let name = &text[1..text.iter().take(8).position(|byte| *byte == b';')?];
    let character = match name {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 0, digits.len(), 16)?)?,
        [b'#', digits @ ..] => char::from_u32(number(digits, 0, digits.len(), 10)?)?,
        _ => return None,
    };
    Some(Escape::of(character, name.len() + 2))
}

/// Returns the number that this many digits are.
fn number(text: &[u8], from: usize, count: usize, radix: u32) -> Option<u32> {
    let digits = text.get(from..from + count).filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0, |number, byte| Some(number * radix + char::from(*byte).to_digit(radix)?))
}

/// Returns the forms in which a server may answer with the value, to which escapes may be added: as it is, in Base64 of both
/// alphabets at each of its three alignments, in hexadecimal digits, and in UTF-16.
pub(super) fn forms(value: &str, placeholder: &str) -> Vec<Pair> {
    let digit = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
    let hex = |text: &str| text.bytes().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
    let wide = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect();
    let pair = |form: &dyn Fn(&str) -> Vec<u8>| Pair {
        value: Zeroizing::new(form(value)),
        placeholder: form(placeholder),
    };
    let mut forms = vec![
        pair(&|text| text.into()),
        pair(&hex),
        pair(&|text| wide(text, u16::to_le_bytes)),
        pair(&|text| wide(text, u16::to_be_bytes)),
    ];
    for alphabet in [STANDARD, URL_SAFE] {
        forms.extend((0..3).map(|before| pair(&|text| aligned(&alphabet, text, before).into_bytes())));
    }
    forms
}

/// Returns the characters of Base64 that depend on the text alone, if this many bytes of a group stand before it.
fn aligned(alphabet: &GeneralPurpose, text: &str, before: usize) -> String {
    let bytes = Zeroizing::new([&[0; 2][..before], text.as_bytes()].concat());
    let encoded = Zeroizing::new(alphabet.encode(&bytes));
    encoded[(before * 8).div_ceil(6)..bytes.len() * 8 / 6].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_a_text_has_the_value_at_any_alignment() {
        for (before, after) in [("", ""), ("a", "b"), ("ab", ""), ("abc", "de"), ("{\"user\": \"", "\"}")] {
            for alphabet in [STANDARD, URL_SAFE] {
                let text = alphabet.encode(format!("{before}sek>ret?-value{after}"));
                let found = forms("sek>ret?-value", "P").iter().any(|form| {
                    text.as_bytes().windows(form.value.len()).any(|window| window == form.value.as_slice())
                });
                assert!(found, "{before} {after} {text}");
            }
        }
    }

    #[test]
    fn percent_codes_are_made_and_read() {
        assert_eq!(percent("aZ09-._~/+ é"), "aZ09-._~%2F%2B%20%C3%A9");
        for (text, expected) in
            [("%41b%2g%", "Ab%2g%"), ("%2541", "%41"), ("plain", "plain"), ("%e9", "\u{fffd}")]
        {
            assert_eq!(String::from_utf8_lossy(&without_percent(text.as_bytes())), expected, "{text}");
        }
        assert_eq!(json("a\"\\\n"), "a\\\"\\\\\\n");
    }
}
