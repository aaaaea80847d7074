//! Formats texts as Python does. Clients and agents parse them, so they are part of the contract.

use std::fmt::Write;

/// Formats a string like `repr()`.
pub(crate) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Formats a list of strings like `repr()`.
pub(crate) fn repr_list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| repr(item)).collect();
    format!("[{}]", items.join(", "))
}

/// Formats an `OSError` that names a file like `str()`.
pub(crate) fn os_error(error: &std::io::Error, file: &str) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let text = std::io::Error::from_raw_os_error(number).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("[Errno {number}] {text}: {}", repr(file))
        }
        None => error.to_string(),
    }
}

/// Decodes a command's output like `text=True`: strict UTF-8, and every line end becomes `\n`.
///
/// # Errors
/// The text of the `UnicodeDecodeError`.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let (start, fault) = (error.utf8_error().valid_up_to(), error.utf8_error().error_len());
        let bytes = error.as_bytes();
        let first = bytes[start];
        let end = fault.map_or(bytes.len(), |length| start + length);
        let reason = match (fault, first) {
            (None, _) => "unexpected end of data",
            (Some(_), 0x80..=0xc1 | 0xf5..) => "invalid start byte",
            (Some(_), _) => "invalid continuation byte",
        };
        if end == start + 1 {
            format!("'utf-8' codec can't decode byte 0x{first:02x} in position {start}: {reason}")
        } else {
            format!("'utf-8' codec can't decode bytes in position {start}-{}: {reason}", end - 1)
        }
    })?;
    Ok(if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text })
}

/// Decodes like `urllib.parse.unquote`: invalid escapes stay, invalid UTF-8 becomes U+FFFD.
pub fn unquote(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while at < bytes.len() {
        let escaped = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%').and_then(|pair| {
            let digit = |b: u8| char::from(b).to_digit(16);
            Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)
        });
        out.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Encodes like `urllib.parse.quote` with its default safe characters, the slash included.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                out.push(byte.into())
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_formatted_like_python() {
        assert_eq!(repr("a"), "'a'");
        assert_eq!(repr("it's"), "\"it's\"");
        assert_eq!(repr("'\""), "'\\'\"'");
        assert_eq!(repr("a\n\t\x00\\é"), "'a\\n\\t\\x00\\\\é'");
        assert_eq!(repr_list(&["sleep".into(), "5".into()]), "['sleep', '5']");
    }

    #[test]
    fn invalid_utf8_fails_like_python() {
        let refused = |bytes: &[u8]| decode(bytes.to_vec()).unwrap_err();
        assert_eq!(
            refused(b"\xff"),
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
        );
        assert_eq!(
            refused(b"a\xc3"),
            "'utf-8' codec can't decode byte 0xc3 in position 1: unexpected end of data"
        );
        assert_eq!(
            refused(b"\xe2(\xa1"),
            "'utf-8' codec can't decode byte 0xe2 in position 0: invalid continuation byte"
        );
        assert_eq!(
            refused(b"\xe2\x82("),
            "'utf-8' codec can't decode bytes in position 0-1: invalid continuation byte"
        );
        assert_eq!(
            refused(b"\xf0\x9f\x98"),
            "'utf-8' codec can't decode bytes in position 0-2: unexpected end of data"
        );
        assert_eq!(decode(b"a\r\nb\rc".to_vec()).unwrap(), "a\nb\nc");
    }

    #[test]
    fn percent_escapes_both_ways() {
        assert_eq!(unquote("a%2Fb%zz%"), "a/b%zz%");
        assert_eq!(unquote("%c3%a9%ff"), "é\u{fffd}");
        assert_eq!(quote("a b/é"), "a%20b/%C3%A9");
    }
}
