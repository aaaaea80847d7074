//! Attacks from inside on what confines a process, each as data: what is tried, what it must find, and where the same
//! attempt must find something else.
//!
//! The program `hutch-attack` tries them. The tests of this crate, the tests of every way into a sandbox, and
//! `hutch doctor --attack` all read this one list, so that an attack that is added is tried everywhere.

mod attempts;
mod batch;
mod calls;
mod files;
mod known;
mod planted;
mod table;

pub use attempts::attempt;
pub use batch::try_all;
pub use calls::{new_session_keyring, open_inheritable};
pub use known::{Known, Shown};
pub use planted::Planted;
pub use table::{ALL_CAPABILITIES, Attack, Control, Kept, all};
