//! Short values of earlier messages, which are scanned together with the newest ones: a secret can leave in pieces.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::finding::{At, Location};
use crate::{joins, validate};

/// Maximum bytes of a structure that counts as a message.
pub(crate) const MESSAGE: usize = 8 << 10;
/// Maximum bytes of a value.
const VALUE: usize = 512;
/// Maximum names of fields whose values are also joined by name, and bytes of such a name.
const NAMES: usize = 16;
const NAME: usize = 64;

/// Maximum bytes of all values.
const BYTES: usize = 4096;
/// Maximum messages of which values are kept, and of which those of one name are.
const MESSAGES: usize = 1024;
const NAMED: usize = 128;
/// Messages before the newest one whose values are also joined without those before them.
const NEAREST: usize = 3;
/// Minimum bytes of values that add nothing if the message before had the same.
const LONG: usize = 8;
/// Messages with the same shorter values, after which another one adds nothing. Some pieces of a secret can be equal.
const EQUAL: usize = 4;
/// Minimum bytes of a value that can be a word. A secret can be sent byte by byte.
const WORD: usize = 3;
/// Times that the piece of one message may be longer than that of another one.
const LONGER: usize = 4;

/// Values of earlier messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Messages {
    all: BTreeMap<At, Earlier>,
    /// By the names of their fields too: other fields can stand between the pieces of a secret.
    named: BTreeMap<(At, String), Named>,
    /// Number of the message.
    number: u64,
}

/// Values of fields with one name.
#[derive(Debug, Clone, Default)]
struct Named {
    /// Number of the last message that has it.
    last: u64,
    values: Earlier,
}

impl Messages {
    /// Joins the short values of a message with those of earlier ones, and keeps them. Returns also all of them as a recovery
    /// phrase, if they may be one.
    pub(crate) fn remember(&mut self, location: &Location, bytes: &[u8]) -> (Vec<Joined>, Option<Vec<u8>>) {
        let values = joins::values(location, bytes, VALUE);
        let earlier = self.all.entry(location.at).or_default();
        let mut joined = earlier.join(&values, MESSAGES);
        let phrase = earlier.phrase(&values);
        if bytes.len() > MESSAGE {
            return (joined, phrase);
        }
        self.number += 1;
        for (name, values) in joins::by_name(location, bytes, NAMES) {
            if name.len() > NAME {
                continue;
            }
            let mut by_name = self.of_name((location.at, name)).join(&values, NAMED);
            // A message of one field has the same values.
            by_name.retain(|new| joined.iter().all(|known| known.text != new.text));
            joined.append(&mut by_name);
        }
        (joined, phrase)
    }

    /// Returns the values of a name. Of too many names, the one that no message had for longest is forgotten.
    fn of_name(&mut self, key: (At, String)) -> &mut Earlier {
        if self.named.len() >= NAMES && !self.named.contains_key(&key) {
            let oldest = self.named.iter().min_by_key(|(_, named)| named.last).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.named.remove(&key));
        }
        let named = self.named.entry(key).or_default();
        named.last = self.number;
        &mut named.values
    }
}

/// Values of the messages of one part, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Earlier {
    text: Vec<u8>,
    /// Messages whose values are in the text.
    messages: VecDeque<Message>,
}

/// Part of the text that comes from one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    bytes: usize,
    /// Bytes of values that are no words, and so can be pieces of a secret.
    odd: usize,
}

/// Values of the newest message, after those of earlier ones.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) text: Vec<u8>,
    /// Messages of the text. The last one is the newest.
    messages: Vec<Message>,
}

impl Joined {
    /// Reports whether a match is a secret in pieces: the newest message has a piece of it, and so have earlier ones.
    /// Otherwise each value after one that begins like a secret would be the rest of it. `exact` says that the place of the
    /// match is known, so that the lengths of the pieces count.
    pub(crate) fn is_of_both(&self, found: &Range<usize>, exact: bool) -> bool {
        let (mut start, mut longest, mut odd) = (0, 0, 0);
        let mut newest = (0, 0);
        for (number, message) in self.messages.iter().enumerate() {
            let end = start + message.bytes;
            let piece = found.end.min(end).saturating_sub(found.start.max(start));
            start = end;
            match number + 1 == self.messages.len() {
                true => newest = (piece, piece.min(message.odd)),
                false => (longest, odd) = (longest.max(piece), odd + piece.min(message.odd)),
            }
        }
        let (piece, new) = newest;
        new > 0 && odd > 0 && (!exact || (new * LONGER >= longest && odd * LONGER >= piece))
    }
}

impl Earlier {
    /// Adds the values of a message. Returns them together with those before: with all, and with the nearest ones.
    pub(crate) fn join(&mut self, values: &[Vec<u8>], most: usize) -> Vec<Joined> {
        let newest = values.concat();
        if newest.is_empty() || self.repeats(&newest) {
            return Vec::new();
        }
        let odd = values.iter().filter(|value| !is_words(value)).map(Vec::len).sum();
        self.messages.push_back(Message { bytes: newest.len(), odd });
        self.text.extend_from_slice(&newest);
        let mut texts = Vec::new();
        let all = self.messages.len();
        if all > 1 {
            texts.push(self.last(all));
        }
        texts.extend((2..=all.min(NEAREST + 1)).map(|count| self.last(count)));
        self.forget(most);
        texts
    }

    /// Returns the values of all messages with spaces between them, if the newest one consists of words of recovery phrases.
    pub(crate) fn phrase(&self, values: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut words = values.iter().flat_map(|value| value.split(|byte| !byte.is_ascii_alphabetic()));
        let is_word = |word: &[u8]| word.is_empty() || validate::word(word).is_some();
        if self.messages.len() < 2 || !words.all(is_word) {
            return None;
        }
        let mut text = Vec::with_capacity(self.text.len() + self.messages.len());
        let mut rest = self.text.as_slice();
        for message in &self.messages {
            let (values, after) = rest.split_at(message.bytes.min(rest.len()));
            text.extend_from_slice(values);
            text.push(b' ');
            rest = after;
        }
        Some(text)
    }

    /// Returns the values of the last messages.
    fn last(&self, count: usize) -> Joined {
        let messages: Vec<Message> = self.messages.range(self.messages.len() - count..).copied().collect();
        let bytes: usize = messages.iter().map(|message| message.bytes).sum();
        Joined { text: self.text[self.text.len() - bytes..].to_vec(), messages }
    }

    /// Reports whether the last messages had the same values.
    fn repeats(&self, newest: &[u8]) -> bool {
        let needed = if newest.len() >= LONG { 1 } else { EQUAL };
        let mut last = self.messages.iter().rev().take(needed);
        last.len() == needed
            && last.all(|message| message.bytes == newest.len())
            && self.text.ends_with(&newest.repeat(needed))
    }

    /// Drops the oldest values, so that at most so many messages are left.
    fn forget(&mut self, most: usize) {
        let (mut messages, mut bytes) = (0, 0);
        while self.text.len() - bytes > BYTES || self.messages.len() - messages > most {
            bytes += self.messages.get(messages).map_or(0, |message| message.bytes);
            messages += 1;
        }
        self.text.drain(..bytes);
        self.messages.drain(..messages);
    }
}

/// Returns true for a value of words and numbers, such as a segment of a path: it is no piece of a random text.
pub(crate) fn is_words(value: &[u8]) -> bool {
    let all = |bytes: &[u8], is: fn(&u8) -> bool| bytes.iter().all(is);
    let is_word = |word: &[u8]| match word {
        [] => true,
        [first, rest @ ..] if first.is_ascii_alphabetic() => {
            all(rest, u8::is_ascii_lowercase) || (*first == b'v' && all(rest, u8::is_ascii_digit))
        }
        number => all(number, u8::is_ascii_digit),
    };
    value.len() >= WORD && value.split(|byte| !byte.is_ascii_alphanumeric()).all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(earlier: &mut Earlier, newest: &str) -> Vec<String> {
        let texts = earlier.join(&[newest.as_bytes().to_vec()], MESSAGES);
        texts.into_iter().map(|joined| String::from_utf8(joined.text).unwrap()).collect()
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
        assert_eq!((earlier.text.len(), earlier.messages.len()), (MESSAGES, MESSAGES));
        for piece in ["p", "q"] {
            join(&mut earlier, &piece.repeat(BYTES / 2 + 1));
        }
        assert_eq!((earlier.text.len(), earlier.messages.len()), (BYTES / 2 + 1, 1));
        join(&mut earlier, &"r".repeat(2 * BYTES));
        assert_eq!((earlier.text.len(), earlier.messages.len()), (0, 0));
    }

    #[test]
    fn words_of_a_phrase_are_separated() {
        let mut earlier = Earlier::default();
        let phrase = |earlier: &mut Earlier, newest: &str| {
            let values = [newest.as_bytes().to_vec()];
            earlier.join(&values, MESSAGES);
            earlier.phrase(&values).map(|text| String::from_utf8(text).unwrap())
        };
        assert_eq!(phrase(&mut earlier, "legal winner"), None);
        assert_eq!(phrase(&mut earlier, "thank year").as_deref(), Some("legal winner thank year "));
        assert_eq!(phrase(&mut earlier, "winning"), None);
    }

    #[test]
    fn words_and_numbers_are_no_pieces_of_a_secret() {
        for words in ["models", "Hello world", "file-12.tar.gz", "1234567", "v12", "good morning, all"] {
            assert!(is_words(words.as_bytes()), "{words}");
        }
        for piece in ["a", "ab", "q8Zk3mXw", "ghp_q8", "xRbNc", "12ab", "AKIAX"] {
            assert!(!is_words(piece.as_bytes()), "{piece}");
        }
    }

    #[test]
    fn match_needs_a_piece_of_the_newest_message_and_one_of_earlier_ones() {
        let is_of_both = |messages: &[&str], skipped: usize, length: usize| {
            let mut earlier = Earlier::default();
            let mut texts = Vec::new();
            for message in messages {
                texts =
                    earlier.join(&message.split('/').map(|value| value.into()).collect::<Vec<_>>(), MESSAGES);
            }
            let found = skipped..skipped + length;
            (texts[0].is_of_both(&found, true), texts[0].is_of_both(&found, false))
        };
        let first = "gh_q8Zk3mXw7Lp2Vt9R";
        assert_eq!(is_of_both(&[first, "b5Nc6Ha1Jd4G"], 0, 31), (true, true));
        assert_eq!(is_of_both(&[first, "b5Nc6"], 0, 24), (true, true));
        assert_eq!(is_of_both(&[first, "b5N"], 0, 22), (false, true), "too short");
        assert_eq!(is_of_both(&[first, "v12/models"], 0, 28), (false, false), "words");
        assert_eq!(is_of_both(&["models", first], 0, 25), (false, false), "words before");
        assert_eq!(is_of_both(&[first, "b5Nc6Ha1Jd4G", "x7"], 0, 31), (false, false), "without the newest");
        assert_eq!(is_of_both(&["g", "h", "p", "_", "q"], 0, 5), (true, true), "byte by byte");
    }
}
