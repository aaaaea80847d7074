//! Errors of images, and what an entry of a tree makes fail.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why an image cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something differs from what was written.
    #[error("snapshot image {image}: {part} has been changed: {reason}")]
    Tampered {
        /// Id of the image.
        image: String,
        /// File or tree of the image.
        part: String,
        /// The difference.
        reason: String,
    },
    /// Something is shorter than what was written, or absent.
    #[error("snapshot image {image}: {part} is incomplete: {reason}")]
    Truncated {
        /// Id of the image.
        image: String,
        /// File or tree of the image.
        part: String,
        /// The absent part.
        reason: String,
    },
    /// The folder of one image contains the manifest of another one.
    #[error("snapshot image {image} is swapped: its manifest is the one of image {named}")]
    Swapped {
        /// Id of the image.
        image: String,
        /// Id in the manifest.
        named: String,
    },
    /// The image was made with another key.
    #[error("snapshot image {image}: its manifest was made with a key that is not the one of this machine")]
    Foreign {
        /// Id of the image.
        image: String,
    },
    /// The image has a format that this version does not read.
    #[error(
        "snapshot image {image}: its manifest has format {found}, and this version reads format {supported}"
    )]
    Old {
        /// Id of the image.
        image: String,
        /// Format of the image.
        found: u64,
        /// Format that can be read.
        supported: u64,
    },
    /// The disk is full, or would be.
    #[error("snapshot image {image}: {part}: the disk is full: {source}")]
    NoRoom {
        /// Id of the image.
        image: String,
        /// File or tree of the image.
        part: String,
        /// Message of the system.
        source: io::Error,
    },
    /// A call of the operating system failed.
    #[error("snapshot image {image}: {part}: cannot {action}: {source}")]
    Io {
        /// Id of the image.
        image: String,
        /// File or tree of the image.
        part: String,
        /// Operation that failed, with the entry of a tree.
        action: String,
        /// Message of the system.
        source: io::Error,
    },
    /// An entry of what is to be kept cannot be kept.
    #[error("snapshot image {image}: {part}: {entry:?} cannot be kept: {reason}")]
    Refused {
        /// Id of the image.
        image: String,
        /// File or tree of the image.
        part: String,
        /// Path of the entry, shortened.
        entry: String,
        /// The problem.
        reason: String,
    },
    /// The image, or the part of an image that is made, exists already.
    #[error("snapshot image {image}: {part} exists already")]
    Exists {
        /// Id of the image.
        image: String,
        /// File or tree of the image, or the image itself.
        part: String,
    },
    /// There are as many images as there may be.
    #[error(
        "snapshot image {image}: this machine has {maximum} images already, and no more are made: remove some"
    )]
    TooMany {
        /// Id of the image.
        image: String,
        /// Maximum number of images.
        maximum: usize,
    },
    /// The image does not have this part.
    #[error("snapshot image {image} has no {part}")]
    Absent {
        /// Id of the image.
        image: String,
        /// File or tree of the image.
        part: String,
    },
    /// The folder to copy to is not absent and not empty.
    #[error("snapshot image {image}: {part}: cannot copy to {}: {reason}", target.display())]
    Target {
        /// Id of the image.
        image: String,
        /// Tree of the image.
        part: String,
        /// Folder to copy to.
        target: PathBuf,
        /// The problem.
        reason: &'static str,
    },
    /// No name of an image.
    #[error("{name:?} is no id of a snapshot image: {reason}")]
    Id {
        /// As given.
        name: String,
        /// The problem.
        reason: &'static str,
    },
    /// The folder of the images or the file of the key is not private, or not usable.
    #[error("snapshot images: {}: {reason}", path.display())]
    Unsafe {
        /// Folder or file.
        path: PathBuf,
        /// The problem, and what to do.
        reason: String,
    },
    /// The folder of the images cannot be read or changed.
    #[error("snapshot images: cannot {action} {}: {source}", path.display())]
    Folder {
        /// Operation that failed.
        action: &'static str,
        /// Folder or file.
        path: PathBuf,
        /// Message of the system.
        source: io::Error,
    },
}

impl Error {
    /// Returns true for an error of the image itself, with which it can never be used as it is.
    pub fn lasts(&self) -> bool {
        use Error::{Absent, Foreign, Old, Swapped, Tampered, Truncated};
        matches!(
            self,
            Tampered { .. } | Truncated { .. } | Swapped { .. } | Foreign { .. } | Old { .. } | Absent { .. }
        )
    }

    /// Returns `true` if the disk is full.
    pub fn is_no_room(&self) -> bool {
        match self {
            Error::NoRoom { .. } => true,
            Error::Folder { source, .. } => is_full(source),
            _ => false,
        }
    }

    /// For `map_err` on calls that concern the folder of all images.
    pub(crate) fn folder<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        let path = path.to_owned();
        move |source| Error::Folder { action, path, source: source.into() }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// A part of an image, for messages.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) image: String,
    pub(crate) part: String,
}

impl Place {
    pub(crate) fn new(image: impl ToString, part: impl ToString) -> Place {
        Place { image: image.to_string(), part: part.to_string() }
    }

    /// For `map_err` on calls of the operating system.
    pub(crate) fn io<E: Into<io::Error>>(&self, action: impl ToString) -> impl FnOnce(E) -> Error {
        let (Place { image, part }, action) = (self.clone(), action.to_string());
        move |source| {
            let source = source.into();
            if is_full(&source) {
                return Error::NoRoom { image, part, source };
            }
            Error::Io { image, part, action, source }
        }
    }

    pub(crate) fn tampered(&self, reason: impl ToString) -> Error {
        let Place { image, part } = self.clone();
        Error::Tampered { image, part, reason: reason.to_string() }
    }

    pub(crate) fn truncated(&self, reason: impl ToString) -> Error {
        let Place { image, part } = self.clone();
        Error::Truncated { image, part, reason: reason.to_string() }
    }

    pub(crate) fn refused(&self, entry: impl ToString, reason: impl ToString) -> Error {
        let Place { image, part } = self.clone();
        Error::Refused { image, part, entry: entry.to_string(), reason: reason.to_string() }
    }

    pub(crate) fn exists(&self) -> Error {
        let Place { image, part } = self.clone();
        Error::Exists { image, part }
    }

    pub(crate) fn absent(&self) -> Error {
        let Place { image, part } = self.clone();
        Error::Absent { image, part }
    }

    /// The error of a tree that is copied into an image.
    pub(crate) fn not_kept(&self, fault: Fault) -> Error {
        match fault.cause {
            Cause::Io { action, source } => self.io(format!("{action} {:?}", fault.entry))(source),
            Cause::Refused(reason) => self.refused(fault.entry, reason),
        }
    }

    /// The error of a tree of an image: what is refused was not in it when it was made.
    pub(crate) fn not_as_made(&self, fault: Fault) -> Error {
        match fault.cause {
            Cause::Io { action, source } => self.io(format!("{action} {:?}", fault.entry))(source),
            Cause::Refused(reason) => self.tampered(format!("{:?}: {reason}", fault.entry)),
        }
    }
}

/// Why an entry of a tree cannot be copied or read.
#[derive(Debug)]
pub(crate) enum Cause {
    Io { action: &'static str, source: io::Error },
    Refused(&'static str),
}

impl Cause {
    /// The entry is not what it was a moment before.
    pub(crate) const CHANGED: Cause = Cause::Refused("it changes while it is read");

    /// For `map_err` on calls of the operating system.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(Errno) -> Cause {
        move |errno| match errno {
            // Reported for an entry that was there when its folder was read.
            Errno::NOENT if action != MAKE => Cause::CHANGED,
            Errno::XDEV if action == OPEN => Cause::Refused("a file system is mounted in the tree"),
            Errno::LOOP | Errno::NOTDIR if action == OPEN => Cause::CHANGED,
            // It is no link any more.
            Errno::INVAL if action == READ_LINK => Cause::CHANGED,
            Errno::AGAIN if action == OPEN => Cause::Refused("a process has a lease of it"),
            errno => Cause::Io { action, source: errno.into() },
        }
    }
}

/// Actions of [`Cause::io`] that some errors have another meaning for.
pub(crate) const OPEN: &str = "open";
pub(crate) const MAKE: &str = "make";
pub(crate) const READ_LINK: &str = "read the link";

/// A cause with the path of the entry, shortened.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) entry: String,
    pub(crate) cause: Cause,
}
