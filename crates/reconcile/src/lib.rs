//! Runtime of all reconcilers: the controllers of the four kinds, garbage collection, namespaces, workloads and endpoints.
//!
//! - [`queue`]: work queue with deduplication, a limit of concurrent reconciles, and backoff; it also runs the reconciles.
//! - [`cache`]: informer cache of one kind, which own writes enter before the next reconcile.
//! - [`controller`]: watches that fill a queue, for a reconciler that reads its objects live.
//! - [`record`]: writes Events without delaying a reconcile.
//!
//! Which objects to watch and what to do is the task of the services that use it.

pub mod cache;
pub mod controller;
pub mod key;
pub mod outcome;
pub mod queue;
pub mod record;
