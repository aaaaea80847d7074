//! Every protection that one attempt can show.

use std::path::Path;

use libc::c_long;

use super::known::Known;
use super::planted::Planted;

/// Where a protection is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// By every handler: what the outcome means does not hang on how the jail is made.
    Everywhere,
    /// By the native jail; another kernel (gVisor's) answers in its own way.
    Natively,
}

/// Where the same attempt must find something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Where nothing is given up: in a jail of `Profile::Runtime`, or, for root, with no jail at all.
    Unprotected,
    /// With no jail at all.
    Outside,
    /// With no jail at all, if this machine has the file.
    OutsideIfThere,
    /// In a process namespace alone.
    ProcessNamespace,
    /// Nowhere on this kernel, for this reason.
    NotHere(&'static str),
}

/// One attack.
#[derive(Debug, Clone)]
pub struct Attack {
    /// Target of the attack.
    pub name: &'static str,
    /// The attempt and its arguments: what [`super::attempt`] takes.
    pub attempt: String,
    /// Possible findings.
    pub finds: &'static [&'static str],
    /// By whom.
    pub kept: Kept,
    /// Where it must find something else.
    pub control: Control,
    /// Known attacks that it is a part of.
    pub known: Vec<Known>,
}

impl Attack {
    /// Returns `true` when this answer shows that the protection holds.
    pub fn held(&self, found: &str) -> bool {
        if self.finds == CGROUP_ROOTS {
            return !found.is_empty() && found.split(['\n', '|']).all(|line| line.trim().ends_with(":/"));
        }
        self.finds.contains(&found)
    }

    /// The words of the attempt where this folder is to be used for `/tmp`, in which some of them make files.
    pub fn attempt_in(&self, scratch: &Path) -> Vec<String> {
        let word = |word: &str| match word {
            "/tmp" => scratch.display().to_string(),
            SCRATCH_DEVICE => scratch.join("device").display().to_string(),
            other => other.to_owned(),
        };
        self.attempt.split_whitespace().map(word).collect()
    }
}

/// A device that is made for a moment.
const SCRATCH_DEVICE: &str = "/tmp/hutch-attack-device";

fn row(
    name: &'static str,
    attempt: impl Into<String>,
    finds: &'static [&'static str],
    kept: Kept,
    control: Control,
) -> Attack {
    let kept = if HELD_BY_GVISOR_TOO.contains(&name) { Kept::Everywhere } else { kept };
    Attack { name, attempt: attempt.into(), finds, kept, control, known: Known::of(name) }
}

/// Attacks to which gVisor's kernel gives the same answer, though it is another's.
const HELD_BY_GVISOR_TOO: &[&str] = &[
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "kcmp",
    "migrate_pages",
    "move_pages",
    "bpf",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "quotactl",
    "swapon",
    "swapoff",
    "reboot",
    "acct",
    "settimeofday",
    "clock_settime",
    "adjtimex",
    "clock_adjtime",
    "sethostname",
    "setdomainname",
    "unshare mount",
    "unshare uts",
    "clone uts",
    "unshare ipc",
    "clone ipc",
    "unshare pid",
    "clone pid",
    "unshare net",
    "clone net",
    "raw IP sockets",
    "raw IPv6 sockets",
    "vsock",
    "netlink of netfilter",
    "netlink of audit",
    "no capabilities",
    "no new privileges",
    "keys",
    "timers",
    "symbols of the kernel",
    "interrupts",
    "the core handler",
    "settings of the kernel",
    "the release agent of a cgroup",
    "interfaces",
    "cgroups of the host",
    "messages of the host",
    "named messages of the host",
    "locks of the host",
    "programs of other processes",
    "name_to_handle_at",
    "open_by_handle_at",
];

const PERM: &[&str] = &["EPERM"];
/// By gVisor, whose files have none.
const NO_HANDLES: &[&str] = &["EPERM", "EOPNOTSUPP"];
const NO_FAMILY: &[&str] = &["EAFNOSUPPORT"];

/// All attacks; some of them are on what was planted on the host.
pub fn all(planted: &Planted) -> Vec<Attack> {
    let mut all = system_calls();
    all.extend(arguments_of_calls());
    all.extend(sockets());
    all.extend(privileges());
    all.extend(files());
    all.extend(other_processes());
    all.extend(planted_on_the_host(planted));
    all
}

/// Calls that the filter refuses. The arguments make each of them fail in another way, were it not for the filter,
/// so that nothing happens without one.
const REFUSED_CALLS: [(&str, c_long, &str); 57] = [
    ("mount", libc::SYS_mount, "1 1 1 0 1"),
    ("umount2", libc::SYS_umount2, "1 -1"),
    ("pivot_root", libc::SYS_pivot_root, "1 1"),
    ("move_mount", libc::SYS_move_mount, "-1 1 -1 1 -1"),
    ("open_tree", libc::SYS_open_tree, "-1 1 -1"),
    ("fsopen", libc::SYS_fsopen, "1 255"),
    ("fsmount", libc::SYS_fsmount, "-1 255 -1"),
    ("fsconfig", libc::SYS_fsconfig, "-1 255 1 1 1"),
    ("fspick", libc::SYS_fspick, "-1 1 65535"),
    ("mount_setattr", libc::SYS_mount_setattr, "-1 1 -1 1 1"),
    ("setns", libc::SYS_setns, "-1 0"),
    ("chroot", libc::SYS_chroot, "1"),
    ("ptrace", libc::SYS_ptrace, "9999 1 1 1"),
    ("process_vm_readv", libc::SYS_process_vm_readv, "1 1 1 1 1 1"),
    ("process_vm_writev", libc::SYS_process_vm_writev, "1 1 1 1 1 1"),
    ("process_madvise", libc::SYS_process_madvise, "-1 1 1 1 1"),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, "-1 -1 1"),
    ("kcmp", libc::SYS_kcmp, "99999999 99999999 0 0 0"),
    ("migrate_pages", libc::SYS_migrate_pages, "99999999 1 1 1"),
    ("move_pages", libc::SYS_move_pages, "99999999 1 1 1 1 1"),
    ("mbind", libc::SYS_mbind, "1 1 99 1 1 1"),
    ("bpf", libc::SYS_bpf, "9999 1 1"),
    ("userfaultfd", libc::SYS_userfaultfd, "65534"),
    ("perf_event_open", libc::SYS_perf_event_open, "1 0 0 0 65535"),
    ("io_uring_setup", libc::SYS_io_uring_setup, "0 1"),
    ("io_uring_enter", libc::SYS_io_uring_enter, "-1 0 0 0 0 0"),
    ("io_uring_register", libc::SYS_io_uring_register, "-1 0 1 1"),
    ("keyctl", libc::SYS_keyctl, "9999"),
    ("add_key", libc::SYS_add_key, "1 1 1 1 0"),
    ("request_key", libc::SYS_request_key, "1 1 1 0"),
    ("kexec_load", libc::SYS_kexec_load, "0 99999 1 0"),
    ("kexec_file_load", libc::SYS_kexec_file_load, "-1 -1 0 1 65535"),
    ("init_module", libc::SYS_init_module, "1 0 1"),
    ("finit_module", libc::SYS_finit_module, "-1 1 65535"),
    ("delete_module", libc::SYS_delete_module, "1 0"),
    ("quotactl", libc::SYS_quotactl, "-1 1 0 1"),
    ("quotactl_fd", libc::SYS_quotactl_fd, "-1 -1 0 1"),
    ("swapon", libc::SYS_swapon, "1 0"),
    ("swapoff", libc::SYS_swapoff, "1"),
    ("reboot", libc::SYS_reboot, "0 0 0 0"),
    ("syslog", libc::SYS_syslog, "9999 1 1"),
    ("acct", libc::SYS_acct, "1"),
    ("settimeofday", libc::SYS_settimeofday, "1 1"),
    ("clock_settime", libc::SYS_clock_settime, "99 1"),
    ("adjtimex", libc::SYS_adjtimex, "1"),
    ("clock_adjtime", libc::SYS_clock_adjtime, "0 1"),
    ("sethostname", libc::SYS_sethostname, "1 -1"),
    ("setdomainname", libc::SYS_setdomainname, "1 -1"),
    ("name_to_handle_at", libc::SYS_name_to_handle_at, "-1 1 1 1 65535"),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, "-1 1 0"),
    ("fanotify_init", libc::SYS_fanotify_init, "-1 0"),
    ("fanotify_mark", libc::SYS_fanotify_mark, "-1 0 0 -1 1"),
    ("lookup_dcookie", libc::SYS_lookup_dcookie, "1 1 1"),
    ("nfsservctl", libc::SYS_nfsservctl, "1 1 1"),
    ("iopl", libc::SYS_iopl, "9"),
    ("ioperm", libc::SYS_ioperm, "70000 1 1"),
    ("memfd_secret", libc::SYS_memfd_secret, "65534"),
];

fn system_calls() -> Vec<Attack> {
    let mut rows: Vec<Attack> = REFUSED_CALLS
        .into_iter()
        .map(|(name, number, arguments)| {
            let finds = if name.ends_with("_handle_at") { NO_HANDLES } else { PERM };
            row(name, format!("syscall {number} {arguments}"), finds, Kept::Natively, Control::Unprotected)
        })
        .collect();
    for (name, number) in [("clone3", libc::SYS_clone3), ("openat2", libc::SYS_openat2)] {
        let attempt = format!("syscall {number} 1 1");
        rows.push(row(name, attempt, &["ENOSYS"], Kept::Natively, Control::Unprotected));
    }
    rows
}

/// Calls that are refused with some arguments only.
fn arguments_of_calls() -> Vec<Attack> {
    let natively =
        |name, attempt: String, finds| row(name, attempt, finds, Kept::Natively, Control::Unprotected);
    let mut rows = Vec::new();
    for (unshare, clone, flag) in [
        ("unshare mount", "clone mount", libc::CLONE_NEWNS),
        ("unshare cgroup", "clone cgroup", libc::CLONE_NEWCGROUP),
        ("unshare uts", "clone uts", libc::CLONE_NEWUTS),
        ("unshare ipc", "clone ipc", libc::CLONE_NEWIPC),
        ("unshare user", "clone user", libc::CLONE_NEWUSER),
        ("unshare pid", "clone pid", libc::CLONE_NEWPID),
        ("unshare net", "clone net", libc::CLONE_NEWNET),
    ] {
        rows.push(natively(unshare, format!("unshare {flag}"), PERM));
        rows.push(natively(clone, format!("clone {}", i64::from(flag) & 0xffff_ffff), PERM));
    }
    let number = |call: c_long, arguments: &str| format!("syscall {call} {arguments}");
    rows.extend([
        natively("unshare time", format!("unshare {}", libc::CLONE_NEWTIME), PERM),
        natively("typing into a terminal", format!("terminal {}", libc::TIOCSTI), PERM),
        natively("subvolumes of btrfs", number(libc::SYS_ioctl, &format!("0 {} 0", 0x5000_940e)), PERM),
        natively("console selection", format!("terminal {}", 0x541c), PERM),
        natively("layout of memory", number(libc::SYS_prctl, &format!("{} 99 1 1 1", libc::PR_SET_MM)), PERM),
        natively("32-bit personality", number(libc::SYS_personality, "8"), PERM),
        natively("the 32-bit gate", "gate".to_owned(), &["Signaled(31)"]),
        natively("the x32 calls", number(0x4000_0000 + libc::SYS_getpid, ""), &["Signaled(31)"]),
        natively("set-id bits", "set-id /tmp".to_owned(), PERM),
    ]);
    rows
}

fn sockets() -> Vec<Attack> {
    let row = |name, (family, kind, protocol): (i32, i32, i32), finds| {
        row(name, format!("socket {family} {kind} {protocol}"), finds, Kept::Natively, Control::Unprotected)
    };
    vec![
        row("raw IP sockets", (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP), PERM),
        row("raw IPv6 sockets", (libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6), PERM),
        row("packet sockets", (libc::AF_PACKET, libc::SOCK_RAW, 0), NO_FAMILY),
        row("vsock", (libc::AF_VSOCK, libc::SOCK_STREAM, 0), NO_FAMILY),
        row(
            "netlink of netfilter",
            (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER),
            &["EPROTONOSUPPORT"],
        ),
        row(
            "netlink of audit",
            (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
            &["EPROTONOSUPPORT"],
        ),
        row(
            "uevents",
            (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT),
            &["EPROTONOSUPPORT"],
        ),
    ]
}

/// Finding of the attack `no capabilities` by user 0 of a jail that gives it all of [`crate::Capabilities::ALL`].
pub const ALL_CAPABILITIES: &[&str] = &[
    "CapInh: 0000000000000000, CapPrm: 00000000000004fb, CapEff: 00000000000004fb, CapBnd: 00000000000004fb, \
     CapAmb: 0000000000000000",
];

fn privileges() -> Vec<Attack> {
    let row = |name, attempt: &str, finds, kept| row(name, attempt, finds, kept, Control::Unprotected);
    let prctl = |arguments: &str| format!("syscall {} {arguments}", libc::SYS_prctl);
    const NONE: &[&str] = &[
        "CapInh: 0000000000000000, CapPrm: 0000000000000000, CapEff: 0000000000000000, CapBnd: 0000000000000000, \
         CapAmb: 0000000000000000",
    ];
    vec![
        row("no capabilities", "status Cap", NONE, Kept::Natively),
        row("no new privileges", "status NoNewPrivs", &["NoNewPrivs: 1"], Kept::Natively),
        row("a filter", "status Seccomp:", &["Seccomp: 2"], Kept::Natively),
        row("more capabilities", "more-capabilities", PERM, Kept::Natively),
        row("ambient capabilities", "ambient-capability", PERM, Kept::Natively),
        row("the bounding set", &prctl(&format!("{} 0", libc::PR_CAPBSET_DROP)), PERM, Kept::Natively),
        row("secure bits", &prctl(&format!("{} 0", libc::PR_SET_SECUREBITS)), PERM, Kept::Natively),
        row("ids of the machine", &ids_of_the_machine(), &["EINVAL"], Kept::Natively),
        row("block devices cannot be made", "mknod /tmp/hutch-attack-device", PERM, Kept::Everywhere),
    ]
}

/// Becomes a user that has no id inside.
fn ids_of_the_machine() -> String {
    let id = 70_000;
    format!("syscall {} {id} {id} {id}", libc::SYS_setresuid)
}

fn files() -> Vec<Attack> {
    let everywhere = |name, attempt, finds| row(name, attempt, finds, Kept::Everywhere, Control::Outside);
    let natively = |name, attempt, finds| row(name, attempt, finds, Kept::Natively, Control::Outside);
    let perhaps = |name, attempt, finds| row(name, attempt, finds, Kept::Natively, Control::OutsideIfThere);
    const SHUT: &[&str] = &["EROFS", "EACCES", "EPERM", "ENOENT"];
    const HIDDEN: &[&str] = &["EACCES", "EPERM", "ENOENT", "empty"];
    vec![
        everywhere("passwords of the host", "read /etc/shadow", &["ENOENT"]),
        everywhere("users of the host", "list /root", &["ENOENT", "empty"]),
        everywhere("logs of the host", "list /var/log", &["ENOENT", "empty"]),
        everywhere("programs of the host", "make /usr/bin", &["EROFS", "EACCES", "EPERM"]),
        everywhere("the root folder", "make /", &["EROFS", "EACCES", "EPERM"]),
        natively(
            "devices",
            "list /dev",
            &[
                "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero",
                // The file of a container's last message, as in Kubernetes.
                "fd full null ptmx pts random shm stderr stdin stdout termination-log tty urandom zero",
            ],
        ),
        // For an ordinary user, the owner that it shows has no id inside.
        natively("the owner of a device", "chown /dev/null", &["EPERM", "EINVAL"]),
        natively("the mode of a device", "chmod /dev/null", PERM),
        natively("the owner of a program of the host", "chown /usr/bin/env", SHUT),
        natively("the tree of devices", "list /sys", &["empty", "ENOENT"]),
        perhaps("memory of the kernel", "read /proc/kcore", HIDDEN),
        perhaps("keys", "read /proc/keys", HIDDEN),
        perhaps("timers", "read /proc/timer_list", HIDDEN),
        perhaps("symbols of the kernel", "read /proc/kallsyms", HIDDEN),
        natively("interrupts", "read /proc/interrupts", HIDDEN),
        natively("the core handler", "open-write /proc/sys/kernel/core_pattern", SHUT),
        perhaps("the magic key", "open-write /proc/sysrq-trigger", SHUT),
        natively("settings of the kernel", "open-write /proc/sys/vm/drop_caches", SHUT),
        perhaps("the uevent helper", "open-write /sys/kernel/uevent_helper", SHUT),
        perhaps("the release agent of a cgroup", "open-write /sys/fs/cgroup/pids/release_agent", SHUT),
        perhaps("handlers of binaries", "open-write /proc/sys/fs/binfmt_misc/register", SHUT),
    ]
}

fn other_processes() -> Vec<Attack> {
    let outside = |name, attempt, finds| row(name, attempt, finds, Kept::Natively, Control::Outside);
    let unprotected = |name, attempt, finds| row(name, attempt, finds, Kept::Natively, Control::Unprotected);
    vec![
        row("a session of its own", "session", &["own"], Kept::Natively, Control::ProcessNamespace),
        outside("interfaces", "interfaces", &["lo"]),
        outside("cgroups of the host", "read /proc/self/cgroup", CGROUP_ROOTS),
        unprotected("memory of init", "open-write /proc/1/mem", &["EACCES", "EPERM"]),
        unprotected("environment of init", "read /proc/1/environ", &["EACCES", "EPERM"]),
        unprotected("descriptors of init", "list /proc/1/fd", &["EACCES", "EPERM"]),
        unprotected("the root of init", "list /proc/1/root/", &["EACCES", "EPERM"]),
    ]
}

/// Compared line by line: see [`Attack::held`].
const CGROUP_ROOTS: &[&str] = &["every path is /"];

/// Attacks on files, sockets, processes and memory that the test placed on the host.
fn planted_on_the_host(planted: &Planted) -> Vec<Attack> {
    const GONE: &[&str] = &["ENOENT"];
    let natively = |name, attempt: &str, finds| {
        row(name, planted.fill(attempt), finds, Kept::Natively, Control::Outside)
    };
    let everywhere = |name, attempt: &str, finds| {
        row(name, planted.fill(attempt), finds, Kept::Everywhere, Control::Outside)
    };
    vec![
        everywhere("a file of the host", "read {file}", GONE),
        everywhere("a file of the host above the root", "read /..{file}", GONE),
        everywhere("a file of the host two above the root", "read /../..{file}", GONE),
        everywhere("a socket of the host", "unix {socket}", GONE),
        everywhere("an abstract socket of the host", "abstract {abstract}", &["ECONNREFUSED"]),
        everywhere("a port of the host", "connect 127.0.0.1:{port}", &["ECONNREFUSED"]),
        everywhere("a process of the host", "process-named {name}", &["none"]),
        everywhere("shared memory of the host", "shared-memory {key}", GONE),
        everywhere("semaphores of the host", "semaphores {key}", GONE),
        natively("messages of the host", "messages {key}", GONE),
        everywhere("named memory of the host", "read /dev/shm/{name}", GONE),
        natively("named messages of the host", "named-messages {name}", GONE),
        natively("locks of the host", "lock {locked}", &["ok", "ENOENT"]),
        row(
            "leases",
            planted.fill("lease {locked}"),
            &["EPERM", "ENOENT"],
            Kept::Natively,
            Control::Unprotected,
        ),
        row("watches of folders", "folder-notes /", &["EPERM"], Kept::Natively, Control::Unprotected),
        row("the size of core files", "core-size", &["unchanged"], Kept::Natively, Control::Unprotected),
        everywhere("folders held by descriptors", "held-folders", &["none"]),
        natively("programs of other processes", "programs-of-others", &["none"]),
        row(
            "pages of read-only files",
            "dirty-pipe",
            &["unchanged"],
            Kept::Everywhere,
            Control::NotHere(
                "this kernel starts each buffer of a pipe clean (5.16.11, 5.15.25, 5.10.102 and later)",
            ),
        ),
    ]
}
