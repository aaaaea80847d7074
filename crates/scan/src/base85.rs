//! Base85 in its three alphabets: that of Git and Python, Ascii85, and Z85.

use std::ops::Range;

use crate::eight;
use crate::finding::Step;
use crate::runs::{CONTEXT, is_printable};
use crate::view::{Builder, View};

/// Minimum digits of an encoded text: those of the shortest keys.
const RUN: usize = 25;
/// Bytes of a run that are sampled at a time.
const SAMPLE: usize = 8;
/// Digits that stand for four bytes.
const GROUP: usize = 5;
/// Minimum bytes of a text.
const TEXT: usize = 16;
/// Maximum places of one run at which an encoded text may begin.
const STARTS: usize = 8;
/// Bytes of a run in which these places are.
const NEAR: usize = 512;
/// Maximum digits that are read from one place.
const DIGITS: usize = 64 << 10;

/// Digits after the letters and numbers, in the order of their values.
const OF_GIT: &[u8; 23] = b"!#$%&()*+-;<=>?@^_`{|}~";
const OF_Z85: &[u8; 23] = b".-:+=^!/*?&<>()[]{}@%$#";
/// Value of a byte that is no digit.
const NONE: u8 = 85;

static ALPHABETS: [[u8; 256]; 3] = [
    table(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", OF_GIT),
    ascii(),
    table(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", OF_Z85),
];

/// Signs besides those of base64 and of names.
static SIGNS: [bool; 256] = signs();

const fn signs() -> [bool; 256] {
    let mut signs = [false; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        signs[at] = byte.is_ascii_punctuation() && !matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_' | b'.');
        at += 1;
    }
    signs
}

const fn table(first: &[u8; 62], rest: &[u8; 23]) -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut at = 0;
    while at < 85 {
        let digit = if at < 62 { first[at] } else { rest[at - 62] };
        table[digit as usize] = at as u8;
        at += 1;
    }
    table
}

const fn ascii() -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut at = 0;
    while at < 85 {
        table[at + b'!' as usize] = at as u8;
        at += 1;
    }
    table
}

/// Decodes texts in base85.
pub(crate) fn read(view: &View<'_>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let mut builder = Builder::new(view);
    let (mut at, mut done) = (0, 0);
    while let Some(sample) = bytes.get(at..).and_then(|rest| rest.first_chunk::<SAMPLE>()) {
        let before = || &bytes[at.saturating_sub(SAMPLE).max(done)..at];
        if !is_graphic(*sample) || !(has_sign(sample) || has_sign(before())) {
            at += RUN + 1 - SAMPLE;
            continue;
        }
        let start = at - bytes[done..at].iter().rev().take_while(|byte| byte.is_ascii_graphic()).count();
        let end = at + eight::graphic_count(&bytes[at..]);
        done = end;
        if end - start >= RUN
            && let Some((range, text)) = starts(bytes, start..end).find_map(|start| text(bytes, start))
        {
            builder.copy(range.start.saturating_sub(CONTEXT)..range.start);
            builder.decoded(range.clone(), &text);
            builder.separate();
            done = done.max(range.end);
        }
        at = done + 1;
    }
    builder.finish(Step::Base85)
}

/// Reports whether no byte of a sample is a space, a control character or outside of ASCII.
fn is_graphic(sample: [u8; SAMPLE]) -> bool {
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    let bytes = u64::from_le_bytes(sample);
    (bytes | bytes.wrapping_sub(0x2121_2121_2121_2121)) & HIGHEST == 0
}

/// Reports whether bytes have a sign that neither base64 nor a name has. Most texts in base85 have several.
fn has_sign(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |any, byte| any | SIGNS[usize::from(*byte)])
}

/// Returns the places of a run at which an encoded text may begin: its start, and those after other signs.
fn starts(bytes: &[u8], run: Range<usize>) -> impl Iterator<Item = usize> {
    let after = (run.start + 1..run.end.min(run.start + NEAR).saturating_sub(RUN - 1))
        .filter(|at| b"\"'=:~>,`(".contains(&bytes[at - 1]));
    std::iter::once(run.start).chain(after).take(STARTS)
}

/// Decodes the text from a place on; `None` if there is no text of base85.
fn text(bytes: &[u8], start: usize) -> Option<(Range<usize>, Vec<u8>)> {
    ALPHABETS.iter().find_map(|alphabet| decode(bytes, start, alphabet))
}

fn decode(bytes: &[u8], start: usize, alphabet: &[u8; 256]) -> Option<(Range<usize>, Vec<u8>)> {
    let mut text = Vec::new();
    let (mut group, mut count, mut end) = ([(0, start); GROUP], 0, start);
    for (at, byte) in bytes.iter().enumerate().skip(start).take(DIGITS) {
        let digit = alphabet[usize::from(*byte)];
        if digit == NONE {
            match byte {
                b'\r' | b'\n' => continue,
                _ => break,
            }
        }
        group[count] = (digit, at);
        count += 1;
        if count == GROUP {
            let Some(four) = printable(&group) else { break };
            text.extend(four);
            count = 0;
            end = at + 1;
            if text.len() == TEXT && !has_words(&text) {
                return None;
            }
        }
    }
    // The last digits stand for fewer bytes. What follows them can consist of digits too.
    let mut last = (2..=count.min(GROUP - 1)).rev();
    if text.len() >= TEXT
        && let Some((last, count)) = last.find_map(|count| Some((printable(&group[..count])?, count)))
    {
        text.extend(&last[..count - 1]);
        end = group[count - 1].1 + 1;
    }
    (text.len() >= TEXT).then_some((start..end, text))
}

/// Decodes a group of digits; `None` if the result is no text. It is shorter than the group.
fn printable(group: &[(u8, usize)]) -> Option<[u8; 4]> {
    let digit = |place: usize| group.get(place).map_or(84, |(digit, _)| u64::from(*digit));
    let value = (0..GROUP).fold(0, |value, place| value * 85 + digit(place));
    let four = u32::try_from(value).ok()?.to_be_bytes();
    four[..group.len() - 1].iter().all(|byte| is_printable(*byte)).then_some(four)
}

/// Returns false for what decodes to signs alone, such as a line of dashes.
fn has_words(text: &[u8]) -> bool {
    text.iter().filter(|byte| byte.is_ascii_alphanumeric()).count() * 2 >= text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> String {
        read(&View::root(text.as_bytes()))
            .map(|view| String::from_utf8_lossy(&view.bytes).into_owned())
            .unwrap_or_default()
    }

    #[test]
    fn texts_are_decoded_in_each_alphabet() {
        for encoded in [
            "Xk~0{Zy<DNWpZUKAa`$aY-B7TVP|1!ZXjW9WFTQ@VQFp",
            "BOu!rD]j.8ATD?5+EqaECh,(>@:s\"_DBNA*A0>;n@;0T",
            "xK#0@zY<dnwPzukaA}:Ay?b7tvp%1.zxJw9wftq[vqfQ5",
        ] {
            for (before, after) in [("", ""), ("data=", " "), ("{\"x\": \"", "\"}"), ("<~", "~>")] {
                let text = decoded(&format!("{before}{encoded}{after}"));
                assert!(text.contains("hello there, world, again and again"), "{before}{encoded}: {text:?}");
            }
        }
        let lines = "Xk~0{Zy<DNWpZUKAa`$aY-B7T\nVP|1!ZXjW9WFTQ@VQFp\n";
        assert!(decoded(lines).contains("hello there, world, again and again"));
    }

    #[test]
    fn ordinary_text_is_not_base85() {
        for plain in [
            "https://example.com/a/long/path/with-words?and=a&query=of#fields",
            "-------------------------------------------------------------",
            "=====================================\n=====================",
            "function(a,b){return a.length>b.length?a.slice(0,b.length):b}",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ] {
            assert_eq!(decoded(plain), "", "{plain}");
        }
    }
}
