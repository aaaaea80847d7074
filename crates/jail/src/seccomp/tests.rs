use super::table::{self, Answer};
use super::*;
use std::io;

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const EAFNOSUPPORT: u32 = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
const EPROTONOSUPPORT: u32 = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
/// Success without doing anything.
const NO_EFFECT: u32 = libc::SECCOMP_RET_ERRNO;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// Runs a program as the kernel would; the second number is the steps it took.
fn run(program: &Program, architecture: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
    let code = program.instructions();
    let (mut at, mut a, mut steps) = (0, 0u32, 0);
    loop {
        let i = code[at];
        steps += 1;
        at += 1;
        match i.code {
            0x20 => {
                a = match i.k {
                    0 => number,
                    4 => architecture,
                    k => (arguments[(k as usize - 16) / 8] >> (k * 8 % 64)) as u32,
                }
            }
            0x54 => a &= i.k,
            0x05 => at += i.k as usize,
            0x15 => at += if a == i.k { i.jt } else { i.jf } as usize,
            0x35 => at += if a >= i.k { i.jt } else { i.jf } as usize,
            0x45 => at += if a & i.k != 0 { i.jt } else { i.jf } as usize,
            0x06 => return (i.k, steps),
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn answer(program: &Program, number: libc::c_long, arguments: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    run(program, NATIVE, number as u32, all).0
}

#[test]
fn a_runtime_may_do_all_but_set_set_id_bits() {
    let program = &AROUND_RUNTIME;
    assert_eq!(answer(program, libc::SYS_mount, &[]), ALLOW);
    assert_eq!(answer(program, libc::SYS_fchmodat, &[0, 0, 0o755]), ALLOW);
    assert_eq!(answer(program, libc::SYS_fchmodat, &[0, 0, 0o4755]), EPERM);
    assert_eq!(answer(program, libc::SYS_fchmod, &[0, 0o2755]), EPERM);
    let creating = libc::O_CREAT as u64;
    assert_eq!(answer(program, libc::SYS_openat, &[0, 0, creating, 0o4755]), EPERM);
    assert_eq!(answer(program, libc::SYS_openat, &[0, 0, 0, 0o4755]), ALLOW);
    for other_way in [libc::SYS_openat2, libc::SYS_io_uring_setup] {
        assert_eq!(answer(program, other_way, &[]), ENOSYS);
    }
}

#[test]
fn service_starts_threads_but_no_process_and_opens_no_socket() {
    let program = &SERVICE;
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
    assert_eq!(answer(program, libc::SYS_clone, &[thread]), ALLOW);
    assert_eq!(answer(program, libc::SYS_clone, &[libc::SIGCHLD as u64]), EPERM);
    assert_eq!(answer(program, libc::SYS_clone3, &[]), ENOSYS);
    for refused in [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_ptrace,
        libc::SYS_bpf,
        libc::SYS_shmget,
        libc::SYS_shmat,
        libc::SYS_msgget,
        libc::SYS_semget,
        libc::SYS_mq_open,
    ] {
        assert_ne!(answer(program, refused, &[]), ALLOW, "{refused}");
    }
    for needed in
        [libc::SYS_accept4, libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_fdatasync, libc::SYS_madvise]
    {
        assert_eq!(answer(program, needed, &[]), ALLOW, "{needed}");
    }
}

#[test]
fn service_that_connects_opens_plain_sockets_and_listens_on_none() {
    let program = &CONNECTING_SERVICE;
    let socket = |family: i32, kind: i32| answer(program, libc::SYS_socket, &[family as u64, kind as u64]);
    for family in [libc::AF_INET, libc::AF_INET6] {
        assert_eq!((socket(family, libc::SOCK_STREAM), socket(family, libc::SOCK_DGRAM)), (ALLOW, ALLOW));
        assert_ne!(socket(family, libc::SOCK_RAW), ALLOW);
    }
    assert_ne!(socket(libc::AF_PACKET, libc::SOCK_DGRAM), ALLOW);
    // Found by review: with one it could reach the buses and agents of its user.
    assert_eq!(socket(libc::AF_UNIX, libc::SOCK_STREAM), EAFNOSUPPORT);
    assert_eq!(answer(program, libc::SYS_connect, &[]), ALLOW);
    for refused in [libc::SYS_listen, libc::SYS_execve, libc::SYS_unshare, libc::SYS_ptrace] {
        assert_ne!(answer(program, refused, &[]), ALLOW, "{refused}");
    }
    assert_eq!(answer(program, libc::SYS_clone, &[libc::SIGCHLD as u64]), EPERM);
}

/// Found by review: a proxy that was taken over could open files of its user to everyone.
#[test]
fn service_without_folders_changes_nothing_about_files() {
    let changes = [
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchmodat2,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_fsetxattr,
        libc::SYS_lsetxattr,
        libc::SYS_setxattr,
        libc::SYS_removexattr,
        libc::SYS_utimensat,
        463,
        466,
    ];
    for (program, expected) in [
        (&SERVICE_WITHOUT_FOLDERS, EPERM),
        (&CONNECTING_WITHOUT_FOLDERS, EPERM),
        (&SERVICE, ALLOW),
        (&CONNECTING_SERVICE, ALLOW),
    ] {
        for number in changes {
            assert_eq!(answer(program, number, &[]), expected, "{number}");
        }
        assert_eq!(answer(program, libc::SYS_openat, &[]), ALLOW);
    }
}

#[test]
fn every_number_gets_the_answer_of_the_table() {
    for (program, deny) in [(&PLAIN, false), (&WITHOUT_SET_ID, true)] {
        let answers = table::answers(deny);
        for number in (0..2048).chain([0x3fff_ffff]) {
            let got = answer(program, number as libc::c_long, &[]);
            match answers.get(number).copied().unwrap_or(Answer::Unknown) {
                Answer::Allow => assert_eq!(got, ALLOW, "{number}"),
                Answer::Refuse => assert_eq!(got, EPERM, "{number}"),
                Answer::Unknown => assert_eq!(got, ENOSYS, "{number}"),
                _ => assert!([ALLOW, EAFNOSUPPORT].contains(&got), "{number}: {got:#x}"),
            }
        }
    }
}

#[test]
fn other_binary_interfaces_kill() {
    assert_eq!(run(&PLAIN, 0x4000_0003, 20, [0; 6]).0, KILL, "32-bit");
    assert_eq!(run(&PLAIN, NATIVE, 0x4000_0000, [0; 6]).0, KILL, "x32");
    assert_eq!(run(&PLAIN, NATIVE, u32::MAX, [0; 6]).0, KILL, "negative");
}

/// An install runs each of the kernel's numbers through the filter: the path is what it costs.
#[test]
fn the_path_to_an_answer_is_short() {
    let longest = (0..512).map(|n| run(&WITHOUT_SET_ID, NATIVE, n, [0; 6]).1).max().unwrap();
    assert!(longest <= 26, "{longest} steps");
}

#[test]
fn namespaces_cannot_be_made() {
    let namespaces = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    for flag in namespaces {
        assert_eq!(answer(&PLAIN, libc::SYS_clone, &[(flag | libc::SIGCHLD) as u64]), EPERM);
        assert_eq!(answer(&PLAIN, libc::SYS_unshare, &[flag as u64]), EPERM);
    }
    assert_eq!(answer(&PLAIN, libc::SYS_unshare, &[libc::CLONE_NEWTIME as u64]), EPERM);
    let thread =
        libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
    assert_eq!(answer(&PLAIN, libc::SYS_clone, &[thread as u64]), ALLOW);
    assert_eq!(answer(&PLAIN, libc::SYS_clone, &[libc::SIGCHLD as u64]), ALLOW);
    assert_eq!(answer(&PLAIN, libc::SYS_unshare, &[(libc::CLONE_FILES | libc::CLONE_FS) as u64]), ALLOW);
    assert_eq!(answer(&PLAIN, libc::SYS_clone3, &[]), ENOSYS);
}

#[test]
fn sockets_are_local_plain_ip_or_routing() {
    let socket = |family: i32, kind: i32, protocol: i32| {
        answer(&PLAIN, libc::SYS_socket, &[family as u64, kind as u64, protocol as u64])
    };
    for flags in [0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0), ALLOW);
        for family in [libc::AF_INET, libc::AF_INET6] {
            for protocol in
                [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6]
            {
                assert_eq!(socket(family, libc::SOCK_STREAM | flags, protocol), ALLOW);
                assert_eq!(socket(family, libc::SOCK_DGRAM | flags, protocol), ALLOW);
                assert_eq!(socket(family, libc::SOCK_RAW | flags, protocol), EPERM);
            }
            for protocol in [libc::IPPROTO_SCTP, libc::IPPROTO_MPTCP, libc::IPPROTO_RAW, libc::IPPROTO_DCCP] {
                assert_eq!(socket(family, libc::SOCK_STREAM | flags, protocol), EPROTONOSUPPORT);
            }
            assert_eq!(socket(family, 10, 3), EPERM);
        }
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW | flags, libc::NETLINK_ROUTE), ALLOW);
        for protocol in 1..32 {
            assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW | flags, protocol), EPROTONOSUPPORT);
        }
    }
    for family in
        (0..64).filter(|f| ![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].contains(f))
    {
        assert_eq!(socket(family, libc::SOCK_STREAM, 0), EAFNOSUPPORT, "{family}");
    }
    assert_eq!(answer(&PLAIN, libc::SYS_socketpair, &[libc::AF_UNIX as u64]), ALLOW);
    assert_eq!(answer(&PLAIN, libc::SYS_socketpair, &[libc::AF_TIPC as u64]), EAFNOSUPPORT);
}

/// The kernel ignores the upper half of these arguments; a filter that did not could be walked around.
#[test]
fn upper_halves_of_arguments_hide_nothing() {
    let high = 0xffff_ffff_0000_0000;
    assert_eq!(answer(&PLAIN, libc::SYS_ioctl, &[0, high | libc::TIOCSTI]), EPERM);
    assert_eq!(answer(&PLAIN, libc::SYS_ioctl, &[0, high | 0x541c]), EPERM);
    assert_eq!(answer(&PLAIN, libc::SYS_ioctl, &[0, high | 0x5000_940e]), EPERM);
    assert_eq!(answer(&PLAIN, libc::SYS_socket, &[high | libc::AF_VSOCK as u64, 1, 0]), EAFNOSUPPORT);
    assert_eq!(answer(&PLAIN, libc::SYS_clone, &[high | libc::CLONE_NEWUSER as u64]), EPERM);
    assert_eq!(answer(&PLAIN, libc::SYS_prctl, &[high | libc::PR_SET_MM as u64]), EPERM);
    assert_eq!(answer(&WITHOUT_SET_ID, libc::SYS_fchmod, &[3, high | 0o4755]), EPERM);
}

#[test]
fn the_core_size_cannot_be_set_and_leases_cannot_be_taken() {
    const CORE: u64 = libc::RLIMIT_CORE as u64;
    let (low, high) = (0x1000, 0x1_0000_0000_u64);
    assert_eq!(answer(&PLAIN, libc::SYS_setrlimit, &[CORE, low]), NO_EFFECT);
    assert_eq!(answer(&PLAIN, libc::SYS_setrlimit, &[high | CORE, low]), NO_EFFECT);
    assert_eq!(answer(&PLAIN, libc::SYS_setrlimit, &[libc::RLIMIT_NOFILE as u64, low]), ALLOW);
    let prlimit = |resource, new, old| answer(&PLAIN, libc::SYS_prlimit64, &[0, resource, new, old]);
    for pointer in [low, high] {
        assert_eq!(prlimit(CORE, pointer, 0), NO_EFFECT);
        assert_eq!(prlimit(CORE, pointer, low), EPERM);
        assert_eq!(prlimit(CORE, pointer, high), EPERM);
        assert_eq!(prlimit(CORE, 0, pointer), ALLOW);
        assert_eq!(prlimit(libc::RLIMIT_NOFILE as u64, pointer, pointer), ALLOW);
    }
    for command in [libc::F_SETLEASE, libc::F_NOTIFY] {
        assert_eq!(answer(&PLAIN, libc::SYS_fcntl, &[3, high | command as u64]), EPERM);
    }
    assert_eq!(answer(&PLAIN, libc::SYS_fcntl, &[3, libc::F_SETLK as u64]), ALLOW);
    assert_eq!(answer(&PLAIN, libc::SYS_mincore, &[]), ENOSYS);
    assert_eq!(answer(&PLAIN, 451, &[]), ENOSYS, "cachestat");
}

#[test]
fn some_arguments_are_refused() {
    assert_eq!(answer(&PLAIN, libc::SYS_ioctl, &[0, libc::TCGETS]), ALLOW);
    for subvolume in [0x5000_9401, 0x5000_940e, 0x5000_9417, 0x5000_9418] {
        assert_eq!(answer(&PLAIN, libc::SYS_ioctl, &[0, subvolume]), EPERM);
    }
    assert_eq!(answer(&PLAIN, libc::SYS_ioctl, &[0, 0x4004_9409]), ALLOW, "FICLONE");
    assert_eq!(answer(&PLAIN, libc::SYS_prctl, &[libc::PR_SET_NAME as u64]), ALLOW);
    for persona in [0, 0x0004_0000, 0xffff_ffff] {
        assert_eq!(answer(&PLAIN, libc::SYS_personality, &[persona]), ALLOW);
    }
    for persona in [8, 0x0010_0000, 0x0044_0000] {
        assert_eq!(answer(&PLAIN, libc::SYS_personality, &[persona]), EPERM);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn set_id_bits_are_refused_only_where_configured() {
    let create = (libc::O_CREAT | libc::O_WRONLY) as u64;
    let nameless = (libc::O_TMPFILE | libc::O_WRONLY) as u64;
    let folder = (libc::O_DIRECTORY | libc::O_RDONLY) as u64;
    for bits in [0o4755, 0o2755, 0o6000] {
        let calls: [(libc::c_long, [u64; 4]); 9] = [
            (libc::SYS_chmod, [0, bits, 0, 0]),
            (libc::SYS_fchmod, [0, bits, 0, 0]),
            (libc::SYS_fchmodat, [0, 0, bits, 0]),
            (libc::SYS_fchmodat2, [0, 0, bits, 0]),
            (libc::SYS_creat, [0, bits, 0, 0]),
            (libc::SYS_mknod, [0, bits | 0o100_000, 0, 0]),
            (libc::SYS_mknodat, [0, 0, bits | 0o100_000, 0]),
            (libc::SYS_open, [0, create, bits, 0]),
            (libc::SYS_openat, [0, 0, nameless, bits]),
        ];
        for (call, arguments) in calls {
            assert_eq!(answer(&WITHOUT_SET_ID, call, &arguments), EPERM, "{call}");
            assert_eq!(answer(&PLAIN, call, &arguments), ALLOW, "{call}");
            let plain = arguments.map(|a| if a & 0o7777 == bits { a & !bits | 0o1755 } else { a });
            assert_eq!(answer(&WITHOUT_SET_ID, call, &plain), ALLOW, "{call}");
        }
        // Where nothing is created, the register of the mode holds whatever it held.
        assert_eq!(answer(&WITHOUT_SET_ID, libc::SYS_open, &[0, 0, bits]), ALLOW);
        assert_eq!(answer(&WITHOUT_SET_ID, libc::SYS_openat, &[0, 0, folder, bits]), ALLOW);
    }
    assert_eq!(answer(&WITHOUT_SET_ID, libc::SYS_openat2, &[]), ENOSYS);
    assert_eq!(answer(&PLAIN, libc::SYS_openat2, &[]), ALLOW);
}

/// Returns the exit status of a forked child that runs `body`; the child may only make system calls.
fn in_child(body: fn() -> i32) -> i32 {
    // SAFETY: the child makes system calls only, allocates nothing, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = body();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
        }
    }
}

fn errno_of(result: libc::c_long) -> i32 {
    if result == -1 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
}

#[test]
fn the_kernel_takes_the_filter_and_obeys() {
    let code = in_child(|| {
        if install(true).is_err() {
            return 1;
        }
        // SAFETY: calls that the filter refuses, or that take numbers only.
        unsafe {
            if errno_of(libc::syscall(libc::SYS_getppid)) != 0 {
                return 2;
            }
            if errno_of(libc::syscall(libc::SYS_bpf, 0, 0, 0)) != libc::EPERM {
                return 3;
            }
            if errno_of(libc::syscall(libc::SYS_clone3, 0, 0)) != libc::ENOSYS {
                return 4;
            }
            if errno_of(libc::syscall(libc::SYS_openat2, 0, 0, 0, 0)) != libc::ENOSYS {
                return 5;
            }
            if errno_of(libc::syscall(libc::SYS_socket, libc::AF_VSOCK, libc::SOCK_STREAM, 0))
                != libc::EAFNOSUPPORT
            {
                return 6;
            }
        }
        0
    });
    assert_eq!(code, 0);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_x32_call_ends_the_process() {
    let code = in_child(|| {
        if install(false).is_err() {
            return 1;
        }
        // SAFETY: x32 `getpid`; the process is killed.
        unsafe { libc::syscall(0x4000_0000 + libc::SYS_getpid) };
        0
    });
    assert_eq!(code, 128 + libc::SIGSYS);
}

/// Not a limit, since machines differ: `cargo test -p hutch-jail -- --ignored --nocapture install_time`.
#[test]
#[ignore = "prints a measurement"]
fn install_time() {
    let mut times: Vec<u128> = Vec::new();
    for _ in 0..200 {
        let mut pipe = [0; 2];
        // SAFETY: a pipe of our own; the child only makes system calls.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                let start = std::time::Instant::now();
                let _ = install(true);
                let took = start.elapsed().as_nanos();
                libc::write(pipe[1], (&raw const took).cast(), 16);
                libc::_exit(0);
            }
            let mut took = 0u128;
            assert_eq!(libc::read(pipe[0], (&raw mut took).cast(), 16), 16);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            times.push(took);
        }
    }
    times.sort_unstable();
    println!(
        "{} instructions; install p50 {} us, p99 {} us",
        WITHOUT_SET_ID.instructions().len(),
        times[100] / 1000,
        times[197] / 1000
    );
}
