//! System calls that rustix lacks, each behind a safe or a narrowly unsafe function.

use std::ffi::CStr;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// Side of a [`fork_into`] on which the caller runs.
pub(crate) enum Forked {
    /// In the child.
    Child,
    /// In the parent.
    Parent {
        /// The child, as seen from the parent.
        pid: i32,
        /// Its pidfd.
        pidfd: OwnedFd,
    },
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

/// Forks into new namespaces (`CLONE_NEW*` bits) and, where given, into a cgroup of version 2, as `clone3` does.
///
/// # Safety
/// The caller must be single-threaded: the child continues as ordinary Rust on a copy of all memory, and a lock that
/// another thread held would stay held forever.
pub(crate) unsafe fn fork_into(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain integers, for which zero is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` is valid for its size; without CLONE_VM and a stack this is a fork, and the caller promised
    // that there is no other thread.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: the kernel has just created this file descriptor for us.
    Ok(Forked::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
}

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets an integer socket option.
pub(crate) fn set_socket_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to an integer of the given length.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    check(result.into()).map(drop)
}

/// Sets attributes of the mount behind a file descriptor; with `map`, maps ids as that user namespace does.
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    set: u64,
    map: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> Result<(), Errno> {
    let attributes = MountAttributes {
        set: if map.is_some() { set | libc::MOUNT_ATTR_IDMAP } else { set },
        clear: 0,
        propagation: 0,
        user_namespace: map.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, the attributes are of the size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    })?;
    Ok(())
}

/// Joins a new, anonymous session keyring. No-op on a kernel without keyrings.
pub(crate) fn join_new_session_keyring() -> Result<(), Errno> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name requests an anonymous keyring; no memory is read.
    let result = check(unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    });
    match result {
        Ok(_) | Err(Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Closes all file descriptors above 2, except those in `keep`.
///
/// # Safety
/// No owner of a file descriptor that is closed here may be used or dropped afterwards.
pub(crate) unsafe fn close_all_but(keep: &mut [RawFd]) -> Result<(), Errno> {
    keep.sort_unstable();
    let mut first: libc::c_uint = 3;
    for &fd in keep.iter() {
        let fd = fd as libc::c_uint;
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, libc::c_uint::MAX)
}

pub(crate) fn close_range(first: libc::c_uint, last: libc::c_uint) -> Result<(), Errno> {
    // SAFETY: no memory is touched; callers are responsible for the file descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    Ok(())
}

/// Marks all descriptors above 2, so that programs started from now on do not inherit those that the caller of this
/// program left open.
///
/// # Errors
/// The kernel is older than 5.11.
pub fn close_inherited_on_exec() -> Result<(), Errno> {
    // SAFETY: no memory is touched, and every descriptor stays open in this process.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) })?;
    Ok(())
}

/// Erases the values of these variables from the memory of this process, of which jails are forks. To be called before the
/// first thread.
pub fn erase_variables(names: &[&str]) {
    unsafe extern "C" {
        static mut environ: *mut *mut libc::c_char;
    }
    // SAFETY: the list of the C library ends with a null pointer, and no other thread changes it.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: `entry` points into that list.
        let text = unsafe { *entry };
        if text.is_null() {
            return;
        }
        // SAFETY: each entry is a text with an end.
        let bytes = unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes();
        let separator = bytes.iter().position(|byte| *byte == b'=');
        if let Some(at) = separator.filter(|at| names.iter().any(|name| name.as_bytes() == &bytes[..*at])) {
            let length = bytes.len() - at - 1;
            // SAFETY: these bytes belong to the entry, in memory that programs may write; its end stays.
            unsafe { std::ptr::write_bytes(text.add(at + 1), 0, length) };
        }
        // SAFETY: the entry was not the last one.
        entry = unsafe { entry.add(1) };
    }
}

/// Locks or unlocks one byte of a file for the open file description, without waiting. `EAGAIN` or `EACCES`:
/// another open file description holds the lock.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, offset: i64, lock: bool) -> Result<(), Errno> {
    // SAFETY: flock is plain integers, for which zero is valid.
    let mut what: libc::flock = unsafe { std::mem::zeroed() };
    what.l_type = if lock { libc::F_WRLCK } else { libc::F_UNLCK } as libc::c_short;
    what.l_whence = libc::SEEK_SET as libc::c_short;
    (what.l_start, what.l_len) = (offset, 1);
    // SAFETY: the lock's description (`flock`) lives until the call returns.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const what) }.into()).map(|_| ())
}

/// Forks with `clone` and `SIGCHLD` alone, which the jails' seccomp filter allows; returns 0 in the child.
///
/// # Safety
/// As of [`fork_into`].
pub(crate) unsafe fn fork() -> Result<i32, Errno> {
    // SAFETY: no stack and no memory are passed; the caller guarantees that there is no other thread.
    check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0_usize, 0_usize, 0_usize, 0_usize) })
        .map(|pid| pid as i32)
}

/// A signal set.
pub(crate) fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set; sigaddset refuses invalid numbers without harm.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks `set` and returns the previous mask.
pub(crate) fn block_signals(set: &libc::sigset_t) -> libc::sigset_t {
    let mut old = signal_set(&[]);
    // SAFETY: both sets are valid; the call cannot fail with SIG_BLOCK.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, set, &raw mut old) };
    old
}

/// Sets the mask of blocked signals.
pub(crate) fn set_signal_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is valid; the call cannot fail with SIG_SETMASK.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Unblocks all signals. A program inherits those that were blocked where it was started.
pub fn unblock_signals() {
    set_signal_mask(&signal_set(&[]));
}

/// Creates a signalfd, readable when one of `set` (which must be blocked) is pending.
pub(crate) fn signal_descriptor(set: &libc::sigset_t) -> Result<OwnedFd, Errno> {
    // SAFETY: the set is valid; -1 requests a new file descriptor.
    let fd = unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(fd.into())?;
    // SAFETY: the kernel has just created this file descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads the next pending signal of a [`signal_descriptor`].
pub(crate) fn next_signal(fd: BorrowedFd<'_>) -> Option<libc::c_int> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer has the given length.
    let read = unsafe { libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
    if read != size as isize {
        return None;
    }
    // SAFETY: the kernel has filled it completely.
    Some(unsafe { info.assume_init() }.ssi_signo as libc::c_int)
}

/// Resource usage of a process and its waited-for descendants.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Consumption {
    /// User and system time in microseconds.
    pub(crate) cpu_micros: u64,
    /// Largest resident set of a single process, in bytes.
    pub(crate) memory_peak_bytes: u64,
}

/// Waits for a child; returns its wait status and resource usage. With `block` false, `None` when none has
/// exited. `pid` -1 means any child.
pub(crate) fn wait(pid: i32, block: bool) -> Result<Option<(i32, i32, Consumption)>, Errno> {
    let mut status = 0;
    // SAFETY: rusage is plain integers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: both pointers are valid for writing.
        match check(unsafe { libc::wait4(pid, &raw mut status, flags, &raw mut usage) }.into()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(0) => return Ok(None),
            Ok(pid) => {
                let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
                let consumption = Consumption {
                    cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
                    memory_peak_bytes: usage.ru_maxrss as u64 * 1024,
                };
                return Ok(Some((pid as i32, status, consumption)));
            }
        }
    }
}

/// Sends a signal to the process of a pidfd. A process that has already exited is not an error.
pub(crate) fn signal_pidfd(pidfd: BorrowedFd<'_>, signal: libc::c_int) {
    // SAFETY: a null siginfo requests the default one.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, 0_usize, 0) };
}

/// Advises the kernel to write ranges (start, length) of the memory of the process of a pidfd to swap. Returns the bytes
/// that were advised; the first range without success ends the call.
///
/// # Errors
/// The first range failed, or the kernel refuses.
pub(crate) fn page_out(process: BorrowedFd<'_>, ranges: &[(u64, u64)]) -> Result<u64, Errno> {
    let vector: Vec<libc::iovec> = ranges
        .iter()
        .map(|(start, length)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(*start as usize),
            iov_len: *length as usize,
        })
        .collect();
    // SAFETY: the vector has the given length. Its addresses are those of the other process, of which this advice moves pages
    // without changing their content.
    let advised = check(unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vector.as_ptr(),
            vector.len(),
            libc::MADV_PAGEOUT,
            0,
        )
    })?;
    Ok(advised as u64)
}

/// Mounts with the classic `mount` call: on an existing path, in the caller's mount namespace.
pub(crate) fn mount(
    source: &CStr,
    target: &CStr,
    kind: &CStr,
    flags: libc::c_ulong,
    data: &CStr,
) -> Result<(), Errno> {
    // SAFETY: all four are C strings.
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    check(result.into()).map(|_| ())
}

/// Overwrites the arguments of this process that other processes see in `/proc/PID/cmdline`, so that a forked
/// init does not disclose its parent's arguments.
pub(crate) fn hide_arguments(name: &CStr) {
    unsafe extern "C" {
        static program_invocation_name: *mut libc::c_char;
    }
    let length: usize = std::env::args_os().map(|argument| argument.len() + 1).sum();
    // SAFETY: glibc points this at argv[0]; the kernel lays the arguments out one after the other, `length` bytes
    // in all, in memory that is ours to write. Rust's own copy of the pointers stays valid: the strings get shorter.
    unsafe {
        let first = program_invocation_name;
        if first.is_null() || length == 0 || std::env::args_os().next().is_none() {
            return;
        }
        std::ptr::write_bytes(first, 0, length);
        let shown = name.to_bytes().len().min(length - 1);
        std::ptr::copy_nonoverlapping(name.as_ptr(), first, shown);
    }
}

/// Returns free pages of the heap to the kernel.
pub(crate) fn give_back_memory() {
    // SAFETY: it touches only memory that the allocator has on its free lists.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Drops the pages of this program's code and constants. They are read from the file again on use, so code
/// that ran only once takes no memory from then on. Breakpoints of a debugger are lost.
///
/// # Errors
/// Locked memory cannot be dropped.
pub fn forget_program() -> Result<(), Errno> {
    unsafe extern "C" {
        // The linker defines both symbols; they are addresses without content.
        static __executable_start: u8;
        static etext: u8;
    }
    let page = rustix::param::page_size();
    let start = (&raw const __executable_start).addr().next_multiple_of(page);
    let end = (&raw const etext).addr() / page * page;
    // SAFETY: between the two lie only segments that are mapped from the file and that no process may write
    // to, so the pages read back have the same content.
    check(unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) }.into())
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how much of this program's mappings is resident, in KiB. The kernel counts it in the page table:
    /// `RssFile` of `/proc/PID/status` may lag.
    fn resident() -> u64 {
        let program = std::env::current_exe().unwrap().display().to_string();
        let (mut sum, mut of_program) = (0, false);
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            if line.contains('-') && !line.contains(": ") && line.split(' ').count() > 5 {
                of_program = line.ends_with(&program);
            } else if let Some(size) = line.strip_prefix("Rss:")
                && of_program
            {
                sum += size.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
        }
        sum
    }

    #[test]
    fn dropped_program_pages_free_memory_and_are_reread() {
        // Other tests of this process use its pages meanwhile.
        let freed = (0..100).any(|_| {
            let before = resident();
            forget_program().unwrap();
            resident() < before
        });
        assert!(freed, "{} KiB are resident", resident());
    }
}
