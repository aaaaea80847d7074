//! Writes to a segment. Tests make them fail, and end the writer between two of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

/// Operation on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Create a segment.
    Create,
    /// Write this many bytes.
    Write(usize),
    /// Flush a segment.
    Sync,
    /// Cut a segment.
    Cut,
    /// Replace the head.
    Head,
    /// Delete a segment.
    Delete,
}

/// Outcome of an operation that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Bytes of a write that are done before.
    pub(crate) written: usize,
    /// The writer ends at once, as by `kill -9`. Otherwise the disk is full.
    pub(crate) kills: bool,
}

/// Decides about each operation.
pub(crate) type Fault = Arc<dyn Fn(Operation) -> Option<Failure> + Send + Sync>;

/// Disk of a writer.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    fault: Option<Fault>,
    killed: bool,
}

impl Disk {
    #[cfg(test)]
    pub(crate) fn with(fault: Fault) -> Disk {
        Disk { fault: Some(fault), killed: false }
    }

    /// Returns true if the writer is to end at once.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed
    }

    fn fail(&mut self, operation: Operation) -> Result<(), (usize, io::Error)> {
        let failure = match (&self.fault, self.killed) {
            (_, true) => Some(Failure { written: 0, kills: true }),
            (Some(fault), _) => fault(operation),
            (None, _) => None,
        };
        match failure {
            None => Ok(()),
            Some(failure) => {
                self.killed = failure.kills;
                Err((failure.written, io::ErrorKind::StorageFull.into()))
            }
        }
    }

    /// Reports an operation that has no further effect here.
    pub(crate) fn reach(&mut self, operation: Operation) -> io::Result<()> {
        self.fail(operation).map_err(|(_, error)| error)
    }

    /// Opens a segment, or creates it and makes its name durable.
    pub(crate) fn open(&mut self, path: &Path) -> io::Result<File> {
        self.reach(Operation::Create)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        if let Some(folder) = path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(file.into())
    }

    pub(crate) fn write(&mut self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        if let Err((written, error)) = self.fail(Operation::Write(bytes.len())) {
            file.write_all_at(&bytes[..written.min(bytes.len())], at)?;
            return Err(error);
        }
        file.write_all_at(bytes, at)
    }

    pub(crate) fn sync(&mut self, file: &File) -> io::Result<()> {
        self.reach(Operation::Sync)?;
        file.sync_data()
    }

    pub(crate) fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        self.reach(Operation::Cut)?;
        file.set_len(length)
    }
}
