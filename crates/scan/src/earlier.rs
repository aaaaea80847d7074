//! Short values of earlier messages, which are scanned together with the newest ones: a secret can leave in pieces.

use std::collections::VecDeque;

/// Maximum bytes of all values.
const BYTES: usize = 4096;
/// Maximum messages of which values are kept.
const MESSAGES: usize = 1024;
/// Messages before the newest one whose values are also joined without those before them.
const NEAREST: usize = 3;
/// Minimum bytes of values that add nothing if the message before had the same.
const LONG: usize = 8;
/// Messages with the same shorter values, after which another one adds nothing. Some pieces of a secret can be equal.
const EQUAL: usize = 4;

/// Values of the messages of one part, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Earlier {
    text: Vec<u8>,
    /// Bytes of each message in the text.
    lengths: VecDeque<usize>,
}

impl Earlier {
    /// Adds the joined values of a message. Returns them together with those before: with all, and with the nearest ones.
    pub(crate) fn join(&mut self, newest: &[u8]) -> Vec<Vec<u8>> {
        if newest.is_empty() || self.repeats(newest) {
            return Vec::new();
        }
        let before = self.text.len();
        self.text.extend_from_slice(newest);
        let mut texts = Vec::new();
        if before > 0 {
            texts.push(self.text.clone());
        }
        let mut start = before;
        for length in self.lengths.iter().rev().take(NEAREST) {
            start -= length;
            texts.push(self.text[start..].to_vec());
        }
        self.lengths.push_back(newest.len());
        self.forget();
        texts
    }

    /// Reports whether the last messages had the same values.
    fn repeats(&self, newest: &[u8]) -> bool {
        let needed = if newest.len() >= LONG { 1 } else { EQUAL };
        let mut last = self.lengths.iter().rev().take(needed);
        last.len() == needed
            && last.all(|length| *length == newest.len())
            && self.text.ends_with(&newest.repeat(needed))
    }

    /// Drops the oldest values of too many.
    fn forget(&mut self) {
        let (mut messages, mut bytes) = (0, 0);
        while self.text.len() - bytes > BYTES || self.lengths.len() - messages > MESSAGES {
            bytes += self.lengths.get(messages).copied().unwrap_or_default();
            messages += 1;
        }
        self.text.drain(..bytes);
        self.lengths.drain(..messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(earlier: &mut Earlier, newest: &str) -> Vec<String> {
        let texts = earlier.join(newest.as_bytes());
        texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect()
    }

    #[test]
    fn newest_values_follow_all_and_the_nearest_ones() {
        let mut earlier = Earlier::default();
        assert!(join(&mut earlier, "a").is_empty());
        assert!(join(&mut earlier, "").is_empty());
        assert_eq!(join(&mut earlier, "b"), ["ab", "ab"]);
        for newest in ["c", "d"] {
            join(&mut earlier, newest);
        }
        assert_eq!(join(&mut earlier, "e"), ["abcde", "de", "cde", "bcde"]);
    }

    #[test]
    fn message_that_repeats_the_one_before_adds_nothing() {
        let mut earlier = Earlier::default();
        for newest in ["/v1/models", "/v1/models"] {
            assert!(join(&mut earlier, newest).is_empty());
        }
        // Equal pieces of a secret are joined.
        for count in 1..=EQUAL {
            assert_eq!(join(&mut earlier, "s").first(), Some(&format!("/v1/models{}", "s".repeat(count))));
        }
        assert!(join(&mut earlier, "s").is_empty());
        // The end of what came before is no message.
        assert_eq!(join(&mut earlier, "modelsssss").len(), 4);
    }

    #[test]
    fn oldest_values_are_forgotten() {
        let mut earlier = Earlier::default();
        for number in 0..3 * MESSAGES {
            join(&mut earlier, if number % 2 == 0 { "x" } else { "y" });
        }
        assert_eq!((earlier.text.len(), earlier.lengths.len()), (MESSAGES, MESSAGES));
        for piece in ["p", "q"] {
            join(&mut earlier, &piece.repeat(BYTES / 2 + 1));
        }
        assert_eq!((earlier.text.len(), earlier.lengths.len()), (BYTES / 2 + 1, 1));
        join(&mut earlier, &"r".repeat(2 * BYTES));
        assert_eq!((earlier.text.len(), earlier.lengths.len()), (0, 0));
    }
}
