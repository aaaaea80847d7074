//! Bodies that are compressed although no header says so, such as archives. They pass unchanged as long as no value is found in
//! what they decompress to, or in their own bytes.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use hutch_scan::Compression;

use super::redact::Redactor;
use crate::room::{Parts, Room};

/// Bytes that are decompressed at a time: what they decompress to is held in memory.
const STEP: usize = 1 << 10;
/// Maximum bytes that are held, of which it is not known yet whether a value begins in them.
const HELD: usize = 1 << 20;
/// First bytes that are enough to recognize a compression.
const MAGIC: usize = 4;
/// Bytes of text that are no compressed ones.
const TEXT: usize = 16;

/// Compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Too few bytes are known.
    Unknown,
    Plain,
    Packed(Compression),
}

/// Returns how a body is compressed that begins with these bytes.
pub(super) fn form(start: &[u8]) -> Form {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match (hutch_scan::magic(start), start.first()) {
        // A text may begin with `x^`.
        (Some(Compression::Deflate), _) if start.iter().all(is_text) => match start.len() < TEXT {
            true => Form::Unknown,
            false => Form::Plain,
        },
        (Some(compression), _) => Form::Packed(compression),
        (None, None) => Form::Unknown,
        (None, Some(0x1f | 0x28 | 0x78)) if start.len() < MAGIC => Form::Unknown,
        (None, _) => Form::Plain,
    }
}

/// Reason why a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("a credential is in a compressed answer, from which it cannot be removed")]
    Value,
    #[error("the answer is compressed, so no credential can be removed from it")]
    Form,
    /// It begins like a compressed body, but is a plain one.
    #[error("the answer is not compressed")]
    Plain,
}

enum Decoder {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Zlib(Box<ZlibDecoder<Vec<u8>>>),
}

impl Decoder {
    /// Decompresses bytes. Returns `None` if they are damaged, or something else follows.
    fn write(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            Decoder::Gzip(decoder) => {
                decoder.write_all(bytes).ok()?;
                decoder.flush().ok()?;
                Some(std::mem::take(decoder.get_mut()))
            }
            Decoder::Zlib(decoder) => {
                // It takes no more bytes after the end.
                let is_whole = decoder.write_all(bytes).is_ok() && decoder.flush().is_ok();
                is_whole.then(|| std::mem::take(decoder.get_mut()))
            }
        }
    }

    fn finish(&mut self) -> Option<Vec<u8>> {
        match self {
            Decoder::Gzip(decoder) => {
                decoder.try_finish().ok()?;
                Some(std::mem::take(decoder.get_mut()))
            }
            Decoder::Zlib(decoder) => {
                decoder.try_finish().ok()?;
                Some(std::mem::take(decoder.get_mut()))
            }
        }
    }
}

/// A compressed body.
pub(super) struct Packed {
    decoder: Decoder,
    /// Search in the bytes as they are, and in what they decompress to.
    raw: Redactor,
    plain: Redactor,
    /// Pieces that are not passed on yet, each with the number of decompressed bytes at its end.
    held: VecDeque<(Bytes, u64)>,
    held_bytes: usize,
    room: Parts,
    taken: u64,
    passed: u64,
    decompressed: u64,
}

impl Packed {
    /// Returns a body of a compression; `None` if it is not one that can be read in pieces.
    pub(super) fn new(compression: Compression, redactor: &Redactor, room: &Arc<Room>) -> Option<Packed> {
        let decoder = match compression {
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            Compression::Deflate => Decoder::Zlib(Box::new(ZlibDecoder::new(Vec::new()))),
            Compression::Brotli | Compression::Zstd | Compression::Zip => return None,
        };
        let (raw, plain) = (redactor.anew(), redactor.anew());
        let (held, held_bytes) = (VecDeque::new(), 0);
        let room = Parts::new(room);
        Some(Packed { decoder, raw, plain, held, held_bytes, room, taken: 0, passed: 0, decompressed: 0 })
    }

    /// Takes a piece. Returns what may be passed on.
    ///
    /// # Errors
    /// The reason why nothing more may be.
    pub(super) fn push(&mut self, piece: &Bytes) -> Result<Vec<u8>, Refused> {
        let mut start = 0;
        while start < piece.len() {
            let end = piece.len().min(start + STEP);
            let bytes = piece.slice(start..end);
            start = end;
            let text = self.decoder.write(&bytes);
            (self.taken, self.held_bytes) = (self.taken + bytes.len() as u64, self.held_bytes + bytes.len());
            let Some(text) = text else {
                self.held.push_back((piece.slice(end - bytes.len()..), 0));
                return Err(if self.decompressed == 0 { Refused::Plain } else { Refused::Form });
            };
            self.read(&bytes, &text)?;
            self.held.push_back((bytes, self.decompressed));
            if self.held_bytes > HELD || !self.room.hold(self.held_bytes) {
                return Err(Refused::Form);
            }
        }
        let passed = self.pass(self.raw.open() as u64, self.plain.open() as u64);
        self.room.hold(self.held_bytes);
        Ok(passed)
    }

    /// Returns the rest.
    ///
    /// # Errors
    /// As [`Packed::push`].
    pub(super) fn finish(&mut self) -> Result<Vec<u8>, Refused> {
        let Some(text) = self.decoder.finish() else {
            return Err(if self.decompressed == 0 { Refused::Plain } else { Refused::Form });
        };
        self.read(&[], &text)?;
        let found = self.raw.search_end() || self.plain.search_end();
        if found { Err(Refused::Value) } else { Ok(self.held()) }
    }

    /// Returns all that is held, at the end or of a body that is not compressed.
    pub(super) fn held(&mut self) -> Vec<u8> {
        self.held.drain(..).flat_map(|(bytes, _)| bytes).collect()
    }

    fn read(&mut self, bytes: &[u8], text: &[u8]) -> Result<(), Refused> {
        self.decompressed += text.len() as u64;
        let found = self.raw.search(bytes) || self.plain.search(text);
        if found { Err(Refused::Value) } else { Ok(()) }
    }

    /// Returns the pieces that are before the ends in which a value may begin.
    fn pass(&mut self, raw: u64, plain: u64) -> Vec<u8> {
        let mut out = Vec::new();
        // Until something is decompressed, it may be no compressed body.
        while let Some((bytes, decompressed)) = self.held.front()
            && self.decompressed > 0
            && decompressed + plain <= self.decompressed
            && self.passed + bytes.len() as u64 + raw <= self.taken
        {
            out.extend_from_slice(bytes);
            (self.passed, self.held_bytes) =
                (self.passed + bytes.len() as u64, self.held_bytes - bytes.len());
            self.held.pop_front();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression as Level;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;
    use crate::credentials::encode::forms;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Level::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns what passes of a body in pieces, and how it ends.
    fn pass(body: &[u8], size: usize) -> (Vec<u8>, Result<(), Refused>) {
        let Form::Packed(compression) = form(body) else { panic!("{:?}", &body[..4]) };
        let mut packed =
            Packed::new(compression, &Redactor::new(forms("Real-Value-1", "P")), &Arc::default()).unwrap();
        let mut out = Vec::new();
        for piece in body.chunks(size) {
            match packed.push(&Bytes::copy_from_slice(piece)) {
                Ok(passed) => out.extend(passed),
                Err(why) => return (out, Err(why)),
            }
        }
        let end = packed.finish().map(|passed| out.extend(passed));
        (out, end)
    }

    fn text() -> Vec<u8> {
        (0..60_000_u32)
            .flat_map(|number| format!("line {}\n", number.wrapping_mul(40_503)).into_bytes())
            .collect()
    }

    #[test]
    fn first_bytes_say_how_a_body_is_compressed() {
        assert_eq!(form(&gzip(b"x")), Form::Packed(Compression::Gzip));
        assert_eq!(form(&zlib(b"x")), Form::Packed(Compression::Deflate));
        assert_eq!(form(b"\x28\xb5\x2f\xfd"), Form::Packed(Compression::Zstd));
        for start in [b"".as_slice(), b"\x1f", b"x", b"(ab", b"xml", b"x^2 + 1"] {
            assert_eq!(form(start), Form::Unknown, "{start:?}");
        }
        for start in [b"{".as_slice(), b"xylo", b"(abc", b"x^2 + 1 is a polynomial", b"PK\x03\x04", b"hello"]
        {
            assert_eq!(form(start), Form::Plain, "{start:?}");
        }
    }

    #[test]
    fn compressed_body_without_a_value_passes_unchanged() {
        let two = [gzip(b"one"), gzip(&text())].concat();
        for body in [gzip(&text()), zlib(&text()), two, gzip(b"short"), gzip(b""), zlib(b"")] {
            for size in [1, 100, 5000, usize::MAX] {
                let (out, end) = pass(&body, size.min(body.len()));
                assert_eq!(end, Ok(()), "{size}");
                assert!(out == body, "{size}");
            }
        }
    }

    #[test]
    fn value_in_a_compressed_body_ends_it_before_the_value() {
        for value in ["Real-Value-1", "UmVhbC1WYWx1ZS0x", "\"REAL-value-1\""] {
            let long = [text(), value.as_bytes().to_vec(), text()].concat();
            for (body, long) in [
                (gzip(&long), true),
                (zlib(&long), true),
                (gzip(value.as_bytes()), false),
                ([gzip(b"one"), gzip(value.as_bytes())].concat(), false),
            ] {
                for size in [1, 1000, body.len()] {
                    let (out, end) = pass(&body, size);
                    assert_eq!(end, Err(Refused::Value), "{value} {size}");
                    assert!(long || out.len() < body.len() / 2 + 20, "{value} {size} {}", out.len());
                    let mut shown = MultiGzDecoder::new(Vec::new());
                    if body[0] == 0x1f {
                        let _ = shown.write_all(&out).and_then(|()| shown.flush());
                        let shown = shown.get_ref();
                        let begin = &value.as_bytes()[..6];
                        assert!(!shown.windows(6).any(|part| part == begin), "{value} {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn value_in_the_head_of_a_compressed_body_is_found() {
        let mut encoder =
            flate2::GzBuilder::new().filename("Real-Value-1").write(Vec::new(), Level::default());
        encoder.write_all(b"text").unwrap();
        let body = encoder.finish().unwrap();
        assert_eq!(pass(&body, 3).1, Err(Refused::Value));
    }

    #[test]
    fn damaged_body_and_what_follows_one_are_refused() {
        let body = gzip(&text());
        assert_eq!(pass(&body[..body.len() / 2], 1000).1, Err(Refused::Form), "cut");
        assert_eq!(pass(&[&body[..], b"Real-Val"].concat(), 1000).1, Err(Refused::Form), "followed");
        let body = zlib(&text());
        assert_eq!(pass(&[&body[..], b"more"].concat(), 1000).1, Err(Refused::Form), "followed");
        // Other bytes may begin like one.
        let (out, end) = pass(b"\x1f\x8b\x08\xff\xff\xff\xff\xff", 5);
        assert_eq!((out.as_slice(), end), (b"".as_slice(), Err(Refused::Plain)));
    }

    #[test]
    fn bodies_that_expand_much_are_read_within_bounds() {
        let body = gzip(&vec![b'a'; 20 << 20]);
        let (out, end) = pass(&body, 4096);
        assert!(end.is_ok() && out == body);
    }
}
