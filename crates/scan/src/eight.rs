//! Eight bytes of a text in one number, of which the lowest byte is the first one, to compare all of them at once.

const BYTES: usize = 8;
const HIGHEST: u64 = 0x8080_8080_8080_8080;
const EACH: u64 = 0x0101_0101_0101_0101;

/// Returns the next eight bytes. Zeros follow the end of a text.
pub(crate) fn read(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    let eight = rest.first_chunk::<BYTES>().copied().unwrap_or_else(|| {
        let mut padded = [0; BYTES];
        padded[..rest.len()].copy_from_slice(rest);
        padded
    });
    u64::from_le_bytes(eight)
}

/// Makes all letters small. Other bytes do not become letters, but may become other ones.
pub(crate) fn small(eight: u64) -> u64 {
    eight | 0x2020_2020_2020_2020
}

/// Returns eight bits, of which those of ASCII letters are set.
pub(crate) fn letters(eight: u64) -> u32 {
    bits(from(small(eight), b'a') & !from(small(eight), b'z' + 1) & !eight)
}

/// Returns eight bits, of which those of graphic characters of ASCII are set.
pub(crate) fn graphic(eight: u64) -> u32 {
    bits(from(eight, b'!') & !from(eight, b'~' + 1) & !eight)
}

/// Returns the number of graphic characters with which a text starts.
pub(crate) fn graphic_count(bytes: &[u8]) -> usize {
    let mut count = 0;
    loop {
        let here = graphic(read(bytes, count)).trailing_ones() as usize;
        count += here;
        if here < BYTES {
            return count;
        }
    }
}

/// Sets the highest bit of each byte of which the other bits are at least those of `first`.
fn from(eight: u64, first: u8) -> u64 {
    (eight & !HIGHEST) + u64::from(0x80 - first) * EACH
}

/// Returns the highest bit of each byte.
fn bits(eight: u64) -> u32 {
    (((eight & HIGHEST) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_single_bytes() {
        for byte in 0..=255_u8 {
            for place in 0..BYTES {
                let mut text = *b"a Z~\x7f\xffz@";
                text[place] = byte;
                let eight = read(&text, 0);
                for (place, byte) in text.iter().enumerate() {
                    assert_eq!(letters(eight) >> place & 1 == 1, byte.is_ascii_alphabetic(), "{byte}");
                    assert_eq!(graphic(eight) >> place & 1 == 1, byte.is_ascii_graphic(), "{byte}");
                }
            }
        }
    }

    #[test]
    fn graphic_characters_are_counted_to_the_end_of_a_text() {
        for count in 0..20 {
            let text = "~".repeat(count);
            assert_eq!(graphic_count(text.as_bytes()), count);
            assert_eq!(graphic_count(format!("{text} !").as_bytes()), count);
        }
    }
}
