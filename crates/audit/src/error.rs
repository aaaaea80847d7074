use std::io;
use std::path::{Path, PathBuf};

/// Errors of the audit log and of its exporters.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process writes this log.
    #[error("{0} is in use by another process")]
    Locked(PathBuf),
    /// A file of the log cannot be used.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        cause: io::Error,
    },
    /// The key of the log is not one.
    #[error("{0}: not an Ed25519 key that this program wrote")]
    Key(PathBuf),
    /// The disk refused the record. It is not in the log.
    #[error("the audit log cannot be written: {0}")]
    Disk(String),
    /// The queue to the writer is full, and stayed so for the maximum wait. The record is lost, and counted.
    #[error("the audit log does not keep up; the record is lost")]
    Full,
    /// The log is closed.
    #[error("the audit log is closed")]
    Closed,
    /// The bytes are not one event as JSON.
    #[error("not an event: {0}")]
    NotAnEvent(&'static str),
    /// The destination of an exporter is not one.
    #[error("{0}")]
    Destination(String),
    /// The receiver refused a batch or cannot be reached.
    #[error("{0}")]
    Receiver(String),
    /// The cursor of an exporter is that of another receiver.
    #[error(
        "{0} is the place of another receiver; use another name for this one, or delete this file to send everything to it"
    )]
    OtherReceiver(PathBuf),
    /// The cursor of an exporter is not one of this log.
    #[error(
        "{0}: record {1} of this log is another one; the log was replaced. Delete this file to export from the start"
    )]
    OtherLog(PathBuf, u64),
}

impl Error {
    /// Returns the error of a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |cause| Error::File { path: path.to_owned(), cause }
    }

    /// Returns it as an error of the system of the same kind: a full disk stays one.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            Error::File { cause, .. } => cause.kind(),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}
