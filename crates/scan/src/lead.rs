//! Texts with which the matches of a regular expression start.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Maximum texts that a regular expression can start with, to be tried only where a keyword starts.
const LEADS: usize = 512;
/// Maximum letters of a class after which such a text continues.
const FEW: usize = 6;
/// Maximum letters of a class with which such a text ends.
const MANY: usize = 40;
/// Maximum bytes from the start of a match in which a byte is searched, and maximum different ones.
const NEAR: usize = 128;
const FIRSTS: usize = 24;
/// Minimum letters of a class that most texts consist of.
const MOST: usize = 200;
/// Minimum letters of such a class in a row that are far.
const FAR: u32 = 200;

/// Returns all texts with which matches start, in lower case, each as far as it is certain. `None` if there are too many.
pub(crate) fn leads(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (lead, _) in extend(vec![(Vec::new(), true)], hir)? {
        all.push(lead);
    }
    Some(all)
}

/// Reports whether each match that starts with a letter, a digit or `_` starts after another byte.
fn starts_word(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Look(look) => *look == Look::WordAscii,
        HirKind::Literal(literal) => literal.0.first().is_some_and(|byte| !is_word(*byte)),
        HirKind::Class(Class::Bytes(class)) => {
            !class.iter().any(|range| (range.start()..=range.end()).any(is_word))
        }
        HirKind::Capture(capture) => starts_word(&capture.sub),
        HirKind::Repetition(repetition) => repetition.min > 0 && starts_word(&repetition.sub),
        HirKind::Concat(parts) => parts.first().is_some_and(starts_word),
        HirKind::Alternation(parts) => parts.iter().all(starts_word),
        HirKind::Empty | HirKind::Class(_) => false,
    }
}

/// Returns for each keyword whether no match that starts with it starts inside a word.
pub(crate) fn keywords_start_words(hir: &Hir, keywords: &[String]) -> Vec<bool> {
    let HirKind::Alternation(parts) = hir.kind() else { return vec![starts_word(hir); keywords.len()] };
    let inside: Vec<_> = parts.iter().filter(|part| !starts_word(part)).map(leads).collect();
    let starts = |leads: &Option<Vec<Vec<u8>>>, keyword: &str| {
        leads.as_ref().is_none_or(|leads| leads.iter().any(|lead| lead.starts_with(keyword.as_bytes())))
    };
    keywords.iter().map(|keyword| !inside.iter().any(|leads| starts(leads, keyword))).collect()
}

/// Reports whether an expression can read far over any text before it fails, as with `.*`.
pub(crate) fn reads_far(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Repetition(repetition) => {
            let far = repetition.max.is_none_or(|max| max >= FAR);
            let letters = |class: &Class| match class {
                Class::Bytes(class) => class.iter().map(|range| range.len()).sum::<usize>(),
                Class::Unicode(_) => 0,
            };
            let any = matches!(repetition.sub.kind(), HirKind::Class(class) if letters(class) >= MOST);
            (far && any) || reads_far(&repetition.sub)
        }
        HirKind::Capture(capture) => reads_far(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(reads_far),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Bytes of which each match has one near its start.
#[derive(Debug, Clone)]
pub(crate) struct Near {
    bytes: [bool; 256],
    /// Distance within which it is.
    within: usize,
}

impl Near {
    /// Returns those of an expression: the first bytes of the part that begins with the fewest. `None` if no part after its first
    /// bytes limits them.
    pub(crate) fn of(hir: &Hir) -> Option<Near> {
        let HirKind::Concat(parts) = hir.kind() else { return None };
        let (mut within, mut best) = (0_usize, None::<(usize, Near)>);
        for part in parts {
            if (1..NEAR).contains(&within)
                && let Some(bytes) = firsts(part)
            {
                let count = bytes.iter().filter(|is_first| **is_first).count();
                if count <= FIRSTS && best.as_ref().is_none_or(|(fewest, _)| count < *fewest) {
                    best = Some((count, Near { bytes, within: within + 1 }));
                }
            }
            within += part.properties().maximum_len().unwrap_or(NEAR);
        }
        best.map(|(_, near)| near)
    }

    /// Reports whether a match can start where a text starts.
    pub(crate) fn may_match(&self, text: &[u8]) -> bool {
        let near = &text[..text.len().min(self.within)];
        // Several at a time: a branch for each costs more.
        near.chunks(8).any(|some| some.iter().fold(false, |any, byte| any | self.bytes[usize::from(*byte)]))
    }
}

/// Returns the bytes with which a part of an expression starts; `None` if it can be empty, or if they are not known.
fn firsts(part: &Hir) -> Option<[bool; 256]> {
    let mut bytes = [false; 256];
    match part.kind() {
        HirKind::Literal(literal) => bytes[usize::from(*literal.0.first()?)] = true,
        HirKind::Class(Class::Bytes(class)) => {
            for range in class.iter() {
                bytes[usize::from(range.start())..=usize::from(range.end())].fill(true);
            }
        }
        HirKind::Capture(capture) => return firsts(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => return firsts(&repetition.sub),
        HirKind::Concat(parts) => {
            return firsts(parts.iter().find(|part| !matches!(part.kind(), HirKind::Look(_)))?);
        }
        HirKind::Alternation(parts) => {
            for part in parts {
                firsts(part)?.iter().zip(&mut bytes).for_each(|(first, byte)| *byte |= first);
            }
        }
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(_) | HirKind::Repetition(_) => return None,
    }
    Some(bytes)
}

/// Reports whether a place has letters, digits or `_` on both sides.
pub(crate) fn is_inside_word(bytes: &[u8], at: usize) -> bool {
    let is_word = |at: usize| bytes.get(at).is_some_and(|byte| is_word(*byte));
    is_word(at) && at.checked_sub(1).is_some_and(is_word)
}

/// Reports whether a byte belongs to a word of a regular expression.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Extends each text, with whether it can be extended, by what an expression matches next.
fn extend(before: Vec<(Vec<u8>, bool)>, hir: &Hir) -> Option<Vec<(Vec<u8>, bool)>> {
    let closed = |leads: Vec<(Vec<u8>, bool)>| leads.into_iter().map(|(lead, _)| (lead, false)).collect();
    let mut after = match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => before,
        HirKind::Literal(literal) => append(&before, &[&literal.0]),
        HirKind::Class(Class::Bytes(class)) => {
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
