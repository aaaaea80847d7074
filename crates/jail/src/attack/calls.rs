//! System calls as an attacker makes them.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::thread::CapabilitySet;

/// `ok` or the name of the error of a call that gave `result`.
pub(super) fn outcome(result: libc::c_long) -> String {
    if result >= 0 { "ok".to_owned() } else { error_name(last_errno()) }
}

pub(super) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The name of an error, where it is one that tests look for.
pub(super) fn error_name(errno: i32) -> String {
    let names = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::ESRCH, "ESRCH"),
        (libc::ENXIO, "ENXIO"),
        (libc::EACCES, "EACCES"),
        (libc::EROFS, "EROFS"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ENETUNREACH, "ENETUNREACH"),
        (libc::E2BIG, "E2BIG"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::EISDIR, "EISDIR"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::EINVAL, "EINVAL"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBADF, "EBADF"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENOTTY, "ENOTTY"),
    ];
    let name = names.iter().find(|(number, _)| *number == errno);
    name.map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}

/// The name of the error of a call of the library.
pub(super) fn failed(error: &std::io::Error) -> String {
    error_name(error.raw_os_error().unwrap_or(0))
}

/// A system call with numbers as arguments. The numbers that tests give make each call fail of itself, were it
/// allowed: what they look at is with which error.
pub(super) fn raw(number: i64, a: [i64; 6]) -> String {
    // SAFETY: tests only name calls that touch no memory of ours when given these numbers (0, 1 or -1 for pointers).
    outcome(unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) })
}

pub(super) fn unshare(flags: i32) -> String {
    // SAFETY: changes namespaces of this process, which ends soon.
    outcome(unsafe { libc::unshare(flags) }.into())
}

/// `clone` as `fork`, with more flags.
pub(super) fn clone(flags: i64) -> String {
    // SAFETY: a fork; the child ends at once.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags | i64::from(libc::SIGCHLD), 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    }
    outcome(child)
}

pub(super) fn socket(family: i32, kind: i32, protocol: i32) -> String {
    // SAFETY: numbers only.
    outcome(unsafe { libc::socket(family, kind, protocol) }.into())
}

/// An ioctl on the terminal side of a new pseudo-terminal that is this process's controlling terminal.
pub(super) fn ioctl_on_terminal(request: u64) -> String {
    // SAFETY: descriptors of our own; the byte that is pointed at lives long enough.
    unsafe {
        // To become the leader of a session one must not lead a group.
        if libc::fork() != 0 {
            let mut status = 0;
            libc::wait(&raw mut status);
            return match libc::WEXITSTATUS(status) {
                0 => "ok".to_owned(),
                errno => error_name(errno),
            };
        }
        libc::setsid();
        let main = libc::open(c"/dev/ptmx".as_ptr(), libc::O_RDWR | libc::O_NOCTTY);
        let mut number = 0_i32;
        let unlocked = 0_i32;
        libc::ioctl(main, libc::TIOCSPTLCK, &raw const unlocked);
        libc::ioctl(main, libc::TIOCGPTN, &raw mut number);
        let path = CString::new(format!("/dev/pts/{number}")).unwrap_or_default();
        let terminal = libc::open(path.as_ptr(), libc::O_RDWR);
        if terminal < 0 {
            libc::_exit(255);
        }
        let typed = 7_u8;
        let done = libc::ioctl(terminal, request as libc::Ioctl, &raw const typed);
        libc::_exit(if done == 0 { 0 } else { last_errno() })
    }
}

/// A call by the 32-bit gate.
#[cfg(target_arch = "x86_64")]
pub(super) fn by_the_32_bit_gate() -> String {
    let mut result: i64 = 20;
    // SAFETY: 20 is getpid there; registers that the gate may change are named.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    format!("returned {}", result > 0)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn by_the_32_bit_gate() -> String {
    "no such gate".to_owned()
}

/// Reports a System V shared memory segment, if present.
pub(super) fn shared_memory(key: i32) -> String {
    // SAFETY: numbers only.
    outcome(unsafe { libc::shmget(key, 0, 0) }.into())
}

/// Reports System V semaphores, if present.
pub(super) fn semaphores(key: i32) -> String {
    // SAFETY: numbers only.
    outcome(unsafe { libc::semget(key, 0, 0) }.into())
}

/// Reports a System V message queue, if present.
pub(super) fn messages(key: i32) -> String {
    // SAFETY: numbers only.
    outcome(unsafe { libc::msgget(key, 0) }.into())
}

/// Reports a POSIX message queue, if present.
pub(super) fn named_messages(name: &str) -> String {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: a C string and numbers; the kernel's names have no slash in front.
    outcome(unsafe { libc::syscall(libc::SYS_mq_open, name.as_ptr(), libc::O_RDONLY, 0, 0) })
}

/// Takes a read lease on a file: a process that opens it for writing then waits for this process.
pub(super) fn lease(path: &str) -> String {
    match std::fs::File::open(path) {
        // SAFETY: a descriptor of our own, and numbers.
        Ok(file) => outcome(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }.into()),
        Err(error) => failed(&error),
    }
}

/// Asks to be signalled when something changes in a folder.
pub(super) fn folder_notes(path: &str) -> String {
    /// Of the kernel: tell when something is made there.
    const DN_CREATE: libc::c_int = 4;
    match std::fs::File::open(path) {
        Ok(file) => {
            // SAFETY: a descriptor of our own, and numbers.
            outcome(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOTIFY, DN_CREATE) }.into())
        }
        Err(error) => failed(&error),
    }
}

/// Raises the bound of core files: the kernel starts the handler of the host for any but 0 and 1.
pub(super) fn core_size() -> String {
    let limit = || {
        let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
        // SAFETY: the kernel fills the structure; zeroes are one too.
        unsafe {
            libc::getrlimit(libc::RLIMIT_CORE, limit.as_mut_ptr());
            limit.assume_init()
        }
    };
    let before = limit();
    let wanted = libc::rlimit { rlim_cur: 1 << 20, rlim_max: before.rlim_max.max(1 << 20) };
    // SAFETY: the structure outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const wanted) };
    let after = limit();
    let same = (after.rlim_cur, after.rlim_max) == (before.rlim_cur, before.rlim_max);
    if same && after.rlim_cur <= 1 { "unchanged".to_owned() } else { format!("{} bytes", after.rlim_cur) }
}

/// Writes into a page of a read-only file by way of a pipe whose buffers were left marked as its own (CVE-2022-0847).
/// The file is this process's.
pub(super) fn dirty_pipe() -> String {
    // SAFETY: descriptors and buffers of our own, which outlive each call.
    unsafe {
        let file = libc::syscall(libc::SYS_memfd_create, c"page".as_ptr(), 0) as i32;
        let mut ends = [0; 2];
        if file < 0 || libc::pipe(ends.as_mut_ptr()) != 0 {
            return error_name(last_errno());
        }
        libc::write(file, b"kept".as_ptr().cast(), 4);
        let page = [0_u8; 4096];
        let size = libc::fcntl(ends[1], libc::F_GETPIPE_SZ).max(4096);
        for _ in 0..size / 4096 {
            libc::write(ends[1], page.as_ptr().cast(), page.len());
        }
        for _ in 0..size / 4096 {
            let mut read = [0_u8; 4096];
            libc::read(ends[0], read.as_mut_ptr().cast(), read.len());
        }
        let mut offset: libc::loff_t = 0;
        let none = std::ptr::null_mut();
        if libc::splice(file, &raw mut offset, ends[1], none, 1, 0) < 0 {
            return format!("splice: {}", error_name(last_errno()));
        }
        libc::write(ends[1], b"eft".as_ptr().cast(), 3);
        let mut now = [0_u8; 4];
        libc::pread(file, now.as_mut_ptr().cast(), 4, 0);
        if &now == b"kept" { "unchanged".to_owned() } else { String::from_utf8_lossy(&now).into_owned() }
    }
}

pub(super) fn kill(pid: i32, signal: i32) -> String {
    // SAFETY: numbers only.
    outcome(unsafe { libc::kill(pid, signal) }.into())
}

/// Sends process 1 everything that ends a process.
pub(super) fn attack_init() -> String {
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGSTOP, libc::SIGINT, libc::SIGHUP] {
        kill(1, signal);
    }
    std::thread::sleep(Duration::from_millis(100));
    let state = std::fs::read_to_string("/proc/1/status").unwrap_or_default();
    let state =
        state.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("gone").trim().to_owned();
    if state.starts_with(['S', 'R']) { "alive".to_owned() } else { state }
}

pub(super) fn session() -> String {
    // SAFETY: numbers only.
    let session = unsafe { libc::getsid(0) };
    if session > 0 { "own".to_owned() } else { "the caller's".to_owned() }
}

pub(super) fn session_keyring() -> String {
    const GET_KEYRING_ID: i64 = 0;
    const SESSION: i64 = -3;
    // SAFETY: numbers only.
    let id = unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION, 0) };
    if id > 0 { id.to_string() } else { outcome(id) }
}

/// A new session keyring for this process; its number, or -1.
pub fn new_session_keyring() -> i64 {
    const JOIN_SESSION_KEYRING: i64 = 1;
    // SAFETY: a null name requests an anonymous keyring.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0_usize) }
}

/// Opens a file as descriptor 77, which programs that are started inherit.
pub fn open_inheritable(path: &str) {
    let path = CString::new(path).unwrap_or_default();
    // SAFETY: a C string; the descriptor stays open on purpose.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
        libc::dup2(fd, 77);
    }
}

pub(super) fn mknod(path: &str, mode: u32, major: u32, minor: u32) -> String {
    let path = CString::new(path).unwrap_or_default();
    // SAFETY: a C string and numbers.
    outcome(unsafe { libc::mknod(path.as_ptr(), mode, libc::makedev(major, minor)) }.into())
}

/// Sets the owner of a file, to the same one: where it is permitted, nothing changes.
pub(super) fn set_owner(path: &str) -> String {
    use rustix::fs::{Gid, Uid, chown, stat};
    let set = stat(path)
        .and_then(|found| chown(path, Some(Uid::from_raw(found.st_uid)), Some(Gid::from_raw(found.st_gid))));
    set.map_or_else(|errno| error_name(errno.raw_os_error()), |()| "ok".to_owned())
}

/// Sets the mode of a file, to the same one.
pub(super) fn set_mode(path: &str) -> String {
    use rustix::fs::{Mode, chmod, stat};
    let set = stat(path).and_then(|found| chmod(path, Mode::from_raw_mode(found.st_mode & 0o7777)));
    set.map_or_else(|errno| error_name(errno.raw_os_error()), |()| "ok".to_owned())
}

/// Takes `CAP_SYS_ADMIN` beside the capabilities that this process has.
pub(super) fn more_capabilities() -> String {
    let taken = rustix::thread::capabilities(None).and_then(|mut sets| {
        sets.permitted |= CapabilitySet::SYS_ADMIN;
        sets.effective |= CapabilitySet::SYS_ADMIN;
        rustix::thread::set_capabilities(None, sets)
    });
    taken.map_or_else(|errno| error_name(errno.raw_os_error()), |()| "ok".to_owned())
}

/// Makes `CAP_CHOWN` one that programs of every user inherit.
pub(super) fn ambient_capability() -> String {
    let raised = rustix::thread::capabilities(None).and_then(|mut sets| {
        sets.inheritable |= CapabilitySet::CHOWN;
        rustix::thread::set_capabilities(None, sets)?;
        rustix::thread::configure_capability_in_ambient_set(CapabilitySet::CHOWN, true)
    });
    raised.map_or_else(|errno| error_name(errno.raw_os_error()), |()| "ok".to_owned())
}

/// All ways to set a set-user-id or set-group-id bit, in a folder that can be written; what each gave.
pub(super) fn set_id_bits(folder: &str) -> String {
    let path = |name: &str| CString::new(format!("{folder}/{name}")).unwrap_or_default();
    let plain = path("plain");
    let mut found = Vec::new();
    // SAFETY: C strings, numbers, and descriptors of our own.
    unsafe {
        let fd = libc::open(plain.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o755);
        let at = libc::AT_FDCWD;
        for bits in [0o4755_u32, 0o2755] {
            let creating = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
            let calls = [
                ("chmod", libc::syscall(libc::SYS_chmod, plain.as_ptr(), bits)),
                ("fchmod", libc::syscall(libc::SYS_fchmod, fd, bits)),
                ("fchmodat", libc::syscall(libc::SYS_fchmodat, at, plain.as_ptr(), bits)),
                ("fchmodat2", libc::syscall(libc::SYS_fchmodat2, at, plain.as_ptr(), bits, 0)),
                ("creat", libc::syscall(libc::SYS_creat, path(&format!("a{bits}")).as_ptr(), bits)),
                ("open", libc::syscall(libc::SYS_open, path(&format!("b{bits}")).as_ptr(), creating, bits)),
                (
                    "openat",
                    libc::syscall(libc::SYS_openat, at, path(&format!("c{bits}")).as_ptr(), creating, bits),
                ),
                (
                    "mknod",
                    libc::syscall(
                        libc::SYS_mknod,
                        path(&format!("d{bits}")).as_ptr(),
                        bits | libc::S_IFREG,
                        0,
                    ),
                ),
            ];
            found.extend(calls.into_iter().filter(|(_, result)| *result != -1).map(|(name, _)| name));
            let bit = bits & 0o6000;
            let mut status = MaybeUninit::<libc::stat>::uninit();
            if libc::fstat(fd, status.as_mut_ptr()) == 0 && status.assume_init().st_mode & bit != 0 {
                found.push("the bit is there");
            }
        }
    }
    if found.is_empty() { "EPERM".to_owned() } else { format!("done by {}", found.join(", ")) }
}

/// Uses the CPU for so long; gives the CPU time it got, in milliseconds.
pub(super) fn burn(wall: Duration) -> String {
    let start = std::time::Instant::now();
    let mut sum = 0_u64;
    while start.elapsed() < wall {
        for number in 0..10_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(number));
        }
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the kernel fills the structure, or the clock does not exist and the zeroes count.
    let time = unsafe {
        time.as_mut_ptr().write_bytes(0, 1);
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, time.as_mut_ptr());
        time.assume_init()
    };
    (time.tv_sec * 1000 + time.tv_nsec / 1_000_000).to_string()
}

/// Forks sleeping children until the kernel refuses, at most `most`; gives how many it got.
pub(super) fn forks(most: usize) -> String {
    let mut children = Vec::new();
    while children.len() < most {
        // SAFETY: the child only sleeps and ends.
        match unsafe { libc::fork() } {
            -1 => break,
            0 => {
                // SAFETY: waits for the end.
                unsafe {
                    libc::pause();
                    libc::_exit(0)
                }
            }
            child => children.push(child),
        }
    }
    for child in &children {
        kill(*child, libc::SIGKILL);
    }
    children.len().to_string()
}

/// How many layers of Landlock can be laid over this process; the kernel allows 16 in all.
pub(super) fn landlock_layers() -> String {
    let handled_write: u64 = 1 << 1;
    // SAFETY: the attribute has the given length; the rest are integers.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        for layer in 0..32 {
            let ruleset = libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const handled_write,
                size_of::<u64>(),
                0,
            );
            if ruleset < 0 || libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) != 0 {
                return layer.to_string();
            }
            libc::close(ruleset as i32);
        }
    }
    "no bound".to_owned()
}
