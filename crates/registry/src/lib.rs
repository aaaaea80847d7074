//! Pulls images from registries into a folder that is an OCI layout, from which `hutch-image` resolves them.
//!
//! A pull is allowed by a prefix of the configuration or refused. Content is stored only under the digest that it has, after
//! its last byte was checked; what a killed process leaves is continued by the next pull.
//!
//! The requests are made with `hyper`. The library `oci-client` (0.18) was tried: it reads manifests of any size into
//! memory, drops the header `Retry-After`, sends credentials to any realm that a registry names, also without TLS, and
//! follows redirects by rules that cannot be set.
//!
//! Archives of other tools are imported into the same folder.
//!
//! Nothing here runs or unpacks an image, and nothing is pushed.

mod challenge;
mod choice;
mod config;
mod digest;
mod download;
mod error;
mod flight;
mod helper;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod http_client;
mod import;
mod keychain;
mod layout;
mod limits;
mod login;
mod manifest;
mod names;
mod partial;
mod platform;
mod prefix;
mod proxy;
mod pull;
mod resolve;
mod secret;
mod session;
mod signature;
mod tls;
mod token;

pub use config::Config;
pub use digest::Digest;
pub use error::Error;
pub use import::import;
pub use keychain::Keychain;
pub use limits::Limits;
pub use login::log_in;
pub use names::ImageName;
pub use proxy::{PROXY_VARIABLES, Proxy};
pub use pull::{Connections, Event, Fetched, Pulled, Puller};
pub use secret::Secret;
pub use signature::{Evidence, Signers};
