//! Snapshots of Sandboxes: takes the images that SandboxSnapshots request, removes those of deleted ones, and gives them to
//! Pods that start from one.
//!
//! An image is complete and durable before its object says so, and before the Pod of a suspend ends. What a killed node
//! left half made is removed at its next start.

mod claims;
mod follow;
mod machine_id;
mod restore;
mod retention;
mod take;
mod template;

pub(crate) use follow::run;
pub(crate) use restore::{Begin, Problem, Restoring, empty_volumes, find, is_optional};
