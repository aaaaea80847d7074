//! Bound of what the rules read at keywords.

use std::ops::Range;

use crate::rule::{Found, Rule, WINDOW_MAX};

/// Bytes of a view that a rule may read for each byte of it, bytes that it may read in any view, and how often those of a match
/// count.
const RATIO: usize = 16;
const FREE: usize = 64 << 10;
const MATCH: usize = 8;

/// Bytes that the rules read at the keywords in one view. Where keywords are so dense that a rule reads the same bytes again and
/// again, it searches the windows of the rest of them at once.
pub(crate) struct Efforts {
    /// By the number of a rule; empty until one reads something.
    read: Vec<usize>,
    most: usize,
}

impl Efforts {
    pub(crate) fn new(length: usize) -> Efforts {
        Efforts { read: Vec::new(), most: FREE + length * RATIO }
    }

    /// Returns false if a rule read too much.
    pub(crate) fn permit(&self, number: usize) -> bool {
        self.read.get(number).is_none_or(|read| *read <= self.most)
    }

    /// Adds what a rule read in a window.
    pub(crate) fn add(&mut self, number: usize, rule: &Rule, window: &Range<usize>, found: &Found) {
        if self.read.len() <= number {
            self.read.resize(number + 1, 0);
        }
        // A match is read several times, and so is what is cut.
        self.read[number] += match found {
            Found::None if rule.reads_far => window.len(),
            Found::None => 0,
            Found::Match(found) => (found.whole.end - window.start) * MATCH,
            Found::Cut => WINDOW_MAX * MATCH,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{At, Direction, Location};
    use crate::rule::RuleSet;
    use crate::scanner::Scanner;
    use crate::state::State;

    #[test]
    fn rule_that_reads_the_same_bytes_again_and_again_is_not_permitted() {
        let set = RuleSet::parse(
            "[[rule]]\nid = 'far'\nkind = 'secret'\nregex = 'key.*x'\nkeywords = ['key']\n\
             [[rule]]\nid = 'near'\nkind = 'secret'\nregex = 'key[0-9]+'\nkeywords = ['key']",
        )
        .unwrap();
        let permitted = |rule: &Rule, found: &dyn Fn() -> Found| {
            let mut efforts = Efforts::new(1000);
            for _ in 0..1000 {
                if efforts.permit(1) {
                    efforts.add(1, rule, &(0..500), &found());
                }
            }
            assert!(efforts.permit(0) && efforts.permit(2), "each rule has a bound of its own");
            efforts.permit(1)
        };
        let (far, near) = (&set.0[0], &set.0[1]);
        assert!(!permitted(far, &|| Found::None) && permitted(near, &|| Found::None));
        assert!(!permitted(near, &|| Found::Cut));
        let matched = || Found::Match(crate::rule::Matched { whole: 0..400, secret: 0..400 });
        assert!(!permitted(near, &matched));
    }

    #[test]
    fn secret_after_very_many_keywords_is_found() {
        let scanner = Scanner::builtin();
        for (keyword, secret, rule) in [
            ("curl -u ", "\ncurl -u 'robot:Zq8kV3mX7w' https://example.com\n", "curl-auth-user"),
            ("sk-ant-", " sk-ant-api99-Zq8kV3mX7wLp2Vt9Rb5Nc6Ha1 ", "anthropic-key"),
        ] {
            let text =
                [keyword.repeat(4000).as_bytes(), b"\n".repeat(5000).as_slice(), secret.as_bytes()].concat();
            let at = (text.len() - secret.len()) as u64;
            let state = &mut State::new(Direction::Outbound);
            let found = scanner.scan_whole(state, &Location::new(At::Body), &text);
            let is_secret = |range: &Range<u64>| range.start >= at;
            let found = found.iter().any(|f| f.rule == rule && f.range.as_ref().is_some_and(is_secret));
            assert!(found, "{rule}");
        }
    }
}
