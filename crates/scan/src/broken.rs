//! Secrets in pieces: with a space or the end of a line inside, or in fields of a text that is read as no structure.

use std::ops::Range;

use crate::earlier::is_words;
use crate::finding::Step;
use crate::view::{Builder, View};

/// Maximum places of one view that are read so.
const PLACES: usize = 256;
/// Maximum bytes of all pieces of a secret.
const WHOLE: usize = 256;
/// Maximum pieces, and minimum bytes of one besides the last.
const PIECES: usize = 16;
const PIECE: usize = 4;
/// Maximum bytes of a row of signs, of a tag, and of the name of a field between two pieces.
const BETWEEN: usize = 6;
const TAG: usize = 24;
const NAME: usize = 16;

/// Joins the pieces of secrets, of which the first ones begin at these places. What was joined from fields has no text around a
/// secret by which its end could be known.
pub(crate) fn read(view: &View<'_>, places: Vec<Range<usize>>) -> Option<View<'static>> {
    let bytes = view.bytes.as_ref();
    let mut builder = Builder::new(view);
    let mut done = 0;
    for place in places.into_iter().take(PLACES) {
        if place.start < done || view.steps.iter().any(|step| matches!(step, Step::Broken | Step::Join)) {
            continue;
        }
        let (text, pieces, end) = join(bytes, place.start);
        if pieces > 1 {
            builder.decoded(place.start..end, &text);
            builder.separate();
        }
        done = end;
    }
    builder.finish(Step::Broken)
}

/// Returns the joined pieces from a place on, their number and the end of the last one.
fn join(bytes: &[u8], start: usize) -> (Vec<u8>, usize, usize) {
    let token = |from: usize| {
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        from + bytes[from..].iter().take(WHOLE).take_while(is_part).count()
    };
    let mut end = token(start);
    let mut text = bytes[start..end].to_vec();
    let mut pieces = 1;
    while pieces < PIECES && text.len() < WHOLE {
        let Some(from) = next_piece(bytes, end) else { break };
        let to = token(from);
        let piece = &bytes[from..to];
        // What is a word belongs to the text around a secret.
        if piece.len() < PIECE || is_words(piece) {
            break;
        }
        text.extend_from_slice(piece);
        pieces += 1;
        end = to;
    }
    (text, pieces, end)
}

/// Returns the start of the next piece: after a few signs, after tags, or after the name of a field on the next line.
fn next_piece(bytes: &[u8], from: usize) -> Option<usize> {
    let is_sign = |byte: &&u8| b" \t\r\n,;|+\"'\\&".contains(byte);
    let signs = |from: usize| from + bytes[from..].iter().take(BETWEEN).take_while(is_sign).count();
    let mut at = signs(from);
    while bytes.get(at) == Some(&b'<') {
        at += bytes[at..].iter().take(TAG).position(|byte| *byte == b'>')? + 1;
        at = signs(at);
    }
    let line_end = bytes[from..at].contains(&b'\n');
    let name = bytes[at..]
        .iter()
        .take(NAME)
        .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
        .count();
    let separator = bytes.get(at + name).is_some_and(|byte| matches!(byte, b':' | b'='));
    if line_end && name > 0 && separator {
        at = signs(at + name + 1);
    }
    (at > from && at < bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<String> {
        let start = text.find("ghp_").expect("the beginning of a secret");
        let read = read(&View::root(text.as_bytes()), std::iter::once(start..start + 4).collect())?;
        Some(String::from_utf8_lossy(&read.bytes).trim_end().to_owned())
    }

    #[test]
    fn pieces_of_a_secret_are_joined() {
        for broken in [
            "token: ghp_q8Zk3m Xw7Lp2 Vt9Rb5",
            "ghp_q8Zk3m\nXw7Lp2\nVt9Rb5\n",
            "ghp_q8Zk3m\r\nXw7Lp2\r\nVt9Rb5 and a text",
            "a: ghp_q8Zk3m\nb: Xw7Lp2\nc: Vt9Rb5\n",
            "A=\"ghp_q8Zk3m\"\nB=\"Xw7Lp2\"\nC=\"Vt9Rb5\"\n",
            "<a>ghp_q8Zk3m</a><b>Xw7Lp2</b><c>Vt9Rb5</c>",
            "ghp_q8Zk3m,Xw7Lp2,Vt9Rb5",
        ] {
            assert_eq!(text(broken).as_deref(), Some("ghp_q8Zk3mXw7Lp2Vt9Rb5"), "{broken:?}");
        }
    }

    #[test]
    fn words_after_the_beginning_of_a_secret_are_no_pieces() {
        for plain in [
            "ghp_ tokens begin with these letters",
            "ghp_q8Zk3mXw7Lp2 is a token of the service",
            "\"ghp_\", \"gho_\", \"ghu_\"",
            "ghp_q8Zk3m",
        ] {
            assert_eq!(text(plain), None, "{plain}");
        }
    }
}
