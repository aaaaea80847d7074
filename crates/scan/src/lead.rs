//! Texts with which the matches of a regular expression start.

use regex_syntax::hir::{Hir, HirKind};

/// Maximum texts that a regular expression can start with, to be tried only where a keyword starts.
const LEADS: usize = 512;
/// Maximum letters of a class after which such a text continues.
const FEW: usize = 6;
/// Maximum letters of a class with which such a text ends.
const MANY: usize = 40;

/// Returns all texts with which matches start, in lower case, each as far as it is certain. `None` if there are too many.
pub(crate) fn leads(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (lead, _) in extend(vec![(Vec::new(), true)], hir)? {
        all.push(lead);
    }
    Some(all)
}

/// Extends each text, with whether it can be extended, by what an expression matches next.
fn extend(before: Vec<(Vec<u8>, bool)>, hir: &Hir) -> Option<Vec<(Vec<u8>, bool)>> {
    let closed = |leads: Vec<(Vec<u8>, bool)>| leads.into_iter().map(|(lead, _)| (lead, false)).collect();
    let mut after = match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => before,
        HirKind::Literal(literal) => append(&before, &[&literal.0]),
        HirKind::Class(regex_syntax::hir::Class::Bytes(class)) => {
            let bytes = class.iter().flat_map(|range| range.start()..=range.end());
            let letters: std::collections::BTreeSet<u8> =
                bytes.map(|byte| byte.to_ascii_lowercase()).collect();
            let letters: Vec<[u8; 1]> = letters.into_iter().map(|letter| [letter]).collect();
            let letters: Vec<&[u8]> = letters.iter().map(|letter| letter.as_slice()).collect();
            match letters.len() {
                count if count <= FEW => append(&before, &letters),
                count if count <= MANY => closed(append(&before, &letters)),
                _ => closed(before),
            }
        }
        HirKind::Class(_) => closed(before),
        HirKind::Capture(capture) => extend(before, &capture.sub)?,
        HirKind::Repetition(repetition) => match (repetition.min, repetition.max) {
            (0, Some(1)) => [before.clone(), extend(before, &repetition.sub)?].concat(),
            (0, _) => closed(before),
            _ => closed(extend(before, &repetition.sub)?),
        },
        HirKind::Concat(parts) => parts.iter().try_fold(before, extend)?,
        HirKind::Alternation(parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(extend(before.clone(), part)?);
            }
            all
        }
    };
    after.sort();
    after.dedup();
    (after.len() <= LEADS).then_some(after)
}

/// Appends each of several texts to each text that can be extended.
fn append(before: &[(Vec<u8>, bool)], texts: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    for (lead, open) in before {
        if *open {
            all.extend(
                texts.iter().map(|text| ([lead, text.to_ascii_lowercase().as_slice()].concat(), true)),
            );
        } else {
            all.push((lead.clone(), false));
        }
    }
    all
}
