//! HTTP and WebSocket from outside to a port of a sandbox, by the headers `X-Sandbox-*`.
//!
//! A request names a Sandbox; the [`Directory`] finds its Pod through the Kubernetes API, a [`Dial`] connects to it
//! (inside its network namespace on one machine, to its address on a cluster), and bytes are passed on as they come,
//! both ways, for as long as both sides want.
//!
//! It refuses to guess: a Sandbox that is not there, not ready or still in its pool is not reached, and neither is an
//! address that is not that Sandbox's own. It never sends a request twice: only connecting is tried again. It does
//! not pass on the caller's credential, and every way in says who may use it ([`Access`]).

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

/// Why a router cannot be made, or a token not be minted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A token that anybody could guess.
    #[error("the router's token must have at least {} printable characters and no spaces", Token::SHORTEST)]
    WeakToken,
    /// A key that somebody could guess.
    #[error("the key must have at least {} bytes", TokenKey::SHORTEST)]
    WeakKey,
    /// A claim that no router would accept.
    #[error("no token can be made: {0}")]
    Claim(&'static str),
    /// A certificate or key that cannot be used.
    #[error("cannot use {0}: {1}")]
    Tls(PathBuf, String),
}
