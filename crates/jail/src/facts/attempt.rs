//! Feature tests, each in a child process that exits.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
};

use crate::network::{Capture, Listener, NetworkPlan, Transport};
use crate::sys;

/// The overflow id, used to act as an ordinary user.
const NOBODY: libc::uid_t = 65534;

/// Returns `true` when `body` succeeds in a child.
fn succeeds(body: impl FnOnce() -> Result<(), Errno>) -> bool {
    // SAFETY: the child makes system calls, may allocate, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => false,
        0 => {
            let code = i32::from(body().is_err());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        child => matches!(sys::wait(child, true), Ok(Some((_, 0, _)))),
    }
}

fn unshare(flags: i32) -> Result<(), Errno> {
    // SAFETY: only namespaces of a child with one thread.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(last()) }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Tests that a namespace can be created as for a jail: in a user namespace.
pub(super) fn namespace(flag: i32) -> bool {
    succeeds(|| unshare(libc::CLONE_NEWUSER | flag))
}

/// Makes root an ordinary user.
fn become_ordinary() -> Result<(), Errno> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // SAFETY: numbers only; the plain calls, since the C library's would signal other threads.
    unsafe {
        libc::syscall(libc::SYS_setgroups, 0, 0);
        if libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY) != 0
            || libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) != 0
        {
            return Err(last());
        }
    }
    Ok(())
}

/// Returns the plan of a network namespace in which everything is captured.
fn captured() -> NetworkPlan {
    let addresses =
        [SocketAddr::from(([198, 18, 0, 1], 9)), SocketAddr::from(([0xfd00, 0x6875, 0, 0, 0, 0, 0, 1], 9))];
    let listener = |address| Listener { transport: Transport::Tcp, address, transparent: true };
    let capture = |to| Capture { transport: Transport::Tcp, port: None, to };
    let own = addresses.iter().map(SocketAddr::ip).collect();
    NetworkPlan {
        listeners: addresses.map(listener).to_vec(),
        captures: addresses.map(capture).to_vec(),
        ..NetworkPlan::closed(own)
    }
}

/// Enters a network namespace with this plan. It allocates, which the C library allows after its own `fork`.
fn enter(plan: &NetworkPlan) -> Result<(), Errno> {
    crate::network::enter_new(plan).map(drop).map_err(|_| Errno::PERM)
}

/// Tests that connections can be captured, in a user namespace when not root.
pub(super) fn captures() -> bool {
    let plan = captured();
    succeeds(|| {
        if !rustix::process::geteuid().is_root() {
            unshare(libc::CLONE_NEWUSER)?;
        }
        enter(&plan)
    })
}

/// Tests that an ordinary user can have connections captured; root changes to one.
pub(super) fn captures_as_ordinary_user() -> bool {
    let plan = captured();
    succeeds(|| {
        become_ordinary()?;
        unshare(libc::CLONE_NEWUSER)?;
        enter(&plan)
    })
}

/// Tests that an ordinary user can create a user namespace; root changes to one.
pub(super) fn user_namespace_as_nobody() -> bool {
    succeeds(|| {
        become_ordinary()?;
        unshare(libc::CLONE_NEWUSER)?;
        // Some systems create the namespace, but grant no rights in it.
        unshare(libc::CLONE_NEWNET)
    })
}

/// Tests that the jails' seccomp filter can be installed.
pub(super) fn seccomp() -> bool {
    succeeds(|| crate::seccomp::install(true).map_err(|_| Errno::PERM))
}

/// Enters a new user namespace with the given mapping, and a private mount namespace.
fn own_mounts() -> Result<(), Errno> {
    let root = rustix::process::geteuid().is_root();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(if root { libc::CLONE_NEWNS } else { libc::CLONE_NEWNS | libc::CLONE_NEWUSER })?;
    if !root {
        write(c"/proc/self/setgroups", format_args!("deny"))?;
        write(c"/proc/self/uid_map", format_args!("0 {uid} 1"))?;
        write(c"/proc/self/gid_map", format_args!("0 {gid} 1"))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

fn write(path: &std::ffi::CStr, text: std::fmt::Arguments<'_>) -> Result<(), Errno> {
    use std::io::Write;
    // Formatted on the stack: a child of a program with threads may not allocate.
    let mut buffer = [0_u8; 64];
    let mut rest = &mut buffer[..];
    rest.write_fmt(text).map_err(|_| Errno::NOMEM)?;
    let unused = rest.len();
    let length = buffer.len() - unused;
    let file = rustix::fs::open(path, rustix::fs::OFlags::WRONLY, Mode::empty())?;
    rustix::io::write(file, &buffer[..length]).map(|_| ())
}

fn tmpfs() -> Result<std::os::fd::OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", "hutch-facts")?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Tests overlay mounts, in a user namespace when not root.
pub(super) fn overlay() -> bool {
    succeeds(|| {
        own_mounts()?;
        let memory = tmpfs()?;
        // Any folder that always exists; only this child sees the mount.
        move_mount(memory.as_fd(), c"", CWD, c"/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        for folder in [c"/proc/lower", c"/proc/upper", c"/proc/work"] {
            rustix::fs::mkdir(folder, Mode::from_raw_mode(0o755))?;
        }
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in
            [("lowerdir", "/proc/lower"), ("upperdir", "/proc/upper"), ("workdir", "/proc/work")]
        {
            fsconfig_set_string(context.as_fd(), key, value)?;
        }
        if !rustix::process::geteuid().is_root() {
            fsconfig_set_flag(context.as_fd(), "userxattr")?;
        }
        fsconfig_create(context.as_fd())
    })
}

/// Tests id-mapped mounts (on tmpfs; the file system of a workspace must support them, too).
pub(super) fn idmapped_mount() -> bool {
    succeeds(|| {
        // SAFETY: this child has one thread.
        match unsafe { sys::fork_into(libc::CLONE_NEWUSER as u64, None) }? {
            sys::Forked::Child => loop {
                // SAFETY: waits to be killed; tied to the parent's life first.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() == 1 {
                        libc::_exit(1);
                    }
                    libc::pause();
                }
            },
            sys::Forked::Parent { pid, pidfd } => {
                let outcome = map_ids(pid);
                sys::signal_pidfd(pidfd.as_fd(), libc::SIGKILL);
                let _ = sys::wait(pid, true);
                outcome
            }
        }
    })
}

fn map_ids(pid: i32) -> Result<(), Errno> {
    let map = crate::ids::map_range(pid, 100_000).and_then(|()| crate::ids::user_namespace(pid));
    let map = map.map_err(|_| Errno::PERM)?;
    let memory = tmpfs()?;
    sys::set_mount_attributes(memory.as_fd(), 0, Some(map.as_fd()), false)
}
