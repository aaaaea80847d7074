//! The program as entry point of a container with its own command: it serves beside the command and ends with
//! it.

use std::process::Command;

use hutch_testkit::wait::until;
use rustix::process::Signal;

use crate::served::{alive, serve_for};

const TOKEN: &str = "0123456789abcdef-command";

#[test]
fn the_command_inherits_folder_and_environment_without_the_token() {
    let script = "pwd -P > seen; env >> seen; exec sleep 31.4159";
    let served = serve_for(&["sh", "-c", script], &[("SANDBOXD_TOKEN", TOKEN), ("GREETING", "hello")]);
    let there = || served.folder.path().join("seen").exists() && alive("sleep 31.4159");
    until("the command runs beside the ports", there);
    let seen = std::fs::read_to_string(served.folder.path().join("seen")).unwrap();
    let folder = served.folder.path().canonicalize().unwrap();
    assert_eq!(seen.lines().next(), folder.to_str(), "where the container starts, not where files live");
    assert!(seen.lines().any(|line| line == "GREETING=hello"), "{seen}");
    assert!(!seen.contains(TOKEN), "{seen}");
    assert_eq!(served.get("/list/").status, 401);
}

#[test]
fn the_commands_end_ends_sandboxd_with_its_status() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let mut served = serve_for(&["sh", "-c", &format!("read line; {script}")], &[]);
        // Its input is this program's: empty, so that `read` returns at once.
        assert_eq!(served.ended().code(), Some(status), "{script}");
    }
    let mut detached = serve_for(&["sleep", "0.2"], &[]);
    assert_eq!(detached.ended().code(), Some(0));
}

#[test]
fn the_command_receives_signals_and_has_time_to_end() {
    // Longer than other processes have.
    let script = "trap 'sleep 2.5; exit 9' TERM; trap 'echo hup > hup' HUP; echo > there; for n in $(seq 1200); do sleep 0.05; done";
    let mut served = serve_for(&["sh", "-c", script], &[]);
    let there = |name: &str| served.folder.path().join(name).exists();
    until("it runs", || there("there"));
    served.signal(Signal::HUP);
    until("the command receives the signal", || there("hup"));
    assert_eq!(served.get("/").status, 200, "and nothing has ended");
    assert_eq!(served.stop().code(), Some(9));
}

/// Regression: such a signal ended this program before its handlers were set, and left the command running.
#[test]
fn a_signal_that_comes_as_soon_as_the_command_runs_reaches_it() {
    for _ in 0..20 {
        let script = "trap 'exit 5' HUP; kill -HUP $PPID; for n in $(seq 1200); do sleep 0.01; done";
        assert_eq!(serve_for(&["sh", "-c", script], &[]).ended().code(), Some(5));
    }
}

#[test]
fn a_command_that_does_not_end_is_killed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hutch-sandboxd"));
    let folder = tempfile::tempdir().unwrap();
    command.args([
        "--port=0",
        "--rest-port=0",
        "--grpc-port=0",
        "--shutdown-timeout=300ms",
        "--root-dir=app",
        "--",
    ]);
    let script = "trap '' TERM; echo > there; for n in $(seq 1200); do sleep 0.05; done";
    let mut child = command.args(["sh", "-c", script]).current_dir(folder.path()).spawn().unwrap();
    until("it runs", || folder.path().join("there").exists());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn unstartable_commands_exit_like_a_shell() {
    for (program, status) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hutch-sandboxd"));
        command.args(["--port=0", "--rest-port=0", "--grpc-port=0", "--root-dir=app", "--", program]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let seen = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{seen}");
        assert!(seen.contains(program), "{seen}");
    }
}

/// Regression: it ran on, without a port and without a command.
#[test]
fn without_a_port_and_a_command_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_hutch-sandboxd"));
        program.args(["--port", "off", "--rest-port", "off", "--grpc-port", "off", "--root-dir"]);
        program.arg(folder.path()).args(command).output().unwrap()
    };
    let output = run(&[]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("no port is left to serve"), "{text}");
    assert_eq!(run(&["--", "sh", "-c", "exit 4"]).status.code(), Some(4), "a command still runs");
}
