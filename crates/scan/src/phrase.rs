//! Search for recovery phrases: runs of words of BIP-39.

use std::ops::Range;

use crate::{eight, validate};

/// Words of a phrase that are enough to inspect it.
pub(crate) const PHRASE: usize = 12;
/// Maximum bytes between two words of a phrase.
const SEPARATOR: usize = 6;
/// Bytes between two samples of a search for phrases.
const SAMPLE: usize = 48;
/// Letters at which a word is too long.
const LONGEST: u32 = 9;

/// Returns the runs of words of BIP-39 that are long enough for a phrase. It samples: a phrase is longer than a step.
pub(crate) fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = SAMPLE;
    while at < bytes.len() {
        // From the middle of a word to the start of the next one.
        let near = letters(bytes, at);
        let rest = near.trailing_ones().min(LONGEST);
        let Some(first) = word(bytes, at + rest as usize, near >> rest) else {
            at += SAMPLE;
            continue;
        };
        let (mut start, mut end, mut count) = (first.start, first.end, 1);
        while let Some(next) = word(bytes, end, letters(bytes, end)) {
            end = next.end;
            count += 1;
        }
        while let Some(before) = previous(bytes, start) {
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

/// Returns bits of the next 24 bytes, of which those of letters are set: the rest of a word, a separator and a word.
fn letters(bytes: &[u8], at: usize) -> u32 {
    let bits = |place: usize| eight::letters(eight::read(bytes, at + place)) << place;
    bits(0) | bits(8) | bits(16)
}

/// Returns the next word, if it is one of BIP-39, by the bits of the letters from a place on.
fn word(bytes: &[u8], from: usize, letters: u32) -> Option<Range<usize>> {
    let start = letters.trailing_zeros().min(SEPARATOR as u32);
    let length = (letters >> start).trailing_ones() as usize;
    let start = from + start as usize;
    is_word(bytes, start, length).then_some(start..start + length)
}

fn is_word(bytes: &[u8], start: usize, length: usize) -> bool {
    let letters = || eight::small(eight::read(bytes, start)) & u64::MAX >> (64 - 8 * length);
    (3..=8).contains(&length) && validate::word_of(letters()).is_some()
}

/// Returns the word before a place, if it is one of BIP-39.
fn previous(bytes: &[u8], from: usize) -> Option<Range<usize>> {
    let gap =
        bytes[..from].iter().rev().take(SEPARATOR).take_while(|byte| !byte.is_ascii_alphabetic()).count();
    let end = from - gap;
    let before = bytes[..end].iter().rev().take(LONGEST as usize);
    let length = before.take_while(|byte| byte.is_ascii_alphabetic()).count();
    (gap > 0 && is_word(bytes, end - length, length)).then_some(end - length..end)
}
