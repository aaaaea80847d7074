//! Digits of base64.

use crate::compression;

/// Bytes of a binary result without a known start that is decompressed.
pub(crate) const RANDOM: std::ops::RangeInclusive<usize> = 48..=8192;
const VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 26 {
        table[b'A' as usize + at] = at as u8;
        table[b'a' as usize + at] = at as u8 + 26;
        at += 1;
    }
    at = 0;
    while at < 10 {
        table[b'0' as usize + at] = at as u8 + 52;
        at += 1;
    }
    table[b'+' as usize] = 62;
    table[b'-' as usize] = 62;
    table[b'/' as usize] = 63;
    table[b'_' as usize] = 63;
    table
}

/// Decodes digits of base64.
pub(crate) fn base64_into(digits: &[u8], output: &mut Vec<u8>) {
    let value = |byte: u8| u32::from(VALUES[usize::from(byte)]);
    let (groups, rest) = digits.as_chunks::<4>();
    let start = output.len();
    output.resize(start + groups.len() * 3, 0);
    for (group, three) in groups.iter().zip(output[start..].as_chunks_mut::<3>().0) {
        let bits = value(group[0]) << 18 | value(group[1]) << 12 | value(group[2]) << 6 | value(group[3]);
        let [_, a, b, c] = bits.to_be_bytes();
        *three = [a, b, c];
    }
    let bits = rest.iter().fold(0, |bits, byte| bits << 6 | value(*byte)) << (6 * (4 - rest.len()));
    let [_, a, b, _] = bits.to_be_bytes();
    match rest.len() {
        2 => output.push(a),
        3 => output.extend([a, b]),
        _ => {}
    }
}

/// Returns the bits of those of the first four digits of base64 from which digits may decode to something that counts. It can
/// be text, which has two groups of four digits next to each other that decode to ASCII, starts with UTF-8, or has many zeros.
/// From the first digit, it can also be compressed. Names in programs are neither.
pub(crate) fn promising(digits: &[u8], start: &mut Vec<u8>) -> usize {
    let (mut bits, mut groups) = (0, 0_u32);
    let (mut first, mut second) = (0, 0);
    let mut zeros = 0;
    for (at, digit) in digits.iter().enumerate() {
        // Bits 5, 3 and 1 of the first three digits are the highest ones of the three bytes.
        let value = u32::from(VALUES[usize::from(*digit)]);
        zeros += usize::from(value == 0);
        let third = !value;
        groups = groups << 1 | (first >> 5 & second >> 3 & third >> 1 & 1);
        bits |= ((groups & groups >> 4 & 1) as usize) << (at.wrapping_sub(2) & 3);
        (first, second) = (second, third);
    }
    // Of more than two fifths of zeros among so many bytes, those that are the second of three bytes show in no digit.
    let length = (digits.len().saturating_sub(3) * 3 / 4).min(64);
    if zeros >= (length * 2 / 5).saturating_sub(length.div_ceil(3)).max(1) {
        return usize::MAX;
    }
    for shift in 0..4 {
        let Some(eight) = digits.get(shift..shift + 8) else { break };
        start.clear();
        base64_into(eight, start);
        let is_start = std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
        let is_compressed =
            || compression::magic(start).is_some() || RANDOM.contains(&(digits.len() * 3 / 4));
        if is_start || (shift == 0 && is_compressed()) {
            bits |= 1 << shift;
        }
    }
    bits
}
