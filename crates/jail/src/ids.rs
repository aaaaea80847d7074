//! Ids inside and outside.

mod ranges;

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

pub use ranges::{IdRange, IdRanges};

use crate::error::Error;
use crate::spec::RANGE;
use crate::sys::Forked;

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::IdMap { step: step.into(), errno: errno.into() }
}

fn write(path: &str, text: &str) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // The kernel takes a map in one write or not at all.
    rustix::io::write(&file, text.as_bytes()).map(|_| ())
}

/// Maps 0..65536 of the user namespace of process `pid` to `base..`, from outside, as root.
pub(crate) fn map_range(pid: i32, base: u32) -> Result<(), Error> {
    let map = format!("0 {base} {RANGE}\n");
    write(&format!("/proc/{pid}/uid_map"), &map).map_err(failed("uid_map"))?;
    write(&format!("/proc/{pid}/gid_map"), &map).map_err(failed("gid_map"))
}

/// The user namespace of a process, as the map of an idmapped mount.
pub(crate) fn user_namespace(pid: i32) -> Result<OwnedFd, Error> {
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed("user namespace"))
}

/// Maps uid 0 and gid 0 of the caller's own new user namespace to the ids it had outside. The kernel wants
/// `setgroups` given up first.
pub(crate) fn map_caller(uid: Uid, gid: Gid) -> Result<(), Error> {
    write("/proc/self/setgroups", "deny").map_err(failed("setgroups"))?;
    write("/proc/self/uid_map", &format!("0 {} 1\n", uid.as_raw())).map_err(failed("uid_map"))?;
    write("/proc/self/gid_map", &format!("0 {} 1\n", gid.as_raw())).map_err(failed("gid_map"))
}

/// Becomes uid 0 and gid 0 of the mapped range, without further groups.
pub(crate) fn become_root_inside() -> Result<(), Error> {
    rustix::thread::set_thread_groups(&[]).map_err(failed("setgroups"))?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).map_err(failed("setresgid"))?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).map_err(failed("setresuid"))
}

/// Runs `fork` with this effective uid, so that the user namespace made by it belongs to that user: the kernel counts
/// inotify instances, queued signals and the like for the user who made the namespace, and so for each jail apart.
/// Capabilities stay as they are. The caller is root and has one thread; it is itself again when this returns. In the
/// new process there is nothing to undo: it has left the ids of the caller behind.
pub(crate) fn as_owner(
    owner: u32,
    fork: impl FnOnce() -> Result<Forked, Errno>,
) -> Result<Result<Forked, Errno>, Error> {
    use rustix::thread::CapabilitiesSecureBits as Bits;
    let bits = rustix::thread::capabilities_secure_bits().map_err(failed("secure bits"))?;
    rustix::thread::set_capabilities_secure_bits(bits | Bits::NO_SETUID_FIXUP)
        .map_err(failed("secure bits"))?;
    let end = rustix::process::parent_process_death_signal().map_err(failed("parent's death signal"))?;
    let become_user = |effective| rustix::thread::set_thread_res_uid(Uid::ROOT, effective, Uid::ROOT);
    become_user(Uid::from_raw(owner)).map_err(failed("owner of the namespace"))?;
    let forked = fork();
    if let Ok(Forked::Child) = forked {
        return Ok(forked);
    }
    become_user(Uid::ROOT).map_err(failed("return to root"))?;
    rustix::thread::set_capabilities_secure_bits(bits).map_err(failed("secure bits"))?;
    // A change of the effective user clears it.
    rustix::process::set_parent_process_death_signal(end).map_err(failed("parent's death signal"))?;
    Ok(forked)
}
