//! Score of instructions for a model in text that is data.

use std::collections::BTreeMap;

use crate::finding::{Severity, Step};
use crate::scanner::Hit;

/// Minimum score of a finding.
const THRESHOLD: u32 = 5;
/// Minimum score of a severe finding.
const SEVERE: u32 = 8;
/// Score of each decoder before an instruction: text for people is not encoded.
const ENCODED: u32 = 2;
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
