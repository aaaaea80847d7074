//! The launcher: forks a process into new namespaces and, in it, builds the jail and gives up all privileges.
//!
//! It belongs in a single-threaded program, because the forked process continues without an exec: that saves
//! a program start for every jail. The two sides split the work. Outside, with the caller's rights: the id
//! map and the mounts of host sources. Inside, without rights on the host: everything else.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::cgroup::{Entry, Group};
use crate::channel::Channel;
use crate::error::Error;
use crate::event::{Reached, Report};
use crate::invariants::{Expected, Outside};
use crate::sources::Sources;
use crate::spec::{Ids, MountSource, Network, Profile, Spec, Upper};
use crate::{dev, ids, invariants, landlock, network, privileges, proc, root, seccomp, sys, threads};

#[cfg(test)]
mod wrong;

/// The steps that drop privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Privileges,
    Landlock,
    Seccomp,
}

/// `true` when a test skips this step, to see that the jail is refused. Outside of the tests of this crate, no step is.
#[cfg(not(test))]
const fn left_out(_: Step) -> bool {
    false
}
#[cfg(test)]
use wrong::left_out;

/// Inputs of a launch besides the description.
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a Spec,
    /// The namespace to join, for [`Network::Join`].
    pub(crate) join: Option<BorrowedFd<'a>>,
    /// The cgroups, when there are limits.
    pub(crate) group: Option<&'a Group>,
    /// File descriptors above 2 that must stay open inside.
    pub(crate) keep: &'a [RawFd],
}

/// A process 1 that is being set up or is ready.
pub(crate) struct Launched {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    /// Carries [`Report`]s from process 1.
    pub(crate) channel: Channel,
    /// Listeners of the network plan, opened before the first instruction of process 1.
    pub(crate) listeners: Vec<OwnedFd>,
}

/// Ids of the launcher outside, read before the fork, since they are not mapped inside.
struct Caller {
    uid: rustix::process::Uid,
    gid: rustix::process::Gid,
}

/// Forks a jail. When the jail is ready, `inside` takes over in it with the other end of the channel.
/// Failures of the setup and of `inside` are sent there as [`Report::Failed`]. The launcher does `meanwhile` while the
/// forked process makes its network.
///
/// The caller must have checked the description.
pub(crate) fn launch(
    plan: &Plan<'_>,
    inside: impl FnOnce(Channel, Reached) -> Error,
    meanwhile: impl FnOnce() -> Result<(), Error>,
) -> Result<Launched, Error> {
    threads::check_single()?;
    let (channel, theirs) = Channel::pair()?;
    let unified = plan.group.map(Group::unified).transpose()?.flatten();
    let entry = plan.group.map(Group::entry).transpose()?;
    let caller = Caller { uid: rustix::process::geteuid(), gid: rustix::process::getegid() };
    let home = enter_other_network(plan)?;
    let fork = || {
        // SAFETY: there is one thread, as just checked.
        unsafe { sys::fork_into(namespaces(plan.spec.profile), unified.as_ref().map(AsFd::as_fd)) }
    };
    let forked = match (plan.spec.profile, plan.spec.ids) {
        (Profile::Native, Ids::Range { base }) => ids::as_owner(base, fork),
        _ => Ok(fork()),
    };
    if let Ok(Ok(sys::Forked::Child)) = forked {
        drop(channel);
        child(plan, &caller, entry.as_ref(), theirs, inside);
    }
    drop(theirs);
    if let Some(home) = home {
        move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(failed_network("return to the own namespace"))?;
    }
    // Not before: the next jail would take another network for the caller's.
    let (pid, pidfd) = match forked? {
        Ok(sys::Forked::Parent { pid, pidfd }) => (pid, pidfd),
        Ok(sys::Forked::Child) => unreachable!("the child does not come here"),
        Err(errno) => return Err(Error::Namespaces { errno: errno.into() }),
    };
    let provided = provide(plan, pid, &channel).and_then(|()| meanwhile());
    match provided.and_then(|()| listeners(plan.spec, &channel)) {
        Ok(listeners) => Ok(Launched { pid, pidfd, channel, listeners }),
        Err(error) => {
            sys::signal_pidfd(pidfd.as_fd(), libc::SIGKILL);
            let _ = sys::wait(pid, true);
            Err(error)
        }
    }
}

/// Waits for the listeners of a new network namespace.
fn listeners(spec: &Spec, channel: &Channel) -> Result<Vec<OwnedFd>, Error> {
    match &spec.network {
        Network::New(plan) if !plan.listeners.is_empty() => {}
        _ => return Ok(Vec::new()),
    }
    let message = channel.receive()?.ok_or(Error::EndedEarly)?;
    match message.decode()? {
        Report::Network => Ok(message.descriptors),
        Report::Failed(error) => Err(error),
        _ => Err(Error::Message("the network was not reported".into())),
    }
}

fn failed_network(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Network { step: step.into(), errno: errno.into() }
}

/// All namespaces but network and cgroup, which the child creates itself, in parallel to the parent's work.
fn namespaces(profile: Profile) -> u64 {
    let flags = match profile {
        Profile::Native => {
            libc::CLONE_NEWUSER
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUTS
        }
        Profile::Runtime => libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC,
    };
    flags as u64
}

/// To join a network namespace, the launcher itself enters it for the fork: a process in a new user namespace
/// is not permitted to. Returns the file descriptor for the way back.
fn enter_other_network(plan: &Plan<'_>) -> Result<Option<OwnedFd>, Error> {
    if !matches!(plan.spec.network, Network::Join) {
        return Ok(None);
    }
    let Some(join) = plan.join else {
        return Err(Error::Spec("the network namespace to join is not given".into()));
    };
    let home = rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed_network("open the own namespace"))?;
    move_into_link_name_space(join, Some(LinkNameSpaceType::Network))
        .map_err(failed_network("join the namespace"))?;
    Ok(Some(home))
}

/// The parent's part: id map and mounts, sent in one message that also releases the child.
fn provide(plan: &Plan<'_>, pid: i32, channel: &Channel) -> Result<(), Error> {
    let sources = match (plan.spec.profile, plan.spec.ids) {
        (Profile::Native, Ids::Range { base }) => {
            ids::map_range(pid, base)?;
            let map = ids::user_namespace(pid)?;
            Sources::take(plan.spec, Some(map.as_fd()))?
        }
        // The child joins them by itself.
        (Profile::Native, Ids::Caller) => return Ok(()),
        (Profile::Runtime, _) => Sources::take(plan.spec, None)?,
    };
    // A child that died of an error has reported it: that error is the one to return.
    let _ = channel.send_bare(&sources.descriptors());
    Ok(())
}

/// Exits a process that must not run any code of the program it was forked from, even when it panics.
struct EndHere;

impl Drop for EndHere {
    fn drop(&mut self) {
        // SAFETY: it does not return, so no destructor and no handler of the launcher runs.
        unsafe { libc::_exit(1) }
    }
}

fn child(
    plan: &Plan<'_>,
    caller: &Caller,
    entry: Option<&Entry>,
    channel: Channel,
    inside: impl FnOnce(Channel, Reached) -> Error,
) -> ! {
    let _end = EndHere;
    let built = match plan.spec.profile {
        Profile::Native => build(plan, caller, entry, &channel),
        Profile::Runtime => build_around_runtime(plan, entry, &channel),
    };
    match built {
        Ok(reached) => drop(inside(channel, reached)),
        Err(error) => drop(channel.send(&Report::Failed(error), &[], true)),
    }
    // SAFETY: as above.
    unsafe { libc::_exit(1) }
}

/// Setup that needs neither ids nor data from the parent, so that both work in parallel.
fn prepare(plan: &Plan<'_>, entry: Option<&Entry>, channel: &Channel) -> Result<(), Error> {
    if let Some(entry) = entry {
        entry.enter().map_err(|errno| Error::Cgroup {
            path: plan.spec.id.clone().into(),
            step: "enter".into(),
            errno,
        })?;
    }
    let failed =
        |step: &'static str| move |errno: Errno| Error::Privileges { step: step.into(), errno: errno.into() };
    sys::hide_arguments(c"hutch-init");
    rustix::thread::set_name(c"hutch-init").map_err(failed("name"))?;
    rustix::process::setsid().map_err(failed("session"))?;
    sys::join_new_session_keyring().map_err(failed("session keyring"))?;
    rustix::process::umask(Mode::empty());
    if let Network::New(network) = &plan.spec.network {
        let listeners = network::enter_new(network)?;
        if !listeners.is_empty() {
            let listeners: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
            channel.send(&Report::Network, &listeners, true)?;
        }
    }
    Ok(())
}

/// Waits for the parent's part.
fn provided(channel: &Channel) -> Result<Sources, Error> {
    match channel.receive()? {
        Some(message) if message.is_bare() => Ok(Sources::received(message.descriptors)),
        _ => Err(Error::EndedEarly),
    }
}

/// Ties the life of this process to the launcher's, and denies ptrace and memory access to it. To be called
/// after the last change of ids, which would undo both.
fn tie_to_parent(channel: &Channel) -> Result<(), Error> {
    let failed = |errno: Errno| Error::Privileges { step: "tie to the parent".into(), errno: errno.into() };
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    // The signal covers only a later death. An earlier one shows on the channel; getppid() is always 0 here.
    if channel.is_closed() { Err(Error::EndedEarly) } else { Ok(()) }
}

/// Builds the native jail around the calling process.
fn build(
    plan: &Plan<'_>,
    caller: &Caller,
    entry: Option<&Entry>,
    channel: &Channel,
) -> Result<Reached, Error> {
    let spec = plan.spec;
    prepare(plan, entry, channel)?;
    // SAFETY: no descriptor table or memory is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .map_err(|errno| Error::Namespaces { errno: errno.into() })?;
    rustix::system::sethostname(spec.hostname.as_bytes())
        .map_err(|errno| Error::Privileges { step: "host name".into(), errno: errno.into() })?;
    privileges::limit_resources()?;
    let proc = proc::open()?;
    let devices = dev::take()?;
    let ranged = matches!(spec.ids, Ids::Range { .. });
    let sources = if ranged {
        let sources = provided(channel)?;
        ids::become_root_inside()?;
        sources
    } else {
        ids::map_caller(caller.uid, caller.gid)?;
        Sources::take(spec, None)?
    };
    tie_to_parent(channel)?;
    let (root, mounts) = root::enter(spec, sources, proc, devices, ranged)?;
    close_others(plan, channel)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    #[cfg(test)]
    wrong::make();
    if !left_out(Step::Privileges) {
        privileges::give_up(spec.capabilities)?;
    }
    let outside = if landlock::has_scopes() { Some(Outside::new()?) } else { None };
    let mut writable = writable(spec);
    if !spec.files.is_empty() {
        // A mount in a hidden folder has no path.
        writable.retain(|path| path.exists());
    }
    let landlock = !left_out(Step::Landlock) && landlock::restrict(&writable)?;
    if !left_out(Step::Seccomp) {
        seccomp::install(spec.deny_set_id_bits)?;
    }
    let mut descriptors = plan.keep.to_vec();
    descriptors.push(channel.as_fd().as_raw_fd());
    let capabilities = spec.capabilities;
    invariants::check(Expected { root, mounts, descriptors: &descriptors, outside, capabilities })?;
    Ok(Reached { landlock })
}

/// Paths where files may be written: writable mounts, and `/dev` and `/proc`, whose files answer for themselves.
fn writable(spec: &Spec) -> Vec<&Path> {
    let mut paths = vec![Path::new("/dev"), Path::new("/proc")];
    if !matches!(spec.root.upper, Upper::ReadOnly) {
        paths.push(Path::new("/"));
    }
    let mounts = spec.mounts.iter().filter(|mount| !mount.read_only);
    let mounts = mounts.filter(|m| !matches!(m.source, MountSource::Host { .. }));
    paths.extend(mounts.map(|mount| mount.target.as_path()));
    paths
}

fn close_others(plan: &Plan<'_>, channel: &Channel) -> Result<(), Error> {
    let mut keep = plan.keep.to_vec();
    keep.push(channel.as_fd().as_raw_fd());
    // SAFETY: the owners of the rest are of the launcher; this process ends without running their destructors.
    unsafe { sys::close_all_but(&mut keep) }
        .map_err(|errno| Error::Privileges { step: "close descriptors".into(), errno: errno.into() })
}

/// Builds the outer jail of a runtime that isolates by itself: its processes, mounts and network end with it.
fn build_around_runtime(plan: &Plan<'_>, entry: Option<&Entry>, channel: &Channel) -> Result<Reached, Error> {
    prepare(plan, entry, channel)?;
    let mut sources = provided(channel)?;
    tie_to_parent(channel)?;
    let failed =
        |step: &'static str| move |errno: Errno| Error::Root { step: step.into(), errno: errno.into() };
    // Mounts made in here stay in here; unmounts of the host propagate here too.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(failed("separate the mounts"))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    sys::mount(c"proc", c"/proc", c"proc", flags, c"").map_err(failed("mount /proc"))?;
    root::runtime::build(plan.spec, &mut sources)?;
    close_others(plan, channel)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if plan.spec.deny_set_id_bits {
        seccomp::install_around_runtime()?;
    }
    Ok(Reached { landlock: false })
}
