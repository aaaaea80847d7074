//! Version 1: one hierarchy for each controller.

use std::path::{Path, PathBuf};

use super::layout::Layout;
use super::{CPU_PERIOD, Controller, number, number_of, write};
use crate::{Errno, Error, Limits, Usage};

/// Buffers of TCP are counted apart from other memory. They get this part of the memory limit.
const TCP_PART: u64 = 4;
/// Maximum buffers of TCP of a group, in bytes: the kernel bounds those of the whole machine together.
const TCP_BYTES: u64 = 64 << 20;

/// Makes the group below the caller's own, so that limits on the caller hold for what it starts.
pub(super) fn create(layout: &Layout, controller: Controller, id: &str) -> Result<PathBuf, Error> {
    let Some(hierarchy) = layout.legacy_of(controller) else {
        return Err(refused(controller, no_controller(layout, controller)));
    };
    // Below version 1's root, every user with write access to the folder may do everything.
    super::make(&hierarchy.own, id, &|folder| {
        if controller == Controller::Memory {
            let hierarchical = folder.join("memory.use_hierarchy");
            if hierarchical.exists() && number(&hierarchical) == 0 {
                // Fails where the parent has groups already; the group then limits itself alone, which is all it
                // is for.
                let _ = write(&hierarchical, "1");
            }
        }
        Ok(())
    })
    .map_err(|error| match error {
        Error::Cgroup { errno: Errno(libc::EACCES | libc::EPERM | libc::EROFS), path, .. } => refused(
            controller,
            format!(
                "cgroup version 1 lets this user make no group at {}. Run as root, or start the machine with cgroup \
                 version 2 (systemd.unified_cgroup_hierarchy=1) and delegate a group (systemd-run --user --scope \
                 -p Delegate=yes)",
                path.display()
            ),
        ),
        other => other,
    })
}

fn no_controller(layout: &Layout, controller: Controller) -> String {
    let name = controller.name();
    if layout.legacy.is_empty() && layout.unified.is_none() {
        return "no cgroup hierarchy is mounted. Mount one: mount -t cgroup2 none /sys/fs/cgroup".to_owned();
    }
    format!(
        "the kernel offers the controller {name} in no mounted cgroup hierarchy. Mount it (version 1: mount -t cgroup \
         -o {name} none /sys/fs/cgroup/{name}), or enable it on the kernel's command line (cgroup_enable={name})"
    )
}

fn refused(controller: Controller, reason: String) -> Error {
    Error::LimitRefused { limit: controller.name().into(), reason }
}

/// Writes the limit of one controller.
pub(super) fn limit(controller: Controller, group: &Path, limits: &Limits) -> Result<(), Error> {
    let tell = |error: Error| match error {
        Error::Cgroup { errno, path, .. } => {
            refused(controller, format!("the kernel refuses it in {}: {errno}", path.display()))
        }
        other => other,
    };
    match controller {
        Controller::Cpu => {
            let Some(millis) = limits.cpu_millis else { return Ok(()) };
            write(&group.join("cpu.cfs_period_us"), &CPU_PERIOD.to_string()).map_err(tell)?;
            let quota = millis * CPU_PERIOD / 1000;
            write(&group.join("cpu.cfs_quota_us"), &quota.to_string()).map_err(tell)
        }
        Controller::Memory => {
            let tcp = limits.memory_bytes.map_or(TCP_BYTES, |bytes| (bytes / TCP_PART).min(TCP_BYTES));
            let tcp_limit = group.join("memory.kmem.tcp.limit_in_bytes");
            // Kernels to come will not have the file.
            if tcp_limit.exists() {
                write(&tcp_limit, &tcp.to_string()).map_err(tell)?;
            }
            let Some(bytes) = limits.memory_bytes.map(|bytes| bytes.to_string()) else { return Ok(()) };
            write(&group.join("memory.limit_in_bytes"), &bytes).map_err(tell)?;
            let with_swap = group.join("memory.memsw.limit_in_bytes");
            if with_swap.exists() {
                write(&with_swap, &bytes).map_err(tell)
            } else {
                // Swap is not counted here; then none is used: 0 keeps a group's reclaim from swapping at all.
                write(&group.join("memory.swappiness"), "0").map_err(tell)
            }
        }
        Controller::Pids => {
            let Some(pids) = limits.pids else { return Ok(()) };
            write(&group.join("pids.max"), &pids.to_string()).map_err(tell)
        }
        Controller::CpuAccount | Controller::Freezer => Ok(()),
    }
}

/// Adds what one controller counts.
pub(super) fn usage(controller: Controller, group: &Path, usage: &mut Usage) {
    match controller {
        Controller::Cpu | Controller::CpuAccount => {
            let nanos = number(&group.join("cpuacct.usage"));
            usage.cpu_micros = usage.cpu_micros.max(nanos / 1000);
        }
        Controller::Memory => {
            usage.memory_bytes = number(&group.join("memory.usage_in_bytes"));
            let stat = group.join("memory.stat");
            let files = number_of(&stat, "total_cache");
            // Shared memory is among them, and caches nothing.
            usage.memory_cache_bytes = files.saturating_sub(number_of(&stat, "total_shmem"));
            usage.memory_peak_bytes = number(&group.join("memory.max_usage_in_bytes"));
            usage.oom_kills = number_of(&group.join("memory.oom_control"), "oom_kill");
        }
        Controller::Pids => usage.processes = number(&group.join("pids.current")),
        Controller::Freezer => {}
    }
}

/// Checks that the caller could create groups with this controller; else returns the reason.
pub(super) fn usable(layout: &Layout, controller: Controller) -> Result<(), String> {
    let Some(hierarchy) = layout.legacy_of(controller) else { return Err(no_controller(layout, controller)) };
    match rustix::fs::access(&hierarchy.own, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(errno) => Err(format!("{} cannot be written: {errno}", hierarchy.own.display())),
    }
}
