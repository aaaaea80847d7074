//! Decompression within bounds.

use std::io::Read;

use ruzstd::decoding::errors::FrameDecoderError;

use crate::archive;
use crate::finding::{Compression, Step};

/// Maximum bytes that one stream is decompressed to.
pub(crate) const OUTPUT: usize = 4 << 20;
/// Maximum bytes of output for each byte of input.
const RATIO: usize = 64;
/// Output that is accepted at any ratio.
const FREE: usize = 64 << 10;
/// Largest window of Zstandard.
const WINDOW: u64 = 8 << 20;

/// First bytes of xz, lz4, 7-Zip, RAR and compress.
const UNREAD: [&[u8]; 5] = [
    &[0xfd, b'7', b'z', b'X', b'Z', 0],
    &[0x04, 0x22, 0x4d, 0x18],
    &[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c],
    b"Rar!\x1a\x07",
    &[0x1f, 0x9d],
];

/// Failure to decompress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Not a stream of this form, or damaged.
    Form,
    /// More output than the bounds permit.
    Bound,
}

impl From<Compression> for Step {
    fn from(compression: Compression) -> Step {
        match compression {
            Compression::Gzip => Step::Gzip,
            Compression::Deflate => Step::Deflate,
            Compression::Brotli => Step::Brotli,
            Compression::Zstd => Step::Zstd,
            Compression::Zip => Step::Zip,
        }
    }
}

/// Returns the compression that the first bytes name. Brotli, and deflate without a header, have no such bytes.
pub fn magic(bytes: &[u8]) -> Option<Compression> {
    match bytes {
        [0x1f, 0x8b, 8, ..] => Some(Compression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
        [0x78, second, ..] if (0x7800 + u32::from(*second)).is_multiple_of(31) && second & 0x20 == 0 => {
            Some(Compression::Deflate)
        }
        _ => None,
    }
}

/// Returns the compression that the first bytes name, archives included.
pub(crate) fn recognized(bytes: &[u8]) -> Option<Compression> {
    magic(bytes).or_else(|| bytes.starts_with(archive::ENTRY).then_some(Compression::Zip))
}

/// Reports whether the first bytes name a compression that is not read: bzip2, xz, lz4, 7-Zip, RAR and compress.
pub(crate) fn is_undecodable(bytes: &[u8]) -> bool {
    match bytes {
        [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] => {
            rest.starts_with(&[0x31, 0x41, 0x59, 0x26, 0x53, 0x59])
                || rest.starts_with(&[0x17, 0x72, 0x45, 0x38])
        }
        _ => UNREAD.iter().any(|magic| bytes.starts_with(magic)),
    }
}

/// Returns false if bytes cannot be a stream of deflate without a header, because their first block has no valid head.
pub(crate) fn may_be_deflate(bytes: &[u8]) -> bool {
    let [first, rest @ ..] = bytes else { return false };
    match (first >> 1) & 3 {
        // Plain bytes: their number, and its complement.
        0 => match rest {
            [a, b, c, d, ..] => *a == !c && *b == !d,
            _ => false,
        },
        1 => true,
        // More codes than there are.
        2 => {
            (first >> 3) < 30
                && rest.first().is_some_and(|second| second & 0x1f < 30)
                && has_code_of_lengths(bytes)
        }
        _ => false,
    }
}

/// Reports whether the code of a deflate block, in which the lengths of its other codes are written, uses all its bits.
fn has_code_of_lengths(bytes: &[u8]) -> bool {
    let mut head = [0; 16];
    let count = bytes.len().min(head.len());
    head[..count].copy_from_slice(&bytes[..count]);
    let bits = u128::from_le_bytes(head);
    // Each length has three bits.
    let lengths = 4 + (bits >> 13 & 15) as usize;
    let codes = (0..lengths).map(|number| bits >> (17 + 3 * number) & 7).filter(|length| *length > 0);
    let (used, space) = codes.fold((0, 0), |(used, space), length| (used + 1, space + (128 >> length)));
    space == 128 || used < 2
}

/// Returns false if bytes cannot be a whole stream of Brotli, because their first block has more plain bytes than there are.
/// Random bytes often begin so, and a decoder would make room for that block first.
pub(crate) fn may_be_brotli(bytes: &[u8]) -> bool {
    let mut start = [0; 8];
    let count = bytes.len().min(start.len());
    start[..count].copy_from_slice(&bytes[..count]);
    let mut bits = u64::from_le_bytes(start);
    let mut take = |count: u32| {
        let taken = bits & ((1 << count) - 1);
        bits >>= count;
        taken
    };
    // The size of the window has 1, 4 or 7 bits.
    if take(1) == 1 && take(3) == 0 {
        take(3);
    }
    // A last block has no plain bytes.
    if take(1) == 1 {
        return true;
    }
    let digits = match take(2) {
        // Metadata.
        3 => return true,
        more => 4 + more,
    };
    let length = (0..digits).fold(0, |length, digit| length | take(4) << (4 * digit)) + 1;
    let is_plain = take(1) == 1;
    !is_plain || length <= bytes.len() as u64
}

/// Result of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decompressed {
    pub(crate) bytes: Vec<u8>,
    /// The stream is not damaged, and nothing follows it. What follows a stream of Brotli is not noticed.
    pub(crate) whole: bool,
}

/// Decompresses a stream. Damaged streams give what precedes the damage, if there is any.
pub(crate) fn decompress(compression: Compression, bytes: &[u8]) -> Result<Decompressed, Failure> {
    use flate2::bufread::{DeflateDecoder, ZlibDecoder};
    let followed = |decompressed: Decompressed, rest: &[u8]| {
        let whole = decompressed.whole && rest.is_empty();
        Decompressed { whole, ..decompressed }
    };
    match compression {
        Compression::Gzip => read(&mut flate2::read::MultiGzDecoder::new(bytes), bytes.len()),
        Compression::Deflate if magic(bytes) == Some(Compression::Deflate) => {
            let mut decoder = ZlibDecoder::new(bytes);
            Ok(followed(read(&mut decoder, bytes.len())?, decoder.into_inner()))
        }
        Compression::Deflate => {
            let mut decoder = DeflateDecoder::new(bytes);
            Ok(followed(read(&mut decoder, bytes.len())?, decoder.into_inner()))
        }
        Compression::Brotli => read(&mut brotli_decompressor::Decompressor::new(bytes, 4096), bytes.len()),
        Compression::Zstd => zstd(bytes),
        // Its first files count, if there are more than the bounds permit: most archives are not text.
        Compression::Zip => match archive::read(bytes, bound(bytes.len())) {
            (bytes, _) if bytes.is_empty() => Err(Failure::Form),
            (bytes, whole) => Ok(Decompressed { bytes, whole }),
        },
    }
}

/// Returns what a stream is decompressed to; `None` if it is damaged, exceeds the bounds, or is followed by something else.
pub fn decompressed(compression: Compression, bytes: &[u8]) -> Option<Vec<u8>> {
    decompress(compression, bytes).ok().filter(|output| output.whole).map(|output| output.bytes)
}

fn zstd(bytes: &[u8]) -> Result<Decompressed, Failure> {
    let mut all = Decompressed { bytes: Vec::new(), whole: true };
    let mut rest = bytes;
    while !rest.is_empty() && all.whole {
        let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, WINDOW);
        let frame = match decoder {
            Ok(mut decoder) => read(&mut decoder, bytes.len()),
            Err(FrameDecoderError::WindowSizeTooBig { .. }) => Err(Failure::Bound),
            Err(_) => Err(Failure::Form),
        };
        match frame {
            Ok(frame) => {
                all.bytes.extend(frame.bytes);
                all.whole = frame.whole;
            }
            // Something else follows the frames.
            Err(Failure::Form) if !all.bytes.is_empty() => all.whole = false,
            Err(failure) => return Err(failure),
        }
        if all.bytes.len() > OUTPUT {
            return Err(Failure::Bound);
        }
    }
    Ok(all)
}

/// Returns the maximum bytes of output of a stream of this many bytes.
pub(crate) fn bound(input: usize) -> usize {
    OUTPUT.min((input * RATIO).max(FREE))
}

fn read(decoder: &mut impl Read, input: usize) -> Result<Decompressed, Failure> {
    let bound = bound(input);
    let mut output = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) if output.is_empty() => return Err(Failure::Form),
            Ok(0) => return Ok(Decompressed { bytes: output, whole: true }),
            Ok(length) => output.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) if output.is_empty() => return Err(Failure::Form),
            Err(_) => return Ok(Decompressed { bytes: output, whole: false }),
        }
        if output.len() > bound {
            return Err(Failure::Bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn bomb_exceeds_the_bounds() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; 8 << 20]).unwrap();
        let bytes = encoder.finish().unwrap();
        assert_eq!(decompress(Compression::Gzip, &bytes), Err(Failure::Bound));
        assert_eq!(decompress(Compression::Zstd, &bytes), Err(Failure::Form));
    }

    #[test]
    fn compressions_that_are_not_read_are_known() {
        for bytes in [&b"BZh91AY&SY\x01"[..], b"\xfd7zXZ\0\0", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07\x01"] {
            assert!(is_undecodable(bytes), "{bytes:?}");
        }
        for bytes in [&b"BZh9 is a text"[..], b"7zip", b"Rar!", b"", b"\x1f\x8b\x08"] {
            assert!(!is_undecodable(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn truncated_stream_gives_its_start() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&text).unwrap();
        let bytes = encoder.finish().unwrap();
        let part = decompress(Compression::Deflate, &bytes[..bytes.len() / 2]).unwrap();
        assert!(!part.bytes.is_empty() && text.starts_with(&part.bytes) && !part.whole);
    }

    #[test]
    fn streams_of_deflate_begin_as_such() {
        for length in [0_usize, 1, 10, 100, 1000, 100_000] {
            let noise: Vec<u8> =
                (0..length).map(|at| (at * at * 31 + at * 7) as u8 ^ (at >> 5) as u8).collect();
            for text in [noise, b"a text ".repeat(length.div_ceil(7))] {
                for level in 0..=9 {
                    let level = flate2::Compression::new(level);
                    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
                    encoder.write_all(&text).unwrap();
                    assert!(may_be_deflate(&encoder.finish().unwrap()), "{length} {level:?}");
                }
            }
        }
        for first in 0..=u8::MAX {
            for second in [0, 7, 30, 31, 0x55, 0xff] {
                let bytes = [first, second, 1, 2, 3, 4, 5, 6, 7, 8];
                let read = decompress(Compression::Deflate, &bytes);
                assert!(read.is_err() || may_be_deflate(&bytes) || magic(&bytes).is_some(), "{bytes:?}");
            }
        }
    }

    #[test]
    fn streams_of_brotli_may_be_such_and_random_bytes_often_not() {
        let encode = |text: &[u8], quality, window| {
            let mut stream = Vec::new();
            let mut encoder = brotli::CompressorWriter::new(&mut stream, 4096, quality, window);
            encoder.write_all(text).unwrap();
            drop(encoder);
            stream
        };
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        };
        for length in [1_usize, 10, 100, 1000, 100_000] {
            let noise: Vec<u8> = (0..length).map(|_| random()).collect();
            for text in [noise, b"a text ".repeat(length.div_ceil(7))] {
                for (quality, window) in [(0, 10), (1, 16), (5, 17), (9, 22), (11, 24)] {
                    let stream = encode(&text, quality, window);
                    assert!(may_be_brotli(&stream), "{length} {quality} {window}");
                }
            }
        }
        let refused = (0..1000).filter(|_| !may_be_brotli(&[(); 64].map(|()| random()))).count();
        assert!((100..500).contains(&refused), "{refused}");
        assert!(may_be_brotli(&[]));
    }

    #[test]
    fn what_follows_a_stream_is_noticed() {
        let zstd = |text: &[u8]| zstd::encode_all(text, 3).unwrap();
        let write = |mut encoder: flate2::write::GzEncoder<Vec<u8>>| {
            encoder.write_all(b"text").unwrap();
            encoder.finish().unwrap()
        };
        let gzip = write(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default()));
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"text").unwrap();
        let zlib = encoder.finish().unwrap();
        let raw = zlib[2..zlib.len() - 4].to_vec();
        for (compression, stream) in [
            (Compression::Gzip, gzip.clone()),
            (Compression::Gzip, [gzip.clone(), gzip].concat()),
            (Compression::Deflate, zlib),
            (Compression::Deflate, raw),
            (Compression::Zstd, zstd(b"text")),
        ] {
            assert!(decompress(compression, &stream).unwrap().whole, "{compression:?}");
            let followed = [&stream[..], b"plain"].concat();
            let found = decompress(compression, &followed).unwrap();
            assert!(found.bytes.starts_with(b"text") && !found.whole, "{compression:?}");
        }
    }
}
