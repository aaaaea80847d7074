//! Reasons why an image cannot be pulled. None repeats a secret, or the body of an answer.

use std::path::Path;
use std::time::Duration;

/// Maximum characters of untrusted text in a message.
const SHOWN: usize = 200;

/// Why an image cannot be pulled.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The text is no name of an image. Kubelets report it as `InvalidImageName`.
    #[error("image {name:?} is not a valid name: {reason}")]
    InvalidImageName {
        /// Start of the text.
        name: String,
        /// Fault, and the valid form.
        reason: String,
    },
    /// A field of the configuration is invalid.
    #[error("{field}: {reason}")]
    InvalidConfig {
        /// Path of the field.
        field: String,
        /// Fault, and the valid form.
        reason: String,
    },
    /// No prefix of the configuration allows the image.
    #[error("image {name} may not be pulled: {allowed}")]
    NotAllowed {
        /// Full name of the image.
        name: String,
        /// The allowed prefixes, in a sentence.
        allowed: String,
    },
    /// Credentials cannot be read.
    #[error("credentials of {origin}: {reason}")]
    Credentials {
        /// File, Secret or helper.
        origin: String,
        /// Fault, without content.
        reason: String,
    },
    /// The registry cannot be reached, or the connection failed.
    #[error("{host}: {reason}")]
    Network {
        /// Host and port.
        host: String,
        /// Cause, from the network or TLS.
        reason: String,
    },
    /// The registry sent nothing, or too little of a layer, for too long.
    #[error("{host} sent nothing, or too little, for {} s", .limit.as_secs())]
    Silent {
        /// Host and port.
        host: String,
        /// Limit that was exceeded.
        limit: Duration,
    },
    /// The connection ended before the content did.
    #[error("{host} ended the connection after {received} of {size} bytes of {what}")]
    Cut {
        /// Host and port.
        host: String,
        /// Content.
        what: String,
        /// Bytes that are there.
        received: u64,
        /// Bytes that were expected.
        size: u64,
    },
    /// The registry refuses for now.
    #[error("{host} answered {status}{}", wait_text(.wait))]
    Busy {
        /// Host and port.
        host: String,
        /// HTTP status.
        status: u16,
        /// Requested delay.
        wait: Option<Duration>,
    },
    /// The registry has no such image or blob.
    #[error("{host} has no {what}")]
    NotFound {
        /// Host and port.
        host: String,
        /// Image or blob.
        what: String,
    },
    /// No credentials, or none that the registry accepts.
    #[error("{host} does not allow pulling {repository}: {reason}")]
    Unauthorized {
        /// Host and port.
        host: String,
        /// Repository on that host.
        repository: String,
        /// Outcome of the attempts to log in.
        reason: String,
    },
    /// An answer that the protocol does not allow, or that is not followed.
    #[error("{host}: {reason}")]
    InvalidAnswer {
        /// Host and port.
        host: String,
        /// Fault of the answer.
        reason: String,
    },
    /// A bound is exceeded.
    #[error("{what} exceeds {limit}")]
    TooLarge {
        /// Content.
        what: String,
        /// The bound.
        limit: String,
    },
    /// The content is not what its digest promises.
    #[error("{host} sent content for {what} that has another digest")]
    DigestMismatch {
        /// Host and port.
        host: String,
        /// Content.
        what: String,
    },
    /// The image needs a signature, and none is valid.
    #[error("image {name} has no valid signature: {reason}")]
    Unsigned {
        /// Full name of the image.
        name: String,
        /// Fault of the signatures.
        reason: String,
    },
    /// The image has a form that is not supported.
    #[error("the image is not supported: {0}")]
    Unsupported(String),
    /// The image is not for this machine.
    #[error("the image is not for {wanted}; it is for {has}")]
    Platform {
        /// Platform of this machine.
        wanted: String,
        /// Platforms of the image.
        has: String,
    },
    /// The file with the names of the images is damaged.
    #[error("{path} is damaged")]
    Damaged {
        /// The file.
        path: String,
    },
    /// A file of the store cannot be read or written.
    #[error("cannot {action} {path}: {reason}")]
    File {
        /// Verb.
        action: &'static str,
        /// Path.
        path: String,
        /// Cause, from the kernel.
        reason: String,
    },
}

impl Error {
    /// Returns the constructor of an error of a file.
    pub(crate) fn file<E: std::fmt::Display>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        move |reason| Error::File { action, path: path.display().to_string(), reason: reason.to_string() }
    }

    /// Returns `true` when the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Network { .. } | Error::Silent { .. } | Error::Cut { .. } | Error::Busy { .. })
    }

    /// Returns `true` when the registry has decided that these credentials pull no such image.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::Unauthorized { .. } | Error::NotFound { .. } | Error::NotAllowed { .. })
    }

    /// Returns `true` for failures of this machine, which another registry does not repair.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Error::File { .. } | Error::Damaged { .. })
    }
}

fn wait_text(wait: &Option<Duration>) -> String {
    wait.map(|wait| format!(" and wants a pause of {} s", wait.as_secs())).unwrap_or_default()
}

/// Returns the start of an untrusted text, without control characters.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}
