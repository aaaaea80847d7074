/// Error of opening the API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] hutch_store::Error),
    /// A built-in CustomResourceDefinition cannot be used; this is a fault of the build.
    #[error("the built-in CustomResourceDefinition {name} cannot be used: {cause}")]
    BuiltIn {
        /// Its name.
        name: String,
        /// Cause of the error.
        cause: String,
    },
    /// The first objects could not be written.
    #[error("cannot write the first objects: {0}")]
    Bootstrap(String),
    /// The file of credentials cannot be read or written.
    #[error("cannot use {path}: {cause}")]
    Credentials {
        /// The file.
        path: std::path::PathBuf,
        /// Cause of the error.
        cause: String,
    },
}
