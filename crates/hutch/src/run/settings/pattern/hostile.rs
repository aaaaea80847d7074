//! Patterns of any bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Pattern, is_pattern};

/// Compares a path with a pattern: the first line of the bytes, and what follows it.
pub(crate) fn pattern(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
    let absolute = |bytes: &[u8]| Path::new("/").join(OsStr::from_bytes(bytes));
    let (text, path) = (absolute(&bytes[..end]), absolute(&bytes[end + 1..]));
    let parsed = Pattern::new(&text);
    assert!(text.starts_with(&parsed.start), "{text:?}");
    let matches = parsed.matches(&path);
    assert!(!matches || path.starts_with(&parsed.start), "{text:?} {path:?}");
    if text.to_str().is_some_and(|text| !is_pattern(text)) {
        assert_eq!(matches, text.iter().eq(path.iter()), "{text:?} {path:?}");
    }
    // `**` at the end matches all below too.
    let below = Pattern::new(&text.join("**"));
    assert!(!matches || (below.matches(&path) && below.matches(&path.join("x"))), "{text:?} {path:?}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_patterns() {
        hutch_testkit::hostile::feed("hutch_patterns", super::pattern);
    }
}
