//! Confinement of a service of the machine: the front of `hutch up`, which parses what clients send, and the proxy of a
//! sandbox, which parses what code inside sends.
//!
//! It is no jail: it shares the namespaces of the machine. It has user and group ids of its own, no capability, and reads
//! and writes nothing but its folders. It starts threads but no process. Listeners are handed to it; it opens no socket,
//! unless it connects to other hosts: never one of the machine's own services, and no memory or queue that it shares with them.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Signal, Uid};
use rustix::thread::CapabilitySet;

use crate::error::Error;
use crate::{invariants, landlock, privileges, seccomp, threads};

/// Confinement of a service.
#[derive(Debug, Clone)]
pub struct Confinement<'a> {
    /// User id, not 0. For an ordinary user, the caller's own.
    pub uid: u32,
    /// Group id, not 0. For an ordinary user, the caller's own.
    pub gid: u32,
    /// Folders in which it reads and writes.
    pub writable: &'a [&'a Path],
    /// Folders and files that it reads besides.
    pub readable: &'a [&'a Path],
    /// Lets it connect to other hosts. It cannot listen for TCP even then.
    pub connects: bool,
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Privileges { step: step.into(), errno: errno.into() }
}

/// Confines the calling process, which must have one thread, and checks that it is confined. Returns whether the kernel has
/// Landlock; without it, file permissions alone bound what the service reads.
///
/// A service of an ordinary user keeps its groups and its bounding set, which no program can use under `no_new_privs`.
///
/// The kernel kills the process when the thread that started it ends; a caller must check that it still runs.
///
/// # Errors
/// The step that failed. The process must then end.
pub fn confine(confinement: &Confinement<'_>) -> Result<bool, Error> {
    let Confinement { uid, gid, writable, readable, connects } = *confinement;
    let is_root = rustix::process::geteuid().is_root();
    if uid == 0 || gid == 0 {
        return Err(Error::Spec("a service does not run as root".into()));
    }
    // Landlock before version 8 and seccomp bind one thread, and those that it starts from then on.
    threads::check_single()?;
    privileges::limit_resources()?;
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if is_root {
        privileges::clear_bounding_set()?;
        rustix::thread::set_thread_groups(&[]).map_err(failed("groups"))?;
    }
    rustix::thread::set_thread_res_gid(group, group, group).map_err(failed("group id"))?;
    // This takes the capabilities too.
    rustix::thread::set_thread_res_uid(user, user, user).map_err(failed("user id"))?;
    privileges::set_exactly(CapabilitySet::empty()).map_err(failed("capabilities"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("parent"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    let mut readable = readable.to_vec();
    readable.push(Path::new("/proc/self"));
    let landlock = landlock::restrict_service(writable, &readable, connects)?;
    seccomp::install_for_service(connects, !writable.is_empty())?;
    invariants::check_service((uid, gid), is_root)?;
    Ok(landlock)
}
