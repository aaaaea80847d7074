//! Decoders of runs of digits inside a text: base64, base32, hexadecimal digits.

use std::borrow::Cow;
use std::ops::Range;

use crate::digits::{self, RANDOM, base64_into};
use crate::finding::Step;
use crate::runs::{B32, B32_LOWER, CONTEXT, HEX, RUN, is_base64, printable, runs};
use crate::view::{Builder, View};
use crate::{base85, escape, numerals, spaced};

/// Minimum printable characters in a row that make decoded bytes worth a scan.
const TEXT: usize = 8;
/// Maximum digits of a run that is also decoded from its second, third and fourth digit.
const SHIFTED: usize = 4096;
/// Maximum digits of a run of which the first digits are tried before it is decoded.
const SHORT: usize = 256;
/// Maximum bytes of a binary result whose compression is inspected.
const BINARY: usize = 256 << 10;
/// Maximum binary results of one view without a known start.
const BINARIES: usize = 8;

/// Returns the texts between other bytes, each on a line.
pub(crate) fn plain(view: &View<'_>) -> Option<View<'static>> {
    let mut builder = Builder::new(view);
    for range in printable(&view.bytes, TEXT) {
        builder.decoded(range.clone(), &view.bytes[range]);
        builder.separate();
    }
    builder.finish(Step::Text)
}

/// Result of decoding one view.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) views: Vec<View<'static>>,
    /// Binary results, which may be compressed, and the step that led to them.
    pub(crate) binary: Vec<(Vec<u8>, Vec<Step>, Range<usize>)>,
}

/// Decodes everything in a view that is encoded inside a text.
pub(crate) fn all(view: &View<'_>, long: &[Range<usize>]) -> Decoded {
    let mut decoded = Decoded::default();
    for step in [Step::Base64, Step::Hex, Step::Base32] {
        run_view(view, step, long, &mut decoded);
    }
    decoded.views.extend(numerals::read(view));
    decoded.views.extend(escape::escapes(view));
    decoded.views.extend(escape::quoted(view));
    decoded.views.extend(base85::read(view));
    decoded.views.extend(spaced::read(view));
    decoded
}

fn run_view(view: &View<'_>, step: Step, long: &[Range<usize>], decoded: &mut Decoded) {
    let bytes = view.bytes.as_ref();
    let found = match step {
        Step::Base64 => long.to_vec(),
        Step::Hex => parts::<HEX>(bytes, long),
        _ => {
            let mut all = parts::<B32>(bytes, long);
            all.extend(parts::<B32_LOWER>(bytes, long));
            all.sort_by_key(|run| run.start);
            all
        }
    };
    let mut builder = Builder::new(view);
    let (mut before, mut result) = (0, Vec::new());
    for group in lines(bytes, &found) {
        let range = group[0].start..group[group.len() - 1].end;
        let digits: Cow<'_, [u8]> = match group {
            [one] => bytes[one.clone()].into(),
            many => many.iter().flat_map(|part| &bytes[part.clone()]).copied().collect::<Vec<_>>().into(),
        };
        let shifts = if digits.len() <= SHIFTED { shifts(step) } else { 1 };
        let is_short = step == Step::Base64 && digits.len() <= SHORT;
        let promising = if is_short { digits::promising(&digits, &mut result) } else { usize::MAX };
        for shift in (0..shifts).filter(|shift| promising >> shift & 1 == 1) {
            let digits = &digits[shift.min(digits.len())..];
            result.clear();
            decode(step, digits, &mut result);
            let part = text(&result);
            let may_be_compressed = || {
                let known = crate::compression::recognized(&result).is_some();
                let wanted = || decoded.binary.len() < BINARIES && is_varied(step, digits);
                (TEXT..=BINARY).contains(&result.len())
                    && (known || (RANDOM.contains(&result.len()) && wanted()))
            };
            if shift == 0 && !matches!(part, Text::Whole) && may_be_compressed() {
                let mut steps = view.steps.clone();
                steps.push(step);
                decoded.binary.push((result.clone(), steps, view.origin(&range)));
            }
            if matches!(part, Text::None) {
                continue;
            }
            let start = range.start.saturating_sub(CONTEXT).max(before).min(range.start);
            builder.copy(start..range.start);
            append(&mut builder, range.clone(), &result, part);
            // Padding is no part of the text around it.
            let padding = bytes[range.end..].iter().take(7).take_while(|byte| **byte == b'=').count();
            let end = range.end + padding;
            builder.copy(end..bytes.len().min(end + 1));
            builder.separate();
        }
        before = range.end;
    }
    decoded.views.extend(builder.finish(step));
}

/// Returns the runs of a class inside other runs.
fn parts<const CLASS: u8>(bytes: &[u8], long: &[Range<usize>]) -> Vec<Range<usize>> {
    let inside = |run: &Range<usize>| {
        let start = run.start;
        let found = runs::<CLASS>(&bytes[run.clone()], RUN);
        found.into_iter().map(move |part| part.start + start..part.end + start)
    };
    long.iter().flat_map(inside).collect()
}

fn shifts(step: Step) -> usize {
    match step {
        Step::Base64 => 4,
        Step::Hex => 2,
        _ => 1,
    }
}

/// Part of decoded bytes that is text.
enum Text {
    None,
    Whole,
    Parts(Vec<Range<usize>>),
    /// Every second byte is zero.
    Wide,
}

/// Returns the text in decoded bytes.
fn text(bytes: &[u8]) -> Text {
    if bytes.len() < TEXT {
        return Text::None;
    }
    let sample = &bytes[..bytes.len().min(64)];
    if sample.iter().filter(|byte| **byte == 0).count() * 5 > sample.len() * 2 {
        return Text::Wide;
    }
    let control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x1b);
    if std::str::from_utf8(bytes).is_ok() && !bytes.iter().any(control) {
        return Text::Whole;
    }
    match printable(bytes, TEXT) {
        parts if parts.is_empty() => Text::None,
        parts => Text::Parts(parts),
    }
}

fn append(builder: &mut Builder<'_, '_>, range: Range<usize>, result: &[u8], part: Text) {
    match part {
        Text::None => {}
        Text::Whole => builder.decoded(range, result),
        Text::Wide => {
            let narrow: Vec<u8> = result.iter().copied().filter(|byte| *byte != 0).collect();
            builder.decoded(range, &narrow);
        }
        Text::Parts(parts) => {
            for (number, part) in parts.into_iter().enumerate() {
                if number > 0 {
                    builder.separate();
                }
                builder.decoded(range.clone(), &result[part]);
            }
        }
    }
}

/// Returns false for digits of base64 that are words rather than random bytes: they have no capitals, or no small letters.
fn is_varied(step: Step, digits: &[u8]) -> bool {
    let has = |kind: fn(&u8) -> bool| digits.iter().any(kind);
    step != Step::Base64 || (has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase))
}

/// Groups runs that continue on the next line.
fn lines<'r>(bytes: &[u8], runs: &'r [Range<usize>]) -> impl Iterator<Item = &'r [Range<usize>]> {
    runs.chunk_by(move |last, next| {
        let gap = &bytes[last.end.min(next.start)..next.start];
        last.len().is_multiple_of(4)
            && gap.len() <= 4
            && (gap.contains(&b'\n') || gap == b"\\n" || gap == b"\\r\\n")
            && gap.iter().all(|byte| b"\r\n \t\\nr".contains(byte))
    })
}

fn decode(step: Step, digits: &[u8], output: &mut Vec<u8>) {
    match step {
        Step::Base64 => base64_into(digits, output),
        Step::Hex => output.extend(hex(digits)),
        _ => output.extend(base32(digits).unwrap_or_default()),
    }
}

/// Decodes base64 in either alphabet, with or without padding. `None` if there is a byte of neither.
pub(crate) fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    let digits = digits.strip_suffix(b"==").or_else(|| digits.strip_suffix(b"=")).unwrap_or(digits);
    let valid = digits.iter().all(|byte| is_base64(*byte));
    valid.then(|| {
        let mut output = Vec::new();
        base64_into(digits, &mut output);
        output
    })
}

fn hex(digits: &[u8]) -> Vec<u8> {
    let value = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    digits.as_chunks::<2>().0.iter().map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

fn base32(digits: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(digits.len() * 5 / 8);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a',
            b'2'..=b'7' => digit - b'2' + 26,
            _ => return None,
        };
        bits = bits << 5 | u32::from(value);
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{B64, long};

    fn decoded(text: &str) -> Vec<String> {
        let decoded = all(&View::root(text.as_bytes()), &long(text.as_bytes()));
        decoded.views.iter().map(|view| String::from_utf8_lossy(&view.bytes).into_owned()).collect()
    }

    #[test]
    fn runs_are_found_from_samples() {
        assert_eq!(runs::<B64>(b"aaaa bb aaaaaaa", 4), [0..4, 8..15]);
        assert_eq!(runs::<B64>(b"  aaaa", 4).first(), Some(&(2..6)));
        assert_eq!(runs::<B64>(b"aaa aaa aaa", 4), Vec::<Range<usize>>::new());
    }

    proptest::proptest! {
        #[test]
        fn only_digits_that_count_are_decoded(
            before in "[a-zA-Z0-9_-]{0,9}",
            text in "[a-zé\\n€ѣ]{8,20}",
            wide in proptest::bool::ANY,
        ) {
            use base64::Engine;
            let text = match wide {
                true => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
                false => text.into_bytes(),
            };
            let digits = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&text);
            let all = [before.as_bytes(), digits.as_bytes()].concat();
            for shift in 0..4 {
                let mut decoded = Vec::new();
                base64_into(&all[shift..], &mut decoded);
                let counts =
                    !matches!(super::text(&decoded), Text::None) && decoded.iter().any(u8::is_ascii_graphic);
                let promising = digits::promising(&all, &mut Vec::new()) >> shift & 1 == 1;
                proptest::prop_assert!(!counts || promising, "{shift} {decoded:?}");
            }
        }

        #[test]
        fn runs_are_those_of_a_plain_search(text in "[a-c .]{0,120}", shortest in 4_usize..24) {
            let mut plain = Vec::new();
            let mut at = 0;
            for run in text.as_bytes().chunk_by(|a, b| (*a >= b'a') == (*b >= b'a')) {
                if run[0] >= b'a' && run.len() >= shortest {
                    plain.push(at..at + run.len());
                }
                at += run.len();
            }
            proptest::prop_assert_eq!(runs::<B64>(text.as_bytes(), shortest), plain);
        }
    }

    #[test]
    fn encodings_keep_their_context() {
        assert!(decoded("token=aGVsbG8gdGhlcmUsIHdvcmxk;")[0].contains("token=hello there, world;"));
        assert!(decoded("x=68656c6c6f20776f726c64;").iter().any(|text| text.contains("x=hello world;")));
        assert!(decoded("NBSWY3DPEB3W64TMMQQHI33EMF4Q====").iter().any(|text| text.contains("hello world")));
        assert!(decoded("68:65:6c:6c:6f:20:77:6f:72:6c:64").iter().any(|text| text.contains("hello world")));
        assert!(
            decoded("[104, 101, 108, 108, 111, 111, 111, 111]").iter().any(|text| text.contains("hello"))
        );
        assert!(decoded("\\x68\\u0065&#108;&#x6c;o").iter().any(|text| text.contains("hello")));
        assert!(
            decoded("h e l l o t h e r e w o r l d s o m e b o d y")
                .iter()
                .any(|text| text.contains("hellothere"))
        );
    }

    #[test]
    fn words_without_spaces_are_no_compressed_bytes() {
        let binary =
            |digits: &str| all(&View::root(digits.as_bytes()), &long(digits.as_bytes())).binary.len();
        assert_eq!(binary(&"largeuseruseruser512".repeat(4)), 0);
        assert_eq!(binary(&"k9Qv7".repeat(16)), 1);
    }

    #[test]
    fn base64_is_decoded_from_every_digit_and_over_lines() {
        assert!(decoded("xaGVsbG8gdGhlcmUsIHdvcmxk")[0].contains("hello there, worl"));
        assert!(
            decoded("aGVsbG8gdGhlcmUsIHdv\ncmxkLCBhZ2FpbiBhbmQgYWdhaW4")
                .iter()
                .any(|t| t.contains("there, world, again and again"))
        );
    }
}
