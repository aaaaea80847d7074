//! Decoders of single characters: percent-encoding, escapes of programming languages, JSON and HTML.

use std::ops::Range;

use crate::finding::Step;
use crate::view::{Builder, View};

/// Bytes of a line of quoted-printable before the `=` at its end.
const SOFT: std::ops::RangeInclusive<usize> = 68..=76;
/// Bytes on each side of an escape that are context.
const REGION: usize = 96;

/// Decodes percent-encoding once, with its surroundings.
pub(crate) fn percent(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let triple = |at: usize| {
        let digits = bytes.get(at + 1..at + 3)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        Some((at..at + 3, vec![u8::from_str_radix(digits, 16).ok()?]))
    };
    let escapes = memchr::memchr_iter(b'%', bytes).filter_map(triple);
    regional(view, escapes, Step::Percent)
}

/// Decodes escapes of programming languages, JSON and HTML.
pub(crate) fn escapes(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let found = memchr::memchr2_iter(b'\\', b'&', bytes).filter_map(|at| escape(bytes, at));
    // Escapes of quotes and line ends alone change nothing that a rule sees.
    let mut numeric = None;
    let mut near: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
    let mut kept = Vec::new();
    for (range, text, is_numeric) in found {
        let close = |at: usize| numeric.is_some_and(|numeric| at < numeric + REGION);
        if is_numeric {
            near.retain(|(before, _)| before.end + REGION > range.start);
            kept.append(&mut near);
            numeric = Some(range.end);
            kept.push((range, text));
        } else if close(range.start) {
            kept.push((range, text));
        } else {
            if near.first().is_some_and(|(before, _)| before.end + REGION < range.start) {
                near.clear();
            }
            near.push((range, text));
        }
    }
    regional(view, kept.into_iter(), Step::Escapes)
}

/// Decodes quoted-printable: characters by their numbers, as in `=67=68`, and lines that continue after a last `=`.
pub(crate) fn quoted(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let number = |at: usize| {
        let [b'=', high, low] = bytes.get(at..at + 3)?.first_chunk()? else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        Some((digit(*high)? << 4 | digit(*low)?) as u8)
    };
    let found = memchr::memchr_iter(b'=', bytes).filter_map(|at| {
        let is_letter = |place: Option<usize>| {
            place.and_then(|place| bytes.get(place)).is_some_and(u8::is_ascii_alphanumeric)
        };
        match number(at) {
            // A single one is the value of a field, or the end of base64.
            Some(byte) => {
                let beside =
                    number(at + 3).is_some() || at.checked_sub(3).is_some_and(|at| number(at).is_some());
                let is_alone = b"_-.@".contains(&byte)
                    && bytes[at + 1..at + 3].iter().all(|digit| !digit.is_ascii_lowercase());
                let in_word = is_alone && is_letter(at.checked_sub(1)) && is_letter(Some(at + 3));
                (beside || in_word).then(|| (at..at + 3, vec![byte]))
            }
            None => soft_end(bytes, at).map(|range| (range, Vec::new())),
        }
    });
    regional(view, found, Step::Quoted)
}

/// Returns the range of a `=` that ends a line but not the text on it: the line is as long as such lines are.
fn soft_end(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let end = match bytes.get(at + 1..)? {
        [b'\n', ..] => at + 2,
        [b'\r', b'\n', ..] => at + 3,
        _ => return None,
    };
    let line = bytes[..at].iter().rev().take(*SOFT.end() + 1).take_while(|byte| **byte != b'\n').count();
    SOFT.contains(&line).then_some(at..end)
}

/// Reads one escape: its range, its bytes, and whether it is the number of a character.
pub(crate) fn escape(bytes: &[u8], at: usize) -> Option<(Range<usize>, Vec<u8>, bool)> {
    let rest = &bytes[at..bytes.len().min(at + 12)];
    let number = |from: usize, length: usize, radix: u32| {
        let digits = std::str::from_utf8(rest.get(from..from + length)?).ok()?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| u32::from_str_radix(digits, radix).ok())??.into()
    };
    let until = |from: usize, end: u8| memchr::memchr(end, rest.get(from..)?);
    let (length, code): (usize, Option<u32>) = match rest {
        [b'\\', b'x', b'{', ..] | [b'\\', b'u', b'{', ..] => {
            let digits = until(3, b'}')?;
            (digits + 4, number(3, digits, 16))
        }
        [b'\\', b'x', ..] => (4, number(2, 2, 16)),
        [b'\\', b'u', ..] => (6, number(2, 4, 16)),
        [b'\\', b'0'..=b'3', ..] => (4, number(1, 3, 8)),
        [b'\\', byte @ (b'"' | b'/' | b'\\' | b'\'')] => return Some((at..at + 2, vec![*byte], false)),
        [b'\\', byte @ (b'"' | b'/' | b'\\' | b'\''), ..] => return Some((at..at + 2, vec![*byte], false)),
        [b'\\', b'n' | b'r', ..] => return Some((at..at + 2, vec![b'\n'], false)),
        [b'&', b'#', b'x' | b'X', ..] => {
            let digits = until(3, b';')?;
            (digits + 4, number(3, digits, 16))
        }
        [b'&', b'#', ..] => {
            let digits = until(2, b';')?;
            (digits + 3, number(2, digits, 10))
        }
        _ => {
            if let Some((name, byte)) = SIGNS.iter().find(|(name, _)| rest.starts_with(name)) {
                return Some((at..at + name.len(), vec![*byte], true));
            }
            let (name, byte) = ENTITIES.iter().find(|(name, _)| rest.starts_with(name))?;
            return Some((at..at + name.len(), vec![*byte], false));
        }
    };
    let character = char::from_u32(code?)?;
    let mut buffer = [0; 4];
    Some((at..at + length, character.encode_utf8(&mut buffer).as_bytes().to_vec(), true))
}

/// Names of signs that no text needs.
const SIGNS: [(&[u8], u8); 8] = [
    (b"&lowbar;", b'_'),
    (b"&hyphen;", b'-'),
    (b"&dash;", b'-'),
    (b"&period;", b'.'),
    (b"&colon;", b':'),
    (b"&sol;", b'/'),
    (b"&equals;", b'='),
    (b"&plus;", b'+'),
];
const ENTITIES: [(&[u8], u8); 6] = [
    (b"&amp;", b'&'),
    (b"&lt;", b'<'),
    (b"&gt;", b'>'),
    (b"&quot;", b'"'),
    (b"&apos;", b'\''),
    (b"&nbsp;", b' '),
];

/// Builds a view of replaced ranges and the bytes around them.
pub(crate) fn regional(
    view: &View<'_>,
    replaced: impl Iterator<Item = (Range<usize>, Vec<u8>)>,
    step: Step,
) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let mut builder = Builder::new(view);
    let mut copied: Option<usize> = None;
    for (range, decoded) in replaced {
        match copied {
            // Part of the escape before it.
            Some(end) if range.start < end => continue,
            Some(end) if range.start - end <= REGION => builder.copy(end..range.start),
            _ => {
                if let Some(end) = copied {
                    builder.copy(end..bytes.len().min(end + REGION).min(range.start));
                    builder.separate();
                }
                let from = range.start.saturating_sub(REGION).max(copied.unwrap_or(0));
                builder.copy(from..range.start);
            }
        }
        builder.decoded(range.clone(), &decoded);
        copied = Some(range.end);
    }
    let end = copied?;
    builder.copy(end..bytes.len().min(end + REGION));
    builder.finish(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_decoded_once() {
        let view = percent(&View::root(b"a=%2541b")).unwrap();
        assert_eq!(view.bytes.as_ref(), b"a=%41b");
        assert_eq!(percent(&view).unwrap().bytes.as_ref(), b"a=Ab");
        assert!(percent(&View::root(b"100% of it")).is_none());
    }

    #[test]
    fn quoted_printable_is_decoded() {
        let text = |text: &str| {
            quoted(&View::root(text.as_bytes())).map(|view| String::from_utf8_lossy(&view.bytes).into_owned())
        };
        assert_eq!(text("a =67=68=70=5F b").as_deref(), Some("a ghp_ b"));
        assert_eq!(text("x=ghp=5Fabc").as_deref(), Some("x=ghp_abc"));
        let line = "y".repeat(75);
        assert_eq!(text(&format!("{line}=\r\nz")), Some(format!("{line}z")));
        for plain in ["a=20&b=30", "let x =\n    y;", "YWJj=\nZGVm=\n", "a==b, c=5f, q=2D"] {
            assert_eq!(text(plain), None, "{plain}");
        }
    }
}
