//! Search for recovery phrases: runs of words of BIP-39.

use std::ops::Range;

use crate::validate;

/// Words of a phrase that are enough to inspect it.
pub(crate) const PHRASE: usize = 12;
/// Maximum bytes between two words of a phrase.
const SEPARATOR: usize = 6;
/// Bytes between two samples of a search for phrases.
const SAMPLE: usize = 48;

/// Returns the runs of words of BIP-39 that are long enough for a phrase. It samples: a phrase is longer than a step.
pub(crate) fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = SAMPLE;
    while at < bytes.len() {
        let is_word = |range: &Range<usize>| {
            (3..=8).contains(&range.len()) && validate::word(&bytes[range.clone()]).is_some()
        };
        let after = |from: usize| {
            from + bytes[from..].iter().take(SEPARATOR).take_while(|byte| !byte.is_ascii_alphabetic()).count()
        };
        let next = |from: usize| {
            let start = after(from);
            let length = bytes[start..].iter().take(9).take_while(|byte| byte.is_ascii_alphabetic()).count();
            start..start + length
        };
        // From the middle of a word to the start of the next one.
        let first = at + bytes[at..].iter().take(9).take_while(|byte| byte.is_ascii_alphabetic()).count();
        if !validate::starts_word(&bytes[after(first)..]) {
            at += SAMPLE;
            continue;
        }
        let mut word = next(first);
        if !is_word(&word) {
            at += SAMPLE;
            continue;
        }
        let mut end = word.end;
        let mut start = word.start;
        let mut count = 0;
        while is_word(&word) {
            end = word.end;
            count += 1;
            word = next(end);
        }
        while let Some(before) = previous(bytes, start).filter(is_word) {
            start = before.start;
            count += 1;
        }
        if count >= PHRASE {
            found.push(start..end);
        }
        at = end + SAMPLE;
    }
    found
}

/// Returns the word before a place.
fn previous(bytes: &[u8], from: usize) -> Option<Range<usize>> {
    let gap =
        bytes[..from].iter().rev().take(SEPARATOR).take_while(|byte| !byte.is_ascii_alphabetic()).count();
    let end = from - gap;
    let length = bytes[..end].iter().rev().take(9).take_while(|byte| byte.is_ascii_alphabetic()).count();
    (length > 0 && gap > 0).then(|| end - length..end)
}
