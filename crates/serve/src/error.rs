use std::net::SocketAddr;
use std::path::PathBuf;

/// Why something could not be offered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is in use by another socket.
    #[error("{0} is in use by another program")]
    AddressInUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// Error of the system.
        cause: std::io::Error,
    },
    /// A file of the authority cannot be read or written.
    #[error("cannot use {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        cause: std::io::Error,
    },
    /// A file of the authority does not hold what it should.
    #[error("{path} does not hold a usable {what}: {cause}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Expected content.
        what: &'static str,
        /// The problem.
        cause: String,
    },
    /// A user-supplied certificate and its key are invalid.
    #[error("{0}")]
    Pair(String),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
}
