//! Search for keywords, without regard to case.
//!
//! A text is read at every second place. One look into a table answers whether three bytes of a keyword can stand there, and
//! whether a short keyword can begin one byte later. Unlike an automaton, the steps of this search do not depend on each other.
//! Other tables answer for four bytes of the places that are left, and few of those remain. No branch depends on any answer.

use std::collections::HashMap;
use std::ops::Range;

use crate::eight;

/// Bits of the hash of three bytes.
const BITS: u32 = 17;
/// Bits of the hash of two bytes.
const PAIR_BITS: u32 = 11;
/// Bits of the hash of four bytes.
const BITS_OF_FOUR: u32 = 18;
/// Bits of the number of a bucket.
const BUCKET_BITS: u32 = 12;
/// Bytes of a keyword that are hashed first, and bytes that are hashed of those places that are left.
const GRAM: usize = 3;
const FOUR: usize = 4;
/// Bytes that are read at a time, and bytes from one time to the next.
const READ: usize = 8;
const STEP: usize = 6;
/// Bytes of which the places are collected at a time, and a power of two above the number of these places.
const BLOCK: usize = STEP * 320;
const PLACES: usize = 1024;
/// Clears the bits of case of eight bytes.
const CASE: u64 = 0xdfdf_dfdf_dfdf_dfdf;
/// Thousandths of English letters that are `a`, `b` and so on.
const LETTERS: [u64; 26] =
    [82, 15, 28, 43, 127, 22, 20, 61, 70, 2, 8, 40, 24, 67, 75, 19, 1, 60, 63, 91, 28, 10, 24, 2, 20, 1];
/// The same for a space and for any other byte.
const SPACE: u64 = 150;
const OTHER: u64 = 8;
/// The most frequent three bytes of texts and source code in their order; `_` stands for a space.
const COMMON: &str = "\
    _th the _re he_ ion _se sel ing tio ame ate and _le elf ent str let con se_ err _of nam et_ use _co _an _st \
    of_ _in _a_ ser or_ for pub es_ _no _fo rea one res ter rat est is_ er_ ect tes rro ed_ ror nd_ ile _is if_ \
    der sta ess _if ead _de ext mod ret tur fil in_ _to not at_ _pa pat ati tri e_s s_t ts_ ver ons cra hat fn_ \
    on_ _ma ers all _it urn ut_ s_a etu pro _so ort _as _fi st_ def tex ath _li _fn s_o tch val e_c mes ont _na \
    f_t _pr tha ite _wh ult re_ _us od_ e_t por ng_ out rin ind yte byt ith com ub_ _pu fro ome her ass _po int \
    lic end _on tat oun e_a ted as_ are ode wit _be rom par own ine e_i to_ eve que ch_ age t_s _mo _er ert _or \
    non mat ot_ le_ _te box tho e_o nte rn_ ist sio t_i _wi _cl ice lue ner alu mut _ca cti mpl imp ces thi _ar \
    ime tim erv its it_ rit som _by tor ive t_a ial ace t_o ndb san dbo ize equ art e_f nti eri sse ain std atc \
    _en _wa new lin jec an_ clo pac";
/// A frequency above that of all other three bytes.
const COMMONER: u64 = 1 << 32;

/// Search for many keywords.
#[derive(Debug)]
pub(crate) struct Keywords {
    all: Vec<Box<[u8]>>,
    /// Keywords by three of their bytes at an even place of a text.
    even: Table,
    /// Keywords of four bytes or fewer by their start at an odd place.
    odd: Table,
    /// By two bytes, the first of them at an odd place: bits of the bytes before them with which they can be three bytes of a
    /// keyword, and bits of the bytes after them with which they can begin a short keyword.
    pairs: Pairs,
    /// Bits of three bytes with which a short keyword begins, at any place.
    short: Bits,
    /// Bits of four bytes at an even place at which a longer keyword can be found.
    fours: BitsOfFour,
}

type Pairs = Box<[u64; 1 << PAIR_BITS]>;
type Bits = Box<[u64; 1 << (BITS - 6)]>;
type BitsOfFour = Box<[u64; 1 << (BITS_OF_FOUR - 6)]>;

/// Keywords by three of their bytes.
#[derive(Debug, Default)]
struct Table {
    /// Numbers of entries in each bucket: from this element to the next one.
    starts: Vec<u32>,
    /// By their buckets, and those of a bucket by their numbers.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The keyword from its hashed bytes on, as far as it is read at a time, in small letters.
    rest: u64,
    /// The bits that count, and those of case of letters.
    mask: u64,
    case: u64,
    number: u32,
    /// Place of the hashed bytes in the keyword.
    offset: u32,
}

impl Entry {
    fn new(number: usize, keyword: &[u8], offset: usize) -> Entry {
        let rest = &keyword[offset..];
        let read = &rest[..rest.len().min(READ)];
        let mask = u64::MAX.unbounded_shr(64 - 8 * read.len() as u32);
        let case: Vec<u8> = read.iter().map(|byte| u8::from(byte.is_ascii_alphabetic()) << 5).collect();
        let (rest, case) = (eight::read(&read.to_ascii_lowercase(), 0), eight::read(&case, 0));
        Entry { rest, mask, case, number: number as u32, offset: offset as u32 }
    }
}

/// Returns the hash of three of eight bytes that have no bits of case.
fn hash(eight: u64, first: usize) -> usize {
    ((eight >> (8 * first) << 40).wrapping_mul(0x009e_3779) >> (64 - BITS)) as usize
}

/// Returns the hash of the second and the third of eight bytes that have no bits of case.
fn hash_of_pair(eight: u64) -> usize {
    ((eight >> 8 << 48).wrapping_mul(0x9e37) >> (64 - PAIR_BITS)) as usize
}

/// Returns the hash of the first four of eight bytes that have no bits of case.
fn hash_of_four(eight: u64) -> usize {
    ((eight << 32).wrapping_mul(0x9e37_79b1) >> (64 - BITS_OF_FOUR)) as usize
}

/// Sets the bit of a hash.
fn set(bits: &mut [u64], hash: usize) {
    bits[hash >> 6] |= 1 << (hash & 63);
}

/// Returns the bit of a hash.
fn bit(bits: &[u64], hash: usize) -> u64 {
    bits[hash >> 6] >> (hash & 63) & 1
}

/// Returns the next eight bytes without their bits of case.
fn eight(bytes: &[u8], at: usize) -> u64 {
    eight::read(bytes, at) & CASE
}

impl Table {
    /// Prepares entries, each with its hash.
    fn new(mut entries: Vec<(usize, Entry)>) -> Table {
        let bucket = |hash: usize| hash >> (BITS - BUCKET_BITS);
        entries.sort_by_key(|(hash, entry)| (bucket(*hash), entry.number));
        // A keyword of two bytes has many hashes.
        entries.dedup_by_key(|(hash, entry)| (bucket(*hash), entry.number, entry.offset));
        let start = |number: usize| entries.partition_point(|(hash, _)| bucket(*hash) < number) as u32;
        let starts = (0..=1 << BUCKET_BITS).map(start).collect();
        Table { starts, entries: entries.into_iter().map(|(_, entry)| entry).collect() }
    }

    /// Returns the entries whose hashed bytes, and those after them as far as they are read, stand at a place.
    fn at(&self, bytes: &[u8], at: usize, hash: usize) -> impl Iterator<Item = &Entry> {
        let bucket = hash >> (BITS - BUCKET_BITS);
        let (first, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        let text = eight::read(bytes, at);
        self.entries[first..end].iter().filter(move |entry| (text | entry.case) & entry.mask == entry.rest)
    }
}

impl Keywords {
    /// Prepares a search. A keyword has at least two bytes; its number is its place in the list.
    pub(crate) fn new<'a>(keywords: impl Iterator<Item = &'a str>) -> Keywords {
        let frequencies = Frequencies::new();
        let (mut even, mut odd) = (Vec::new(), Vec::new());
        let mut pairs: Pairs = Box::new([0; 1 << PAIR_BITS]);
        let mut short: Bits = Box::new([0; 1 << (BITS - 6)]);
        let mut fours: BitsOfFour = Box::new([0; 1 << (BITS_OF_FOUR - 6)]);
        let all: Vec<Box<[u8]>> = keywords.map(|keyword| keyword.as_bytes().into()).collect();
        for (number, keyword) in all.iter().enumerate() {
            let entry = |offset, hash| (hash, Entry::new(number, keyword, offset));
            let is_short = keyword.len() <= FOUR;
            // Of a longer keyword, one of two places is even.
            for parity in 0..=usize::from(!is_short) {
                let offset = frequencies.rarest(keyword, parity);
                for three in threes(&keyword[offset..]) {
                    pairs[hash_of_pair(three)] |= 1 << (three & 31);
                    even.push(entry(offset, hash(three, 0)));
                }
                if keyword.len() >= FOUR {
                    set(&mut fours[..], hash_of_four(eight(keyword, offset)));
                }
            }
            if is_short {
                for three in threes(keyword) {
                    pairs[hash_of_pair(three << 8)] |= 1 << (32 + (three >> 16 & 31));
                    set(&mut short[..], hash(three, 0));
                    odd.push(entry(0, hash(three, 0)));
                }
            }
        }
        Keywords { all, even: Table::new(even), odd: Table::new(odd), pairs, short, fours }
    }

    /// Calls a function with the number and the range of each keyword in a text, in the order of their hashed bytes.
    pub(crate) fn find(&self, bytes: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        let mut places = [0; PLACES];
        for start in (0..bytes.len()).step_by(BLOCK) {
            let count = self.places(bytes, start, &mut places);
            for at in places.iter().take(count).map(|place| *place as usize + start) {
                let eight = eight(bytes, at);
                self.at(&self.even, bytes, at, hash(eight, 0), &mut found);
                let after = hash(eight, 1);
                if bit(&self.short[..], after) == 1 {
                    self.at(&self.odd, bytes, at + 1, after, &mut found);
                }
            }
        }
    }

    /// Calls a function for each keyword of a table whose hashed bytes stand at a place and have this hash.
    #[inline(never)]
    fn at(
        &self,
        table: &Table,
        bytes: &[u8],
        at: usize,
        hash: usize,
        found: &mut impl FnMut(usize, Range<usize>),
    ) {
        for entry in table.at(bytes, at, hash) {
            let keyword = &self.all[entry.number as usize];
            let Some(start) = at.checked_sub(entry.offset as usize) else { continue };
            let range = start..start + keyword.len();
            let is_read = entry.offset == 0 && keyword.len() <= READ;
            let is = |text: &[u8]| is_read || text.eq_ignore_ascii_case(keyword);
            if bytes.get(range.clone()).is_some_and(is) {
                found(entry.number as usize, range);
            }
        }
    }

    /// Collects the even places of a block at which, or a byte later, a keyword can be found. Returns their number.
    fn places(&self, bytes: &[u8], start: usize, places: &mut [u32; PLACES]) -> usize {
        let block = &bytes[start..];
        let mut count = 0;
        let mut at = 0;
        while at < BLOCK
            && let Some(eight) = block.get(at..).and_then(|rest| rest.first_chunk::<READ>())
        {
            let eight = u64::from_le_bytes(*eight) & CASE;
            // Distinguishes the bytes after two from those before them.
            let after = eight | !CASE;
            for first in [0, 2, 4] {
                places[count & (PLACES - 1)] = (at + first) as u32;
                let near = self.pairs[hash_of_pair(eight >> (8 * first))];
                let (one, other) = (eight >> (8 * first) & 63, after >> (8 * first + 24) & 63);
                count += ((near >> one | near >> other) & 1) as usize;
            }
            at += STEP;
        }
        // The last bytes are fewer than are read at a time.
        while at < block.len().min(BLOCK) {
            places[count & (PLACES - 1)] = at as u32;
            count += 1;
            at += 2;
        }
        let mut left = 0;
        for number in 0..count {
            let at = places[number & (PLACES - 1)];
            let eight = eight(block, at as usize);
            let is_short = bit(&self.short[..], hash(eight, 0)) | bit(&self.short[..], hash(eight, 1));
            places[left & (PLACES - 1)] = at;
            left += (is_short | bit(&self.fours[..], hash_of_four(eight))) as usize;
        }
        left
    }
}

/// Frequencies of three bytes in texts and in source code.
struct Frequencies {
    common: HashMap<Vec<u8>, u64>,
}

impl Frequencies {
    fn new() -> Frequencies {
        let bytes = |common: &str| common.replace('_', " ").into_bytes();
        Frequencies { common: COMMON.split(' ').rev().map(bytes).zip(COMMONER..).collect() }
    }

    fn of(&self, gram: &[u8]) -> u64 {
        let gram = gram.to_ascii_lowercase();
        let byte = |byte: &u8| match byte {
            b'a'..=b'z' => LETTERS[usize::from(byte - b'a')],
            b' ' => SPACE,
            _ => OTHER,
        };
        self.common.get(&gram).copied().unwrap_or_else(|| gram.iter().map(byte).product())
    }

    /// Returns the place of the three bytes of a keyword that are rarest in texts, of places that are even or odd. A fourth byte
    /// follows, except in a keyword that has none.
    fn rarest(&self, keyword: &[u8], parity: usize) -> usize {
        let places = (parity..=keyword.len().saturating_sub(FOUR)).step_by(2);
        let gram = |place: usize| &keyword[place..keyword.len().min(place + GRAM)];
        places.min_by_key(|place| self.of(gram(*place))).unwrap_or_default()
    }
}

/// Returns all bytes that differ in more than their case.
fn any_byte() -> impl Iterator<Item = u8> {
    (0..=255).filter(|byte| byte & 0x20 == 0)
}

/// Returns the first three bytes of a text without their bits of case. Any third byte can follow two.
fn threes(text: &[u8]) -> impl Iterator<Item = u64> {
    let third = text.get(2).copied();
    let thirds = any_byte().filter(move |byte| third.is_none() || *byte == 0);
    let (first, second) = (text[0], text[1]);
    thirds.map(move |byte| eight(&[first, second, third.unwrap_or(byte)], 0))
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
        fn keywords_are_those_of_a_plain_search(
            before in proptest::prop_oneof![proptest::strategy::Just(0), BLOCK - 20..BLOCK + 2],
            text in "[a-e ]{0,40}",
            words in proptest::collection::vec("[a-e]{2,6}", 1..6),
        ) {
            // Over the end of a block, too.
            let text = " ".repeat(before) + &text;
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
