//! `/proc` inside: a new mount, without files that disclose or change the state of the machine.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsmount, fsopen, move_mount,
};

use crate::error::Error;
use crate::sys;

/// Hidden, as OCI runtimes do.
const MASKED: [&CStr; 11] = [
    c"/proc/acpi",
    c"/proc/asound",
    c"/proc/interrupts",
    c"/proc/kcore",
    c"/proc/keys",
    c"/proc/latency_stats",
    c"/proc/sched_debug",
    c"/proc/scsi",
    c"/proc/timer_list",
    c"/proc/timer_stats",
    c"/proc/kallsyms",
];

/// Never to be written, as OCI runtimes do.
const READ_ONLY: [&CStr; 5] = [c"/proc/sys", c"/proc/bus", c"/proc/fs", c"/proc/irq", c"/proc/sysrq-trigger"];

/// Returns `true` when [`attach`] mounts something at this path.
pub(crate) fn makes(path: &str) -> bool {
    path == "/proc" || MASKED.iter().chain(&READ_ONLY).any(|known| known.to_bytes() == path.as_bytes())
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Mount { target: "/proc".into(), step: step.into(), errno: errno.into() }
}

/// A fresh proc of the pid namespace of the calling process, not yet mounted anywhere. To be called while the
/// host's own proc is in sight: the kernel gives an unprivileged user no better view than the one it has.
pub(crate) fn open() -> Result<OwnedFd, Error> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("open"))?;
    fsconfig_create(context.as_fd()).map_err(failed("create"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(failed("mount; a surrounding container that masks its own /proc forbids it"))
}

/// Mounts it at `/proc` (which exists) of the new root and masks it. `/dev` must be there.
pub(crate) fn attach(proc: OwnedFd) -> Result<(), Error> {
    move_mount(proc.as_fd(), "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("attach"))?;
    // What belongs to an id that is not mapped here is out of reach already, whatever its rights say: the user
    // namespace has no power over it. So most jails need a mask only for world-readable files.
    for path in MASKED {
        match rustix::fs::accessat(CWD, path, Access::READ_OK, AtFlags::empty()) {
            Ok(()) => mask(path).map_err(failed("mask"))?,
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => {}
            Err(errno) => return Err(failed("look at what to mask")(errno)),
        }
    }
    // In most jails root outside has no id, so that what is root's is out of reach by its rights already; then only
    // the first, with settings of the jail's own namespaces, is left to guard.
    let root = rustix::fs::statat(CWD, "/proc", AtFlags::empty()).map_err(failed("look at it"))?;
    let guarded = if root.st_uid == 0 { &READ_ONLY[..] } else { &READ_ONLY[..1] };
    for &path in guarded {
        match sys::mount(path, path, c"", libc::MS_BIND, c"") {
            Ok(()) => {}
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(failed("bind what is read-only")(errno)),
        }
        let flags = libc::MS_BIND
            | libc::MS_REMOUNT
            | libc::MS_RDONLY
            | libc::MS_NOSUID
            | libc::MS_NODEV
            | libc::MS_NOEXEC;
        sys::mount(path, path, c"", flags, c"").map_err(failed("make read-only"))?;
    }
    Ok(())
}

fn mask(path: &CStr) -> Result<(), Errno> {
    let status = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
        let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        sys::mount(c"tmpfs", path, c"tmpfs", flags, c"size=4k,mode=0555")
    } else {
        sys::mount(c"/dev/null", path, c"", libc::MS_BIND, c"")
    }
}
