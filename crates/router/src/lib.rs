//! Routes HTTP, WebSocket and gRPC to a port of a Sandbox that the headers `X-Sandbox-*` select.
//!
//! A request names a Sandbox. The [`Directory`] finds its Pod through the Kubernetes API, and a [`Dial`]
//! connects to the Pod: inside its network namespace on one machine, to its address on a cluster. Bytes are
//! forwarded as they arrive, in both directions, until both sides have ended.
//!
//! A Sandbox that is absent, not ready or still pooled is not reached, nor is an address of another Sandbox.
//! A request is never sent twice: only connecting is retried. The caller's credential is not forwarded, and
//! every listener has an access rule ([`Access`]).

mod access;
mod activity;
mod dial;
mod directory;
mod exchange;
mod forward;
mod history;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod joined;
mod journal;
mod metrics;
mod pace;
mod pod_key;
mod pool;
mod probes;
mod proxy;
mod readable;
mod refusal;
mod resolve;
mod server;
mod sleeps;
mod stall;
mod stream;
mod target;
mod threads;
mod tls;
mod trace;
mod wake;
mod waker;

use std::path::PathBuf;

pub use access::{Access, Claims, ReviewConfig, Reviewer, Token, TokenKey};
pub use activity::Reporting;
pub use dial::{Dial, DialError, Direct, Inside};
pub use directory::{Directory, Scope};
pub use journal::{AccessLog, LogSink};
pub use metrics::Metrics;
pub use pace::Limits;
pub use pod_key::PodKey;
pub use probes::{health, metrics_page};
pub use proxy::{Config, Router};
pub use resolve::{Backend, Past, Resolve, Unresolved};
pub use sleeps::Sleeps;
pub use target::Target;
pub use threads::Threads;
pub use tls::{ClientCertificates, Tls, TlsFiles};
pub use wake::Wake;
pub use waker::ApiWake;

/// Reason why a router or a token cannot be created.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Token that is too short, or not printable.
    #[error("the router's token must have at least {} printable characters and no spaces", Token::SHORTEST)]
    WeakToken,
    /// Key that is too short.
    #[error("the key must have at least {} bytes", TokenKey::SHORTEST)]
    WeakKey,
    /// Claim that no router accepts.
    #[error("no token can be made: {0}")]
    Claim(&'static str),
    /// Certificate or key that cannot be used.
    #[error("cannot use {0}: {1}")]
    Tls(PathBuf, String),
}
