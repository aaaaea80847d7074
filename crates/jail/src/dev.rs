//! `/dev` inside: the few devices that every program may use, nothing of the machine.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::error::Error;
use crate::sys;

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
];

/// Returns `true` when [`build`] mounts something at this path.
pub(crate) fn makes(path: &str) -> bool {
    let device = |path: &str| path.strip_prefix("/dev/").is_some_and(|name| DEVICES.contains(&name));
    path == "/dev" || path == "/dev/pts" || device(path)
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Mount { target: "/dev".into(), step: step.into(), errno: errno.into() }
}

/// The devices of the host as mounts of their own. To be called while the host's root is still in sight.
pub(crate) fn take() -> Result<Vec<OwnedFd>, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let path = |name| format!("/dev/{name}");
    DEVICES.iter().map(|name| open_tree(CWD, path(name), flags).map_err(failed(name))).collect()
}

/// Builds `/dev` (which exists) in the new root. `/dev/shm` is a folder of it and shares its bound.
pub(crate) fn build(devices: Vec<OwnedFd>, group_of_terminals: bool) -> Result<(), Error> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_STRICTATIME;
    sys::mount(c"tmpfs", c"/dev", c"tmpfs", flags, c"mode=0755,size=64m").map_err(failed("tmpfs"))?;
    for (name, device) in DEVICES.iter().zip(devices) {
        let path = format!("/dev/{name}");
        rustix::fs::mknodat(CWD, &path, FileType::RegularFile, Mode::from_raw_mode(0o666), 0)
            .map_err(failed(name))?;
        move_mount(device.as_fd(), "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed(name))?;
    }
    for (target, link) in LINKS {
        rustix::fs::symlinkat(target, CWD, link).map_err(failed(link))?;
    }
    rustix::fs::mkdirat(CWD, "/dev/shm", Mode::from_raw_mode(0o1777)).map_err(failed("shm"))?;
    rustix::fs::mkdirat(CWD, "/dev/pts", Mode::from_raw_mode(0o755)).map_err(failed("pts"))?;
    // The kernel counts the terminals of all jails together (3072 by default), so each jail has a bound of its own.
    // Group 5 (tty) cannot be named where only one group is mapped.
    let options = if group_of_terminals {
        c"newinstance,max=64,ptmxmode=0666,mode=0620,gid=5"
    } else {
        c"newinstance,max=64,ptmxmode=0666,mode=0620"
    };
    sys::mount(c"devpts", c"/dev/pts", c"devpts", libc::MS_NOSUID | libc::MS_NOEXEC, options)
        .map_err(failed("pts"))
}
