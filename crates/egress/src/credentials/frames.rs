//! Placeholders in what a sandbox sends over a WebSocket, also across its frames. Frames of a client are masked.

use super::{Set, contains};
use crate::websocket;

/// Placeholders of a sandbox, and where the bytes of a WebSocket stand.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// Placeholders with the names of their credentials.
    all: Vec<(String, String)>,
    longest: usize,
    /// Beginning of a frame, up to its content.
    head: Vec<u8>,
    mask: [u8; 4],
    /// The frame is a control frame, which may stand between the fragments of a message.
    is_control: bool,
    /// Bytes of the content that have passed, and those that are left.
    passed: usize,
    left: u64,
    /// End of the content that has passed: of messages, and of the present control frame.
    tail: Vec<u8>,
    control: Vec<u8>,
}

impl Placeholders {
    /// Takes all credentials of a sandbox: none may be sent here.
    pub(crate) fn of(set: &Set) -> Placeholders {
        let all: Vec<_> = set.issued.iter().map(|one| (one.placeholder.clone(), one.name.clone())).collect();
        let longest = all.iter().map(|(placeholder, _)| placeholder.len()).max().unwrap_or(0);
        Placeholders { all, longest, ..Placeholders::default() }
    }

    /// Takes bytes of the client. Returns the name of the first credential whose placeholder ends in them.
    pub(crate) fn find(&mut self, mut bytes: &[u8]) -> Option<&str> {
        if self.all.is_empty() {
            return None;
        }
        while let Some((first, rest)) = bytes.split_first() {
            if self.left == 0 {
                self.head.push(*first);
                bytes = rest;
                self.begin();
                continue;
            }
            let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let (mask, passed) = (self.mask, self.passed);
            let content = bytes[..count].iter().zip(passed..).map(|(byte, at)| byte ^ mask[at % mask.len()]);
            if self.is_control { &mut self.control } else { &mut self.tail }.extend(content);
            (self.passed, self.left) = ((passed + count) % mask.len(), self.left - count as u64);
            bytes = &bytes[count..];
            if self.is_control && self.left == 0 {
                if let Some(index) = self.found(&self.control) {
                    return Some(&self.all[index].1);
                }
                self.control.clear();
            }
        }
        // Once for all frames of the piece: a client can make a frame of each byte.
        if let Some(index) = self.found(&self.tail) {
            return Some(&self.all[index].1);
        }
        let gone = self.tail.len().saturating_sub(self.longest.saturating_sub(1));
        self.tail.drain(..gone);
        None
    }

    /// Returns the place of the first credential whose placeholder is in the content.
    fn found(&self, content: &[u8]) -> Option<usize> {
        self.all.iter().position(|(text, _)| contains(content, text))
    }

    /// Begins the content of a frame if its head is complete.
    fn begin(&mut self) {
        let Some(length) = websocket::length(&self.head) else { return };
        let is_masked = self.head[1] & 0x80 != 0;
        self.mask = self.head.last_chunk().filter(|_| is_masked).copied().unwrap_or_default();
        (self.left, self.passed) = (length, 0);
        // A real control frame has 125 bytes at most; a longer one is content like any other.
        self.is_control = self.head[0] & 0x08 != 0 && length <= 125;
        self.head.clear();
    }
}

/// Searches the frames of any bytes, as a whole and in pieces.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_placeholders(bytes: &[u8]) {
    let new = || {
        let all = vec![("ab".to_owned(), "name".to_owned())];
        Placeholders { all, longest: 2, ..Placeholders::default() }
    };
    let whole = new().find(bytes).is_some();
    for size in [1, 3, 64] {
        let mut pieces = new();
        assert_eq!(bytes.chunks(size).any(|piece| pieces.find(piece).is_some()), whole, "{size}");
        assert!(pieces.head.len() < 14 && pieces.tail.len() <= size.max(2) + 2);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Issued, Secret};
    use super::*;

    fn placeholders() -> Placeholders {
        let issued = Issued {
            name: "api".into(),
            placeholder: "ghp_placeholder".into(),
            value: Secret::new("value".into()),
            binding: serde_json::from_str(r#"{"hosts": ["api.example"]}"#).unwrap(),
            bounds: None,
            ends: None,
            missing: false,
        };
        Placeholders::of(&Set::from(vec![issued]))
    }

    fn frame(content: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let masked = if mask.is_some() { 0x80 } else { 0 };
        let mut frame = match u16::try_from(content.len()) {
            Ok(short) if short < 126 => vec![0x81, masked | short as u8],
            Ok(long) => [&[0x81, masked | 126][..], &long.to_be_bytes()].concat(),
            Err(_) => [&[0x81, masked | 127][..], &(content.len() as u64).to_be_bytes()].concat(),
        };
        frame.extend(mask.iter().flatten());
        let mask = mask.unwrap_or_default();
        frame.extend(content.iter().zip(0..).map(|(byte, at): (_, usize)| byte ^ mask[at % 4]));
        frame
    }

    #[test]
    fn placeholder_is_found_around_and_in_control_frames() {
        let ping = |content: &[u8]| [&[0x89, content.len() as u8][..], content].concat();
        let first = frame(b"ghp_place", None);
        let around = [&first[..], &ping(b"z"), &frame(b"holder", None)].concat();
        assert_eq!(placeholders().find(&around), Some("api"));
        for size in [1, 2, 7] {
            let mut pieces = placeholders();
            assert!(around.chunks(size).any(|piece| pieces.find(piece).is_some()), "{size}");
        }
        assert_eq!(placeholders().find(&ping(b"a ghp_placeholder")), Some("api"));
        assert_eq!(placeholders().find(&[first, ping(b"holder")].concat()), None, "these are two messages");
    }

    #[test]
    fn placeholder_is_found_across_pieces_and_frames_with_any_mask() {
        let long = "x".repeat(300);
        let longer = "y".repeat(70_000);
        for mask in [None, Some([1, 2, 3, 250])] {
            let frames = |contents: &[&str]| -> Vec<u8> {
                contents.iter().flat_map(|content| frame(content.as_bytes(), mask)).collect()
            };
            for (contents, expected) in [
                (&["{\"token\": \"ghp_placeholder\"}"][..], Some("api")),
                (&["ghp_place", "holder"], Some("api")),
                (&[&long, "ghp_", "", "placeholder"], Some("api")),
                (&[&longer, "ghp_placeholder"], Some("api")),
                (&["ghp_placeholde", "x", "r"], None),
                (&["hello", &longer], None),
            ] {
                let bytes = frames(contents);
                for size in [1, 3, 1000, bytes.len()] {
                    let mut placeholders = placeholders();
                    let found =
                        bytes.chunks(size).find_map(|piece| placeholders.find(piece).map(str::to_owned));
                    assert_eq!(found.as_deref(), expected, "{mask:?} {size}");
                    assert!(placeholders.tail.len() < 70_100 && placeholders.head.len() <= 14);
                }
            }
        }
    }
}
