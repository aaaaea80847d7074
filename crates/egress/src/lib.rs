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
//! On a cluster, the clients of one explicit proxy are many sandboxes ([`gateway`]): address and token say which.
//!
//! Programs outside a sandbox have an explicit proxy, to which they name each destination, and servers of MCP on standard
//! input and output a guard. Both decide in the same way.
//!
//! Anything else is refused and reported: HTTP gets status 403 with the reason, also within TLS if the sandbox has an
//! authority. Another connection is reset.
//!
//! The process that serves holds no secret but the values of credentials, and needs no file except those by which names are
//! resolved.

mod authority;
mod awake;
mod body;
mod check;
mod connection;
pub mod control;
mod credentials;
mod descriptors;
mod dial;
pub mod dns;
mod ends;
mod exchange;
mod explicit;
mod first;
mod gateway;
mod ground;
mod headers;
mod heads;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod inspect;
mod metrics;
pub mod names;
mod origin;
mod peers;
mod pending;
mod plan;
mod record;
mod records;
mod refusal;
mod relay;
mod resolve;
mod rest;
mod resumed;
mod room;
mod sandbox;
mod scan;
mod server;
mod stdio;
mod tls_refusal;
mod upstream;
mod usage;
mod used;
mod values;
mod way;
mod websocket;
mod wide;

pub use authority::{AuthorityError, AuthorityKeys, DAYS};
pub use awake::Awake;
pub use credentials::{Issued, Secret};
pub use ends::Ended;
pub use gateway::TokenHash;
pub use ground::Ground;
pub use headers::never_sent;
pub use hutch_screen::Found;
pub use plan::plan;
pub use record::{Alarm, Decided, Outcome, Record, Recorder};
pub use refusal::{Denial, FLAGS, OWN_POLICY, Reason, Refusal, advice, private_advice};
pub use stdio::{Stdio, Verdict};
pub use way::{UpstreamProxy, Way};
