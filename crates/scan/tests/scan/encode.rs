//! Encoders of all forms that the scanner decodes, for its tests and its benchmark.

use std::io::Write;

use hutch_scan::Compression;

/// Encodings that are text.
pub(crate) const TEXTS: [&str; 12] = [
    "raw",
    "percent",
    "percent twice",
    "base64",
    "base64url",
    "base64 twice",
    "base32",
    "hex",
    "escapes",
    "full width",
    "zero width",
    "gzip in base64",
];

/// Compressions of a whole body.
pub(crate) const COMPRESSIONS: [(&str, Compression); 4] = [
    ("gzip", Compression::Gzip),
    ("deflate", Compression::Deflate),
    ("br", Compression::Brotli),
    ("zstd", Compression::Zstd),
];

/// Encodes a text.
///
/// # Panics
/// When the encoding is unknown.
pub(crate) fn text(encoding: &str, bytes: &[u8]) -> Vec<u8> {
    let each =
        |write: fn(u8) -> String| bytes.iter().map(|byte| write(*byte)).collect::<String>().into_bytes();
    match encoding {
        "raw" => bytes.to_vec(),
        "percent" => each(|byte| format!("%{byte:02X}")),
        "percent twice" => each(|byte| format!("%25{byte:02x}")),
        "base64" => base64(bytes, b"+/"),
        "base64url" => base64(bytes, b"-_"),
        "base64 twice" => base64(&base64(bytes, b"+/"), b"+/"),
        "base32" => base32(bytes),
        "hex" => each(|byte| format!("{byte:02x}")),
        "escapes" => each(|byte| format!("\\x{byte:02x}")),
        "full width" => letters(bytes, |letter| match letter {
            '!'..='~' => char::from_u32(u32::from(letter) + 0xfee0).into_iter().collect(),
            other => other.into(),
        }),
        "zero width" => letters(bytes, |letter| format!("{letter}\u{200b}")),
        "gzip in base64" => base64(&compress(Compression::Gzip, bytes), b"+/"),
        other => panic!("unknown encoding {other}"),
    }
}

fn letters(bytes: &[u8], change: impl Fn(char) -> String) -> Vec<u8> {
    String::from_utf8_lossy(bytes).chars().map(change).collect::<String>().into_bytes()
}

/// Compresses a body.
///
/// # Panics
/// When an encoder fails, which writing to memory does not.
pub(crate) fn compress(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::default();
    match compression {
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Deflate => {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Brotli => {
            let mut output = Vec::new();
            let mut encoder = brotli::CompressorWriter::new(&mut output, 4096, 5, 20);
            encoder.write_all(bytes).unwrap();
            drop(encoder);
            output
        }
        Compression::Zstd => zstd::encode_all(bytes, 3).unwrap(),
        Compression::Zip => zip(bytes),
    }
}

/// Returns an archive with one file.
fn zip(text: &[u8]) -> Vec<u8> {
    let name = b"notes/.env";
    let packed = compress(Compression::Deflate, text);
    let mut archive = b"PK\x03\x04".to_vec();
    for value in [20, 0, 8, 0, 0] {
        archive.extend(u16::to_le_bytes(value));
    }
    archive.extend([0; 4]);
    archive.extend((packed.len() as u32).to_le_bytes());
    archive.extend((text.len() as u32).to_le_bytes());
    archive.extend((name.len() as u16).to_le_bytes());
    archive.extend(u16::to_le_bytes(0));
    [&archive[..], name, &packed].concat()
}

/// Encodes base64 with padding; `last` holds the last two digits of the alphabet.
pub(crate) fn base64(bytes: &[u8], last: &[u8; 2]) -> Vec<u8> {
    let mut digits: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').collect();
    digits.extend(last);
    let mut encoded = based(bytes, &digits, 6);
    while !encoded.len().is_multiple_of(4) {
        encoded.push(b'=');
    }
    encoded
}

/// Encodes base32 with padding.
pub(crate) fn base32(bytes: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = (b'A'..=b'Z').chain(b'2'..=b'7').collect();
    let mut encoded = based(bytes, &digits, 5);
    while !encoded.len().is_multiple_of(8) {
        encoded.push(b'=');
    }
    encoded
}

fn based(bytes: &[u8], digits: &[u8], width: usize) -> Vec<u8> {
    let bits = bytes.len() * 8;
    let bit = |at: usize| if at < bits { usize::from(bytes[at / 8] >> (7 - at % 8) & 1) } else { 0 };
    (0..bits.div_ceil(width))
        .map(|digit| digits[(0..width).fold(0, |number, at| number << 1 | bit(digit * width + at))])
        .collect()
}

/// One example of gitleaks.
pub(crate) struct Example {
    pub(crate) rule: String,
    pub(crate) path: String,
    pub(crate) text: Vec<u8>,
}

/// Reads a corpus. Its texts are disguised, so that scanners of repositories do not report them.
///
/// # Panics
/// When a line is malformed.
pub(crate) fn corpus(lines: &str) -> Vec<Example> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => u32::from(digit - b'A'),
        b'a'..=b'z' => u32::from(digit - b'a') + 26,
        b'0'..=b'9' => u32::from(digit - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let decode = |line: &str| {
        let digits: Vec<u8> = line.bytes().filter(|digit| *digit != b'=').collect();
        let mut bytes = Vec::new();
        for group in digits.chunks(4) {
            let bits =
                group.iter().fold(0, |bits, digit| bits << 6 | value(*digit)) << (6 * (4 - group.len()));
            bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
        }
        bytes.iter().map(|byte| byte ^ 0x5a).collect()
    };
    let example = |line: &str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().expect("a line has three fields").to_owned();
        Example { rule: next(), path: next(), text: decode(&next()) }
    };
    lines.lines().map(example).collect()
}
