//! Standard streams of the caller are relayed, never handed over.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::harness::{refused, text};
use crate::ordinary::{Caller, Place};

const CALLERS: [Caller; 2] = [Caller::Root, Caller::Ordinary];

#[test]
fn file_as_input_keeps_its_mode_times_and_content() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let path = place.folder_of(caller, &format!("{caller:?}-input")).join("input");
        fs::write(&path, "text\n").expect("write");
        if caller == Caller::Ordinary {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("owner");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
        let before = fs::metadata(&path).expect("stat");
        let script = "cat; chmod 777 /proc/self/fd/0; touch -h /proc/self/fd/0; touch /dev/stdin; \
                      (echo changed > /dev/stdin); setfattr -n user.x -v 1 /proc/self/fd/0; true";
        let mut command = place.run(caller, &[], script);
        let output = command.stdin(File::open(&path).expect("open")).output().expect("hutch run");
        assert_eq!(text(&output.stdout), "text\n", "{caller:?}: {output:?}");
        let after = fs::metadata(&path).expect("stat");
        let seen = |found: &fs::Metadata| (found.mode(), found.mtime_nsec(), found.ctime_nsec(), found.len());
        assert_eq!(seen(&before), seen(&after), "{caller:?}");
        assert_eq!(fs::read_to_string(&path).expect("read"), "text\n", "{caller:?}");
    }
}

#[test]
fn folder_as_input_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let folder = File::open(place.path()).expect("open");
        let script = "ls /proc/self/fd/0/..";
        let output = place.run(caller, &[], script).stdin(folder).output().expect("hutch run");
        refused(&output, 125, &["standard input is a folder"]);
    }
}

#[test]
fn log_opened_for_appending_cannot_be_truncated() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let path = place.folder_of(caller, &format!("{caller:?}-log")).join("log");
        fs::write(&path, "earlier\n").expect("write");
        let log = || File::options().append(true).open(&path).expect("open");
        let script = "echo out; echo err >&2; echo more; python3 -c 'import os; os.ftruncate(1, 0)'; \
                      python3 -c 'import os; os.pwrite(1, b\"x\", 0)'; true";
        let mut command = place.run(caller, &[], script);
        command.stdout(log()).stderr(log());
        assert!(command.status().expect("hutch run").success(), "{caller:?}");
        let kept = fs::read_to_string(&path).expect("read");
        assert!(kept.starts_with("earlier\nout\nerr\nmore\n"), "{caller:?}: {kept:?}");
    }
}

#[test]
fn input_stays_in_the_file_until_it_is_read() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let path = place.path().join("lines");
    let text_of_file = "first\n".to_owned() + &"second\n".repeat(40_000);
    fs::write(&path, &text_of_file).expect("write");
    let mut file = File::open(&path).expect("open");
    let mut command = place.run(Caller::Root, &[], "dd bs=6 count=1 2>/dev/null");
    let output = command.stdin(file.try_clone().expect("clone")).output().expect("hutch run");
    assert_eq!(text(&output.stdout), "first\n");
    assert_eq!(file.stream_position().expect("position"), 6);
    let mut rest = String::new();
    file.read_to_string(&mut rest).expect("read");
    assert!(text_of_file.ends_with(&rest) && rest.len() == text_of_file.len() - 6);
}

/// The next command read again what came before the run: bytes that code inside wrote into its own pipe counted as not read.
#[test]
fn file_as_input_is_never_rewound_to_before_the_run() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let path = place.path().join("lines");
    fs::write(&path, "earlier secret\nfor the run\nlater\n").expect("write");
    for (number, caller) in CALLERS.into_iter().enumerate() {
        let mut file = File::open(&path).expect("open");
        file.seek(std::io::SeekFrom::Start(15)).expect("seek");
        let script = "(head -c 1000 /dev/zero > /proc/self/fd/0) 2>/dev/null; true";
        let mut command = place.run(caller, &[], script);
        let output = command.stdin(file.try_clone().expect("clone")).output().expect("hutch run");
        assert!(output.status.success(), "{number}: {output:?}");
        assert!(file.stream_position().expect("position") >= 15, "{caller:?}");
    }
}

/// A pipe can be opened anew for its other direction, where it is open inside.
#[test]
fn pipes_are_only_read_from_and_only_written_to() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let (mut for_host, theirs) = std::io::pipe().expect("pipe");
        let (input, mut to_host) = std::io::pipe().expect("pipe");
        to_host.write_all(b"one\n").expect("write");
        // Of the pipe of standard output, the host's own line is there before the run.
        let mut own = theirs.try_clone().expect("clone");
        own.write_all(b"host line\n").expect("write");
        let script = r#"
import fcntl, os
for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY)):
    try:
        other = os.open(f"/proc/self/fd/{number}", flags | os.O_NONBLOCK)
        os.write(other, b"INJECTED") if number == 0 else os.write(2, os.read(other, 100))
    except OSError as error:
        os.write(2, f"{number}: {error}\n".encode())
for number in (0, 1, 2):
    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_NONBLOCK)
"#;
        let code = format!("CODE={script}");
        let mut command = place.run(caller, &["--env", &code], "python3 -c \"$CODE\"; echo done");
        let script_input = input.try_clone().expect("clone");
        command.stdin(script_input).stdout(theirs);
        let output = command.stderr(std::process::Stdio::piped()).spawn().expect("hutch run");
        drop(command);
        let output = output.wait_with_output().expect("hutch run");
        let printed = text(&output.stderr);
        assert!(!printed.contains("host line"), "{caller:?}: {printed}");
        drop((own, to_host));
        let (mut left, mut shown) = (String::new(), String::new());
        (&input)
            .read_to_string(&mut left)
            .expect("what is left, without an error of a flag that was set inside");
        for_host.read_to_string(&mut shown).expect("read");
        assert_eq!((left.as_str(), shown.as_str()), ("one\n", "host line\ndone\n"), "{caller:?}: {printed}");
    }
}

#[test]
fn input_stays_in_a_pipe_until_it_is_read() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        for (bytes, lines) in [(6, 10_000), (6 + 7 * 2000, 9000), (6 + 7 * 5000, 6000), (0, 3)] {
            let (input, mut output) = std::io::pipe().expect("pipe");
            let all = "first\n".to_owned() + &"second\n".repeat(lines);
            let written = all.clone();
            let writer = std::thread::spawn(move || output.write_all(written.as_bytes()));
            let mut command = place.run(caller, &[], &format!("head -c {bytes} | cksum; exec sleep 0.1"));
            let reader = input.try_clone().expect("clone");
            let printed = command.stdin(reader).output().expect("hutch run");
            drop(command);
            let mut rest = String::new();
            (&input).read_to_string(&mut rest).expect("read");
            writer.join().expect("a thread").expect("write");
            let read = all.len() - rest.len();
            assert!(all.ends_with(&rest), "{caller:?} {bytes}");
            // `head` reads whole buffers.
            assert!(read >= bytes && read <= bytes + (64 << 10), "{caller:?} {bytes}: {read}");
            let counted = text(&printed.stdout);
            assert!(counted.split_whitespace().nth(1) == Some(&bytes.to_string()), "{counted}");
        }
        // Each run of a loop takes its line.
        let (input, mut output) = std::io::pipe().expect("pipe");
        output.write_all(b"a\nb\nc\n").expect("write");
        drop(output);
        for line in ["a\n", "b\n", "c\n", ""] {
            let mut command = place.run(caller, &[], "dd bs=2 count=1 2>/dev/null");
            let output = command.stdin(input.try_clone().expect("clone")).output().expect("hutch run");
            assert_eq!(text(&output.stdout), line, "{caller:?}");
        }
    }
}

/// Relayed output waited for its reader, whatever the time was, and signals.
#[test]
fn command_that_is_ended_does_not_wait_for_a_reader() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let mut timed = place.run(caller, &["--timeout", "1s"], "exec yes");
        let mut timed = timed.stdout(std::process::Stdio::piped()).spawn().expect("hutch run");
        let mut signaled = place.run(caller, &[], "echo ready >&2; exec yes");
        let piped = std::process::Stdio::piped;
        let mut signaled = signaled.stdout(piped()).stderr(piped()).spawn().expect("hutch run");
        let mut ready = [0; 6];
        signaled.stderr.as_mut().expect("a pipe").read_exact(&mut ready).expect("it runs");
        let pid = rustix::process::Pid::from_child(&signaled);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        for (child, status) in [(&mut timed, 124), (&mut signaled, 143)] {
            let mut ended = None;
            hutch_testkit::wait::until("it ends", || {
                ended = child.try_wait().expect("wait");
                ended.is_some()
            });
            assert_eq!(ended.and_then(|ended| ended.code()), Some(status), "{caller:?}");
        }
    }
}

#[test]
fn named_pipes_and_sockets_are_relayed() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().expect("socket pair");
        let script =
            "cat; [ -S /proc/self/fd/0 ] && echo LEAKED; [ -S /proc/self/fd/1 ] && echo LEAKED; true";
        let mut command = place.run(caller, &[], script);
        command.stdin(theirs.as_fd().try_clone_to_owned().expect("clone"));
        command.stdout(theirs.as_fd().try_clone_to_owned().expect("clone"));
        drop(theirs);
        let mut child = command.spawn().expect("hutch run");
        drop(command);
        let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        let mut writer = ours.try_clone().expect("clone");
        let sent = bytes.clone();
        let sender = std::thread::spawn(move || {
            writer.write_all(&sent).expect("write");
            writer.shutdown(std::net::Shutdown::Write).expect("shutdown");
        });
        let mut received = Vec::new();
        ours.read_to_end(&mut received).expect("read");
        sender.join().expect("sender");
        assert!(child.wait().expect("wait").success());
        assert!(received == bytes, "{caller:?}: {} bytes of {}", received.len(), bytes.len());
    }
}

#[test]
fn null_device_belongs_to_the_jail() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let script = "[ $(stat -Lc %t:%T /proc/self/fd/0) = 1:3 ] && [ $(stat -Lc %i /proc/self/fd/0) = $(stat -c %i /dev/null) ] \
                      && readlink /proc/self/fd/0; cat; ls /proc/self/fd/0/.. 2>/dev/null; true";
        let output = place.run(caller, &[], script).output().expect("hutch run");
        assert_eq!(text(&output.stdout), "/dev/null\n", "{caller:?}: {output:?}");
    }
}
