//! Score of instructions for a model in text that is data.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{At, Severity, Step};
use crate::scanner::Hit;

/// Minimum score of a finding.
const THRESHOLD: u32 = 5;
/// Minimum score of a severe finding.
const SEVERE: u32 = 8;
/// Minimum score of a finding in the definition of a tool, which has no reason to instruct a model about anything else.
const OF_DEFINITIONS: u32 = 4;
/// Hits that are further apart in a text do not add up: a long text has words of many rules.
const WINDOW: u64 = 2 << 10;
/// Score of each decoder before an instruction: text for people is not encoded.
const ENCODED: u32 = 2;
/// Result of adding up the hits in one text.
pub(crate) struct Score {
    pub(crate) severity: Severity,
    /// Number of the hit with the largest share.
    pub(crate) hit: usize,
}

/// Adds up hits that are near each other. A hit without a place is near all others.
pub(crate) fn score(hits: &[Hit], at: At) -> Option<Score> {
    let windows: BTreeSet<u64> = hits.iter().map(|hit| hit.place.unwrap_or(0) / WINDOW).collect();
    let near = windows.into_iter().map(|first| {
        let is_near = |place: u64| (first..=first + 1).contains(&(place / WINDOW));
        sum(hits.iter().enumerate().filter(move |(_, hit)| hit.place.is_none_or(is_near)))
    });
    let (total, hit) = near.flatten().max_by_key(|(total, _)| *total)?;
    let threshold = if at == At::ToolDefinition { OF_DEFINITIONS } else { THRESHOLD };
    let severity = match total {
        SEVERE.. => Severity::High,
        total if total >= threshold => Severity::Medium,
        _ => return None,
    };
    Some(Score { severity, hit })
}

/// Returns the sum of hits and the number of that with the largest share. Each rule counts once, with its largest value.
fn sum<'a>(hits: impl Iterator<Item = (usize, &'a Hit)>) -> Option<(u32, usize)> {
    let mut best: BTreeMap<&str, (u32, usize)> = BTreeMap::new();
    for (number, hit) in hits {
        let value = value(hit);
        let entry = best.entry(&hit.rule).or_insert((value, number));
        if entry.0 < value {
            *entry = (value, number);
        }
    }
    let total = best.values().map(|(value, _)| value).sum();
    let (_, hit) = best.into_values().max_by_key(|(value, _)| *value)?;
    Some((total, hit))
}

fn value(hit: &Hit) -> u32 {
    let hiding = |step: &&Step| !matches!(step, Step::Join | Step::Escapes | Step::Percent | Step::Flow);
    let encoded = u32::from(hit.steps.iter().any(|step| hiding(&step))) * ENCODED;
    match hit.quoted {
        true => hit.score / 2,
        false => hit.score + encoded,
    }
}
