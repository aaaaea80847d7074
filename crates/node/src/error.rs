//! Errors of a node that do not belong to one Pod.

use std::io;
use std::path::PathBuf;

/// Reason why the node cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The range for Pod addresses cannot be used.
    #[error("Pod address range {range:?}: {reason}")]
    AddressRange {
        /// As configured.
        range: String,
        /// The rule that the value breaks.
        reason: &'static str,
    },
    /// A folder of the node cannot be made or read.
    #[error("cannot {action} {path}: {source}")]
    Folder {
        /// The action that failed.
        action: &'static str,
        /// To which folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The images folder cannot be used.
    #[error(transparent)]
    Images(#[from] hutch_image::Error),
    /// The program that makes jails did not start.
    #[error("cannot start the jail warden: {0}")]
    Warden(#[from] hutch_jail::Error),
    /// The API server refused something that the node cannot do without.
    #[error("cannot {action}: {source}")]
    Api {
        /// The action that failed.
        action: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
}

impl Error {
    pub(crate) fn folder(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Folder { action, path, source }
    }

    pub(crate) fn api(action: &'static str) -> impl FnOnce(kube::Error) -> Error {
        move |source| Error::Api { action, source: Box::new(source) }
    }
}
