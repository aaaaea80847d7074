//! Command lines and values in the syntax of Go's `flag` package: `-x`, `--x`, `--x=value`, `--x value`; a switch takes a
//! value only after `=`.

pub(crate) use hutch_api::go_duration as duration;

/// Kind of a word.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    /// A flag, and what follows its `=`.
    Flag(&'a str, Option<&'a str>),
    /// The end of the flags: `--`.
    End,
    /// Not a flag.
    Other(&'a str),
}

/// Parses one word; `None` means an invalid flag.
pub(crate) fn word(word: &str) -> Option<Word<'_>> {
    let Some(rest) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
        return Some(Word::Other(word));
    };
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    if rest.is_empty() {
        return Some(Word::End);
    }
    if rest.starts_with(['-', '=']) {
        return None;
    }
    Some(match rest.split_once('=') {
        Some((name, value)) => Word::Flag(name, Some(value)),
        None => Word::Flag(rest, None),
    })
}

pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a decimal number, or one with the prefix `0x`, `0o`, `0` or `0b`.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if negative { -value } else { value }).ok()
}

pub(crate) fn float(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (text, expected) in [
            ("-x", Some(Word::Flag("x", None))),
            ("--x", Some(Word::Flag("x", None))),
            ("--x=", Some(Word::Flag("x", Some("")))),
            ("-x=a=b", Some(Word::Flag("x", Some("a=b")))),
            ("--", Some(Word::End)),
            ("-", Some(Word::Other("-"))),
            ("x", Some(Word::Other("x"))),
            ("", Some(Word::Other(""))),
            ("---x", None),
            ("-=x", None),
            ("--=x", None),
        ] {
            assert_eq!(word(text), expected, "{text}");
        }
    }

    #[test]
    fn values() {
        assert_eq!(
            ["true", "T", "0", "False"].map(boolean),
            [Some(true), Some(true), Some(false), Some(false)]
        );
        assert_eq!(["yes", "tRue", ""].map(boolean), [None; 3]);
        for (text, value) in [
            ("10", 10),
            ("-1", -1),
            ("+7", 7),
            ("0x1f", 31),
            ("0b101", 5),
            ("0o17", 15),
            ("017", 15),
            ("0", 0),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in ["", "-", "--1", "1.5", "ten", "0x", "0x-1", "08", "9223372036854775808"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
