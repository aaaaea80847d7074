//! Normalization of Unicode: removes invisible and combining characters, folds letters that look like ASCII.

use std::ops::Range;
use std::sync::OnceLock;

use unicode_normalization::char::{decompose_compatible, is_combining_mark};

use crate::escape::regional;
use crate::finding::Step;
use crate::view::View;

/// Invisible characters inside one token that are more than an accident.
const INVISIBLE: usize = 3;
/// Characters of the block of tags, or selectors of variations, in a row that carry text.
const TAGS: usize = 8;

/// Bytes on each side of a hidden form that must be text: among random bytes are all of these forms.
const AROUND: usize = 12;

/// Maximum zero bytes between two characters of a text.
const WIDE: usize = 3;

/// Letters of other scripts that look like ASCII letters, and the ASCII letters.
const CONFUSABLES: [(&str, &str); 13] = [
    ("аеорсухіјѕһԁԛԝӏкмтнвгпьзѵѡүұґ", "aeopcyxijshdqwlkmthbrnb3vwyyr"),
    ("АВЕКМНОРСТУХІЈЅԌԚԜҮҺӀѴ", "ABEKMHOPCTYXIJSGQWYhIV"),
    ("αβγεικνορτυχωϲϳημπσςϱϝ", "aByeikvoptuxwcjnunocpf"),
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹ", "ABEZHIKMNOPTYXC"),
    ("ıɡɑɩʏʜʟɴʀᴀᴄᴅᴇᴊᴋᴍᴏᴘᴛᴜᴠᴡᴢ", "igaiYHLNRACDEJKMOPTUVWZ"),
    // Small capitals, and letters with strokes and hooks.
    ("ʙɢɪꜰꜱꞯ", "BGIFSQ"),
    ("øłđħŧƀØŁĐĦŦɓɗɠɦɨƙƥƭƴƈƒɱɳŋɲɽʂʈʋʐɛ", "oldhtbOLDHTbdghikptycfmnnnrstvze"),
    ("ԱՏՕՍօսոհցքՀյզալ", "USOUounhgpZjqwl"),
    ("ꓮꓐꓚꓓꓰꓝꓖꓧꓲꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ", "ABCDEFGHIJKLMNOPRSTUVWXYZ"),
    ("ᎠᎡᎢᎥᎪᎫᎬᎳᎷᎻᎽᏀᏃᏎᏒᏔᏕᏙᏚᏞᏟᏢᏦᏧᏴ", "DRTiAJEWMHYGZ4RWSVSLCPKdB"),
    ("‐‑‒–—−＿ˍ⁄∕‘’“”", "------__//''\"\""),
    ("꞉∶ː⧸", ":::/"),
    // Spaces and line separators.
    ("\u{1680}\u{2028}\u{2029}\u{2800}", "    "),
];

/// Greek letters that also stand between ASCII letters in formulas.
const OF_FORMULAS: &str = "ημπσς";

/// Forms that hide text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// Invisible characters inside a token.
    Invisible,
    /// Letters of two scripts inside a token.
    Confusable,
    /// Text in characters of the block of tags.
    Tags,
    /// Bytes in selectors of variations.
    Selectors,
    /// Characters that change the direction of text.
    Bidirectional,
}

impl Hidden {
    pub(crate) fn id(self) -> &'static str {
        match self {
            Hidden::Invisible => "invisible-in-token",
            Hidden::Confusable => "confusable-in-token",
            Hidden::Tags => "tag-characters",
            Hidden::Selectors => "variation-selectors",
            Hidden::Bidirectional => "bidirectional-override",
        }
    }
}

/// Returns the normalized view; `None` if nothing changes.
pub(crate) fn normalized(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    if bytes.is_ascii() {
        return None;
    }
    // In a long row, each of these characters is a byte. Others are invisible.
    let (mut end, mut long) = (0, false);
    let mut in_row = |range: &Range<usize>| {
        if std::mem::replace(&mut end, range.end) != range.start {
            let mut next = 0;
            let row = characters(&bytes[range.start..]).take_while(|(range, letter)| {
                std::mem::replace(&mut next, range.end) == range.start && hidden_byte(*letter).is_some()
            });
            long = row.take(TAGS).count() == TAGS;
        }
        long
    };
    let folded = characters(bytes).filter_map(|(range, letter)| {
        let text = match hidden_byte(letter) {
            Some(byte) if in_row(&range) => vec![byte],
            Some(_) => Vec::new(),
            None => fold(letter)?,
        };
        Some((range, text))
    });
    regional(view, folded, Step::Text)
}

/// Returns a text of two or four bytes a character, UTF-16 and UTF-32, as ASCII; `None` if nothing changes.
pub(crate) fn narrowed(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let mut next = memchr::memchr(0, bytes);
    let zeros = std::iter::from_fn(move || {
        let start = next?;
        let end = start + bytes[start..].iter().take_while(|byte| **byte == 0).count();
        next = memchr::memchr(0, &bytes[end..]).map(|found| end + found);
        Some(start..end)
    });
    // Between two characters.
    let inside = |range: &Range<usize>| {
        let graphic = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_graphic() || *byte == b' ');
        range.len() <= WIDE && graphic(bytes[..range.start].last()) && graphic(bytes.get(range.end))
    };
    regional(view, zeros.filter(inside).map(|range| (range, Vec::new())), Step::Text)
}

/// Returns the characters of a text outside ASCII. Invalid bytes are skipped.
fn characters(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, char)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let eights = bytes[at..].as_chunks::<8>().0;
            at += 8 * eights.iter().take_while(|eight| eight.is_ascii()).count();
            at += bytes[at..].iter().take_while(|byte| byte.is_ascii()).count();
            let length = match bytes.get(at)? {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => 0,
            };
            let letter = bytes.get(at..at + length).and_then(|bytes| std::str::from_utf8(bytes).ok());
            let start = at;
            match letter.and_then(|letter| letter.chars().next()) {
                Some(letter) => {
                    at += letter.len_utf8();
                    return Some((start..at, letter));
                }
                None => at += 1,
            }
        }
    })
}

/// Returns the ASCII text of a character, empty if it is invisible; `None` if it stays.
fn fold(letter: char) -> Option<Vec<u8>> {
    if is_invisible(letter) || is_combining_mark(letter) {
        return Some(Vec::new());
    }
    if let Some(ascii) = confusable(letter) {
        return Some(vec![ascii]);
    }
    let mut folded = Vec::new();
    let mut plain = true;
    decompose_compatible(letter, |part| match part {
        part if part.is_ascii() => folded.push(part as u8),
        part if is_combining_mark(part) => {}
        part => match confusable(part) {
            Some(ascii) => folded.push(ascii),
            None => plain = false,
        },
    });
    (plain && !folded.is_empty()).then_some(folded)
}

/// Returns the ASCII letter that a character looks like.
pub(crate) fn confusable(letter: char) -> Option<u8> {
    if let Some(number) = boxed(letter) {
        return Some(b'A' + number);
    }
    // Letters of most scripts resemble nothing.
    let resembles = matches!(
        u32::from(letter),
        0xd8 | 0xf8 | 0x110..=0x587 | 0x13a0..=0x13f5 | 0x1680 | 0x1d00..=0x1dff | 0x2010..=0x2044 | 0x2212
            | 0x2215 | 0x2236 | 0x2800 | 0x29f8 | 0xa4d0..=0xa4ff | 0xa730..=0xa7af | 0xff3f
    );
    if !resembles {
        return None;
    }
    static SORTED: OnceLock<Vec<(char, u8)>> = OnceLock::new();
    let sorted = SORTED.get_or_init(|| {
        let pairs = CONFUSABLES.iter().flat_map(|(letters, ascii)| letters.chars().zip(ascii.bytes()));
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by_key(|(letter, _)| *letter);
        pairs
    });
    let at = sorted.binary_search_by_key(&letter, |(known, _)| *known).ok()?;
    Some(sorted[at].1)
}

fn is_invisible(letter: char) -> bool {
    matches!(
        u32::from(letter),
        0xad | 0x34f | 0x61c | 0x115f | 0x1160 | 0x17b4 | 0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f | 0x202a..=0x202e
            | 0x2060..=0x206f | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff9..=0xfffb | 0xe0001 | 0xe007f
            | 0xe0100..=0xe01ef
    )
}

/// Returns the ASCII character that a character of the block of tags stands for.
fn tag(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ 0xe0020..=0xe007e => u8::try_from(code - 0xe0000).ok(),
        _ => None,
    }
}

/// Returns the number of a letter that is white on a circle or a square, or one of the two that make a flag.
fn boxed(letter: char) -> Option<u8> {
    let first = match u32::from(letter) {
        0x1f150..=0x1f169 => 0x1f150,
        0x1f170..=0x1f189 => 0x1f170,
        0x1f1e6..=0x1f1ff => 0x1f1e6,
        _ => return None,
    };
    u8::try_from(u32::from(letter) - first).ok()
}

/// Returns the byte that a selector of variations can stand for.
fn selector(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ 0xfe00..=0xfe0f => u8::try_from(code - 0xfe00).ok(),
        code @ 0xe0100..=0xe01ef => u8::try_from(code - 0xe0100 + 16).ok(),
        _ => None,
    }
}

/// Returns the byte that an invisible character can stand for.
fn hidden_byte(letter: char) -> Option<u8> {
    tag(letter).or_else(|| selector(letter))
}

/// Returns the forms in a text that hide something, each with its first place.
pub(crate) fn hidden(bytes: &[u8]) -> Vec<(Hidden, Range<usize>)> {
    let mut found: Vec<(Hidden, Range<usize>)> = Vec::new();
    if bytes.is_ascii() {
        return found;
    }
    let mut add = |form, range: Range<usize>| {
        if !found.iter().any(|(known, _)| *known == form) && is_in_text(bytes, &range) {
            found.push((form, range));
        }
    };
    let inside = |range: &Range<usize>| {
        let word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        word(range.start.checked_sub(1).and_then(|at| bytes.get(at))) && word(bytes.get(range.end))
    };
    let (mut invisible, mut last, mut tags) = (0, 0, 0);
    let (mut selectors, mut selected) = (0, 0);
    for (range, letter) in characters(bytes) {
        tags = if tag(letter).is_some() { tags + 1 } else { 0 };
        if tags == TAGS {
            add(Hidden::Tags, range.clone());
        }
        if selector(letter).is_some() {
            selectors = if selected == range.start { selectors + 1 } else { 1 };
            selected = range.end;
            if selectors == TAGS {
                add(Hidden::Selectors, range.clone());
            }
        }
        if matches!(letter, '\u{202d}' | '\u{202e}') {
            add(Hidden::Bidirectional, range.clone());
        }
        if is_invisible(letter) && letter != '\u{ad}' && inside(&range) {
            invisible = if range.start - last < 2 * INVISIBLE * 4 { invisible + 1 } else { 1 };
            last = range.end;
            if invisible == INVISIBLE {
                add(Hidden::Invisible, range.clone());
            }
        }
        if mixed(bytes, &range, letter) {
            add(Hidden::Confusable, range);
        }
    }
    found
}

/// Reports whether the bytes around a character are text too.
fn is_in_text(bytes: &[u8], range: &Range<usize>) -> bool {
    let start = range.start.saturating_sub(AROUND);
    let end = bytes.len().min(range.end + AROUND);
    let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
    // The first character may have begun earlier, and the last one may end later.
    let cut = if start == 0 { 0 } else { bytes[start..].iter().take(3).take_while(continues).count() };
    let text = &bytes[start + cut..end];
    let valid = match std::str::from_utf8(text) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && end < bytes.len(),
    };
    valid && !text.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace())
}

/// Reports whether a letter belongs to a script other than the Latin one of which letters look like ASCII.
pub(crate) fn is_foreign(letter: char) -> bool {
    matches!(u32::from(letter), 0x370..=0x58f | 0x13a0..=0x13ff | 0xa4d0..=0xa4ff)
}

/// Reports whether a letter that looks like ASCII stands in a word of ASCII letters.
fn mixed(bytes: &[u8], range: &Range<usize>, letter: char) -> bool {
    let (before, after) = (&bytes[..range.start], &bytes[range.end..]);
    let near = |slice: &[u8]| slice.iter().all(u8::is_ascii_alphabetic) && slice.len() == 2;
    is_foreign(letter)
        && confusable(letter).is_some()
        && !OF_FORMULAS.contains(letter)
        && before.last().is_some_and(u8::is_ascii_alphabetic)
        && after.first().is_some_and(u8::is_ascii_alphabetic)
        && (near(&before[before.len().saturating_sub(2)..]) || near(&after[..after.len().min(2)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<String> {
        normalized(&View::root(text.as_bytes()))
            .map(|view| String::from_utf8(view.bytes.into_owned()).unwrap())
    }

    #[test]
    fn letters_that_look_like_ascii_are_folded() {
        assert_eq!(text("ｇｈｐ＿ａ").as_deref(), Some("ghp_a"));
        assert_eq!(text("g\u{200b}h\u{2060}p").as_deref(), Some("ghp"));
        assert_eq!(text("ігnоrе").as_deref(), Some("irnore"));
        assert_eq!(text("𝐢𝐠𝐧𝐨𝐫𝐞 é").as_deref(), Some("ignore e"));
        assert_eq!(text("日本語"), None);
        assert_eq!(text("🅘🅶🇳ᴏʀᴇ").as_deref(), Some("IGNORE"));
        assert_eq!(text("ɪɢɴᴏʀᴇ ᴛʜɪꜱ").as_deref(), Some("IGNORE THIS"));
        assert_eq!(text("ıgnøre\u{2028}ałł ᏢᎡᎬVɪOUS").as_deref(), Some("ignore all PREVIOUS"));
        assert_eq!(text("ιgηοrε").as_deref(), Some("ignore"));
    }

    #[test]
    fn bytes_in_selectors_are_decoded_and_single_selectors_removed() {
        let selectors = |text: &str| -> String {
            let byte = |byte: u8| u32::from(byte) + if byte < 16 { 0xfe00 } else { 0xe0100 - 16 };
            text.bytes().map(|text| char::from_u32(byte(text)).unwrap()).collect()
        };
        assert_eq!(text(&format!("a{}b", selectors("token\n12"))).as_deref(), Some("atoken\n12b"));
        assert_eq!(text("a\u{fe0f}b").as_deref(), Some("ab"));
        assert_eq!(text("ig\u{fe01}\u{fe01}no\u{e0041}re").as_deref(), Some("ignore"), "short rows");
        assert_eq!(text("葛\u{e0100}城\u{e0101}").as_deref(), Some("葛城"));
        let forms =
            |text: &str| hidden(text.as_bytes()).into_iter().map(|(form, _)| form).collect::<Vec<_>>();
        assert_eq!(forms(&format!("😀{}", selectors("eight by"))), [Hidden::Selectors]);
        assert_eq!(forms(&"❤\u{fe0f}✔\u{fe0f}葛\u{e0100}".repeat(8)), []);
    }

    #[test]
    fn wide_characters_are_narrowed() {
        let narrow = |bytes: &[u8]| {
            narrowed(&View::root(bytes)).map(|view| String::from_utf8(view.bytes.into_owned()).unwrap())
        };
        let wide = |size: usize, little: bool| {
            let place = if little { 0 } else { size - 1 };
            "token"
                .bytes()
                .flat_map(|byte| (0..size).map(move |at| if at == place { byte } else { 0 }))
                .collect::<Vec<u8>>()
        };
        for (size, little) in [(2, true), (2, false), (4, true), (4, false)] {
            let text = narrow(&wide(size, little)).unwrap();
            assert_eq!(text.trim_matches('\0'), "token", "{size} {little}");
        }
        assert_eq!(narrow(b"a\0b").as_deref(), Some("ab"));
        assert_eq!(narrow(b"token"), None);
        assert_eq!(narrow(b"a\0\0\0\0b\0"), None);
    }

    #[test]
    fn tables_of_letters_have_equal_lengths() {
        for (letters, ascii) in CONFUSABLES {
            assert_eq!(letters.chars().count(), ascii.len(), "{ascii}");
        }
    }

    #[test]
    fn only_hidden_forms_are_reported() {
        let forms =
            |text: &str| hidden(text.as_bytes()).into_iter().map(|(form, _)| form).collect::<Vec<_>>();
        assert_eq!(forms("a\u{200b}b\u{200b}c\u{200b}d"), [Hidden::Invisible]);
        assert_eq!(forms("pаypal"), [Hidden::Confusable]);
        assert_eq!(forms("привет world, naïve café, 👩\u{200d}💻"), []);
        assert_eq!(forms("Καλημέρα κόσμε, 5μm, dσdx, sinπx, søster, żółw, Đorđe"), []);
        assert_eq!(forms("a\u{202e}cba"), [Hidden::Bidirectional]);
        assert_eq!(forms(&format!("{}pаypal{}", "é".repeat(20), "日本".repeat(9))), [Hidden::Confusable]);
    }

    /// Regression: the defaults refused packages and images above some 40 kB, which have every form by chance.
    #[test]
    fn forms_among_random_bytes_hide_nothing() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        };
        let noise: Vec<u8> = (0..8 << 20).map(|_| random()).collect();
        let mixed = characters(&noise).filter(|(range, letter)| mixed(&noise, range, *letter)).count();
        assert!(mixed > 10, "{mixed}");
        assert_eq!(hidden(&noise), []);
        for form in ["\u{202e}", "aаb"] {
            assert_eq!(hidden(&[b"\x01\x02", form.as_bytes(), b"\xff\xfe"].concat()), []);
        }
    }
}
