//! Emptying and removing groups, and those that an earlier life left behind.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::layout::Layout;
use super::{FOLDER, failed, number, write};
use crate::{Errno, Error};

/// Attempts to remove a group; with the pauses between them 3 s in all.
const MOST_ATTEMPTS: u64 = 300;
/// The longest pause between attempts, in milliseconds.
const LONGEST_PAUSE: u64 = 10;
/// A larger cache is worth more than what it keeps: the next life of the same files finds it. Of this, each processor may count
/// 256 KiB ahead.
const FEW_BYTES: u64 = 1 << 20;
/// How deep the folders of a hierarchy are searched for leftovers.
const DEEPEST: usize = 8;
/// Bound of the folders that are searched.
const MOST_FOLDERS: usize = 20_000;

/// Kills what is in a group and the groups below it, and removes them. A group that is gone is no error.
pub(super) fn kill_and_remove(group: &Path) -> Result<(), Error> {
    for attempt in 0..MOST_ATTEMPTS {
        match remove(group) {
            Ok(()) => {
                // The last one takes the folder along; it is not empty as long as others are there.
                if let Some(folder) = group.parent() {
                    let _ = std::fs::remove_dir(folder);
                }
                return Ok(());
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                kill(group);
                std::thread::sleep(Duration::from_millis(attempt.min(LONGEST_PAUSE)));
            }
            Err(error) => return Err(failed(group, "remove", error)),
        }
    }
    Err(failed(group, "remove", Errno(libc::EBUSY)))
}

fn remove(group: &Path) -> std::io::Result<()> {
    give_up_cache(group);
    let removed = match std::fs::remove_dir(group) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            for child in folders_in(group) {
                remove(&child)?;
            }
            std::fs::remove_dir(group)
        }
        other => other,
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Drops the few cached pages of files and folders that were read or written first by this group. As long as there is one of
/// them, the kernel keeps all that it knows of a removed group: 80 KiB on some machines, which it does not count as free.
fn give_up_cache(group: &Path) {
    let few = |file: &str| Some(number(&group.join(file))).filter(|bytes| (1..=FEW_BYTES).contains(bytes));
    // That it is not done is no harm now.
    if few("memory.usage_in_bytes").is_some() {
        let _ = write(&group.join("memory.force_empty"), "0");
    } else if let Some(bytes) = few("memory.current") {
        // Since Linux 5.19.
        let _ = write(&group.join("memory.reclaim"), &bytes.to_string());
    }
}

/// Kills all at once where the kernel can; else one by one, as often as the caller comes back.
fn kill(group: &Path) {
    let at_once = group.join("cgroup.kill");
    if at_once.exists() && write(&at_once, "1").is_ok() {
        return;
    }
    for child in folders_in(group) {
        kill(&child);
    }
    // A pid can be reused between reading and killing. A process that is listed before and after its pidfd
    // was opened is the one that the pidfd refers to.
    let listed = members(group);
    let opened: Vec<_> =
        listed.iter().filter_map(|pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?))).collect();
    let still = members(group);
    for (pid, process) in opened {
        if still.contains(&pid) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// The processes in a group, other than the caller.
pub(super) fn members(group: &Path) -> HashSet<Pid> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = rustix::process::getpid();
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).filter(|pid| *pid != own).collect()
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Kills and removes all groups of jails whose id begins with `prefix`, wherever they are: what an earlier life of
/// the caller left. Gives the number of groups removed.
///
/// # Errors
/// The first failure, after all were tried.
pub(crate) fn sweep(prefix: &str) -> Result<usize, Error> {
    let layout = Layout::of_this_machine()?;
    let mut removed = 0;
    let mut outcome = Ok(());
    let groups = leftovers(&layout, prefix);
    // What is frozen in one hierarchy would not die of what it is sent in another.
    groups.iter().for_each(|group| super::freezer::release(group));
    for group in groups {
        match kill_and_remove(&group) {
            Ok(()) => removed += 1,
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome.map(|()| removed)
}

/// Removes the groups of jails whose id begins with `prefix`, which have no process and are older than `age`: for
/// callers that share a prefix, of which others may be at work. Gives the number of groups removed.
pub(crate) fn sweep_empty(prefix: &str, age: Duration) -> Result<usize, Error> {
    let layout = Layout::of_this_machine()?;
    let now = SystemTime::now();
    let old = |group: &PathBuf| {
        let made = group.metadata().and_then(|data| data.modified());
        made.is_ok_and(|made| now.duration_since(made).is_ok_and(|passed| passed >= age))
    };
    let mut removed = 0;
    for group in leftovers(&layout, prefix).into_iter().filter(old) {
        // The kernel refuses while there is a process in it.
        if std::fs::remove_dir(&group).is_ok() {
            removed += 1;
            if let Some(folder) = group.parent() {
                let _ = std::fs::remove_dir(folder);
            }
        }
    }
    Ok(removed)
}

/// Groups of jails in all hierarchies: the caller may have been in another group in its earlier life, so they are
/// looked for everywhere.
pub(super) fn leftovers(layout: &Layout, prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut searched = 0;
    for mount in layout.mounts() {
        let mut level = vec![mount.to_owned()];
        for _ in 0..DEEPEST {
            let mut next = Vec::new();
            for folder in level.iter().flat_map(|folder| folders_in(folder)) {
                searched += 1;
                if folder.file_name() == Some(OsStr::new(FOLDER)) {
                    let jails = folders_in(&folder).into_iter();
                    found
                        .extend(jails.filter(|jail| name(jail).is_some_and(|name| name.starts_with(prefix))));
                } else if searched < MOST_FOLDERS {
                    next.push(folder);
                }
            }
            level = next;
        }
    }
    found
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
