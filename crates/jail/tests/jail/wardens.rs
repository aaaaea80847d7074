//! The same protections in a jail that a warden made, and its end.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use hutch_jail::attack::{Planted, all};
use hutch_jail::{Event, Jail, Limits, ProcessExit, Stdio, Warden};
use hutch_testkit::wait::until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ending::{groups_of, running_in, wait_for, words_of_shell};
use crate::harness::{Bench, Caller, WARDEN, process, words};

fn next_event(jail: &Jail) -> Event {
    loop {
        if let Some(event) = jail.try_event().unwrap() {
            return event;
        }
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready =
            poll(&mut [PollFd::from_borrowed_fd(jail.as_fd(), PollFlags::IN)], Some(&timeout)).unwrap();
        assert!(ready > 0, "no event in 10 s");
    }
}

/// Runs one process to its end; what it printed, or how it ended.
fn found(jail: &Jail, argv: &[String]) -> String {
    let null = || OwnedFd::from(std::fs::File::options().read(true).write(true).open("/dev/null").unwrap());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let stdio = Stdio { stdin: null(), stdout: writer.into(), stderr: null() };
    let number = jail.spawn(&process(argv), &stdio).unwrap();
    drop(stdio);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    loop {
        match next_event(jail) {
            Event::Exited { process, exit } if process == number => {
                return match (text.trim(), exit) {
                    ("", ProcessExit::Signal(signal)) => format!("Signaled({signal})"),
                    (line, _) => line.to_owned(),
                };
            }
            Event::Started { .. } | Event::Exited { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_wardens_jail_keeps_all_protections() {
    hutch_testkit::require!(root);
    let bench = Bench::new(Caller::Root);
    let warden = Warden::start(WARDEN.as_ref(), &bench.folder.path().join("state")).unwrap();
    let jail = bench.in_warden(&warden).unwrap();
    let planted = Planted::new(&bench.planted()).unwrap();
    let mut failures = Vec::new();
    for protection in &all(&planted) {
        let mut argv = words("/probe attempt");
        argv.extend(words(&protection.attempt));
        let found = found(&jail, &argv);
        if !protection.held(&found) {
            failures.push(format!("{}: {found:?}, not one of {:?}", protection.name, protection.finds));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for (attempt, finds) in [("attack-init", "alive"), ("descriptors", "0 1 2"), ("landlock-layers", "15")] {
        let mut argv = words("/probe attempt");
        argv.extend(words(attempt));
        assert_eq!(found(&jail, &argv), finds, "{attempt}");
    }
}

#[test]
fn a_caller_of_a_warden_that_is_killed_leaves_nothing() {
    hutch_testkit::require!(root);
    let mut bench = Bench::new(Caller::Root);
    let id = format!("held{}", std::process::id());
    bench.spec.id.clone_from(&id);
    bench.spec.limits = Limits { cpu_millis: Some(1000), memory_bytes: Some(256 << 20), pids: Some(50) };
    let mark = format!("hutch-mark-{id}");
    let mut caller = bench.hold(&words_of_shell(&mark));
    let inside = wait_for(&mark);
    let namespace = std::fs::read_link(format!("/proc/{inside}/ns/pid")).unwrap();
    until("children", || running_in(&namespace) >= 4);
    let instance = std::fs::read_to_string(bench.folder.path().join("state/warden.lock")).unwrap();
    assert!(instance.len() > 4, "{instance:?}");
    assert!(!groups_of(&instance).is_empty());
    caller.kill().unwrap();
    caller.wait().unwrap();
    until("processes", || running_in(&namespace) == 0);
    until("cgroups", || groups_of(&instance).is_empty());
    let warden = std::fs::File::open(bench.folder.path().join("state/warden.lock")).unwrap();
    until("the warden", || {
        rustix::fs::flock(&warden, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

#[test]
fn init_stands_for_a_process_that_only_waits() {
    hutch_testkit::require!(root);
    let bench = Bench::new(Caller::Root);
    let warden = Warden::start(WARDEN.as_ref(), &bench.folder.path().join("state")).unwrap();
    let jail = bench.in_warden(&warden).unwrap();
    for (signal, expected) in
        [(libc::SIGTERM, ProcessExit::Code(0)), (libc::SIGKILL, ProcessExit::Signal(libc::SIGKILL))]
    {
        let number = jail.hold().unwrap();
        assert_eq!(next_event(&jail), Event::Started { process: number, pid: 1 });
        jail.signal(number, signal).unwrap();
        assert_eq!(next_event(&jail), Event::Exited { process: number, exit: expected });
    }
    jail.kill();
}
