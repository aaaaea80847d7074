//! The examples of gitleaks: recall in every encoding, and its negatives.

use hutch_scan::{At, Direction, Location, RuleSet, Scanner, State};

use crate::encode;

const POSITIVES: &str = include_str!("corpus/positives");
const NEGATIVES: &str = include_str!("corpus/negatives");
/// Minimum share of the positives that must be found.
const RECALL: f64 = 0.98;
/// The tests take every such positive: a debug build is slow. The benchmark takes all.
const STEP: usize = 7;

fn scanner() -> Scanner {
    Scanner::new(vec![RuleSet::builtin("secrets").unwrap()]).unwrap()
}

fn finds(scanner: &Scanner, location: &Location, bytes: &[u8], rule: &str) -> bool {
    let found = scanner.scan_whole(&mut State::new(Direction::Outbound), location, bytes);
    found.iter().any(|finding| finding.rule == rule)
}

#[test]
fn positives_are_found_in_every_encoding() {
    let scanner = scanner();
    let examples: Vec<_> = encode::corpus(POSITIVES).into_iter().step_by(STEP).collect();
    for encoding in encode::TEXTS {
        let found = examples.iter().filter(|example| {
            let location = Location::named(At::Body, &example.path);
            finds(&scanner, &location, &encode::text(encoding, &example.text), &example.rule)
        });
        let recall = found.count() as f64 / examples.len() as f64;
        assert!(recall >= RECALL, "{encoding}: {recall}");
    }
}

#[test]
fn positives_are_found_in_compressed_bodies() {
    let scanner = scanner();
    let examples: Vec<_> = encode::corpus(POSITIVES).into_iter().step_by(STEP * 3).collect();
    for (name, compression) in encode::COMPRESSIONS {
        let found = examples.iter().filter(|example| {
            let mut location = Location::compressed(compression);
            location.name.clone_from(&example.path);
            finds(&scanner, &location, &encode::compress(compression, &example.text), &example.rule)
        });
        let recall = found.count() as f64 / examples.len() as f64;
        assert!(recall >= RECALL, "{name}: {recall}");
    }
}

#[test]
fn negatives_are_not_found() {
    let scanner = scanner();
    for example in encode::corpus(NEGATIVES) {
        let location = Location::named(At::Body, &example.path);
        assert!(!finds(&scanner, &location, &example.text, &example.rule), "a negative of {}", example.rule);
    }
}
