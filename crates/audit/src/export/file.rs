//! File of JSON lines: the lines of the log.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Failure;
use crate::Entry;

/// Appends to a file. It is opened for each batch, so another program may rotate it.
pub(super) struct FileSender {
    path: PathBuf,
}

impl FileSender {
    pub(super) fn new(path: &Path) -> FileSender {
        FileSender { path: path.to_owned() }
    }

    pub(super) fn send(&mut self, batch: &[Entry]) -> Result<(), Failure> {
        let mut bytes = vec![b'\n'];
        for entry in batch {
            bytes.extend_from_slice(&entry.line);
            bytes.push(b'\n');
        }
        let append = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file: File = options.create(true).append(true).read(true).mode(0o600).open(&self.path)?;
            let before = file.metadata()?.len();
            // A write that a crash cut short left half a line, which the next one must not join.
            let is_cut = ends_in_half_a_line(&file, before)?;
            let whole = if is_cut { &bytes[..] } else { &bytes[1..] };
            let written = file.write_all(whole).and_then(|()| file.sync_data());
            if written.is_err() {
                // Half a line would join the next one.
                let _ = file.set_len(before);
            }
            written
        };
        append().map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))
    }
}

/// Returns true if the last byte of a file of this length ends no line. What cannot be read back, such as a pipe, has none.
fn ends_in_half_a_line(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != [b'\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_does_not_join_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let entry = |line: &str| Entry { line: line.into(), record: None, segment: "s".into(), number: 1 };
        let mut sender = FileSender::new(&path);
        sender.send(&[entry("one")]).unwrap();
        std::fs::write(&path, "one\ntw").unwrap();
        sender.send(&[entry("two"), entry("three")]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntw\ntwo\nthree\n");
    }
}
