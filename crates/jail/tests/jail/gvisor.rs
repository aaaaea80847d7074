//! The rows of the table that every handler keeps, in gVisor.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use hutch_jail::attack::{Kept, Planted, all};
use serde_json::json;

use crate::harness::{Bench, Caller, PROBE, words};

/// Runs an attempt as the only process of a gVisor sandbox, whose files are those of the native benches.
fn attempt(bench: &Bench, number: usize, words: &[String]) -> String {
    let bundle = bench.folder.path().join(format!("bundle-{number}"));
    fs::create_dir(&bundle).unwrap();
    let mut arguments = vec!["/probe".to_owned(), "attempt".to_owned()];
    arguments.extend(words.iter().cloned());
    let bind = |source: &str, target: &str| json!({ "destination": target, "type": "bind", "source": source, "options": ["rbind", "ro"] });
    let config = json!({
        "ociVersion": "1.0.2",
        "hostname": "inside",
        "process": {
            "args": arguments,
            "cwd": "/",
            "env": ["PATH=/usr/bin"],
            "user": { "uid": 0, "gid": 0 },
            "noNewPrivileges": true,
            "capabilities": {},
        },
        "root": { "path": bench.folder.path().join("root"), "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" },
            bind("/usr", "/usr"),
            bind(PROBE, "/probe"),
        ],
        "linux": { "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "network" }] },
    });
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    let mut runsc = Command::new("runsc");
    runsc.arg("--root").arg(bench.folder.path().join("state"));
    runsc.args(["--network=none", "--ignore-cgroups", "run", "--bundle"]).arg(&bundle);
    let output = runsc.arg(format!("hutch-test-{}-{number}", std::process::id())).output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.code() {
        Some(0) => line,
        code => format!("{line} Exited({code:?}) {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

#[test]
fn gvisor_keeps_what_every_handler_keeps() {
    hutch_testkit::require!(root, runsc);
    let bench = Bench::new(Caller::Root);
    fs::set_permissions(bench.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut failures = Vec::new();
    let planted = Planted::new(&bench.planted()).unwrap();
    let rows = all(&planted).into_iter().filter(|protection| protection.kept == Kept::Everywhere);
    for (number, protection) in rows.enumerate() {
        let found = attempt(&bench, number, &words(&protection.attempt));
        if !protection.held(&found) {
            failures.push(format!("{}: {found:?}, not one of {:?}", protection.name, protection.finds));
        }
    }
    // Newer versions leave a namespace file mounted below their state.
    let state = bench.folder.path().join("state");
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
        if let Some(target) = line.split(' ').nth(4)
            && target.starts_with(&*state.to_string_lossy())
        {
            rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
