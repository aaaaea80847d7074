//! Search for keywords, without regard to case.
//!
//! A table of bits answers for every place of a text whether three bytes of a keyword can stand there. Unlike an automaton, the
//! steps of this search do not depend on each other, and its table fits the fastest cache.

use std::ops::Range;

/// Bits of the hash of three bytes. It fits a `u16`.
const BITS: u32 = 16;
/// Bits of the number of a bucket.
const BUCKET_BITS: u32 = 12;
/// Bytes of a keyword that are hashed.
const GRAM: usize = 3;
/// Letters from the most to the least frequent one in texts and in source code.
const FREQUENT: &[u8] = b" etaoinsrldcupmfhg_.,-=\"/()bvy:w>;k0x1jqz";

/// Search for many keywords.
#[derive(Debug)]
pub(crate) struct Keywords {
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

impl Keywords {
    /// Prepares a search. A keyword has at least two bytes; its number is its place in the list.
    pub(crate) fn new<'a>(keywords: impl Iterator<Item = &'a str>) -> Keywords {
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
        }
        let mut starts = vec![0];
        let mut entries = Vec::new();
        for bucket in buckets {
            entries.extend(bucket);
            starts.push(entries.len() as u32);
        }
        Keywords { bits, starts, entries }
    }

    /// Calls a function with the number and the range of each keyword in a text, in the order of their hashed bytes.
    pub(crate) fn find(&self, bytes: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        let Some(last) = bytes.len().checked_sub(4) else { return self.find_in_end(bytes, 0, &mut found) };
        for (at, window) in bytes.windows(4).enumerate() {
            let gram = u32::from_le_bytes([window[0], window[1], window[2], window[3]]);
            let hash = hash(gram);
            if self.bits[(hash >> 6) as usize & (self.bits.len() - 1)] >> (hash & 63) & 1 == 1 {
                self.verify(bytes, at, hash, &mut found);
            }
        }
        self.find_in_end(bytes, last + 1, &mut found);
    }

    /// Searches the last three bytes.
    fn find_in_end(&self, bytes: &[u8], start: usize, found: &mut impl FnMut(usize, Range<usize>)) {
        for at in start..bytes.len() {
            let mut window = [0; 4];
            let rest = &bytes[at..];
            window[..rest.len()].copy_from_slice(rest);
            self.verify(bytes, at, hash(u32::from_le_bytes(window)), found);
        }
    }

    fn verify(&self, bytes: &[u8], at: usize, hash: u32, found: &mut impl FnMut(usize, Range<usize>)) {
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

/// Returns the three bytes of a keyword that are hashed. Any third byte can follow a keyword of two.
fn grams(keyword: &[u8]) -> Vec<u32> {
    let gram = |third: u8| u32::from_le_bytes([keyword[0], keyword[1], third, 0]);
    match keyword.get(2) {
        Some(third) => vec![gram(*third)],
        None => (0..=255).filter(|third| third & 0x20 == 0).map(gram).collect(),
    }
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
}
