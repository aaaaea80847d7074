//! File of JSON lines: the lines of the log.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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
        let mut bytes = Vec::new();
        for entry in batch {
            bytes.extend_from_slice(&entry.line);
            bytes.push(b'\n');
        }
        let append = || -> std::io::Result<()> {
            let mut file: File = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
            let before = file.metadata()?.len();
            let written = file.write_all(&bytes).and_then(|()| file.sync_data());
            if written.is_err() {
                // Half a line would join the next one.
                let _ = file.set_len(before);
            }
            written
        };
        append().map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))
    }
}
