//! Quotations: instructions that a text shows and does not give.

use std::ops::Range;

/// Bytes before a match that can announce an example.
const ANNOUNCED: usize = 48;
/// Words before a match on its line that announce an example.
const QUOTING: [&str; 12] = [
    "example",
    "e.g.",
    "such as",
    "attack",
    "phrase",
    "payload",
    "detect",
    "known as",
    "called",
    "like \"",
    "like `",
    "malicious",
];

/// Reports whether a match is a quotation: in quotes of its own, or after words that announce an example.
pub(crate) fn quoted(line: &[u8], range: &Range<usize>) -> bool {
    let (before, after) = (&line[..range.start], &line[range.end..]);
    let text =
        String::from_utf8_lossy(&before[before.len().saturating_sub(ANNOUNCED)..]).to_ascii_lowercase();
    let announced = QUOTING.iter().any(|word| text.contains(word));
    let surrounded = [b'"', b'\'', b'`'].iter().any(|quote| {
        let near = before.iter().rev().take(3).position(|byte| byte == quote);
        let Some(opening) = near.map(|back| before.len() - 1 - back) else { return false };
        // A quote after a letter and a space is prose. After a sign, it is the syntax of JSON or of a program.
        let mut earlier = before[..opening].iter().rev();
        let prose = earlier.next() == Some(&b' ') && earlier.next().is_some_and(u8::is_ascii_alphabetic);
        prose && after.iter().take(80).any(|byte| byte == quote)
    });
    surrounded || announced && text.ends_with(['"', '`', '\'', ':', ' '])
}
