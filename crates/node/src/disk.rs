//! Room on the disk of the data folder, and the eviction of Pods that take too much of it, as a kubelet does.
//!
//! When the disk has too little room, the node has the condition `DiskPressure`: new Pods wait, and the Pod that uses most
//! is evicted. A Pod that uses more than its own limits (`sizeLimit`, `ephemeral-storage`) is evicted at any time. A claim whose
//! volume holds more than its capacity gets a condition, and no further Pod that writes.

mod limits;
mod measuring;
mod over_capacity;
mod unlinked;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::StatVfs;

use crate::live::Live;
use crate::places::PodPlaces;
use crate::register;
use crate::shared::Shared;
use crate::usage::{Usage, measure};
pub(crate) use limits::{has_memory, memory_exceeded, of_container};
use measuring::Measuring;

/// How often the room on the disk is read.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// The disk is under pressure when less than one in so many bytes or inodes is free, and less than these bounds.
const PART: u64 = 20;
const MAX_BYTES: u64 = 256 << 20;
const MAX_INODES: u64 = 10_000;

/// Room of a file system that ordinary users may take.
#[derive(Debug, Clone, Copy)]
struct Room {
    free: Usage,
    total: Usage,
}

/// Resource of which too little is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    Bytes { threshold: u64, free: u64 },
    Inodes { threshold: u64, free: u64 },
}

impl Room {
    fn of(disk: &StatVfs) -> Room {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Room {
            free: Usage { bytes: bytes(disk.f_bavail), inodes: disk.f_favail },
            total: Usage { bytes: bytes(disk.f_blocks), inodes: disk.f_files },
        }
    }

    fn shortage(&self) -> Option<Shortage> {
        let threshold = (self.total.bytes / PART).min(MAX_BYTES);
        if self.free.bytes < threshold {
            return Some(Shortage::Bytes { threshold, free: self.free.bytes });
        }
        // A file system that makes inodes as it goes has none in all, and so no threshold.
        let threshold = (self.total.inodes / PART).min(MAX_INODES);
        let free = self.free.inodes;
        (free < threshold).then_some(Shortage::Inodes { threshold, free })
    }
}

impl Shortage {
    /// How much of it a Pod uses.
    fn used(self, usage: Usage) -> u64 {
        match self {
            Shortage::Bytes { .. } => usage.bytes,
            Shortage::Inodes { .. } => usage.inodes,
        }
    }

    /// How much has to be given back until there is enough.
    fn missing(self) -> u64 {
        match self {
            Shortage::Bytes { threshold, free } | Shortage::Inodes { threshold, free } => threshold - free,
        }
    }

    /// The message of an eviction, as a kubelet words it.
    fn message(self, used: u64) -> String {
        let (resource, threshold, free) = match self {
            Shortage::Bytes { threshold, free } => ("ephemeral-storage", threshold, free),
            Shortage::Inodes { threshold, free } => ("inodes", threshold, free),
        };
        format!(
            "The node was low on resource: {resource}. Threshold quantity: {threshold}, available: {free}. The Pod was using {used}."
        )
    }

    /// The one to evict: the one that uses most, if that alone ends the shortage. A disk that others filled is no reason to
    /// evict Pods one after the other.
    fn choose<T>(self, pods: Vec<(T, Usage)>) -> Option<(T, u64)> {
        let used = pods.into_iter().map(|(pod, usage)| (pod, self.used(usage)));
        used.max_by_key(|(_, used)| *used).filter(|(_, used)| *used >= self.missing())
    }
}

/// Watches the disk until the node stops.
pub(crate) async fn watch(node: Arc<Shared>) {
    let mut measuring = Measuring::default();
    loop {
        tokio::select! {
            () = node.shutdown.wait() => return,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
        let data = node.config.data_dir.clone();
        let read = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&data)).await;
        let Ok(Ok(disk)) = read.inspect_err(|error| tracing::debug!(%error, "the disk was not read")) else {
            continue;
        };
        let room = Room::of(&disk);
        let shortage = room.shortage();
        if node.set_disk_pressure(shortage.is_some()) != shortage.is_some() {
            tracing::warn!(pressure = shortage.is_some(), ?room, "disk pressure changed");
            register::report_conditions(&node).await;
        }
        if let Some(shortage) = shortage {
            relieve(&node, shortage).await;
        }
        measuring.begin_due(&node);
    }
}

/// Evicts a Pod, one at a time: what it used may be enough.
async fn relieve(node: &Arc<Shared>, shortage: Shortage) {
    let pods = node.all();
    if pods.iter().any(|live| live.is_evicted()) {
        return;
    }
    // One whose memory is written ends by that, or runs on and may be chosen then.
    let pods = pods.into_iter().filter(|live| live.service.get().is_none() && !live.is_saving());
    let pods: Vec<_> = pods.map(|live| (node.places.pod(&live.uid), volumes(node, &live), live)).collect();
    let measured = tokio::task::spawn_blocking(move || {
        let bases: Vec<u32> = pods.iter().filter_map(|(_, _, live)| live.ids()).collect();
        let unlinked = unlinked::measure(&bases);
        let measured = pods.into_iter().map(|(places, volumes, live)| {
            let volumes = volumes.iter().map(|volume| measure(volume));
            let open = live.ids().and_then(|base| unlinked.get(&base)).copied().unwrap_or_default();
            let usage = volumes.fold(measure(&places.disk).and(open), Usage::and);
            (live, usage)
        });
        measured.collect()
    });
    let Ok(measured) = measured.await else { return };
    if let Some((live, used)) = shortage.choose(measured) {
        live.evict(shortage.message(used));
    }
}

/// Folders on the disk of the claims that a Pod may still write to.
fn volumes(node: &Shared, live: &Live) -> Vec<std::path::PathBuf> {
    if live.has_ended() {
        return Vec::new();
    }
    let written = live.claims().into_iter().filter(|claim| claim.writes);
    written.filter_map(|claim| claim.folder(&node.places.volumes)).collect()
}

/// Returns true if a Pod had folders before, so that it does not wait for an end of the pressure.
pub(crate) fn is_known(places: &PodPlaces) -> bool {
    Path::exists(&places.disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: (u64, u64), inodes: (u64, u64)) -> Room {
        Room {
            free: Usage { bytes: bytes.0, inodes: inodes.0 },
            total: Usage { bytes: bytes.1, inodes: inodes.1 },
        }
    }

    #[test]
    fn pressure_begins_at_a_part_of_the_disk_and_at_a_bound() {
        const MIB: u64 = 1 << 20;
        for (bytes, inodes, short) in [
            ((60 * MIB, 1024 * MIB), (5_000, 65_536), None),
            ((50 * MIB, 1024 * MIB), (5_000, 65_536), Some((53_687_091, "ephemeral-storage"))),
            ((60 * MIB, 1024 * MIB), (3_000, 65_536), Some((3_276, "inodes"))),
            ((257 * MIB, 1024 * 1024 * MIB), (10_001, 100_000_000), None),
            ((255 * MIB, 1024 * 1024 * MIB), (10_001, 100_000_000), Some((256 * MIB, "ephemeral-storage"))),
            ((60 * MIB, 1024 * MIB), (0, 0), None),
        ] {
            let found = room(bytes, inodes).shortage().map(|shortage| shortage.message(7));
            let wanted = short.map(|(threshold, resource)| {
                let free = if resource == "inodes" { inodes.0 } else { bytes.0 };
                format!(
                    "The node was low on resource: {resource}. Threshold quantity: {threshold}, available: {free}. The Pod was using 7."
                )
            });
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn pod_is_evicted_only_if_that_ends_the_shortage() {
        let pods = |most| {
            let usage = |bytes, inodes| Usage { bytes, inodes };
            vec![("small", usage(1, 9)), ("large", usage(most, 1))]
        };
        let bytes = Shortage::Bytes { threshold: 100, free: 60 };
        assert_eq!(bytes.choose(pods(40)), Some(("large", 40)));
        assert_eq!(bytes.choose(pods(39)), None);
        assert_eq!(Shortage::Inodes { threshold: 9, free: 0 }.choose(pods(40)), Some(("small", 9)));
    }
}
