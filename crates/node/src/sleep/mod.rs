//! Idle Pods are frozen and their memory is written to swap: when, and how they are thawed.
//!
//! Every operation in a Pod holds a [`Busy`]; a Pod is frozen only without one, and taking one thaws it.

mod enter;
mod page_out;
mod pressure;
mod report;
mod sleeper;
mod stream;

pub(crate) use enter::Busy;
pub(crate) use pressure::relieve;
pub(crate) use sleeper::run;
pub(crate) use stream::Counted;
