//! SPDY/3.1, the server's end: streams within one connection, as much of it as Kubernetes uses.
//!
//! Frames are checked before they are read, header blocks are bounded after decompression, and a peer that breaks
//! the protocol gets a GOAWAY. Streams opened by the server are not needed and not there.

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
