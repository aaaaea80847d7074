//! Server's end of SPDY/3.1: streams within one connection, as far as Kubernetes uses it.
//!
//! Frames are validated before they are read, header blocks are bounded after decompression, and a peer that
//! violates the protocol receives a GOAWAY. The server cannot open streams: Kubernetes does not need that.

mod connection;
mod dictionary;
mod frame;
mod headers;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
mod link;
mod stream;

#[cfg(test)]
mod tests;

pub(crate) use connection::Connection;
pub(crate) use stream::{Stream, StreamReader, StreamWriter};
