//! The proxy through which a sandbox reaches the network.
//!
//! The network namespace of a sandbox has only `lo`. Captures deliver its connections to the listeners of a
//! [`plan`], whatever their destination. This crate serves those listeners:
//!
//! 1. [`dns`] gives each allowed name a synthetic address ([`names`]); other names do not exist.
//! 2. A connection to such an address is for that name. The policy ([`hutch_policy`]) decides about name and port.
//! 3. Where TLS or HTTP is spoken, it must be for the same name.
//! 4. The name is resolved outside, and an address is judged before it is dialed.
//! 5. Bytes are passed on until both sides have ended.
//!
//! A connection to the name of another sandbox's Service is made by the process that started this one ([`control`]).
//!
//! Anything else is refused and reported: HTTP without TLS gets status 403 with the reason, another connection is reset.
//!
//! The process that serves holds no secret and needs no file except those by which names are resolved.

mod authority;
mod body;
mod check;
mod connection;
pub mod control;
mod dial;
pub mod dns;
mod exchange;
mod first;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod inspect;
pub mod names;
mod peers;
mod plan;
mod refusal;
mod relay;
mod sandbox;
mod server;
mod upstream;
mod usage;
mod way;

pub use authority::{AuthorityError, AuthorityKeys, DAYS};
pub use plan::plan;
pub use refusal::{Denial, FLAGS, Reason, Refusal};
pub use way::{UpstreamProxy, Way};
