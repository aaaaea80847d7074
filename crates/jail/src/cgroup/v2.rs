//! Version 2: one hierarchy, whose controllers each group hands on to the groups below it.

use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::layout::{Hierarchy, Layout, has_word};
use super::{CPU_PERIOD, Controller, FOLDER, number, number_of, write};
use crate::{Errno, Error, Limits, Usage};

/// Where processes of the caller's own group go when that group is to hand on controllers: one that does may hold
/// no process itself.
const CALLERS: &str = "hutch.caller";
/// Bound of the processes that are moved there.
const MOST_CALLERS: usize = 256;
/// Maximum ancestors of a group that are inspected.
const MOST_ANCESTORS: usize = 32;

/// Makes the group with all the controllers that are wanted.
pub(super) fn create(layout: &Layout, wanted: &[Controller], id: &str) -> Result<PathBuf, Error> {
    let Some(hierarchy) = &layout.unified else { return Err(Error::NoGroup) };
    let root = rustix::process::geteuid().is_root();
    let mut reasons = Vec::new();
    for parent in parents(hierarchy, root) {
        match create_below(&parent, wanted, id) {
            Ok(group) => return Ok(group),
            Err(reason) => reasons.push(reason),
        }
    }
    let limit = wanted.first().map_or("cgroup", |controller| controller.name());
    let advice = if root {
        "Start hutch in a cgroup of its own (systemd-run --scope -p Delegate=yes hutch ...)"
    } else {
        "Have a cgroup delegated (systemd-run --user --scope -p Delegate=yes hutch ...), or run as root"
    };
    Err(Error::LimitRefused { limit: limit.into(), reason: format!("{}. {advice}", reasons.join("; ")) })
}

/// Where the folder of jails may be: for root, the caller's own group when that was delegated to it, else the top;
/// for others, the nearest group that they own.
fn parents(hierarchy: &Hierarchy, root: bool) -> Vec<PathBuf> {
    if root {
        let parent = if delegated(&hierarchy.own) { &hierarchy.own } else { &hierarchy.mount };
        return vec![parent.clone()];
    }
    let ancestors = hierarchy.own.ancestors().take(MOST_ANCESTORS);
    ancestors.take_while(|group| group.starts_with(&hierarchy.mount)).map(Path::to_owned).collect()
}

/// Returns `true` when systemd marked a group as delegated.
fn delegated(group: &Path) -> bool {
    let mut value = [0; 8];
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        rustix::fs::getxattr(group, *name, &mut value).is_ok_and(|length| value[..length].starts_with(b"1"))
    })
}

/// One attempt; the error says why not here.
fn create_below(parent: &Path, wanted: &[Controller], id: &str) -> Result<PathBuf, String> {
    if let Some(missing) = wanted.iter().find(|c| !has_word(&parent.join("cgroup.controllers"), **c)) {
        return Err(format!("{} does not have the controller {}", parent.display(), missing.name()));
    }
    // Starting a process in a group requires write access here too, at the nearest common ancestor.
    if rustix::fs::access(parent.join("cgroup.procs"), Access::WRITE_OK).is_err() {
        return Err(format!("{} is not this user's", parent.display()));
    }
    hand_on(parent, wanted).map_err(|error| explain(parent, &error))?;
    super::make(parent, id, &|folder| hand_on(folder, wanted)).map_err(|error| explain(parent, &error))
}

fn explain(parent: &Path, error: &Error) -> String {
    match error {
        Error::Cgroup { errno: Errno(libc::EBUSY), .. } => {
            format!("{} holds processes other than hutch, so it cannot be divided", parent.display())
        }
        other => other.to_string(),
    }
}

/// Hands the controllers on to the groups below.
fn hand_on(group: &Path, wanted: &[Controller]) -> Result<(), Error> {
    let file = group.join("cgroup.subtree_control");
    let missing: Vec<String> =
        wanted.iter().filter(|c| !has_word(&file, **c)).map(|c| format!("+{}", c.name())).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let order = missing.join(" ");
    match write(&file, &order) {
        Err(Error::Cgroup { errno: Errno(libc::EBUSY), .. }) => {
            move_callers(group)?;
            write(&file, &order)
        }
        other => other,
    }
}

/// Empties a group: of all its processes when it was delegated, else only when they are the caller and its parent.
fn move_callers(group: &Path) -> Result<(), Error> {
    let procs = group.join("cgroup.procs");
    let text = std::fs::read_to_string(&procs).map_err(|error| super::failed(&procs, "read", error))?;
    let (own, parent) = (std::process::id().to_string(), std::os::unix::process::parent_id().to_string());
    let ours = |pid: &str| pid == own || pid == parent;
    if text.lines().count() > MOST_CALLERS || !(delegated(group) || text.lines().all(ours)) {
        return Err(super::failed(group, "divide", Errno(libc::EBUSY)));
    }
    let leaf = group.join(CALLERS);
    if let Err(error) = std::fs::create_dir(&leaf)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(super::failed(&leaf, "make", error));
    }
    for pid in text.lines() {
        match write(&leaf.join("cgroup.procs"), pid) {
            // It has ended meanwhile.
            Ok(()) | Err(Error::Cgroup { errno: Errno(libc::ESRCH), .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the limits.
pub(super) fn limit(group: &Path, limits: &Limits) -> Result<(), Error> {
    let set = |limit: &'static str, file: &str, value: String| {
        write(&group.join(file), &value).map_err(|error| Error::LimitRefused {
            limit: limit.into(),
            reason: format!("the kernel refuses it: {error}"),
        })
    };
    if let Some(millis) = limits.cpu_millis {
        set("cpu", "cpu.max", format!("{} {CPU_PERIOD}", millis * CPU_PERIOD / 1000))?;
    }
    if let Some(bytes) = limits.memory_bytes {
        set("memory", "memory.max", bytes.to_string())?;
        // Not there when the kernel knows no swap.
        if group.join("memory.swap.max").exists() {
            set("memory", "memory.swap.max", "0".to_owned())?;
        }
    }
    if let Some(pids) = limits.pids {
        set("pids", "pids.max", pids.to_string())?;
    }
    Ok(())
}

/// Adds what the group counts.
pub(super) fn usage(group: &Path, usage: &mut Usage) {
    usage.cpu_micros = number_of(&group.join("cpu.stat"), "usage_usec");
    usage.memory_bytes = number(&group.join("memory.current"));
    let stat = group.join("memory.stat");
    // Shared memory is among them, and caches nothing.
    usage.memory_cache_bytes = number_of(&stat, "file").saturating_sub(number_of(&stat, "shmem"));
    usage.memory_peak_bytes = number(&group.join("memory.peak"));
    usage.oom_kills = number_of(&group.join("memory.events"), "oom_kill");
    usage.processes = number(&group.join("pids.current"));
}

/// Checks that the caller could create groups with this controller; else returns the reason.
pub(super) fn usable(hierarchy: &Hierarchy, controller: Option<Controller>) -> Result<(), String> {
    let lacks = |file: PathBuf| controller.filter(|controller| !has_word(&file, *controller));
    let root = rustix::process::geteuid().is_root();
    let mut reason = format!("no group at or above {} is this user's", hierarchy.own.display());
    for parent in parents(hierarchy, root) {
        if let Some(controller) = lacks(parent.join("cgroup.controllers")) {
            reason = format!("{} does not have the controller {}", parent.display(), controller.name());
        } else if rustix::fs::access(parent.join("cgroup.procs"), Access::WRITE_OK).is_err()
            || rustix::fs::access(&parent, Access::WRITE_OK).is_err()
        {
            reason = format!("{} is not this user's", parent.display());
        } else if let Some(controller) = lacks(parent.join("cgroup.subtree_control"))
            && !parent.join(FOLDER).exists()
            && rustix::fs::access(parent.join("cgroup.subtree_control"), Access::WRITE_OK).is_err()
        {
            reason = format!("{} does not hand on the controller {}", parent.display(), controller.name());
        } else {
            return Ok(());
        }
    }
    Err(reason)
}
