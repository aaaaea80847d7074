//! Servers and clients of this crate with real connections.

mod retry;
mod serve;
