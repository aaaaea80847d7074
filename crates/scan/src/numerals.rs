//! Characters by their numbers: lists such as `41:42`, `0x41, 0x42`, `65, 66`, `101 102` and `01000001`, and dumps of bytes in
//! lines, each with its offset.

use std::ops::Range;

use crate::finding::Step;
use crate::runs::{CONTEXT, HEX_LIST, is_printable, runs};
use crate::view::{Builder, View};

/// Minimum numbers in a row that are read as characters.
const NUMBERS: usize = 8;
/// The same for numbers that can as well be decimal ones.
const LONG: usize = 16;
/// Maximum digits of a group of several bytes.
const GROUP: usize = 16;
/// Digits of an offset.
const OFFSET: std::ops::RangeInclusive<usize> = 4..=16;
/// Maximum bytes of a line of a dump, without a colon after its offset, and with one.
const LINE: usize = 16;
const LONG_LINE: usize = 64;
/// Maximum bytes of a line after its numbers, where the text is repeated.
const REPEATED: usize = 80;
/// Words of a run before which a dump may begin.
const WORDS: usize = 4;
/// Maximum bytes that one dump is read to.
const DUMP: usize = 64 << 10;

/// Decodes lists of numbers of characters, and dumps.
pub(crate) fn read(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    // Each number has two digits or more. Most runs are spaces.
    let enough = |run: &Range<usize>| {
        bytes[run.clone()].iter().filter(|byte| byte.is_ascii_hexdigit()).count() >= 2 * NUMBERS
    };
    let runs = runs::<HEX_LIST>(bytes, 3 * NUMBERS - 1).into_iter().filter(enough);
    let mut builder = Builder::new(view);
    let mut add = |range: Range<usize>, text: &[u8]| {
        builder.copy(range.start.saturating_sub(CONTEXT)..range.start);
        builder.decoded(range, text);
        builder.separate();
    };
    let mut done = 0;
    for run in runs {
        for (list, shortest) in lists(&bytes[run.clone()]) {
            for part in list.split(|byte| *byte == 0).filter(|part| part.len() >= shortest) {
                add(run.clone(), part);
            }
        }
        if run.start < done {
            continue;
        }
        if let Some(dump) = Dump::at(bytes, &run) {
            done = dump.range.end;
            for text in [&dump.bytes, &dump.swapped] {
                for part in text.split(|byte| !is_printable(*byte)) {
                    if part.len() >= NUMBERS {
                        add(dump.range.clone(), part);
                    }
                }
            }
        }
    }
    builder.finish(Step::Hex)
}

/// Returns the characters of a list, with its numbers read in each way, and the minimum length of a text. A zero stands for
/// other numbers, which end a text.
fn lists(run: &[u8]) -> [(Vec<u8>, usize); 5] {
    let (mut hexadecimal, mut decimal, mut octal, mut binary) = (vec![], vec![], vec![], vec![]);
    let mut groups = vec![];
    let items = run.split(|byte| !byte.is_ascii_hexdigit() && *byte != b'x').filter(|item| !item.is_empty());
    for item in items {
        let digits = item.strip_prefix(b"0x").unwrap_or(item);
        hexadecimal.push(if digits.len() == 2 { number(digits, 16) } else { 0 });
        match digits.len() % 2 == 0 && digits.len() <= GROUP {
            true => groups.extend(digits.chunks(2).map(|pair| number(pair, 16))),
            false => groups.push(0),
        }
        let is_short = (2..=3).contains(&item.len());
        decimal.push(if is_short { number(item, 10) } else { 0 });
        octal.push(if is_short { number(item, 8) } else { 0 });
        let bits = item.strip_prefix(b"0b").unwrap_or(item);
        match bits.len() == 7 || (bits.len() >= 8 && bits.len() % 8 == 0) {
            true => binary.extend(bits.chunks(8).map(|byte| number(byte, 2))),
            false => binary.push(0),
        }
    }
    // A table of decimal numbers has no letters.
    if !run.iter().any(u8::is_ascii_alphabetic) {
        groups.clear();
    }
    [(hexadecimal, NUMBERS), (decimal, NUMBERS), (binary, NUMBERS), (octal, LONG), (groups, LONG)]
}

/// Returns the character of a number, or zero for a character that no text has.
fn number(digits: &[u8], base: u32) -> u8 {
    let value = digits.iter().try_fold(0_u32, |value, digit| {
        let digit = char::from(*digit).to_digit(base)?;
        Some(value * base + digit)
    });
    value.and_then(|value| u8::try_from(value).ok()).filter(|byte| is_printable(*byte)).unwrap_or(0)
}

/// Bytes that a dump shows.
struct Dump {
    range: Range<usize>,
    bytes: Vec<u8>,
    /// The same if its groups are words of two bytes, of which the first is the last. Empty for other groups.
    swapped: Vec<u8>,
}

impl Dump {
    /// Reads the lines from one that begins with a run.
    fn at(bytes: &[u8], run: &Range<usize>) -> Option<Dump> {
        let starts = (run.start..run.end).filter(|at| {
            bytes[*at].is_ascii_hexdigit() && (*at == run.start || !bytes[at - 1].is_ascii_hexdigit())
        });
        let start = starts
            .take(WORDS)
            .find(|at| Line::at(bytes, *at).is_some_and(|line| line.bytes.len() >= NUMBERS))?;
        let mut dump = Dump { range: start..start, bytes: Vec::new(), swapped: Vec::new() };
        let (mut at, mut offset) = (start, None);
        while let Some(line) =
            Line::at(bytes, at).filter(|line| offset.is_none_or(|offset| line.offset > offset))
        {
            dump.range.end = line.end;
            dump.bytes.extend_from_slice(&line.bytes);
            if line.group == 4 {
                dump.swapped.extend(line.bytes.chunks(2).flat_map(|pair| pair.iter().rev()));
            }
            offset = Some(line.offset);
            let Some(next) = next_line(bytes, line.end).filter(|_| dump.bytes.len() < DUMP) else { break };
            at = next;
        }
        Some(dump)
    }
}

/// Returns the start of the next line. Its end can be an escape.
fn next_line(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = &bytes[from..bytes.len().min(from + REPEATED)];
    let plain = memchr::memchr(b'\n', rest).map(|at| at + 1);
    let escaped = memchr::memmem::find(rest, b"\\n").map(|at| at + 2);
    let next = from + plain.into_iter().chain(escaped).min()?;
    Some(next + bytes[next..].iter().take(LINE).take_while(|byte| **byte == b' ').count())
}

/// One line of a dump.
struct Line {
    offset: u64,
    bytes: Vec<u8>,
    /// Digits of each group.
    group: usize,
    /// Place after its last number.
    end: usize,
}

impl Line {
    fn at(bytes: &[u8], start: usize) -> Option<Line> {
        let digits = |from: usize| {
            bytes[from.min(bytes.len())..]
                .iter()
                .take(GROUP + 1)
                .take_while(|byte| byte.is_ascii_hexdigit())
                .count()
        };
        let length = Some(digits(start)).filter(|length| OFFSET.contains(length))?;
        let offset = std::str::from_utf8(&bytes[start..start + length]).ok()?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        let colon = bytes.get(start + length) == Some(&b':');
        // Another number begins a row of a table.
        if !colon && bytes[start] != b'0' {
            return None;
        }
        let mut at = start + length + usize::from(colon);
        let mut line = Line { offset, bytes: Vec::new(), group: 0, end: at };
        loop {
            let spaces = bytes[at..].iter().take(4).take_while(|byte| **byte == b' ').count();
            // After a colon, two spaces separate the numbers from the text.
            let is_separate = line.group > 0 && colon && spaces > 1;
            let count = digits(at + spaces);
            let is_group = match line.group {
                0 => matches!(count, 2 | 4 | 8),
                group => count == group || (count < group && count % 2 == 0),
            };
            let most = if colon { LONG_LINE } else { LINE };
            if spaces == 0 || is_separate || count == 0 || !is_group || line.bytes.len() + count / 2 > most {
                break;
            }
            at += spaces;
            let pairs = bytes[at..at + count].chunks(2);
            line.bytes.extend(pairs.map(|pair| {
                pair.iter()
                    .fold(0, |value, digit| value << 4 | char::from(*digit).to_digit(16).unwrap_or(0) as u8)
            }));
            at += count;
            line.end = at;
            if line.group > count {
                break;
            }
            line.group = count;
        }
        (!line.bytes.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        read(&View::root(text.as_bytes()))
            .map(|view| String::from_utf8_lossy(&view.bytes).into_owned())
            .unwrap_or_default()
    }

    #[test]
    fn lists_of_numbers_are_read_in_each_base() {
        for list in [
            "68 65 6c 6c 6f 20 77 6f 72 6c 64",
            "0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x20, 0x77, 0x6f, 0x72, 0x6c, 0x64",
            "6865 6c6c 6f20 776f 726c 642c 2061 6761 696e",
            "104 101 108 108 111 32 119 111 114 108 100",
            "150 145 154 154 157 40 167 157 162 154 144 54 40 141 147 141 151 156",
            "01101000 01100101 01101100 01101100 01101111 00100000 01110111 01101111 01110010 01101100 01100100",
            "1101000 1100101 1101100 1101100 1101111 0100000 1110111 1101111 1110010 1101100 1100100",
            "0b01101000 0b01100101 0b01101100 0b01101100 0b01101111 0b00100000 0b01110111 0b01101111 0b01110010 \
             0b01101100 0b01100100",
        ] {
            assert!(text(list).contains("hello world"), "{list}: {:?}", text(list));
        }
        assert!(
            text("code 0110100001100101011011000110110001101111011101110110111101110010")
                .contains("hellowor")
        );
        assert_eq!(text("1010 0101 1100 0011 1010 0101 1100 0011"), "", "bits that are no text");
        assert_eq!(text("10 20 30 40 50 60"), "", "too few");
        let table = "4142 4344 4546 4748 4950 5152 5354 5556 5758 6162 6364";
        assert_eq!(text(table), "", "decimal numbers");
    }

    #[test]
    fn dumps_are_read_over_their_lines() {
        for dump in [
            "00000000: 6865 6c6c 6f20 7468 6572 652c 2077 6f72  hello there, wor\n00000010: 6c64                 ld\n",
            "00000000  68 65 6c 6c 6f 20 74 68  65 72 65 2c 20 77 6f 72  |hello there, wor|\n00000010  6c 64  |ld|\n",
            "0000000 68 65 6c 6c 6f 20 74 68 65 72 65 2c 20 77 6f 72\n0000020 6c 64\n0000022\n",
            "0000000 6568 6c6c 206f 6874 7265 2c65 7720 726f\n0000010 646c\n",
            "a: 0000 68 65 6c 6c 6f 20 74 68 65 72 65 2c 20 77 6f 72  hello there, wor\\n0010 6c 64",
            "00000000: 68656c6c 6f207468 6572652c 20776f72  hello there, wor\n00000010: 6c64  ld",
        ] {
            assert!(text(dump).contains("hello there, world"), "{dump}: {:?}", text(dump));
        }
        assert!(!text("00000000: 6865 6c6c 6f20 7468  de ad be ef\n").contains("\u{ad}"));
        assert_eq!(text("00000000: 0001 0203 8485 8687 0809 fafb 8c8d 0e0f  ................\n"), "");
    }
}
