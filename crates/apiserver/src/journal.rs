//! The audit log of this server as a trait, and extensions of requests and responses for its records.

#[cfg(test)]
pub(crate) mod memory;
mod refusals;

use futures::future::BoxFuture;
use hutch_audit::Record;

pub use self::refusals::Refusals;

/// Log that receives the requests.
pub trait Audit: Send + Sync + 'static {
    /// Returns true if a side effect must wait for its record.
    fn is_strict(&self) -> bool;
    /// Records an event. Waits for room, and with a strict log for the disk.
    ///
    /// The error is the reason why a side effect must not happen; only a strict log has one.
    fn record(&self, record: Record) -> BoxFuture<'static, Result<(), String>>;
    /// Records an event. Waits for room only.
    fn enqueue(&self, make: Make) -> BoxFuture<'static, ()>;
    /// Records an event without waiting.
    fn push(&self, make: Make);
}

/// Makes a record later, so that no caller waits for that.
pub type Make = Box<dyn FnOnce() -> Record + Send>;

/// Request extension: name of the caller who acts as another one.
#[derive(Debug, Clone)]
pub(crate) struct Impersonator(pub(crate) String);

/// Request extension: the caller is not a component of this process.
#[derive(Debug, Clone)]
pub(crate) struct External;

/// Response extension: names and values for the record of the request.
#[derive(Debug, Clone)]
pub(crate) struct Annotations(pub(crate) Vec<(String, String)>);

/// Response extension: name of a created object.
#[derive(Debug, Clone)]
pub(crate) struct Created(pub(crate) String);
