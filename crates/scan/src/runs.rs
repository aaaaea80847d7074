//! Runs of bytes of a class inside a text: of digits of encodings, of numbers, of what can be printed.

use std::ops::Range;

/// Bytes before an encoded run that are context of what it decodes to.
pub(crate) const CONTEXT: usize = 64;
/// Minimum digits of an encoded run.
pub(crate) const RUN: usize = 20;
/// Minimum bytes of a run of digits, spaces and dashes.
const DIGITS: usize = 10;
/// Minimum digits in such a run.
const DIGITS_MIN: usize = 9;
/// Minimum bytes of a long run.
const TOKEN: usize = 48;
/// Maximum bytes of a long run. Longer ones are encoded data.
const TOKEN_MAX: usize = 512;
/// Bytes after the first dot of a token that are inspected.
const DOTTED: usize = 128;

pub(crate) const B64: u8 = 1;
pub(crate) const HEX: u8 = 2;
pub(crate) const B32: u8 = 4;
pub(crate) const B32_LOWER: u8 = 8;
const NUMBER: u8 = 16;
pub(crate) const HEX_LIST: u8 = 32;
const PRINTABLE: u8 = 64;

const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        let mut class = 0;
        if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_') {
            class |= B64;
        }
        if byte.is_ascii_hexdigit() {
            class |= HEX | HEX_LIST;
        }
        if byte.is_ascii_uppercase() || matches!(byte, b'2'..=b'7') {
            class |= B32;
        }
        if byte.is_ascii_lowercase() || matches!(byte, b'2'..=b'7') {
            class |= B32_LOWER;
        }
        if byte.is_ascii_digit() || matches!(byte, b' ' | b'-' | b'.') {
            class |= NUMBER;
        }
        if matches!(byte, b' ' | b',' | b':' | b'-' | b'x' | b'\n') {
            class |= HEX_LIST;
        }
        if byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            class |= PRINTABLE;
        }
        table[at] = class;
        at += 1;
    }
    table
}

/// Returns the runs of at least `shortest` bytes of a class; at least 4. It samples four bytes at a time, or eight for long
/// runs: every such run holds a sample, and text without long runs costs little.
pub(crate) fn runs<const CLASS: u8>(bytes: &[u8], shortest: usize) -> Vec<Range<usize>> {
    match shortest < 2 * 8 {
        true => sampled::<CLASS, 4>(bytes, shortest),
        false => sampled::<CLASS, 8>(bytes, shortest),
    }
}

fn sampled<const CLASS: u8, const SAMPLE: usize>(bytes: &[u8], shortest: usize) -> Vec<Range<usize>> {
    let is_in = |byte: &u8| CLASSES[usize::from(*byte)] & CLASS != 0;
    let all_in = |bytes: &[u8]| bytes.iter().fold(CLASS, |all, byte| all & CLASSES[usize::from(*byte)]) != 0;
    let step = shortest + 1 - SAMPLE;
    let mut found = Vec::new();
    let (mut at, mut done) = (0, 0);
    while let Some(sample) = bytes.get(at..).and_then(|rest| rest.first_chunk::<SAMPLE>()) {
        // Indentation is no separator.
        let may_be = CLASS != NUMBER || may_be_number(sample);
        if !may_be || !all_in(sample) || (sample == &[b' '; SAMPLE] && CLASS != PRINTABLE) {
            at += step;
            continue;
        }
        let start = at - bytes[done..at].iter().rev().take_while(|byte| is_in(byte)).count();
        let mut end = at + SAMPLE;
        for eight in bytes[end..].as_chunks::<8>().0 {
            if !all_in(eight) {
                break;
            }
            end += 8;
        }
        end += bytes[end..].iter().take_while(|byte| is_in(byte)).count();
        if end - start >= shortest {
            found.push(start..end);
        }
        done = end;
        at = end + 1;
    }
    found
}

/// Returns false if the first four bytes are spaces, or one is not between a space and a question mark, as all of a number are.
fn may_be_number(sample: &[u8]) -> bool {
    const SPACES: u32 = 0x2020_2020;
    let four = sample.first_chunk().map_or(0, |four| u32::from_le_bytes(*four));
    (four & 0xe0e0_e0e0 == SPACES) & (four != SPACES)
}

/// Returns the runs of digits, spaces and dashes in which numbers of cards and persons are searched.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<Range<usize>> {
    let enough = |run: &Range<usize>| {
        bytes[run.clone()].iter().filter(|byte| byte.is_ascii_digit()).count() >= DIGITS_MIN
    };
    runs::<NUMBER>(bytes, DIGITS).into_iter().filter(enough).collect()
}

/// Returns the runs of letters and digits, of which all encoded runs are parts.
pub(crate) fn long(bytes: &[u8]) -> Vec<Range<usize>> {
    runs::<B64>(bytes, RUN)
}

/// Returns the runs in which keys are searched.
pub(crate) fn tokens(long: &[Range<usize>]) -> Vec<Range<usize>> {
    long.iter().filter(|run| (TOKEN..=TOKEN_MAX).contains(&run.len())).cloned().collect()
}

/// Reports whether a byte is a digit of base64, of any alphabet.
pub(crate) fn is_base64(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & B64 != 0
}

/// Reports whether a byte is part of a text.
pub(crate) fn is_printable(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & PRINTABLE != 0
}

/// Returns the surroundings of runs of letters and digits that are followed by a dot and more of them.
pub(crate) fn dotted(bytes: &[u8], long: &[Range<usize>]) -> Vec<Range<usize>> {
    let with_rest = |run: &Range<usize>| run.start..bytes.len().min(run.end + DOTTED);
    long.iter().filter(|run| bytes.get(run.end) == Some(&b'.')).map(with_rest).collect()
}

/// Returns ranges that are printable and at least `shortest` bytes long.
pub(crate) fn printable(bytes: &[u8], shortest: usize) -> Vec<Range<usize>> {
    runs::<PRINTABLE>(bytes, shortest)
}
