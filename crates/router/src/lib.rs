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
mod dial;
mod directory;
mod forward;
mod journal;
mod pool;
mod proxy;
mod recent;
mod refusal;
mod resolve;
mod stream;
mod target;

pub use access::{Access, Token};
pub use dial::{Dial, DialError, Direct, Inside};
pub use directory::Directory;
pub use proxy::{Config, Router};
pub use resolve::{Backend, Resolve, Unresolved};
pub use target::Target;

/// Why a router cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A token that anybody could guess.
    #[error("the router's token must have at least {} printable characters and no spaces", Token::SHORTEST)]
    WeakToken,
}
