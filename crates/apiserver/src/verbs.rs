//! Verbs on objects, each in a file of its own.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod delete_collection;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod patch;
pub(crate) mod retain;
pub(crate) mod update;
pub(crate) mod watch;
