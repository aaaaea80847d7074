//! Attacks on something of the host that a test sets up: files, sockets, processes, memory.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use hutch_jail::Limits;

use crate::harness::{BASE, Bench, Caller, ordinary, outside, words};

#[test]
fn the_hosts_root_is_never_root_inside() {
    hutch_testkit::require!(root, user_namespaces);
    let map = |caller| Bench::new(caller).attempt(&words("read /proc/self/uid_map")).found();
    let fields = |map: String| map.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(fields(map(Caller::Root)), ["0", &BASE.to_string(), "65536"]);
    assert_eq!(fields(map(Caller::Ordinary)), ["0", &ordinary().to_string(), "1"]);
    let mut bench = Bench::new(Caller::Root);
    bench.spec.ids = hutch_jail::Ids::Caller;
    assert!(bench.attempt(&words("session")).found().starts_with("not launched"), "root's own ids");
}

#[test]
fn listeners_of_the_host_are_out_of_reach() {
    hutch_testkit::require!(root);
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let attempt = words(&format!("connect 127.0.0.1:{port}"));
    assert_eq!(outside(&attempt), "ok");
    for caller in [Caller::Root, Caller::Ordinary] {
        let bench = Bench::new(caller);
        assert_eq!(bench.attempt(&attempt).found(), "ECONNREFUSED", "{caller:?}");
        // Every address is the jail's own, without a listener.
        for address in ["1.1.1.1:53", "10.0.0.1:80", "169.254.169.254:80", "[2606:4700::1111]:53"] {
            let found = bench.attempt(&words(&format!("connect {address}"))).found();
            assert!(["ECONNREFUSED", "ENETUNREACH"].contains(&found.as_str()), "{address}: {found}");
        }
    }
}

#[test]
fn abstract_sockets_of_the_host_are_out_of_reach() {
    hutch_testkit::require!(root);
    let name = format!("hutch-test-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let attempt = words(&format!("abstract {name}"));
    assert_eq!(outside(&attempt), "ok");
    for caller in [Caller::Root, Caller::Ordinary] {
        assert_eq!(Bench::new(caller).attempt(&attempt).found(), "ECONNREFUSED", "{caller:?}");
    }
}

#[test]
fn processes_of_the_host_cannot_be_signalled() {
    hutch_testkit::require!(root);
    let attempt = words(&format!("kill {}", std::process::id()));
    assert_eq!(outside(&attempt), "ok");
    for caller in [Caller::Root, Caller::Ordinary] {
        assert_eq!(Bench::new(caller).attempt(&attempt).found(), "ESRCH", "{caller:?}");
    }
}

#[test]
fn shared_memory_of_the_host_is_out_of_reach() {
    hutch_testkit::require!(root);
    let key = 0x4875_0000 + (std::process::id() & 0xffff) as i32;
    // SAFETY: numbers only.
    let segment = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o666) };
    assert!(segment >= 0);
    let attempt = words(&format!("shared-memory {key}"));
    let control = outside(&attempt);
    let found = [Caller::Root, Caller::Ordinary].map(|caller| Bench::new(caller).attempt(&attempt).found());
    // SAFETY: removes the segment made above.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
    assert_eq!(control, "ok");
    assert_eq!(found, ["ENOENT", "ENOENT"]);
}

#[test]
fn descriptors_of_the_caller_are_closed() {
    hutch_testkit::require!(root);
    for caller in [Caller::Root, Caller::Ordinary] {
        let mut bench = Bench::new(caller);
        let clean = bench.attempt(&words("descriptors")).found();
        assert_eq!(clean, "0 1 2", "{caller:?}");
        bench.leak = Some("/etc/hostname".into());
        assert_eq!(bench.attempt(&words("descriptors")).found(), "0 1 2", "{caller:?}");
    }
}

/// Nor does init hold what the launcher held: what has to be kept from its children should not be there at all.
#[test]
fn init_holds_nothing_of_the_callers() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in [Caller::Root, Caller::Ordinary] {
        let mut bench = Bench::new(caller);
        let leak = bench.work().join("held-by-the-launcher");
        std::fs::write(&leak, "").unwrap();
        bench.leak = Some(leak.display().to_string());
        let mark = format!("hutch-held-{}-{caller:?}", std::process::id());
        let script = "read -r line < /dev/null; sleep 1000; : \"$0\"";
        let mut launcher = bench.start(&["/bin/sh", "-c", script, &mark].map(str::to_owned));
        let inside = crate::ending::wait_for(&mark);
        let init = crate::ending::parent(inside);
        let held = |pid: u32| -> Vec<PathBuf> {
            let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
        };
        let (of_launcher, of_init) = (held(launcher.id()), held(init));
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        assert!(of_launcher.contains(&leak), "{of_launcher:?}");
        assert!(!of_init.contains(&leak), "{caller:?}: {of_init:?}");
        // The launcher's streams and the command's, the channel, signals.
        assert!(of_init.len() <= 8, "{of_init:?}");
    }
}

/// Descriptors of the terminal may come along as standard streams; by its name it is out of reach, and with it the
/// signals that its keys send.
#[test]
fn the_callers_terminal_is_not_the_jails() {
    hutch_testkit::require!(root, user_namespaces);
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let side = || {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let path = PathBuf::from(ptsname(&main, Vec::new()).unwrap().into_string().unwrap());
        (main, path)
    };
    let (_main, path) = side();
    let mut control = std::process::Command::new(crate::harness::PROBE);
    control.args(["attempt", "write", "/dev/tty"]);
    crate::harness::control_by(&mut control, &path);
    assert_eq!(String::from_utf8_lossy(&control.output().unwrap().stdout).trim(), "ok");
    for caller in [Caller::Root, Caller::Ordinary] {
        let (_main, path) = side();
        let mut bench = Bench::new(caller);
        bench.terminal = Some(path);
        assert_eq!(bench.attempt(&words("write /dev/tty")).found(), "ENXIO", "{caller:?}");
    }
}

/// Requests a keyring where no filter refuses the call; the launch creates it in the same way.
#[test]
fn the_session_keyring_is_not_the_callers() {
    hutch_testkit::require!(root);
    let report = Bench::unprotected().attempt(&words("keyring"));
    let found: i64 = report.found().parse().unwrap_or_else(|_| panic!("{report:?}"));
    assert!(report.keyring > 0 && found > 0);
    assert_ne!(found, report.keyring);
}

#[test]
fn the_host_name_is_the_jails() {
    hutch_testkit::require!(root, user_namespaces);
    let attempt = words("read /proc/sys/kernel/hostname");
    assert_ne!(outside(&attempt), "inside");
    for caller in [Caller::Root, Caller::Ordinary] {
        assert_eq!(Bench::new(caller).attempt(&attempt).found(), "inside", "{caller:?}");
    }
}

#[test]
fn init_survives_its_children() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in [Caller::Root, Caller::Ordinary] {
        assert_eq!(Bench::new(caller).attempt(&words("attack-init")).found(), "alive", "{caller:?}");
    }
}

/// The kernel allows 16 layers of Landlock; the jail's own takes one away.
#[test]
fn landlock_is_on() {
    hutch_testkit::require!(root, user_namespaces);
    if hutch_jail::landlock::abi().is_none_or(|abi| abi < 2) {
        hutch_testkit::note_skip("landlock_is_on", "needs Landlock");
        return;
    }
    assert_eq!(outside(&words("landlock-layers")), "16");
    for caller in [Caller::Root, Caller::Ordinary] {
        let report = Bench::new(caller).attempt(&words("landlock-layers"));
        assert_eq!(report.found(), "15", "{caller:?}");
        assert!(report.landlock);
    }
}

/// The one folder that is writable is, and what is made there belongs to whom it should outside.
#[test]
fn the_workspace_can_be_written_and_keeps_its_owner() {
    hutch_testkit::require!(root, user_namespaces);
    use std::os::unix::fs::MetadataExt;
    for (caller, owner) in [(Caller::Root, 0), (Caller::Ordinary, ordinary())] {
        let bench = Bench::new(caller);
        assert_eq!(bench.attempt(&words("write /work/file")).found(), "ok", "{caller:?}");
        assert_eq!(std::fs::metadata(bench.work().join("file")).unwrap().uid(), owner, "{caller:?}");
    }
}

#[test]
fn set_id_bits_are_the_callers_choice() {
    hutch_testkit::require!(root);
    let mut bench = Bench::new(Caller::Root);
    assert_eq!(bench.attempt(&words("set-id /work")).found(), "EPERM");
    bench.spec.deny_set_id_bits = false;
    assert!(bench.attempt(&words("set-id /work")).found().starts_with("done by chmod"));
}

/// An ordinary user without a delegated cgroup gets no limit, and an error that reports it.
#[test]
fn a_limit_that_cannot_be_had_is_refused_by_name() {
    hutch_testkit::require!(root, user_namespaces);
    for (limits, name) in [
        (Limits { memory_bytes: Some(64 << 20), ..Limits::default() }, "memory"),
        (Limits { cpu_millis: Some(500), ..Limits::default() }, "cpu"),
        (Limits { pids: Some(10), ..Limits::default() }, "pids"),
    ] {
        let mut bench = Bench::new(Caller::Ordinary);
        bench.spec.limits = limits;
        let error = bench.attempt(&words("session")).error.expect(name);
        assert!(error.contains(&format!("the {name} limit cannot be enforced")), "{error}");
        assert!(error.contains("root"), "says what would help: {error}");
    }
    let mut bench = Bench::new(Caller::Root);
    bench.spec.limits = Limits { memory_bytes: Some(1), ..Limits::default() };
    let error = bench.attempt(&words("session")).error.unwrap();
    assert!(error.contains("memory"), "{error}");
}

/// A link that leads up and out is looked up in the new root only, also while the jail is being built.
#[test]
fn a_mount_point_behind_a_link_that_leads_out_is_made_inside() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in [Caller::Root, Caller::Ordinary] {
        let mut bench = Bench::new(caller);
        let target = bench.planted();
        std::os::unix::fs::chown(&target, Some(ordinary()), None).unwrap();
        std::fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        for (name, link) in
            [("up", format!("../../../..{}", target.display())), ("down", target.display().to_string())]
        {
            std::os::unix::fs::symlink(link, bench.work().join(name)).unwrap();
            let source = hutch_jail::MountSource::Tmpfs { bytes: 1 << 20, mode: 0o1777 };
            let target = format!("/work/{name}/made").into();
            bench.spec.mounts.push(hutch_jail::Mount { source, target, read_only: false });
        }
        // Refused or made inside: the root there is read-only, and has no such folder.
        let found = bench.attempt(&words("session")).found();
        let made: Vec<_> = std::fs::read_dir(&target).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(made.is_empty(), "{caller:?}: {made:?}, {found}");
    }
}
