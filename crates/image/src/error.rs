//! Errors of resolving an image name to folders.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

/// Why an image cannot be had. The texts are meant for the user who named the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is of an image that is not on this machine.
    #[error(
        "image {0:?} is not on this machine: run `hutch image pull`, or use hutch/host, hutch/python-runtime, hutch/pause, or oci:/path of an OCI layout folder"
    )]
    NotPullable(String),
    /// The text is no image name at all.
    #[error("image name {name:?} is not valid: {reason}")]
    InvalidReference {
        /// As given.
        name: String,
        /// The problem.
        reason: &'static str,
    },
    /// An OCI layout folder lacks a part or has one that says nonsense.
    #[error("OCI layout {path}: {reason}")]
    Layout {
        /// The layout folder or the file in it.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Content differs from its digest.
    ///
    /// The digest that was found is left out: it would tell the author of the reference about content of others.
    #[error("{what} does not have the digest by which it is referred to")]
    DigestMismatch {
        /// Which content.
        what: String,
    },
    /// A Pod names a folder, and no folder is open to Pods.
    #[error(
        "image {0:?} is a folder of this machine: Pods may name only folders below --image-dir, and hutch up was started without it"
    )]
    NoImageFolder(String),
    /// A Pod names a folder elsewhere.
    #[error("image {name:?}: Pods may name only folders below {folder}, the --image-dir of hutch up")]
    OutsideImageFolder {
        /// As given.
        name: String,
        /// The folder that is open to Pods.
        folder: PathBuf,
    },
    /// A layer holds something that no honest archive holds.
    #[error("layer entry {entry:?} refused: {reason}")]
    HostileEntry {
        /// Path in the archive, shortened.
        entry: String,
        /// The problem.
        reason: Cow<'static, str>,
    },
    /// A layer was not unpacked by its process.
    #[error("layer not unpacked: {reason}")]
    Confined {
        /// Message of the process.
        reason: String,
    },
    /// Something is larger than its bound.
    #[error("{what} is larger than {limit}")]
    TooLarge {
        /// Which thing.
        what: String,
        /// Bound in bytes or pieces, as the text says.
        limit: String,
    },
    /// Something that would be removed is in use.
    #[error("{what} is in use by {by}")]
    InUse {
        /// Name of the image.
        what: String,
        /// Processes that use it.
        by: String,
    },
    /// A user or group that the image does not know.
    #[error("the image has no {kind} {name:?}")]
    UnknownAccount {
        /// `user` or `group`.
        kind: &'static str,
        /// As given.
        name: String,
    },
    /// A call of the operating system failed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// Operation that failed, such as `read`.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    /// Returns `true` if a file could not be written because the disk is full.
    pub(crate) fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Error::File { source, .. } if full.contains(&source.kind()))
    }

    /// For `map_err` on calls of the operating system.
    pub(crate) fn file<E: Into<io::Error>>(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Error {
        let path = path.into();
        move |source| Error::File { action, path, source: source.into() }
    }
}
