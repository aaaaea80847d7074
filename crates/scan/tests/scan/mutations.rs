//! Texts of the cases with letters of several bytes, and with parts that are missing or twice: no text ends the scanner, which
//! would end the proxy of every sandbox.

use hutch_scan::{At, Calls, Direction, Hosts, Location, Pins, Scanner, Sequences, Session, State, redact};

use crate::cases;

/// Mutations of each text, and in the slow tests.
const FEW: usize = 3;
const MANY: usize = 100;
/// Insertions: letters of two to four bytes, spaces, marks that change the direction, and a byte of no letter.
const INSERTED: [&[u8]; 10] = [
    "é".as_bytes(),
    "漢".as_bytes(),
    "😀".as_bytes(),
    "\u{a0}".as_bytes(),
    "\u{feff}".as_bytes(),
    "\u{301}".as_bytes(),
    "\u{202e}".as_bytes(),
    "İ".as_bytes(),
    "ﬀ".as_bytes(),
    &[0xff],
];

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

fn mutated(text: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(text.len() + 1);
        let end = (at + numbers.below(8)).min(text.len());
        let inserted = INSERTED[numbers.below(INSERTED.len())].iter().copied();
        match numbers.below(4) {
            0 => drop(text.drain(at..end)),
            1 => {
                let twice = text[at..end].to_vec();
                drop(text.splice(at..at, twice));
            }
            2 => drop(text.splice(at..end, inserted)),
            _ => drop(text.splice(at..at, inserted)),
        }
    }
    text
}

fn scan(scanner: &Scanner, text: &[u8]) {
    for direction in [Direction::Outbound, Direction::Inbound] {
        for at in At::ALL {
            let (location, mut state) = (Location::named(at, "a"), State::new(direction));
            let findings = scanner.scan_whole(&mut state, &location, text);
            redact(text, 0, &findings);
            for chunk in text.chunks(text.len() / 3 + 1) {
                scanner.feed(&mut state, &location, chunk);
            }
            scanner.finish(&mut state);
        }
    }
    let [outbound, inbound] = [Direction::Outbound, Direction::Inbound].map(State::new);
    let mut session = Session::new(outbound, inbound, Pins::default());
    session.scan(scanner, Direction::Outbound, text);
    session.scan(scanner, Direction::Inbound, text);
    let text = String::from_utf8_lossy(text);
    Hosts::default().observe(scanner, &mut State::new(Direction::Outbound), &text, 0);
    Calls::default().observe(Sequences::builtin(), "shell", &text);
}

#[test]
fn mutated_texts_of_the_cases_are_scanned_to_their_end() {
    let is_slow = std::env::var_os("HUTCH_SLOW_TESTS").is_some_and(|value| value == "1");
    let (scanner, mut numbers) = (Scanner::builtin(), Numbers(7));
    for text in cases::texts() {
        for _ in 0..if is_slow { MANY } else { FEW } {
            let text = mutated(&text, &mut numbers);
            let outcome = std::panic::catch_unwind(|| scan(&scanner, &text));
            assert!(outcome.is_ok(), "{:?}", String::from_utf8_lossy(&text));
        }
    }
}
