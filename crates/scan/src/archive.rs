//! ZIP archives: the contents of all files, as far as they can be read.

use std::io::Read;

use flate2::read::DeflateDecoder;
use memchr::memmem;

/// First bytes of a file in an archive, and of an archive.
pub(crate) const ENTRY: &[u8] = b"PK\x03\x04";
/// First bytes of the index, after all files.
const INDEX: &[u8] = b"PK\x01\x02";
/// Bytes of the head of a file, before its name.
const HEAD: usize = 30;
/// Maximum files that are read.
const FILES: usize = 4096;

/// Returns the names and contents of the files of an archive, one after the other, up to so many bytes, and whether that is all.
/// The index is not read: what it leaves out can be unpacked too.
pub(crate) fn read(bytes: &[u8], bound: usize) -> (Vec<u8>, bool) {
    let mut output = Vec::new();
    let (mut at, mut whole) = (0, true);
    for _ in 0..FILES {
        let Some(start) = memmem::find(&bytes[at..], ENTRY).map(|found| at + found) else {
            return (output, whole);
        };
        let Some(file) = File::at(bytes, start) else {
            at = start + ENTRY.len();
            continue;
        };
        output.extend_from_slice(file.name);
        output.push(b'\n');
        let (length, is_read) = file.unpack(bound.saturating_sub(output.len()), &mut output);
        whole &= is_read;
        output.push(b'\n');
        if output.len() >= bound {
            return (output, false);
        }
        at = file.data + length;
    }
    (output, false)
}

/// One file of an archive.
struct File<'a> {
    bytes: &'a [u8],
    name: &'a [u8],
    method: u16,
    encrypted: bool,
    /// Start of its content.
    data: usize,
    /// Packed bytes, if its head has that.
    packed: Option<usize>,
}

impl<'a> File<'a> {
    fn at(bytes: &'a [u8], start: usize) -> Option<File<'a>> {
        let head = bytes.get(start..start + HEAD)?;
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let (flags, method) = (short(6), short(8));
        let size = u32::from_le_bytes([head[18], head[19], head[20], head[21]]) as usize;
        let name = start + HEAD..start + HEAD + usize::from(short(26));
        let data = name.end + usize::from(short(28));
        // With this flag, the length follows the content.
        let packed =
            (flags & 8 == 0).then_some(size).filter(|size| bytes.len() - data.min(bytes.len()) >= *size);
        let encrypted = flags & 1 == 1;
        bytes.get(name).filter(|_| data <= bytes.len()).map(|name| File {
            bytes,
            name,
            method,
            encrypted,
            data,
            packed,
        })
    }

    /// Adds the content, and returns its packed length and whether it was read to its end.
    fn unpack(&self, room: usize, output: &mut Vec<u8>) -> (usize, bool) {
        let rest = &self.bytes[self.data..];
        let length = self.packed.unwrap_or_else(|| {
            // What is searched once is passed over, so that many files take no longer than few.
            let next = memmem::find(rest, ENTRY).unwrap_or(rest.len());
            memmem::find(&rest[..next], INDEX).unwrap_or(next)
        });
        if self.encrypted {
            return (length, false);
        }
        match self.method {
            0 => {
                output.extend_from_slice(&rest[..length.min(room)]);
                (length, length <= room)
            }
            8 => {
                // Without a length in its head, the stream says where it ends.
                let packed = if self.packed.is_some() { &rest[..length] } else { rest };
                let mut decoder = DeflateDecoder::new(packed);
                let is_read = (&mut decoder).take(room as u64).read_to_end(output).is_ok();
                let read = usize::try_from(decoder.total_in()).unwrap_or(length);
                (if self.packed.is_some() { length } else { read.min(rest.len()) }, is_read)
            }
            _ => (length, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// One file; with `streamed`, its length is not in its head.
    fn file(name: &str, text: &[u8], method: u16, flags: u16) -> Vec<u8> {
        let packed = match method {
            8 => {
                let mut encoder =
                    flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            _ => text.to_vec(),
        };
        let size = if flags & 8 == 0 { packed.len() as u32 } else { 0 };
        let mut head = ENTRY.to_vec();
        for value in [20, flags, method, 0, 0] {
            head.extend(value.to_le_bytes());
        }
        head.extend([0; 4]);
        head.extend(size.to_le_bytes());
        head.extend((text.len() as u32).to_le_bytes());
        head.extend((name.len() as u16).to_le_bytes());
        head.extend(0_u16.to_le_bytes());
        [head, name.as_bytes().to_vec(), packed].concat()
    }

    #[test]
    fn files_are_read_in_each_form() {
        for (method, flags) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
            let archive =
                [file("a/.env", b"first text", method, flags), file("b", b"second", method, flags)].concat();
            let archive = [archive, INDEX.to_vec(), vec![0; 42]].concat();
            let (read, whole) = read(&archive, 1 << 20);
            let text = String::from_utf8_lossy(&read).into_owned();
            assert!(
                text.contains("a/.env\nfirst text") && text.contains("b\nsecond"),
                "{method} {flags} {text}"
            );
            assert!(whole, "{method} {flags}");
        }
        assert!(!read(&file("a", b"text", 0, 1), 1 << 20).1, "encrypted");
        assert!(read(ENTRY, 1 << 20).0.is_empty());
        let (read, whole) = read(&file("a", &vec![0; 8 << 20], 8, 0), 4 << 20);
        assert!(read.len() <= (4 << 20) + 2 && !whole);
    }
}
