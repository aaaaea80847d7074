//! How an HTTP application is offered: in memory to `kube::Client`, over TLS and plainly to others.
//!
//! - [`memory`]: a `kube::Client` that calls an axum `Router` in the same process, upgrades included.
//! - [`Authority`]: the certificate authority of a data folder and the server certificate that it signs.
//! - [`Listener`]: a TCP listener, plain or TLS (HTTP/1.1 and HTTP/2), with a bound on connections.
//! - [`Shutdown`]: the one way in which services are told to stop.
//!
//! It refuses to know what it serves: no Kubernetes semantics, no authentication. A client certificate that the
//! authority signed is handed on as the request extension [`PeerCertificate`]; what it means is for the application.

mod authority;
mod error;
mod listener;
pub mod memory;
mod shutdown;

pub use authority::{Authority, ClientCertificate};
pub use error::Error;
pub use listener::{Listener, PeerAddress, PeerCertificate};
pub use shutdown::Shutdown;
