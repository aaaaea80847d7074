//! Which system call gets which answer.

/// The numbers that have an entry of their own; higher ones are unknown.
pub(super) const TABLE: usize = 512;

/// Flags of `clone` and `unshare` that make a namespace.
pub(super) const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
/// Set-user-id and set-group-id in a mode.
pub(super) const SET_ID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;
/// Console selection, pasting included: as good as typing.
pub(super) const TIOCLINUX: u32 = 0x541c;

/// Action of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Answer {
    /// `ENOSYS`.
    Unknown,
    /// Done.
    Allow,
    /// `EPERM`.
    Refuse,
    /// No new namespace.
    Clone,
    /// Threads alone, no processes.
    Thread,
    /// No new namespace, that of time included.
    Unshare,
    /// Nothing that types into a terminal, and no subvolumes of btrfs, which would have no limit.
    Ioctl,
    /// No leases on files, and no signals for changes of folders.
    Fcntl,
    /// Setting the core size has no effect.
    SetLimit,
    /// The same, of any process.
    SetLimitOf,
    /// Not the layout of the address space.
    Prctl,
    /// Only those that weaken nothing.
    Personality,
    /// Only local sockets, plain IP, and routing netlink.
    Socket,
    /// Only plain IP and routing netlink.
    NetworkSocket,
    /// Only local sockets.
    SocketPair,
    /// No set-id bits in the second argument.
    ModeSecond,
    /// No set-id bits in the third argument.
    ModeThird,
    /// No set-id bits in the third argument, where the second creates a file.
    Open,
    /// No set-id bits in the fourth argument, where the third creates a file.
    OpenAt,
    /// `EAFNOSUPPORT`.
    NoFamily,
    /// `EPROTONOSUPPORT`.
    NoProtocol,
    /// Success, and nothing is done.
    NoEffect,
    /// The end of the process.
    Kill,
}

impl Answer {
    /// All of them, those last to which others lead.
    pub(super) const ALL: [Answer; 23] = [
        Answer::Clone,
        Answer::Thread,
        Answer::Unshare,
        Answer::Ioctl,
        Answer::Fcntl,
        Answer::SetLimit,
        Answer::SetLimitOf,
        Answer::Prctl,
        Answer::Personality,
        Answer::Socket,
        Answer::NetworkSocket,
        Answer::SocketPair,
        Answer::ModeSecond,
        Answer::ModeThird,
        Answer::Open,
        Answer::OpenAt,
        Answer::Allow,
        Answer::Refuse,
        Answer::Unknown,
        Answer::NoFamily,
        Answer::NoProtocol,
        Answer::NoEffect,
        Answer::Kill,
    ];
}

/// The table. Pure data: which of its entries the caller wants is the only choice.
pub(super) const fn answers(deny_set_id_bits: bool) -> [Answer; TABLE] {
    let mut table = [Answer::Unknown; TABLE];
    fill(&mut table, ALLOWED, Answer::Allow);
    fill(&mut table, ALLOWED_BY_NUMBER, Answer::Allow);
    fill(&mut table, ALLOWED_HERE, Answer::Allow);
    fill(&mut table, REFUSED, Answer::Refuse);
    fill(&mut table, REFUSED_HERE, Answer::Refuse);
    table[libc::SYS_clone as usize] = Answer::Clone;
    table[libc::SYS_unshare as usize] = Answer::Unshare;
    table[libc::SYS_ioctl as usize] = Answer::Ioctl;
    table[libc::SYS_fcntl as usize] = Answer::Fcntl;
    table[libc::SYS_setrlimit as usize] = Answer::SetLimit;
    table[libc::SYS_prlimit64 as usize] = Answer::SetLimitOf;
    table[libc::SYS_prctl as usize] = Answer::Prctl;
    table[libc::SYS_personality as usize] = Answer::Personality;
    table[libc::SYS_socket as usize] = Answer::Socket;
    table[libc::SYS_socketpair as usize] = Answer::SocketPair;
    if deny_set_id_bits {
        deny_set_id(&mut table);
    }
    table
}

/// The table around a runtime that confines its processes by itself, but sets the bits that they ask for on files of
/// the host: every call, less the ways to set one.
pub(super) const fn around_runtime() -> [Answer; TABLE] {
    let mut table = [Answer::Allow; TABLE];
    deny_set_id(&mut table);
    // A file can be opened by way of it too.
    table[libc::SYS_io_uring_setup as usize] = Answer::Unknown;
    table
}

/// The table of a service: no new process, no new program, and no socket but those that it was given, unless it connects to
/// other hosts. One without folders changes nothing about files.
pub(super) const fn service(connects: bool, writes: bool) -> [Answer; TABLE] {
    let mut table = answers(false);
    table[libc::SYS_clone as usize] = Answer::Thread;
    refuse(&mut table, NOT_IN_A_SERVICE);
    // Landlock does not keep it from the sockets of the machine's other services.
    table[libc::SYS_socket as usize] = Answer::NetworkSocket;
    if !connects {
        refuse(&mut table, NOT_WITHOUT_CONNECTIONS);
    }
    if !writes {
        refuse(&mut table, NOT_WITHOUT_FOLDERS);
        refuse(&mut table, NOT_WITHOUT_FOLDERS_HERE);
    }
    deny_older_forks(&mut table);
    table
}

const fn refuse(table: &mut [Answer; TABLE], numbers: &[libc::c_long]) {
    let mut at = 0;
    while at < numbers.len() {
        table[numbers[at] as usize] = Answer::Refuse;
        at += 1;
    }
}

/// Calls that a service neither needs nor may make. A C library that gets `ENOSYS` for `clone3` uses `clone`.
#[rustfmt::skip]
const NOT_IN_A_SERVICE: &[libc::c_long] = &[
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_listen, libc::SYS_unshare, libc::SYS_personality,
    // A service has the IPC namespace of the machine.
    libc::SYS_mq_getsetattr, libc::SYS_mq_notify, libc::SYS_mq_open, libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend, libc::SYS_mq_unlink, libc::SYS_msgctl, libc::SYS_msgget, libc::SYS_msgrcv,
    libc::SYS_msgsnd, libc::SYS_semctl, libc::SYS_semget, libc::SYS_semop, libc::SYS_semtimedop,
    libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt, libc::SYS_shmget,
];

/// Calls that change a file without opening it, which Landlock does not bound: that of the caller of `hutch run`, for example.
#[rustfmt::skip]
const NOT_WITHOUT_FOLDERS: &[libc::c_long] = &[
    libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_fchown, libc::SYS_fchownat,
    libc::SYS_fremovexattr, libc::SYS_fsetxattr, libc::SYS_lremovexattr, libc::SYS_lsetxattr,
    libc::SYS_removexattr, libc::SYS_setxattr, libc::SYS_utimensat,
    463, // setxattrat
    466, // removexattrat
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const NOT_WITHOUT_FOLDERS_HERE: &[libc::c_long] = &[
    libc::SYS_chmod, libc::SYS_chown, libc::SYS_futimesat, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const NOT_WITHOUT_FOLDERS_HERE: &[libc::c_long] = &[];

/// Calls of a service that connects to other hosts. The filter of a jail bounds what sockets it may open.
const NOT_WITHOUT_CONNECTIONS: &[libc::c_long] = &[libc::SYS_socket, libc::SYS_bind, libc::SYS_connect];

#[cfg(target_arch = "x86_64")]
const fn deny_older_forks(table: &mut [Answer; TABLE]) {
    table[libc::SYS_fork as usize] = Answer::Refuse;
    table[libc::SYS_vfork as usize] = Answer::Refuse;
}
#[cfg(not(target_arch = "x86_64"))]
const fn deny_older_forks(_: &mut [Answer; TABLE]) {}

const fn deny_set_id(table: &mut [Answer; TABLE]) {
    table[libc::SYS_fchmod as usize] = Answer::ModeSecond;
    table[libc::SYS_fchmodat as usize] = Answer::ModeThird;
    table[libc::SYS_fchmodat2 as usize] = Answer::ModeThird;
    table[libc::SYS_mknodat as usize] = Answer::ModeThird;
    table[libc::SYS_openat as usize] = Answer::OpenAt;
    // Its mode lies behind a pointer; C libraries do not use it.
    table[libc::SYS_openat2 as usize] = Answer::Unknown;
    deny_older_calls(table);
}

#[cfg(target_arch = "x86_64")]
const fn deny_older_calls(table: &mut [Answer; TABLE]) {
    table[libc::SYS_chmod as usize] = Answer::ModeSecond;
    table[libc::SYS_creat as usize] = Answer::ModeSecond;
    table[libc::SYS_mknod as usize] = Answer::ModeSecond;
    table[libc::SYS_open as usize] = Answer::Open;
}

#[cfg(target_arch = "aarch64")]
const fn deny_older_calls(_: &mut [Answer; TABLE]) {}

const fn fill(table: &mut [Answer; TABLE], numbers: &[libc::c_long], answer: Answer) {
    let mut at = 0;
    while at < numbers.len() {
        // A number on two lists is a contradiction, and an error of compilation.
        assert!(matches!(table[numbers[at] as usize], Answer::Unknown), "a system call is listed twice");
        table[numbers[at] as usize] = answer;
        at += 1;
    }
}

/// Allowed on every architecture.
#[rustfmt::skip]
const ALLOWED: &[libc::c_long] = &[
    // Files.
    libc::SYS_chdir, libc::SYS_close, libc::SYS_close_range, libc::SYS_copy_file_range, libc::SYS_dup,
    libc::SYS_dup3, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_fadvise64, libc::SYS_fallocate,
    libc::SYS_fchdir, libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_fchown,
    libc::SYS_fchownat, libc::SYS_fdatasync, libc::SYS_fgetxattr, libc::SYS_flistxattr,
    libc::SYS_flock, libc::SYS_fremovexattr, libc::SYS_fsetxattr, libc::SYS_fstat, libc::SYS_fstatfs,
    libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_getcwd, libc::SYS_getdents64, libc::SYS_getxattr,
    libc::SYS_inotify_add_watch, libc::SYS_inotify_init1, libc::SYS_inotify_rm_watch, libc::SYS_lgetxattr,
    libc::SYS_linkat, libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_lremovexattr, libc::SYS_lseek,
    libc::SYS_lsetxattr, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_newfstatat, libc::SYS_openat,
    libc::SYS_openat2, libc::SYS_pipe2, libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2,
    libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2, libc::SYS_read, libc::SYS_readahead,
    libc::SYS_readlinkat, libc::SYS_readv, libc::SYS_removexattr, libc::SYS_renameat, libc::SYS_renameat2,
    libc::SYS_sendfile, libc::SYS_setxattr, libc::SYS_splice, libc::SYS_statfs, libc::SYS_statx,
    libc::SYS_symlinkat, libc::SYS_sync, libc::SYS_sync_file_range, libc::SYS_syncfs, libc::SYS_tee,
    libc::SYS_truncate, libc::SYS_umask, libc::SYS_unlinkat, libc::SYS_utimensat, libc::SYS_vmsplice,
    libc::SYS_write, libc::SYS_writev,
    // Memory. Without mincore, and below without cachestat: they show which files others use.
    libc::SYS_brk, libc::SYS_madvise, libc::SYS_membarrier, libc::SYS_memfd_create, 
    libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_mlockall, libc::SYS_mmap, libc::SYS_mprotect,
    libc::SYS_mremap, libc::SYS_mseal, libc::SYS_msync, libc::SYS_munlock, libc::SYS_munlockall,
    libc::SYS_munmap, libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect,
    // Processes and their ids.
    libc::SYS_capget, libc::SYS_capset, libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_getcpu, libc::SYS_getegid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getgroups, libc::SYS_getpgid, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getpriority,
    libc::SYS_getresgid, libc::SYS_getresuid, libc::SYS_getrusage, libc::SYS_getsid, libc::SYS_gettid,
    libc::SYS_getuid, libc::SYS_ioprio_get, libc::SYS_ioprio_set, libc::SYS_pidfd_open,
    libc::SYS_process_mrelease, libc::SYS_rseq, libc::SYS_set_tid_address,
    libc::SYS_setfsgid, libc::SYS_setfsuid, libc::SYS_setgid, libc::SYS_setgroups, libc::SYS_setpgid,
    libc::SYS_setpriority, libc::SYS_setregid, libc::SYS_setresgid, libc::SYS_setresuid,
    libc::SYS_setreuid, libc::SYS_setsid, libc::SYS_setuid, libc::SYS_sysinfo, libc::SYS_times,
    libc::SYS_uname, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_getrlimit,
    // Scheduling.
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval, libc::SYS_sched_setaffinity, libc::SYS_sched_setattr,
    libc::SYS_sched_setparam, libc::SYS_sched_setscheduler, libc::SYS_sched_yield,
    // Signals.
    libc::SYS_kill, libc::SYS_pidfd_send_signal, libc::SYS_restart_syscall, libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend, libc::SYS_rt_sigtimedwait, libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sigaltstack, libc::SYS_signalfd4, libc::SYS_tgkill, libc::SYS_tkill,
    // Time.
    libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_getitimer,
    libc::SYS_gettimeofday, libc::SYS_nanosleep, libc::SYS_setitimer, libc::SYS_timer_create,
    libc::SYS_timer_delete, libc::SYS_timer_getoverrun, libc::SYS_timer_gettime,
    libc::SYS_timer_settime, libc::SYS_timerfd_create, libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Waiting and threads.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2, libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_get_robust_list,
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_set_robust_list,
    // Sockets, once made.
    libc::SYS_accept, libc::SYS_accept4, libc::SYS_bind, libc::SYS_connect, libc::SYS_getpeername,
    libc::SYS_getsockname, libc::SYS_getsockopt, libc::SYS_listen, libc::SYS_recvfrom,
    libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_sendmsg, libc::SYS_sendto,
    libc::SYS_setsockopt, libc::SYS_shutdown,
    // System V and POSIX messages, semaphores and shared memory: of the jail's own namespace.
    libc::SYS_mq_getsetattr, libc::SYS_mq_notify, libc::SYS_mq_open, libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend, libc::SYS_mq_unlink, libc::SYS_msgctl, libc::SYS_msgget, libc::SYS_msgrcv,
    libc::SYS_msgsnd, libc::SYS_semctl, libc::SYS_semget, libc::SYS_semop, libc::SYS_semtimedop,
    libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt, libc::SYS_shmget,
    // Randomness; and what a program confines itself with.
    libc::SYS_getrandom, libc::SYS_landlock_add_rule, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self, libc::SYS_seccomp,
];

/// Allowed calls that are newer than the list of the C bindings; their numbers are the same everywhere.
const ALLOWED_BY_NUMBER: &[libc::c_long] = &[
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
];

/// The older twins that only x86_64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access, libc::SYS_alarm, libc::SYS_arch_prctl, libc::SYS_chmod, libc::SYS_chown,
    libc::SYS_creat, libc::SYS_dup2, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_eventfd,
    libc::SYS_fork, libc::SYS_futimesat, libc::SYS_getdents, libc::SYS_getpgrp, libc::SYS_inotify_init,
    libc::SYS_lchown, libc::SYS_link, libc::SYS_lstat, libc::SYS_mkdir, libc::SYS_mknod, libc::SYS_open,
    libc::SYS_pause, libc::SYS_pipe, libc::SYS_poll, libc::SYS_readlink, libc::SYS_rename,
    libc::SYS_rmdir, libc::SYS_select, libc::SYS_signalfd, libc::SYS_stat, libc::SYS_symlink,
    libc::SYS_time, libc::SYS_unlink, libc::SYS_utime, libc::SYS_utimes, libc::SYS_vfork,
    // Returns of probes that an administrator of the host may have placed on a program: not a call that a
    // program can make, but refusing it would kill the program that is watched.
    335, 336,
];

#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Known, and refused with `EPERM`. `clone3` is not here: its flags lie behind a pointer, and with `ENOSYS` a C
/// library takes `clone`, whose flags can be seen.
#[rustfmt::skip]
const REFUSED: &[libc::c_long] = &[
    // Mounts, roots and namespaces.
    libc::SYS_chroot, libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fsopen, libc::SYS_fspick,
    libc::SYS_mount, libc::SYS_mount_setattr, libc::SYS_move_mount, libc::SYS_open_tree,
    libc::SYS_pivot_root, libc::SYS_setns, libc::SYS_umount2,
    467, // open_tree_attr
    // Other processes. `ptrace` too, although it adds little to what processes of one user may do to each other:
    // what runs beside the agent's commands for the sandbox (its runtime) must not be taken over by them, and
    // much of the kernel's history of privilege errors is there. The price is gdb, strace and leak checkers.
    libc::SYS_kcmp, libc::SYS_migrate_pages, libc::SYS_move_pages, libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Keys, and machinery of the kernel that programs can do without.
    libc::SYS_add_key, libc::SYS_bpf, libc::SYS_fanotify_init, libc::SYS_fanotify_mark,
    libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_io_uring_setup, libc::SYS_keyctl,
    libc::SYS_lookup_dcookie, libc::SYS_memfd_secret, libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at, libc::SYS_perf_event_open, libc::SYS_request_key,
    libc::SYS_userfaultfd,
    // Placement of memory, as far as it is not a hint.
    libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_set_mempolicy_home_node,
    libc::SYS_get_mempolicy,
    // The machine.
    libc::SYS_acct, libc::SYS_adjtimex, libc::SYS_clock_adjtime, libc::SYS_clock_settime,
    libc::SYS_delete_module, libc::SYS_finit_module, libc::SYS_init_module, libc::SYS_kexec_file_load,
    libc::SYS_kexec_load, libc::SYS_nfsservctl, libc::SYS_quotactl, libc::SYS_quotactl_fd,
    libc::SYS_reboot, libc::SYS_setdomainname, libc::SYS_sethostname, libc::SYS_settimeofday,
    libc::SYS_swapoff, libc::SYS_swapon, libc::SYS_syslog, libc::SYS_vhangup,
];

/// Refused calls that only x86_64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const REFUSED_HERE: &[libc::c_long] = &[
    libc::SYS_ioperm, libc::SYS_iopl,
    libc::SYS_modify_ldt, libc::SYS_uselib, libc::SYS_ustat, libc::SYS_sysfs, libc::SYS__sysctl,
    // Long gone, or never there. Each of them would make the filter longer if it were answered otherwise than
    // its neighbors.
    174, 177, 178, 181, 182, 183, 184, 185, 236,
    // Thread areas of 32-bit programs, and the older asynchronous I/O, without which programs do.
    205, 206, 207, 208, 209, 210, 211,
];

#[cfg(target_arch = "aarch64")]
const REFUSED_HERE: &[libc::c_long] = &[];
