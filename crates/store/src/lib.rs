//! A revisioned, watchable, durable key-value store: what etcd is to Kubernetes, for one process.
//!
//! All live values are in memory; get, list and watch are served from there. A write takes the next revision and a
//! place in a bounded queue; one writer thread commits the queue in groups to one `redb` file. Revisions continue
//! after a restart.
//!
//! There are two views. An ordinary handle sees what is on disk, and its writes are answered when they are. A handle
//! from [`Store::ahead`] sees every write as soon as it has its revision: a chain of writes, each caused by the one
//! before, then costs one or two commits instead of one each. No other handle ever sees a write that a crash could undo, because
//! the queue keeps the order.
//!
//! A *collection* (one resource of one API group) has its own window of recent events, bounded in number and in
//! bytes. A watch is a cursor into that window, so a slow reader costs nothing and gets
//! [`Error::Compacted`] when it has fallen out of it. The window is not kept over a restart.
//!
//! What a value is, the store does not know: a [`Value`] turns a draft and a revision into bytes. The API server
//! keeps encoded JSON rather than decoded trees: a fifth of the memory, and a read is a copy of bytes.
//!
//! It refuses to be shared: one process opens a file, others get [`Error::Locked`]. It keeps no history, and it
//! shows through an ordinary handle nothing that is not on disk.

mod disk;
mod error;
mod reserve;
mod sequence;
mod state;
mod store;
mod value;
mod watch;
mod writer;

#[cfg(test)]
mod crash;

pub use error::Error;
pub use store::{List, Page, Store};
pub use value::{Entry, Event, Value};
pub use watch::Watch;

/// Writes that may wait for the writer thread; a caller beyond that waits for room.
pub const QUEUE_WRITES: usize = 1024;
/// Writes that share one commit at most, so that the first of them does not wait long.
pub const BATCH_WRITES: usize = 256;
/// Events that a collection keeps for watches at most.
pub const WINDOW_EVENTS: usize = 4096;
/// Bytes of values that a collection keeps for watches at most, counted once per event.
pub const WINDOW_BYTES: usize = 16 << 20;
/// Room on the disk that the file keeps beyond its end, so that commits succeed while others fill the disk.
pub const RESERVE_BYTES: u64 = 16 << 20;
/// Version of the file layout that this code reads and writes.
pub const FORMAT: u64 = 1;
