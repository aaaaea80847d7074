//! Servers and clients of this crate with real connections.

mod patience;
mod serve;
