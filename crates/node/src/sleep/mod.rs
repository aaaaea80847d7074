//! Pods that are idle stand still: when, and how they are woken.
//!
//! Whoever does something in a Pod holds a [`Busy`]; a Pod is frozen only while nobody does, and taking one thaws it.

mod enter;
mod report;
mod sleeper;
mod stream;

pub(crate) use enter::Busy;
pub(crate) use sleeper::run;
pub(crate) use stream::Counted;
