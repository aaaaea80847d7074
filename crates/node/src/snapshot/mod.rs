//! Snapshots of Sandboxes: takes the images that SandboxSnapshots request, removes those of deleted ones, and gives them to
//! Pods that start from one.
//!
//! An image is complete and durable before its object says so, and before the Pod of a suspend ends. What a killed node
//! left half made is removed at its next start.

mod facts;
mod follow;
mod restore;
mod take;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hutch_image::PathSegment;
use hutch_snapshot::Images;

use facts::Facts;

pub(crate) use follow::run;
pub(crate) use restore::{RESTORE_FAILED, Restoring, find};

/// Images of this node.
pub(crate) struct Snapshots {
    images: Images,
    /// UIDs of Pods whose memory is on disk, by the image that has it: they are not started again.
    ended: Mutex<BTreeMap<String, String>>,
}

impl Snapshots {
    /// Reads which images there are. Blocks.
    pub(crate) fn new(images: Images) -> Snapshots {
        let found = images.list().unwrap_or_default();
        let facts = found.iter().filter_map(|id| {
            let facts = Facts::of(&images.find(id).ok()??).ok()?;
            facts.ends_pod.then(|| (id.to_string(), facts.pod_uid))
        });
        let ended = facts.collect();
        Snapshots { images, ended: Mutex::new(ended) }
    }

    /// Returns true if the memory of this Pod was written to disk for a suspend: it may only be deleted.
    pub(crate) fn has_ended(&self, pod: &str) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).values().any(|ended| ended == pod)
    }

    /// Records that an image has the memory of a Pod that ends.
    fn set_ended(&self, image: &PathSegment, pod: &str) {
        let mut all = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(image.to_string(), pod.to_owned());
    }

    /// Records that an image is gone. Returns the Pod that was to end for it.
    fn unset_ended(&self, image: &PathSegment) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).remove(image.as_str())
    }
}
