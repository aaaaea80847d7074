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
/// The same for a quote in prose.
const LONG: usize = 120;
/// Minimum words before a colon and a quote in prose. Names of fields have fewer.
const WORDS: usize = 3;
const AFTER: usize = 80;

/// Reports whether a match is a quotation: in quotes of its own, or after words that announce an example.
pub(crate) fn quoted(line: &[u8], range: &Range<usize>) -> bool {
    let (before, after) = (&line[..range.start], &line[range.end..]);
    let text =
        String::from_utf8_lossy(&before[before.len().saturating_sub(ANNOUNCED)..]).to_ascii_lowercase();
    let announced = QUOTING.iter().any(|word| {
        let mut places = text.match_indices(word);
        // A part of the name of a host announces nothing.
        places.any(|(at, _)| {
            !text[..at].ends_with(|before: char| before == '.' || before.is_ascii_alphanumeric())
        })
    });
    let surrounded = PLAIN.iter().any(|quote| {
        let opening = before.iter().rev().take(LONG).position(|byte| byte == quote);
        let Some(opening) = opening.map(|back| before.len() - 1 - back) else { return false };
        is_opening(before, opening) && after.iter().take(AFTER).any(|byte| byte == quote)
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

/// Reports whether a quote opens a quotation of prose: it follows a letter and a space, or words, a colon and a space. After
/// another sign, it is the syntax of JSON or of a program.
fn is_opening(line: &[u8], quote: usize) -> bool {
    // In JSON, a backslash stands before it.
    let escapes = line[..quote].iter().rev().take_while(|byte| **byte == b'\\').count();
    let Some(text) = line[..quote - escapes].strip_suffix(b" ") else { return false };
    match text {
        [.., last] if last.is_ascii_alphabetic() => true,
        [.., last, b':'] if last.is_ascii_alphabetic() => {
            let words =
                text[text.len().saturating_sub(ANNOUNCED)..].split(|byte| !byte.is_ascii_alphabetic());
            words.filter(|word| word.len() > 1).count() >= WORDS
        }
        _ => false,
    }
}
