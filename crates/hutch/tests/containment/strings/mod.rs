//! Every string of an object is hostile.
//!
//! The test walks the schemas of the running server, and submits an object for each string field and each hostile
//! value. The server refuses it as Kubernetes does, or what it accepts runs to an end. Meanwhile nothing of the host
//! changes: see `watch.py`.
//!
//! The short form has fewer values for templates of Pods; see `cases::of`.

mod api;
mod cases;
mod lives;
mod schema;
mod skeleton;
mod walk;
mod watch;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::api::Api;
use self::walk::Walk;
use self::watch::Watcher;
use crate::harness::Up;

/// Folder of planted files, named to the test inside its namespaces.
const PLANTED: &str = "HUTCH_TEST_PLANTED";
/// Mount point of the file system of the test and the server, likewise.
const OWN: &str = "HUTCH_TEST_OWN";

/// Returns whether this process is in the namespaces of the test. If not, runs the test there first.
///
/// The pid namespace shows which process changes a file. The mount namespace has a file system for the data folder.
fn runs_inside(test: &str) -> bool {
    if std::env::var_os(PLANTED).is_some() {
        return true;
    }
    let (planted, own) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    std::fs::create_dir(planted.path().join("folder")).expect("folder");
    for file in ["file", "file.read", "folder/file"] {
        std::fs::write(planted.path().join(file), "planted").expect("file");
    }
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"])
        // The shell stays as pid 1 and reaps.
        .arg("mount -t tmpfs none \"$TMPDIR\" && \"$0\" \"$@\"; exit $?")
        .arg(std::env::current_exe().expect("a program"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(PLANTED, planted.path())
        .env(OWN, own.path())
        .env("TMPDIR", own.path())
        .stdin(Stdio::null())
        // The test's own output may be a file of the host.
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut inside = unshare.spawn().expect("unshare starts");
    let (output, errors) = (inside.stdout.take().expect("stdout"), inside.stderr.take().expect("stderr"));
    std::thread::scope(|scope| {
        scope.spawn(|| relay(output));
        relay(errors);
    });
    let status = inside.wait().expect("wait");
    assert!(status.success(), "{status}: see above");
    false
}

/// Copies to standard output itself, which the test harness does not capture.
fn relay(mut from: impl Read) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // A lost line only makes a report harder to read.
        let _ = rustix::io::write(rustix::stdio::stdout(), &buffer[..count]);
    }
}

fn folder(variable: &str) -> PathBuf {
    std::env::var_os(variable).expect(variable).into()
}

/// A shell that writes a file, as a process of a jail would: in user and pid namespaces of its own.
fn nested_writer(file: &Path) -> Command {
    let mut nested = Command::new("unshare");
    nested.args(["--user", "--map-root-user", "--pid", "--fork", "sh", "-c", "echo x > \"$0\""]).arg(file);
    nested
}

#[test]
fn change_of_a_host_file_is_seen() {
    hutch_testkit::require!(root, python);
    if !runs_inside("strings::change_of_a_host_file_is_seen") {
        return;
    }
    let planted = folder(PLANTED);
    let before = watch::looks(&planted);
    let mut watcher = Watcher::start(&planted, &folder(OWN));
    std::fs::write(folder(OWN).join("spared"), "x").expect("write");
    let mut writer = Command::new("sh");
    writer
        .args(["-c", "cat \"$0.read\"; echo x >> \"$0\"; chmod 600 \"$0\"; echo x > \"$0.control\""])
        .arg(planted.join("file"));
    watcher.sees(&planted.join("file.control"), writer);
    watcher.sees(&planted.join("nested"), nested_writer(&planted.join("nested")));
    let violations = watcher.violations();
    assert!(
        violations.iter().any(|line| line.contains("modify") && line.contains("/file\"")),
        "{violations:?}"
    );
    assert!(violations.iter().any(|line| line.contains("attrib")), "{violations:?}");
    assert!(
        violations.iter().any(|line| line.contains("open") && line.contains("/file.read\"")),
        "{violations:?}"
    );
    assert!(!violations.iter().any(|line| line.contains("spared")), "{violations:?}");
    assert_ne!(watch::looks(&planted), before);
}

#[test]
fn hostile_string_in_any_field_is_refused_or_harmless() {
    hutch_testkit::require!(root, kubectl, python);
    if !runs_inside("strings::hostile_string_in_any_field_is_refused_or_harmless") {
        return;
    }
    let planted = folder(PLANTED);
    let before = watch::looks(&planted);
    let mut watcher = Watcher::start(&planted, &folder(OWN));
    let mut up = Up::start(&[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let walk = runtime.block_on(async {
        walk::furnish(&up, &planted).await;
        Walk::of(&Api::connect(&up, "default").await, &planted).await
    });
    let mut problems = walk.run(&runtime, &mut up);
    assert_eq!(up.stop(), Some(0));
    for (before, after) in
        before.iter().zip(&watch::looks(&planted)).filter(|(before, after)| before != after)
    {
        problems.push(format!("changed: {before:?} to {after:?}"));
    }
    // What the watcher has seen of these, it has seen of everything before.
    let mut control = Command::new("sh");
    control.args(["-c", "echo x > \"$0\""]).arg(planted.join("control"));
    watcher.sees(&planted.join("control"), control);
    watcher.sees(&planted.join("nested"), nested_writer(&planted.join("nested")));
    problems.extend(watcher.violations().into_iter().map(|event| format!("the host was changed: {event}")));
    let log = std::fs::read_to_string(up.folder().join("log")).unwrap_or_default();
    let log: Vec<&str> = log.lines().rev().take(20).collect();
    assert!(
        problems.is_empty(),
        "{} problems:\n{}\nlast lines of the log, newest first:\n{}",
        problems.len(),
        problems.join("\n"),
        log.join("\n")
    );
}
