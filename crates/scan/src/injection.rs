//! Score of instructions for a model in text that is data.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::finding::{Severity, Step};
use crate::scanner::Hit;

/// Minimum score of a finding.
const THRESHOLD: u32 = 5;
/// Minimum score of a severe finding.
const SEVERE: u32 = 8;
/// Score of each decoder before an instruction: text for people is not encoded.
const ENCODED: u32 = 2;
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

/// Result of adding up the hits in one text.
pub(crate) struct Score {
    pub(crate) severity: Severity,
    /// Number of the hit with the largest share.
    pub(crate) hit: usize,
}

/// Adds up hits. Each rule counts once, with its largest value.
pub(crate) fn score(hits: &[Hit]) -> Option<Score> {
    let mut best: BTreeMap<&str, (u32, usize)> = BTreeMap::new();
    for (number, hit) in hits.iter().enumerate() {
        let value = value(hit);
        let entry = best.entry(&hit.rule).or_insert((value, number));
        if entry.0 < value {
            *entry = (value, number);
        }
    }
    let total: u32 = best.values().map(|(value, _)| value).sum();
    let severity = match total {
        SEVERE.. => Severity::High,
        THRESHOLD.. => Severity::Medium,
        _ => return None,
    };
    let (_, hit) = best.into_values().max_by_key(|(value, _)| *value)?;
    Some(Score { severity, hit })
}

fn value(hit: &Hit) -> u32 {
    let hiding = |step: &&Step| !matches!(step, Step::Join | Step::Escapes | Step::Percent);
    let encoded = u32::from(hit.steps.iter().any(|step| hiding(&step))) * ENCODED;
    match hit.quoted {
        true => hit.score / 2,
        false => hit.score + encoded,
    }
}

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
