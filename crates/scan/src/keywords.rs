//! Search for keywords, without regard to case.
//!
//! A table of bits answers for every second place of a text whether three bytes of a keyword can stand there or beside it. Unlike
//! an automaton, the steps of this search do not depend on each other, and its table fits the fastest cache.

use std::ops::Range;

/// Bits of the hash of three bytes. It fits a `u16`.
const BITS: u32 = 16;
/// Bits of the hash of three bytes at every second place.
const PLACE_BITS: u32 = 17;
/// Bits of the number of a bucket.
const BUCKET_BITS: u32 = 12;
/// Bytes of a keyword that are hashed.
const GRAM: usize = 3;
/// Bytes that are read at a time, and bytes from one time to the next.
const READ: usize = 8;
const STEP: usize = 6;
/// Clears the bits of case of eight bytes.
const CASE: u64 = 0xdfdf_dfdf_dfdf_dfdf;
/// Letters from the most to the least frequent one in texts and in source code.
const FREQUENT: &[u8] = b" etaoinsrldcupmfhg_.,-=\"/()bvy:w>;k0x1jqz";

/// Search for many keywords.
#[derive(Debug)]
pub(crate) struct Keywords {
    /// Bits of three bytes at an even place, with the three bytes of a keyword there or at the places beside it.
    places: Box<[u64; 1 << (PLACE_BITS - 6)]>,
    bits: Vec<u64>,
    /// Numbers of entries in each bucket: from this element to the next one.
    starts: Vec<u32>,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    /// Hash of its bytes: most entries of a bucket have another one.
    hash: u16,
    keyword: Box<[u8]>,
    /// Place of the hashed bytes in the keyword.
    offset: usize,
    number: usize,
}

fn hash(gram: u32) -> u32 {
    // Without the bits of case, and without the fourth byte.
    (gram & 0x00df_dfdf).wrapping_mul(0x9e37_79b1) >> (32 - BITS)
}

/// Returns the hash of three of eight bytes without their bits of case.
fn place_hash(eight: u64, first: usize) -> usize {
    ((eight >> (8 * first) << 40).wrapping_mul(0x009e_3779) >> (64 - PLACE_BITS)) as usize
}

impl Keywords {
    /// Prepares a search. A keyword has at least two bytes; its number is its place in the list.
    pub(crate) fn new<'a>(keywords: impl Iterator<Item = &'a str>) -> Keywords {
        let mut places = Box::new([0_u64; 1 << (PLACE_BITS - 6)]);
        let mut bits = vec![0_u64; 1 << (BITS - 6)];
        let mut buckets = vec![Vec::new(); 1 << BUCKET_BITS];
        for (number, keyword) in keywords.enumerate() {
            let keyword = keyword.as_bytes();
            let offset = rarest(keyword);
            for gram in grams(&keyword[offset..]) {
                let hash = hash(gram);
                bits[(hash >> 6) as usize] |= 1 << (hash & 63);
                let bucket: &mut Vec<Entry> = &mut buckets[(hash >> (BITS - BUCKET_BITS)) as usize];
                let hash = hash as u16;
                if bucket.iter().all(|entry| (entry.number, entry.hash) != (number, hash)) {
                    bucket.push(Entry { hash, keyword: keyword.into(), offset, number });
                }
            }
            for gram in even_grams(keyword, offset) {
                let hash = place_hash(u64::from(gram) & CASE, 0);
                places[hash >> 6] |= 1 << (hash & 63);
            }
        }
        let mut starts = vec![0];
        let mut entries = Vec::new();
        for bucket in buckets {
            entries.extend(bucket);
            starts.push(entries.len() as u32);
        }
        Keywords { places, bits, starts, entries }
    }

    /// Calls a function with the number and the range of each keyword in a text, in the order of their hashed bytes.
    pub(crate) fn find(&self, bytes: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        // Places before `done` were verified.
        let (mut at, mut done) = (0, 0);
        while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<READ>()) {
            let eight = u64::from_le_bytes(*eight) & CASE;
            let bit = |first: usize| {
                let hash = place_hash(eight, first);
                self.places[hash >> 6] >> (hash & 63) & 1
            };
            let (zero, two, four) = (bit(0), bit(2), bit(4));
            if zero | two | four != 0 {
                for (first, bit) in [(0, zero), (2, two), (4, four)] {
                    if bit != 0 {
                        self.verify_near(bytes, at + first, &mut done, &mut found);
                    }
                }
            }
            at += STEP;
        }
        for place in at.saturating_sub(1).max(done)..bytes.len() {
            self.verify(bytes, place, &mut found);
        }
    }

    /// Verifies a place and those beside it, except the ones before `done`.
    fn verify_near(
        &self,
        bytes: &[u8],
        at: usize,
        done: &mut usize,
        found: &mut impl FnMut(usize, Range<usize>),
    ) {
        for place in at.saturating_sub(1).max(*done)..at + 2 {
            self.verify(bytes, place, found);
        }
        *done = at + 2;
    }

    #[inline(always)]
    fn verify(&self, bytes: &[u8], at: usize, found: &mut impl FnMut(usize, Range<usize>)) {
        let gram = match bytes.get(at..).unwrap_or_default() {
            [first, second, third, ..] => [*first, *second, *third, 0],
            [first, second] => [*first, *second, 0, 0],
            _ => return,
        };
        let hash = hash(u32::from_le_bytes(gram));
        if self.bits[(hash >> 6) as usize & (self.bits.len() - 1)] >> (hash & 63) & 1 == 1 {
            self.compare(bytes, at, hash, found);
        }
    }

    #[inline(never)]
    fn compare(&self, bytes: &[u8], at: usize, hash: u32, found: &mut impl FnMut(usize, Range<usize>)) {
        let bucket = (hash >> (BITS - BUCKET_BITS)) as usize;
        let (first, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        for entry in self.entries[first..end].iter().filter(|entry| u32::from(entry.hash) == hash) {
            let Some(start) = at.checked_sub(entry.offset) else { continue };
            let range = start..start + entry.keyword.len();
            if bytes.get(range.clone()).is_some_and(|text| text.eq_ignore_ascii_case(&entry.keyword)) {
                found(entry.number, range);
            }
        }
    }
}

/// Returns the place of the three bytes of a keyword that are rarest in texts.
fn rarest(keyword: &[u8]) -> usize {
    let weight = |byte: &u8| {
        let rank = FREQUENT.iter().position(|frequent| *frequent == byte.to_ascii_lowercase());
        rank.map_or(0, |rank| (FREQUENT.len() - rank) * (FREQUENT.len() - rank))
    };
    let places = 0..keyword.len().saturating_sub(GRAM - 1).max(1);
    let sum = |place: usize| keyword[place..].iter().take(GRAM).map(weight).sum::<usize>();
    places.min_by_key(|place| sum(*place)).unwrap_or(0)
}

/// Returns all bytes that differ in more than their case.
fn any_byte() -> impl Iterator<Item = u8> {
    (0..=255).filter(|byte| byte & 0x20 == 0)
}

/// Returns the three bytes of a keyword that are hashed. Any third byte can follow a keyword of two.
fn grams(keyword: &[u8]) -> Vec<u32> {
    let gram = |third: u8| u32::from_le_bytes([keyword[0], keyword[1], third, 0]);
    match keyword.get(2) {
        Some(third) => vec![gram(*third)],
        None => any_byte().map(gram).collect(),
    }
}

/// Returns the three bytes at an even place that a keyword leads to: its hashed bytes, if they stand there, otherwise the three
/// that begin one byte later or earlier. Any byte can precede a short keyword.
fn even_grams(keyword: &[u8], offset: usize) -> Vec<u32> {
    let mut all = grams(&keyword[offset..]);
    match (keyword.get(offset + 1..offset + 1 + GRAM), offset.checked_sub(1)) {
        (Some(_), _) => all.extend(grams(&keyword[offset + 1..])),
        (None, Some(before)) => all.extend(grams(&keyword[before..])),
        (None, None) => {
            all.extend(any_byte().map(|first| u32::from_le_bytes([first, keyword[0], keyword[1], 0])));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keyword_is_found_in_any_case_and_place() {
        let words = ["sk", "s.", "AKIA", "-----begin", "api_key", "key"];
        let keywords = Keywords::new(words.into_iter());
        let find = |text: &str| {
            let mut found = Vec::new();
            keywords.find(text.as_bytes(), |number, range| found.push((words[number], range)));
            found.sort_by_key(|(word, range)| (range.start, word.len()));
            found
        };
        assert_eq!(find("sk"), [("sk", 0..2)]);
        assert_eq!(find("xSK"), [("sk", 1..3)]);
        assert_eq!(find("aKIa"), [("AKIA", 0..4)]);
        assert_eq!(find("My API_KEY s."), [("api_key", 3..10), ("key", 7..10), ("s.", 11..13)]);
        assert_eq!(find("-----BEGIN RSA"), [("-----begin", 0..10)]);
        assert_eq!(find(""), []);
        assert_eq!(find("ke"), []);
    }

    proptest::proptest! {
        #[test]
        fn keywords_are_those_of_a_plain_search(text in "[a-e ]{0,40}", words in proptest::collection::vec("[a-e]{2,6}", 1..6)) {
            let words: std::collections::BTreeSet<String> = words.into_iter().collect();
            let keywords = Keywords::new(words.iter().map(String::as_str));
            let mut found = Vec::new();
            keywords.find(text.to_uppercase().as_bytes(), |number, range| found.push((number, range.start)));
            found.sort_unstable();
            let places = |word: &str| (0..text.len()).filter(|at| text[*at..].starts_with(word)).collect::<Vec<_>>();
            let plain: Vec<_> = words.iter().enumerate()
                .flat_map(|(number, word)| places(word).into_iter().map(move |at| (number, at)))
                .collect();
            proptest::prop_assert_eq!(found, plain);
        }
    }
}
