//! Images of snapshots on this node, and what is known about them.

pub(crate) mod facts;
pub(crate) mod fill;
pub(crate) mod generation;
mod turns;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hutch_image::PathSegment;
use hutch_snapshot::Images;
use jiff::Timestamp;

use facts::Facts;
use fill::Unsettled;
use generation::Generations;
use turns::Turns;
pub(crate) use turns::{Needed, Turn};

/// Images of this node.
pub(crate) struct Snapshots {
    pub(crate) images: Images,
    pub(crate) generations: Generations,
    /// Pods whose memory is on disk, by the image that has it: they are not started again.
    ended: Mutex<BTreeMap<String, EndedPod>>,
    /// UIDs of the SandboxSnapshots that exist.
    wanted: Mutex<HashSet<String>>,
    pub(crate) turns: Turns,
    /// Fills of volumes that an earlier life or attempt has left.
    pub(crate) unsettled: Unsettled,
    /// Start of this life of the node.
    pub(crate) since: Timestamp,
}

/// Pod that ends for its image.
struct EndedPod {
    uid: String,
    /// For a suspend, and not for a snapshot of a user.
    suspended: bool,
}

impl Snapshots {
    /// Reads which images there are. Blocks.
    pub(crate) fn new(images: Images, generations: Generations, unsettled: Unsettled) -> Snapshots {
        let found = images.list().unwrap_or_default();
        let facts = found.iter().filter_map(|id| {
            let facts = Facts::of(&images.find(id).ok()??).ok()?;
            let ended = EndedPod { uid: facts.pod_uid, suspended: facts.suspend };
            facts.ends_pod.then(|| (id.to_string(), ended))
        });
        let ended = facts.collect();
        let (wanted, turns) = (Mutex::default(), Turns::default());
        let since = Timestamp::now();
        Snapshots { images, generations, ended: Mutex::new(ended), wanted, turns, unsettled, since }
    }

    /// Returns true if the memory of this Pod was written to disk for a suspend: it may only be deleted.
    pub(crate) fn has_ended(&self, pod: &str) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).values().any(|ended| ended.uid == pod)
    }

    /// Returns true if the SandboxSnapshot of this uid exists.
    pub(crate) fn is_wanted(&self, uid: &str) -> bool {
        self.wanted().contains(uid)
    }

    pub(crate) fn wanted(&self) -> MutexGuard<'_, HashSet<String>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of images without those of suspends. Blocks.
    pub(crate) fn of_users(&self) -> Result<usize, hutch_snapshot::Error> {
        let all = self.images.list()?.len();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.saturating_sub(ended.values().filter(|ended| ended.suspended).count()))
    }

    /// Records that an image has the memory of a Pod that ends, for a suspend or for a user.
    pub(crate) fn set_ended(&self, image: &PathSegment, pod: &str, suspended: bool) {
        let mut all = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(image.to_string(), EndedPod { uid: pod.to_owned(), suspended });
    }

    /// Records that an image is gone. Returns the Pod that was to end for it.
    pub(crate) fn unset_ended(&self, image: &PathSegment) -> Option<String> {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(image.as_str())
            .map(|ended| ended.uid)
    }
}
