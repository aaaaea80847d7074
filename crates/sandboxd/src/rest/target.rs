//! Target of a request: route, path and parameters.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use hyper::Uri;

use super::refusal::Refusal;

/// Routes below `/v1/` that are followed by a path, and their methods.
const ROUTES: [(&str, &str); 7] = [
    ("files", "DELETE, GET, HEAD, PUT"),
    ("stat", "GET, HEAD"),
    ("folders", "PUT"),
    ("mode", "PUT"),
    ("move", "POST"),
    ("archive", "GET, PUT"),
    ("watch", "GET"),
];

/// Splits a target into the route and the path as sent.
pub(super) fn route(path: &str) -> Option<(&'static str, &str)> {
    let (name, rest) = path.strip_prefix("/v1/")?.split_once('/')?;
    ROUTES.iter().find(|(route, _)| *route == name).map(|(route, _)| (*route, rest))
}

/// Returns the methods of a route.
pub(super) fn methods(route: &str) -> &'static str {
    ROUTES.iter().find(|(name, _)| *name == route).map_or("", |(_, methods)| methods)
}

/// Returns the path without empty, `.` and `..` segments, if it has any. Encoded ones do not count.
pub(super) fn cleaned(path: &str) -> Option<String> {
    let mut segments = path.split('/').skip(1).peekable();
    let mut odd = !path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        ends_in_slash = last && matches!(segment, "" | "." | "..");
        match segment {
            "" if last => {}
            "" | "." => odd = true,
            ".." => {
                odd = true;
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    let slash = if ends_in_slash && !kept.is_empty() { "/" } else { "" };
    odd.then(|| format!("/{}{slash}", kept.join("/")))
}

/// Decodes the escapes of a path.
pub(super) fn decode(text: &str) -> Result<OsString, Refusal> {
    let decoded =
        unescape(text, false).ok_or_else(|| Refusal::invalid("path has a % without two hex digits"))?;
    match decoded.contains(&0) {
        true => Err(Refusal::invalid("path holds a NUL byte")),
        false => Ok(OsString::from_vec(decoded)),
    }
}

/// Returns the first parameter of that name; invalid UTF-8 in it is replaced.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&');
    let read = |text| unescape(text, true).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    pairs
        .filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (read(key)? == name).then(|| read(value))?
        })
        .next()
}

/// Returns a boolean parameter; false if absent.
pub(super) fn yes(uri: &Uri, name: &str) -> Result<bool, Refusal> {
    let Some(text) = parameter(uri, name).filter(|text| !text.is_empty()) else { return Ok(false) };
    match text.as_str() {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(Refusal::invalid(&format!("{name} {text:?} must be a boolean"))),
    }
}

/// Returns the parameter `mode`: three octal digits after a zero.
pub(super) fn mode(uri: &Uri, usual: u32) -> Result<u32, Refusal> {
    let Some(text) = parameter(uri, "mode").filter(|text| !text.is_empty()) else { return Ok(usual) };
    let digits = text
        .strip_prefix('0')
        .filter(|rest| rest.len() == 3 && rest.bytes().all(|b| (b'0'..=b'7').contains(&b)));
    digits
        .and_then(|digits| u32::from_str_radix(digits, 8).ok())
        .ok_or_else(|| Refusal::invalid(&format!("mode {text:?} must match ^0[0-7]{{3}}$")))
}

fn unescape(text: &str, plus_is_space: bool) -> Option<Vec<u8>> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    let (mut bytes, mut out) = (text.bytes(), Vec::with_capacity(text.len()));
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => (digit(bytes.next())? * 16 + digit(bytes.next())?) as u8,
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unclean_paths_are_cleaned_and_others_unchanged() {
        for (sent, expected) in [
            ("/v1/files/a/b", None),
            ("/v1/files/", None),
            ("/v1/files/a/", None),
            ("/v1/files/%2e%2e/x", None),
            ("/", None),
            ("/v1//files/a", Some("/v1/files/a")),
            ("/v1/files//", Some("/v1/files/")),
            ("/v1/files/./a", Some("/v1/files/a")),
            ("/v1/files/a/..", Some("/v1/files/")),
            ("/v1/files/a/../../health", Some("/v1/health")),
            ("/../../etc", Some("/etc")),
            ("*", Some("/")),
        ] {
            assert_eq!(cleaned(sent).as_deref(), expected, "{sent}");
        }
    }

    #[test]
    fn parameters() {
        let uri: Uri = "/x?mode=0640&a%62=c+d%21&recursive=True&empty&mode=0777&bad=%zz".parse().unwrap();
        assert_eq!(mode(&uri, 0).unwrap(), 0o640);
        assert_eq!(parameter(&uri, "ab").as_deref(), Some("c d!"));
        assert_eq!(parameter(&uri, "empty").as_deref(), Some(""));
        assert_eq!(parameter(&uri, "bad"), None);
        assert!(yes(&uri, "recursive").unwrap() && !yes(&uri, "none").unwrap());
        assert!(yes(&uri, "mode").is_err());
        for wrong in ["644", "0888", "00644", "+644", "0x44", "0%2B44"] {
            assert!(mode(&format!("/x?mode={wrong}").parse().unwrap(), 0).is_err(), "{wrong}");
        }
        assert_eq!(mode(&"/x".parse().unwrap(), 0o644).unwrap(), 0o644);
    }

    proptest! {
        #[test]
        fn decoding_is_total_and_undoes_encoding(bytes in prop::collection::vec(1u8.., 0..40), noise in ".{0,40}") {
            let encoded: String = bytes.iter().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(decode(&encoded).unwrap().into_vec(), bytes);
            let _ = decode(&noise);
            if let Some(path) = cleaned(&noise) {
                prop_assert_eq!(cleaned(&path), None, "cleaned once is clean");
            }
        }
    }
}
