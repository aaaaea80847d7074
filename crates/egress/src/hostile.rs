//! Hostile tests of the parsers, from arbitrary bytes.

use crate::first::classify;

/// Answers any DNS message. See [`crate::dns::any_message`].
pub fn dns(bytes: &[u8]) {
    crate::dns::any_message(bytes);
}

/// Classifies any first bytes. What a prefix is stays what it is when more bytes follow, unless it is incomplete.
pub fn first(bytes: &[u8]) {
    let whole = classify(bytes);
    if let Some(half) = bytes.get(..bytes.len() / 2) {
        let half = classify(half);
        assert!(half == crate::first::First::Incomplete || half == whole, "{half:?} became {whole:?}");
    }
}
