//! Routes HTTP, WebSocket and gRPC to a port of a Sandbox that the headers `X-Sandbox-*` select.
//!
//! A request names a Sandbox. The [`Directory`] finds its Pod through the Kubernetes API, and a [`Dial`]
//! connects to the Pod: inside its network namespace on one machine, to its address on a cluster. Bytes are
//! forwarded as they arrive, in both directions, until both sides have ended.
//!
//! A Sandbox that is absent, not ready or still pooled is not reached, nor is an address of another Sandbox.
//! A request is never sent twice: only connecting is retried. The caller's credential is not forwarded, and
//! every listener has an access rule ([`Access`]).

mod activity;
mod admit;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod observe;
mod pace;
mod probes;
mod proxy;
mod refusal;
mod resolve;
mod server;
mod threads;

use std::path::PathBuf;

pub use activity::Reporting;
pub use admit::access::{Access, Claims, ReviewConfig, Reviewer, Token, TokenKey};
pub use admit::pod_key::PodKey;
pub use admit::target::Target;
pub use admit::tls::{ClientCertificates, Tls, TlsFiles};
pub use observe::audit::{Answered, Audit, Exchange};
pub use observe::journal::{AccessLog, LogSink};
pub use observe::metrics::Metrics;
pub use pace::Limits;
pub use probes::{health, metrics_page};
pub use proxy::dial::{Dial, DialError, Direct, Inside};
pub use proxy::screened::Screens;
pub use proxy::{Config, Router};
pub use resolve::directory::{Directory, Scope};
pub use resolve::idle_timeout::IdleTimeout;
pub use resolve::wake::Wake;
pub use resolve::waker::ApiWake;
pub use resolve::{Backend, Past, Resolve, Unresolved};
pub use threads::Threads;

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
