//! Forms of a text in which clients send it and servers answer with it.

use std::borrow::Cow;

/// Returns the text with everything but letters, digits, `-`, `.`, `_` and `~` as percent codes.
pub(super) fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
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

#[cfg(test)]
mod tests {
    use super::*;

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
