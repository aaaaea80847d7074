//! Standard streams of processes: pipes and terminals.

mod pipes;
mod readiness;
mod terminal;

pub(crate) use pipes::{Ends, null, pipes};
pub(crate) use readiness::register;
pub(crate) use terminal::Terminal;
