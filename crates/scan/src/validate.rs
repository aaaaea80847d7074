//! Validators: checks of a match that a regular expression cannot express.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;

use serde::Deserialize;
use sha2::{Digest, Sha256};

const WORDS: &str = include_str!("../rules/bip39.txt");
/// Numbers of words that a phrase of BIP-39 has.
const PHRASES: [usize; 5] = [12, 15, 18, 21, 24];
/// Maximum words in a row that can be a phrase and words around it.
const RUN: usize = 30;
const BASE58: &[u8] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const BECH32: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// Check of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Validator {
    /// Check digit of the numbers of cards.
    Luhn,
    /// Check digits of an IBAN.
    Iban,
    /// Base58 with a checksum.
    Base58Check,
    /// Bech32 or Bech32m.
    Bech32,
    /// Phrase of BIP-39 with its checksum.
    Bip39,
    /// JSON Web Token whose header decodes.
    Jwt,
    /// Social security number in a range that is issued.
    Ssn,
    /// Digits and letters.
    Mixed,
    /// Routing number of a bank of the United States.
    Routing,
    /// Characters of three kinds, as in a password.
    Password,
    /// Bytes of a key as 64 numbers.
    KeyBytes,
}

impl Validator {
    /// Reports whether a value passes the check.
    pub(crate) fn holds(self, value: &[u8]) -> bool {
        match self {
            Validator::Luhn => card(value),
            Validator::Iban => iban(value),
            Validator::Base58Check => base58check(value),
            Validator::Bech32 => bech32(value),
            Validator::Bip39 => phrase(value),
            Validator::Jwt => jwt(value),
            Validator::Ssn => ssn(value),
            Validator::Mixed => {
                value.iter().any(u8::is_ascii_digit) && value.iter().any(u8::is_ascii_alphabetic)
            }
            Validator::Routing => routing(value),
            Validator::Password => password(value),
            Validator::KeyBytes => key_bytes(value),
        }
    }
}

/// Returns the entropy of a value, in bits a byte.
pub(crate) fn entropy(value: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    value.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let total = value.len() as f64;
    let share = |count: u32| f64::from(count) / total;
    counts.iter().filter(|count| **count > 0).map(|count| -share(*count) * share(*count).log2()).sum()
}

fn digits(value: &[u8]) -> Vec<u32> {
    value.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| u32::from(byte - b'0')).collect()
}

/// Reports whether digits are the number of a card: an issuer's prefix and length, Luhn's check digit, no repeated digit.
pub(crate) fn card(value: &[u8]) -> bool {
    let digits = digits(value);
    let first = |count: usize| digits.iter().take(count).fold(0, |sum, digit| sum * 10 + digit);
    let issuer = match digits.len() {
        13 => first(1) == 4,
        14 => matches!(first(2), 36 | 38 | 39) || (300..=305).contains(&first(3)),
        15 => matches!(first(2), 34 | 37),
        16 => {
            first(1) == 4
                || (51..=55).contains(&first(2))
                || (2221..=2720).contains(&first(4))
                || first(4) == 6011
                || first(2) == 65
                || (3528..=3589).contains(&first(4))
                || first(2) == 62
        }
        19 => first(1) == 4 || first(2) == 62,
        _ => false,
    };
    let distinct = digits.iter().collect::<HashSet<_>>().len();
    issuer && distinct > 1 && luhn(&digits)
}

/// Bytes on each side of a number in which the other numbers of a table are.
const TABLE: usize = 160;
/// Other numbers of a table: of the length of card numbers, with wrong check digits.
const ROWS: usize = 3;

/// Reports whether a number stands in a table of numbers of such length, as those of curves and of floating point: one in some
/// hundred is that of a card by chance.
pub(crate) fn is_in_table(bytes: &[u8], range: &Range<usize>) -> bool {
    let (before, after) = (&bytes[..range.start], &bytes[range.end..]);
    let near = [&before[before.len().saturating_sub(TABLE)..], &after[..after.len().min(TABLE)]];
    let numbers = near.into_iter().flat_map(|part| part.split(|byte| !byte.is_ascii_digit()));
    numbers.filter(|number| (15..=20).contains(&number.len()) && !card(number)).count() >= ROWS
}

fn luhn(digits: &[u32]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match at % 2 {
            0 => *digit,
            _ if *digit > 4 => digit * 2 - 9,
            _ => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Length of an IBAN in each country.
const IBANS: [(&[u8; 2], usize); 40] = [
    (b"AD", 24),
    (b"AE", 23),
    (b"AT", 20),
    (b"BE", 16),
    (b"BG", 22),
    (b"BR", 29),
    (b"CH", 21),
    (b"CY", 28),
    (b"CZ", 24),
    (b"DE", 22),
    (b"DK", 18),
    (b"EE", 20),
    (b"ES", 24),
    (b"FI", 18),
    (b"FR", 27),
    (b"GB", 22),
    (b"GI", 23),
    (b"GR", 27),
    (b"HR", 21),
    (b"HU", 28),
    (b"IE", 22),
    (b"IL", 23),
    (b"IS", 26),
    (b"IT", 27),
    (b"LI", 21),
    (b"LT", 20),
    (b"LU", 20),
    (b"LV", 21),
    (b"MC", 27),
    (b"MT", 31),
    (b"NL", 18),
    (b"NO", 15),
    (b"PL", 28),
    (b"PT", 25),
    (b"RO", 24),
    (b"SA", 24),
    (b"SE", 24),
    (b"SI", 19),
    (b"SK", 24),
    (b"TR", 26),
];

/// Reports whether a value is an IBAN, with or without spaces.
pub(crate) fn iban(value: &[u8]) -> bool {
    let plain: Vec<u8> = value.iter().copied().filter(u8::is_ascii_alphanumeric).collect();
    let Some(&[first, second]) = plain.first_chunk::<2>() else { return false };
    let country = [first.to_ascii_uppercase(), second.to_ascii_uppercase()];
    if !IBANS.iter().any(|(known, length)| **known == country && *length == plain.len()) {
        return false;
    }
    let rotated = plain[4..].iter().chain(&plain[..4]);
    let remainder = rotated.fold(0_u32, |rest, byte| match char::from(*byte).to_digit(36) {
        Some(digit) if digit > 9 => (rest * 100 + digit) % 97,
        Some(digit) => (rest * 10 + digit) % 97,
        None => rest,
    });
    remainder == 1
}

fn routing(value: &[u8]) -> bool {
    let digits = digits(value);
    let weights = [3, 7, 1, 3, 7, 1, 3, 7, 1];
    let sum: u32 = digits.iter().zip(weights).map(|(digit, weight)| digit * weight).sum();
    digits.len() == 9 && sum > 0 && sum.is_multiple_of(10)
}

/// Reports whether a value has three of four kinds of characters: small letters, capitals, digits and others. Words with a
/// hyphen or a dot are no password.
fn password(value: &[u8]) -> bool {
    let has = |kind: fn(&u8) -> bool| value.iter().any(kind);
    let kinds = [
        has(|byte| byte.is_ascii_lowercase() || !byte.is_ascii()),
        has(u8::is_ascii_uppercase),
        has(u8::is_ascii_digit),
        has(u8::is_ascii_punctuation),
    ];
    let count = kinds.iter().filter(|kind| **kind).count();
    count >= 3 && value.iter().any(|byte| byte.is_ascii_digit() || b"!@#$%^&*+=?~".contains(byte))
}

/// Reports whether 64 numbers are bytes without order: those of tables are small, or repeat.
fn key_bytes(value: &[u8]) -> bool {
    let numbers: Vec<u32> = value
        .split(|byte| !byte.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|number| digits(number).iter().fold(0, |sum, digit| sum * 10 + digit))
        .collect();
    let distinct = numbers.iter().collect::<HashSet<_>>().len();
    let large = numbers.iter().filter(|number| **number >= 128).count();
    let rising = numbers.windows(2).filter(|pair| pair[0] < pair[1]).count();
    numbers.len() == 64
        && numbers.iter().all(|number| *number < 256)
        && distinct >= 45
        && (16..=48).contains(&large)
        && (20..=44).contains(&rising)
}

/// Reports whether a value is a social security number in a range that is issued.
pub(crate) fn ssn(value: &[u8]) -> bool {
    let digits = digits(value);
    if digits.len() != 9 {
        return false;
    }
    let number = |range: std::ops::Range<usize>| digits[range].iter().fold(0, |sum, digit| sum * 10 + digit);
    let (area, group, serial) = (number(0..3), number(3..5), number(5..9));
    area != 0 && area != 666 && area < 900 && group != 0 && serial != 0
}

fn base58check(value: &[u8]) -> bool {
    let mut number: Vec<u8> = Vec::new();
    for byte in value {
        let Some(digit) = BASE58.iter().position(|letter| letter == byte) else { return false };
        let mut carry = u32::try_from(digit).unwrap_or(0);
        for place in number.iter_mut() {
            carry += u32::from(*place) * 58;
            *place = (carry & 0xff) as u8;
            carry >>= 8;
        }
        while carry > 0 {
            number.push((carry & 0xff) as u8);
            carry >>= 8;
        }
    }
    number.extend(value.iter().take_while(|byte| **byte == b'1').map(|_| 0));
    number.reverse();
    let Some((payload, checksum)) = number.split_last_chunk::<4>() else { return false };
    !payload.is_empty() && Sha256::digest(Sha256::digest(payload))[..4] == checksum[..]
}

fn bech32(value: &[u8]) -> bool {
    let value = value.to_ascii_lowercase();
    let Some(separator) = value.iter().rposition(|byte| *byte == b'1') else { return false };
    let (name, data) = (&value[..separator], &value[separator + 1..]);
    if name.is_empty() || data.len() < 6 {
        return false;
    }
    let mut values: Vec<u32> = name.iter().map(|byte| u32::from(byte >> 5)).collect();
    values.push(0);
    values.extend(name.iter().map(|byte| u32::from(byte & 31)));
    for byte in data {
        let Some(digit) = BECH32.iter().position(|letter| letter == byte) else { return false };
        values.push(u32::try_from(digit).unwrap_or(0));
    }
    let mut check = 1_u32;
    for value in values {
        let top = check >> 25;
        check = (check & 0x01ff_ffff) << 5 ^ value;
        for (bit, generator) in
            [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3].into_iter().enumerate()
        {
            check ^= if top >> bit & 1 == 1 { generator } else { 0 };
        }
    }
    check == 1 || check == 0x2bc8_30a3
}

/// Bits of the hash of a word.
const WORD_BITS: u32 = 12;
/// Maximum letters of a word.
const WORD_LETTERS: usize = 8;
/// Bits of the hash by which most other words are excluded.
const FILTER_BITS: u32 = 15;

/// Hash table of the words of BIP-39.
struct Words {
    /// Words, each at the first free place from its hash.
    places: Vec<u64>,
    /// Their numbers at the same places.
    numbers: Vec<u16>,
    /// Bits of the hashes of the words.
    filter: [u64; 1 << (FILTER_BITS - 6)],
}

impl Words {
    fn get() -> &'static Words {
        static TABLE: OnceLock<Words> = OnceLock::new();
        TABLE.get_or_init(Words::new)
    }

    fn new() -> Words {
        let (places, numbers) = (vec![0; 1 << WORD_BITS], vec![0; 1 << WORD_BITS]);
        let mut words = Words { places, numbers, filter: [0; 1 << (FILTER_BITS - 6)] };
        for (number, word) in (0..).zip(WORDS.lines()) {
            let letters = letters(word.as_bytes());
            let hash = hash(letters, FILTER_BITS);
            words.filter[hash >> 6] |= 1 << (hash & 63);
            let place = words.find(letters);
            words.places[place] = letters;
            words.numbers[place] = number;
        }
        words
    }

    /// Returns the place of a word, or the free one at which it would be.
    fn find(&self, letters: u64) -> usize {
        let mut place = hash(letters, WORD_BITS);
        while self.places[place] != 0 && self.places[place] != letters {
            place = (place + 1) % self.places.len();
        }
        place
    }
}

fn hash(letters: u64, bits: u32) -> usize {
    (letters.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
}

/// Returns the letters of a word as a number, whatever their case. The lowest byte is the first one.
fn letters(word: &[u8]) -> u64 {
    word.iter().rev().fold(0, |letters, letter| letters << 8 | u64::from(letter | 0x20))
}

/// Returns the number of a word of BIP-39, in any case.
pub(crate) fn word(word: &[u8]) -> Option<usize> {
    (1..=WORD_LETTERS).contains(&word.len()).then(|| word_of(letters(word)))?
}

/// Returns the number of a word of BIP-39 by its small letters. The lowest byte is the first one.
pub(crate) fn word_of(letters: u64) -> Option<usize> {
    let words = Words::get();
    let hash = hash(letters, FILTER_BITS);
    if words.filter[hash >> 6] >> (hash & 63) & 1 == 0 {
        return None;
    }
    let place = words.find(letters);
    (words.places[place] == letters && letters != 0).then(|| usize::from(words.numbers[place]))
}

/// Reports whether words separated by other characters hold a phrase of BIP-39 with its checksum. A longer run of words is a
/// list of words.
fn phrase(value: &[u8]) -> bool {
    let words: Vec<_> = value.split(|byte| !byte.is_ascii_alphabetic()).filter(|w| !w.is_empty()).collect();
    let logic = words.iter().filter(|word| matches!(**word, b"true" | b"false")).count();
    words.len() <= RUN
        && logic * 2 < words.len()
        && PHRASES.iter().any(|length| words.windows(*length).any(checked_phrase))
}

/// Reports whether words are a phrase of BIP-39 with its checksum.
fn checked_phrase(words: &[&[u8]]) -> bool {
    if !PHRASES.contains(&words.len()) {
        return false;
    }
    let mut bits = Vec::with_capacity(words.len() * 11);
    for text in words {
        let Some(number) = word(text) else { return false };
        bits.extend((0..11).rev().map(|bit| number >> bit & 1 == 1));
    }
    let (entropy, checksum) = bits.split_at(bits.len() / 33 * 32);
    let bytes: Vec<u8> =
        entropy.chunks(8).map(|chunk| chunk.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect();
    let digest = Sha256::digest(&bytes)[0];
    checksum.iter().enumerate().all(|(at, bit)| (digest >> (7 - at) & 1 == 1) == *bit)
}

/// Reports whether the header of a token decodes to an object with an algorithm.
fn jwt(value: &[u8]) -> bool {
    let Some(header) = value.split(|byte| *byte == b'.').next() else { return false };
    let Some(decoded) = crate::decode::base64(header) else { return false };
    let Ok(header) = serde_json::from_slice::<serde_json::Value>(&decoded) else { return false };
    header.get("alg").or_else(|| header.get("enc")).is_some_and(serde_json::Value::is_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luhn_needs_an_issuer_and_a_check_digit() {
        assert!(Validator::Luhn.holds(b"4111 1111 1111 1111"));
        assert!(Validator::Luhn.holds(b"5555-5555-5555-4444"));
        assert!(!Validator::Luhn.holds(b"4111111111111112"));
        assert!(!Validator::Luhn.holds(b"0000000000000000"));
        assert!(!Validator::Luhn.holds(b"1234567812345670"));
        let table =
            b"1994165897297032, 2245000007398739,\n 2251799813685228, 1510246567196186, 1234567890123456";
        let place = |text: &[u8], number: &[u8]| {
            let start = memchr::memmem::find(text, number).unwrap();
            start..start + number.len()
        };
        assert!(is_in_table(table, &place(table, b"2251799813685228")));
        let list = b"4111111111111111\n5555555555554444\n4012888888881881\n378282246310005\n6011111111111117";
        assert!(!is_in_table(list, &place(list, b"4012888888881881")));
        assert!(!is_in_table(b"4111111111111111", &(0..16)));
    }

    #[test]
    fn iban_needs_its_check_digits_and_length() {
        assert!(Validator::Iban.holds(b"DE89 3704 0044 0532 0130 00"));
        assert!(Validator::Iban.holds(b"GB82WEST12345698765432"));
        assert!(!Validator::Iban.holds(b"DE88370400440532013000"));
        assert!(!Validator::Iban.holds(b"GB82WEST1234569876543"));
    }

    #[test]
    fn phrase_needs_its_checksum() {
        let zero = "abandon ".repeat(11) + "about";
        assert!(Validator::Bip39.holds(zero.as_bytes()));
        assert!(!Validator::Bip39.holds("abandon ".repeat(12).trim().as_bytes()));
        assert!(!Validator::Bip39.holds(b"abandon about"));
    }

    #[test]
    fn keys_need_their_checksums() {
        assert!(Validator::Base58Check.holds(b"5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ"));
        assert!(!Validator::Base58Check.holds(b"5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTK"));
        assert!(Validator::Bech32.holds(b"BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4"));
        assert!(!Validator::Bech32.holds(b"BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T5"));
    }

    #[test]
    fn token_needs_a_header() {
        assert!(Validator::Jwt.holds(b"eyJhbGciOiJIUzI1NiJ9.e30.x"));
        assert!(!Validator::Jwt.holds(b"eyJhbGciOi.e30.x"));
    }

    #[test]
    fn entropy_of_one_letter_is_zero() {
        assert_eq!(entropy(b"aaaa"), 0.0);
        assert_eq!(entropy(b"abcd"), 2.0);
    }
}
