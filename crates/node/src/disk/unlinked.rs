//! Files without a name that processes of a Pod hold open or mapped: they take room on the disk, and no folder shows them.

use std::collections::{HashMap, HashSet};

use rustix::fs::FileType;

use crate::usage::Usage;

/// Ids of a Pod on the machine.
const IDS: u32 = 65_536;
/// `f_type` of a file system in memory.
const TMPFS: u64 = 0x0102_1994;
/// Maximum descriptors and mappings of all processes that are inspected.
const MAX_FILES: usize = 1_000_000;

/// Measures them for the Pods whose first ids these are. Files that are on their way through a socket are not found. Blocks.
pub(super) fn measure(bases: &[u32]) -> HashMap<u32, Usage> {
    let mut found: HashMap<u32, Usage> = HashMap::new();
    let (mut seen, mut left) = (HashSet::new(), MAX_FILES);
    for process in entries("/proc").filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
        let process = format!("/proc/{process}");
        let Some(uid) = uid(&process) else { continue };
        let Some(base) = bases.iter().find(|base| (**base..**base + IDS).contains(&uid)) else { continue };
        for folder in [format!("{process}/fd"), format!("{process}/map_files")] {
            for name in entries(&folder) {
                if left == 0 {
                    return found;
                }
                left -= 1;
                let file = format!("{folder}/{name}");
                let Ok(stat) = rustix::fs::stat(&*file) else { continue };
                let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                if regular
                    && stat.st_nlink == 0
                    && is_on_disk(&file)
                    && seen.insert((stat.st_dev, stat.st_ino))
                {
                    found.entry(*base).or_default().add(&stat);
                }
            }
        }
    }
    found
}

fn entries(folder: &str) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The user whose process this is.
fn uid(process: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

fn is_on_disk(file: &str) -> bool {
    rustix::fs::statfs(file).is_ok_and(|system| u64::try_from(system.f_type) != Ok(TMPFS))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn open_file_without_a_name_counts_for_its_process() {
        let own = rustix::process::getuid().as_raw();
        // A folder on a disk: a file in memory does not count.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let again = file.try_clone().unwrap();
        let bytes = measure(&[own]).get(&own).map_or(0, |usage| usage.bytes);
        drop((file, again));
        let without = measure(&[own]).get(&own).map_or(0, |usage| usage.bytes);
        assert!((1 << 20..).contains(&(bytes - without)), "{bytes} {without}");
    }
}
