//! JSON in UTF-16 or UTF-32. Some servers read messages of MCP in it; the rules and the scanner read UTF-8 alone.

/// Marks of the order of bytes, with the bytes of a unit and true for the least significant byte first. Those of four bytes
/// begin with those of two.
const FORMS: [(usize, bool, &[u8]); 4] = [
    (4, true, &[0xff, 0xfe, 0, 0]),
    (4, false, &[0, 0, 0xfe, 0xff]),
    (2, true, &[0xff, 0xfe]),
    (2, false, &[0xfe, 0xff]),
];

/// Returns true if bytes begin as an object or a list of JSON in UTF-16 or UTF-32, with a mark of their order or without.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    form(bytes).is_some()
}

/// Returns the text of JSON in UTF-16 or UTF-32; `None` for other bytes.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let (width, little, rest) = form(bytes)?;
    let number = |unit: &[u8]| {
        let add = |all: u32, byte: &u8| all << 8 | u32::from(*byte);
        if little { unit.iter().rev().fold(0, add) } else { unit.iter().fold(0, add) }
    };
    let units = rest.chunks_exact(width).map(number);
    let replaced = char::REPLACEMENT_CHARACTER;
    Some(match width {
        2 => {
            char::decode_utf16(units.map(|unit| unit as u16)).map(|found| found.unwrap_or(replaced)).collect()
        }
        _ => units.map(|unit| char::from_u32(unit).unwrap_or(replaced)).collect(),
    })
}

/// Returns the bytes of a unit, true if the least significant one is the first, and the bytes after the mark.
fn form(bytes: &[u8]) -> Option<(usize, bool, &[u8])> {
    FORMS.into_iter().find_map(|(width, little, mark)| {
        let rest = bytes.strip_prefix(mark).unwrap_or(bytes);
        let (first, rest_of) = rest.split_at_checked(width)?;
        let begins = matches!(ascii(first, little)?, b'{' | b'[' | b' ' | b'\t' | b'\n' | b'\r');
        // A message of gRPC begins with zeros too.
        ascii(rest_of.get(..width)?, little)?;
        begins.then_some((width, little, rest))
    })
}

/// Returns the character of ASCII that a unit stands for.
fn ascii(unit: &[u8], little: bool) -> Option<u8> {
    let (letter, zeros) = if little { unit.split_first()? } else { unit.split_last()? };
    (zeros.iter().all(|byte| *byte == 0) && letter.is_ascii() && *letter != 0).then_some(*letter)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a text in each form, with a mark and without.
    pub(crate) fn forms(text: &str) -> Vec<Vec<u8>> {
        let two = |order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
        let four =
            |order: fn(u32) -> [u8; 4]| text.chars().flat_map(|c| order(c as u32)).collect::<Vec<u8>>();
        let plain =
            [four(u32::to_le_bytes), four(u32::to_be_bytes), two(u16::to_le_bytes), two(u16::to_be_bytes)];
        let marked = FORMS.iter().zip(&plain).map(|((.., mark), text)| [mark, &text[..]].concat());
        marked.chain(plain.clone()).collect()
    }

    #[test]
    fn json_is_recognized_in_each_form() {
        for json in [r#"{"a": "ä𝕏"}"#, "[{}]", " \n{\"a\": 1}", "{}"] {
            for bytes in forms(json) {
                assert_eq!(text(&bytes).as_deref(), Some(json), "{bytes:?}");
            }
            assert_eq!(text(json.as_bytes()), None);
        }
    }

    #[test]
    fn other_bytes_are_no_wide_json() {
        let marked = "\u{feff}{}".as_bytes();
        // Also a message of gRPC with the length of a letter, and a text.
        for bytes in
            [&b""[..], b"{", b"{\0", marked, &[0, 0, 0, b'{', 9, 10, 1, b'x'], &[0, 0, b'[', 3, 10, 2]]
        {
            assert!(!is_json(bytes), "{bytes:?}");
        }
        assert!(forms("text").iter().all(|bytes| !is_json(bytes)));
    }
}
