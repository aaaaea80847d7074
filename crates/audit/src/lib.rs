//! Audit log: what callers of the API and sandboxes did, as events of OCSF 1.8 in a chain of SHA-256.
//!
//! - [`Event`] builds events from typed data.
//! - [`Log`] writes them: one line for each, in segments, with signed heads.
//! - [`Reader`] and [`verify()`] read a log, also one that another process writes.
//! - [`export`] sends records to receivers, at least once each.

mod cursor;
mod disk;
mod error;
pub mod event;
pub mod export;
mod folder;
mod head;
mod hex;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod line;
mod log;
mod ocsf;
mod options;
mod queue;
mod read;
mod recover;
mod retention;
mod text;
mod verify;
mod view;
mod writer;

pub use cursor::{Cursor, is_name};
pub use error::Error;
pub use event::{Event, Kind, Record};
pub use folder::{Segment, segments};
pub use head::{Head, PublicKey, Statement};
pub use line::{Hash, LINE_MAX, Line, parse};
pub use log::Log;
pub use options::Options;
pub use read::{Entry, Reader};
pub use retention::Retention;
pub use text::{COMMAND_MAX, NAME_MAX, TEXT_MAX, Text};
pub use verify::{Fault, Report, verify};
pub use view::{Filter, Selector, Summary, View};
