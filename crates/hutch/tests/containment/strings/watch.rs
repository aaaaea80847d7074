//! Changes of the host: reported events, and facts about files before and after.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::harness::WAIT_LIMIT;

/// Files outside of the data folder that the server may change, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("/run/hutch", "ranges of ids are locked on the whole machine"),
    ("/dev/null", "a device"),
    ("/dev/ptmx", "a device"),
    ("/dev/tty", "a device"),
];

/// A program that reports what processes of this pid namespace change on the host.
pub(super) struct Watcher {
    child: Child,
    lines: Receiver<String>,
    /// Changes so far, as text.
    changes: BTreeSet<String>,
    /// Files that the test itself made.
    controls: Vec<PathBuf>,
}

impl Watcher {
    /// Watches all file systems but those below `spared` for changes, and the planted files for reads too.
    pub(super) fn start(planted: &Path, spared: &Path) -> Watcher {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/containment/strings/watch.py");
        let mut python = Command::new("python3");
        let mut child = python
            .arg("-B")
            .arg(program)
            .args([planted, spared])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("python3 starts");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("stdout"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        assert_eq!(lines.recv_timeout(WAIT_LIMIT).as_deref(), Ok("ready"), "the watcher does not start");
        Watcher { child, lines, changes: BTreeSet::new(), controls: Vec::new() }
    }

    /// Makes a file, which must be reported. Every change before it is known then.
    #[track_caller]
    pub(super) fn sees(&mut self, file: &Path, mut writer: Command) {
        assert!(writer.status().expect("the control starts").success());
        let path = file.to_str().expect("a path");
        self.controls.push(file.to_owned());
        let started = std::time::Instant::now();
        loop {
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
                let event: Value = serde_json::from_str(&line).expect("an event");
                assert_ne!(event["what"], "overflow", "events were lost");
                if event["path"] == path {
                    return;
                }
                self.changes.insert(line);
            }
            assert!(started.elapsed() < WAIT_LIMIT, "the watcher does not see what is written to {path}");
        }
    }

    /// Changes that the server may not make.
    pub(super) fn violations(&self) -> Vec<&String> {
        let allowed = |line: &&String| {
            let event: Value = serde_json::from_str(line).expect("an event");
            let path = Path::new(event["path"].as_str().unwrap_or_default());
            self.controls.iter().any(|control| control == path)
                || ALLOWED.iter().any(|(known, _)| path.starts_with(known))
        };
        self.changes.iter().filter(|line| !allowed(line)).collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It ends with the pid namespace at the latest.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files of the host that an escape would meet first.
const SENSITIVE: &[&str] = &[
    "/etc",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/root",
    "/usr/bin",
];

/// Facts about a file that do not need it to be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Looks {
    path: PathBuf,
    /// Inode, mode, owner, group, size, change and modification time; nothing if the file is missing.
    facts: Option<[i64; 9]>,
}

/// The sensitive files and those below a folder.
pub(super) fn looks(planted: &Path) -> Vec<Looks> {
    let below = std::fs::read_dir(planted).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = SENSITIVE.iter().map(PathBuf::from).chain(below).collect();
    paths.sort();
    let look = |path: PathBuf| {
        let facts = path.symlink_metadata().ok().map(|m| {
            let (inode, size) = (m.ino().cast_signed(), m.size().cast_signed());
            let owner = [m.mode(), m.uid(), m.gid()].map(i64::from);
            let times = [m.ctime(), m.ctime_nsec(), m.mtime(), m.mtime_nsec()];
            [inode, size, owner[0], owner[1], owner[2], times[0], times[1], times[2], times[3]]
        });
        Looks { path, facts }
    };
    paths.into_iter().map(look).collect()
}
