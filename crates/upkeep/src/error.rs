//! Errors of the reconcilers.

/// The step that failed. The causes go to the log, which only the operator reads.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not say which kinds it serves.
    #[error("cannot discover the kinds of the API server: {0}")]
    Discover(#[source] kube::Error),
    /// An object could not be read.
    #[error("cannot read {what}: {source}")]
    Read {
        /// Which object or list.
        what: String,
        /// Why.
        source: kube::Error,
    },
    /// An object could not be created, changed or deleted.
    #[error("cannot write {what}: {source}")]
    Write {
        /// Which object.
        what: String,
        /// Why.
        source: kube::Error,
    },
    /// One of the objects that another one owns cannot be read.
    #[error("{name:?}, one of the {what}, cannot be read")]
    Held {
        /// Which objects.
        what: String,
        /// The one that cannot be read.
        name: String,
    },
    /// An object lacks a field that the API server always sets.
    #[error("{0}")]
    Malformed(String),
    /// A task of this crate ended by a panic.
    #[error("a reconciler broke: {0}")]
    Broken(#[source] tokio::task::JoinError),
}

impl Error {
    /// Returns true if only a change of the object that was read can help.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Read { source: kube::Error::SerdeError(_), .. })
    }

    /// For `map_err` around reads.
    pub(crate) fn read(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Read { what, source }
    }

    /// For `map_err` around writes.
    pub(crate) fn write(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Write { what, source }
    }
}

/// Returns true if the API server responded with this code.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The object is missing, which a deletion counts as success.
pub(crate) const NOT_FOUND: u16 = 404;
/// Someone else was quicker: the object exists already, or is not what it was.
pub(crate) const CONFLICT: u16 = 409;

/// A deletion's answer, where gone already counts as done.
pub(crate) fn gone_is_fine<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(error) if !has_code(&error, NOT_FOUND) => Err(error),
        _ => Ok(()),
    }
}

/// A creation's answer, where existing already counts as done.
pub(crate) fn existing_is_fine<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(error) if !has_code(&error, CONFLICT) => Err(error),
        _ => Ok(()),
    }
}
