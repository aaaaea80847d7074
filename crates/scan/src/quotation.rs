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

/// Quotes that are also syntax of JSON and programs.
const PLAIN: [u8; 3] = [b'"', b'\'', b'`'];
/// Quotes of prose alone, with those that end them.
const TYPOGRAPHIC: [(&str, &str); 7] =
    [("“", "”"), ("‘", "’"), ("«", "»"), ("„", "“"), ("‹", "›"), ("「", "」"), ("<code>", "</code>")];
/// Maximum bytes between an opening quote and a match, and between a match and a closing quote.
const INSIDE: usize = 2;
const AFTER: usize = 80;

/// Reports whether a match is a quotation: in quotes of its own, or after words that announce an example.
pub(crate) fn quoted(line: &[u8], range: &Range<usize>) -> bool {
    let (before, after) = (&line[..range.start], &line[range.end..]);
    let text =
        String::from_utf8_lossy(&before[before.len().saturating_sub(ANNOUNCED)..]).to_ascii_lowercase();
    let announced = QUOTING.iter().any(|word| text.contains(word));
    let surrounded = PLAIN.iter().any(|quote| {
        let near = before.iter().rev().take(1 + INSIDE).position(|byte| byte == quote);
        let Some(opening) = near.map(|back| before.len() - 1 - back) else { return false };
        // A quote after a letter and a space is prose. After a sign, it is the syntax of JSON or of a program.
        let mut earlier = before[..opening].iter().rev();
        let prose = earlier.next() == Some(&b' ') && earlier.next().is_some_and(u8::is_ascii_alphabetic);
        prose && after.iter().take(AFTER).any(|byte| byte == quote)
    });
    let in_prose = || {
        let after = &after[..after.len().min(AFTER)];
        TYPOGRAPHIC.iter().any(|(opening, closing)| {
            let near = &before[before.len().saturating_sub(opening.len() + INSIDE)..];
            memchr::memmem::find(near, opening.as_bytes()).is_some()
                && memchr::memmem::find(after, closing.as_bytes()).is_some()
        })
    };
    surrounded || in_prose() || announced && text.ends_with(['"', '`', '\'', ':', ' ', '“', '‘', '«', '„'])
}
