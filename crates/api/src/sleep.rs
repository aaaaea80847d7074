//! Sleep of a Sandbox: the annotations that configure it, and the states of one instance of its Pod.
//!
//! Kinds of sleep. *Frozen*: the processes are stopped and keep their memory; `operatingMode` stays `Running`. *Paged out*:
//! also frozen, and their memory is in swap. *On disk*: `operatingMode` is `Suspended`; processes and memory are gone,
//! volumes stay.

mod idle;
mod machine;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::condition::{READY, TRUE};
use crate::{Sandbox, annotation};

pub use idle::{IdleTimes, InvalidIdleTime, LEAST, MOST_SELDOM, drop_memory_after, report_every};
pub use machine::{Act, Input, Machine, Phase};

/// Returns the write that suspends a Sandbox, as it was read, because it is idle. It fails if another write came between.
pub fn suspension(sandbox: &Sandbox) -> Value {
    let metadata = &sandbox.metadata;
    // This write changes the spec, which adds one to the generation.
    let asleep = metadata.generation.map(|generation| (generation + 1).to_string());
    json!({
        "metadata": {
            "resourceVersion": metadata.resource_version,
            "annotations": {annotation::ASLEEP_GENERATION: asleep, annotation::FROZEN_SINCE: null},
        },
        "spec": {"operatingMode": "Suspended"},
    })
}

/// Returns the time since which a ready Sandbox is idle; `None` while it is not ready, or as long as its activity is not known.
pub fn idle_since(sandbox: &Sandbox) -> Option<Timestamp> {
    let conditions = sandbox.status.as_ref()?.conditions.as_deref()?;
    // A condition of an earlier generation is that of a Pod which may be gone: of a Sandbox that runs again since.
    let ready = conditions.iter().find(|one| {
        one.type_ == READY && one.status == TRUE && one.observed_generation == sandbox.metadata.generation
    })?;
    let active = sandbox.metadata.annotations.as_ref()?.get(annotation::LAST_ACTIVITY)?;
    // Activity before the last start does not count.
    Some(active.parse::<Timestamp>().ok()?.max(ready.last_transition_time.0))
}

/// Condition of a Pod and of its Sandbox while it is frozen: True; absent otherwise.
pub const FROZEN_OF_POD: &str = "hutch.dev/Frozen";
/// The same condition on a Sandbox.
pub const FROZEN: &str = "Frozen";
/// Condition of a Sandbox with invalid sleep annotations: True; absent otherwise. It never sleeps.
pub const INVALID: &str = "SleepInvalid";
/// Reason of that condition.
pub const INVALID_REASON: &str = "InvalidAnnotation";
/// Reason of [`FROZEN`].
pub const FROZEN_REASON: &str = "Idle";
/// Message of that condition.
pub const FROZEN_MESSAGE: &str =
    "Processes are frozen and keep their memory; a request or a command wakes them";
/// Reason of [`FROZEN`] after the memory was written to swap.
pub const PAGED_OUT_REASON: &str = "PagedOut";
/// Message of that condition.
pub const PAGED_OUT_MESSAGE: &str =
    "Processes are frozen and their memory was written to swap; a request or a command wakes them";
