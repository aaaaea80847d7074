//! How an HTTP application is offered: in memory to `kube::Client`, over TLS and plainly to others.
//!
//! - [`memory`]: a `kube::Client` that calls an axum `Router` in the same process, upgrades included.
//! - [`pair`]: a `kube::Client` onto a router of another process, over a pair of sockets.
//! - [`retry`]: a `kube::Client` that waits for a server that is busy.
//! - [`Authority`]: the certificate authority of a data folder and the server certificate that it signs.
//! - [`ServerCertificate`]: a user-supplied server certificate, replaced while a listener serves it.
//! - [`Listener`]: a TCP listener, plain or TLS (HTTP/1.1 and HTTP/2), with bounds on how many connections there are and for
//!   how long an idle one is kept.
//! - [`Shutdown`]: stops services.
//! - [`error_text`]: formats an API server's error for users.
//! - [`Ambient`]: the time of day and chance, as services take them.
//!
//! It refuses to know what it serves: no Kubernetes semantics, no authentication. A client certificate that the
//! authority signed is handed on as the request extension [`PeerCertificate`]; what it means is for the application.

mod ambient;
mod authority;
mod certificate;
mod client_request;
mod error;
mod error_text;
mod limits;
mod listener;
pub mod memory;
pub mod pair;
mod placed;
mod private;
pub mod retry;
mod shutdown;

pub use ambient::Ambient;
pub use authority::{Authority, ClientCertificate};
pub use certificate::ServerCertificate;
pub use client_request::{ClientRequest, IssuedCertificate, NewRequest, SignedRequest};
pub use error::Error;
pub use error_text::error_text;
pub use limits::{connection_limit, forbid_core_files, raise_descriptor_limit};
pub use listener::{
    CONNECTIONS, Connection, Connections, Listener, PeerAddress, PeerCertificate, Permit, accept,
};
pub use placed::Placed;
pub use private::write_private;
pub use shutdown::Shutdown;
