//! Volumes in memory, logs, and the folders in which the node keeps them.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::Up;
use crate::names::{pod, submitted};
use crate::ordinary::ORDINARY;

fn status(up: &Up, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let words = format!("get pod {name} -o json");
    let status = |text: &str| -> Value {
        let object: Value = serde_json::from_str(text).unwrap_or_default();
        object["status"]["containerStatuses"][0].clone()
    };
    status(&up.eventually(&words, |text| holds(&status(text))))
}

/// The mounts of this machine below a folder.
fn mounts(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("a path");
    let all = fs::read_to_string("/proc/self/mounts").expect("mounts");
    all.lines().filter(|line| line.contains(folder)).map(str::to_owned).collect()
}

#[test]
fn memory_volume_holds_no_more_than_the_memory_limit_over_restarts() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    // Each life fills 40 MiB more, which the memory of 64 MiB has room for in one life.
    let script = "n=$(ls /m | wc -l); dd if=/dev/zero of=/m/$n bs=1M count=40 2>/dev/null; du -sm /m | cut -f1; \
        [ $n = 0 ] && exit 1; sleep 600";
    let container = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", script],
        "resources": {"limits": {"memory": "64Mi"}}, "volumeMounts": [{"name": "m", "mountPath": "/m"}]});
    let volumes = json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]);
    assert!(submitted(&up, &pod("memory", json!({"containers": [container], "volumes": volumes}))));
    status(&up, "memory", |status| status["restartCount"] == 1 && !status["state"]["running"].is_null());
    let held = up.eventually("logs memory", |log| log.ends_with('\n'));
    let held: u64 = held.trim().parse().expect("a number");
    assert!((40..=64).contains(&held), "{held} MiB");
}

#[test]
fn mounts_of_volumes_are_gone_after_a_kill_and_a_stop() {
    hutch_testkit::require!(root, kubectl);
    let data = tempfile::tempdir().expect("tempdir");
    let mut up = Up::start_on(data.path(), &[]);
    up.ok("create secret generic s --from-literal=key=value");
    let container = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", "cat /s/key; echo; sleep 600"],
        "volumeMounts": [{"name": "m", "mountPath": "/m"}, {"name": "s", "mountPath": "/s"}]});
    let volumes = json!([{"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "s", "secret": {"secretName": "s"}}]);
    assert!(submitted(&up, &pod("memory", json!({"containers": [container], "volumes": volumes}))));
    up.eventually("logs memory", |log| log == "value\n");
    up.kill();
    up.restart();
    status(&up, "memory", |status| status["restartCount"] == 1 && !status["state"]["running"].is_null());
    up.eventually("logs memory", |log| log == "value\n");
    up.ok("delete pod memory --grace-period=1 --timeout=60s");
    up.eventually("get namespaces", |_| mounts(data.path()).len() <= 1);
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts(data.path()), Vec::<String>::new());
}

#[test]
fn folder_of_another_user_in_shared_memory_does_not_stop_the_server() {
    hutch_testkit::require!(root, kubectl);
    let data = tempfile::tempdir().expect("tempdir");
    let mut hasher = DefaultHasher::new();
    data.path().canonicalize().expect("path").hash(&mut hasher);
    let taken = PathBuf::from(format!("/dev/shm/hutch-{:016x}", hasher.finish()));
    fs::create_dir(&taken).expect("folder");
    chown(&taken, Some(ORDINARY), Some(ORDINARY)).expect("owner");
    let started = std::panic::catch_unwind(|| Up::start_on(data.path(), &[]).ok("get namespaces"));
    let stays = taken.is_dir();
    fs::remove_dir(&taken).expect("remove");
    started.expect("the server starts");
    assert!(stays, "a folder of another user is not removed");
    // One of root's is what an earlier version left.
    fs::create_dir_all(taken.join("pod/volume")).expect("folder");
    drop(Up::start_on(data.path(), &[]));
    assert!(!taken.exists());
}

#[test]
fn data_folder_that_others_can_enter_is_tightened() {
    hutch_testkit::require!(root, kubectl);
    let data = tempfile::tempdir().expect("tempdir");
    let folders = ["", "pods", "volumes", "images", "run", "run/jails"].map(|name| data.path().join(name));
    drop(Up::start_on(data.path(), &[]));
    for folder in &folders {
        fs::create_dir_all(folder).expect("folder");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let _up = Up::start_on(data.path(), &[]);
    for folder in &folders {
        let mode = folder.metadata().expect("folder").permissions().mode() & 0o777;
        // The front passes through the data folder to its own folders.
        let most = if folder == data.path() { 0o710 } else { 0o700 };
        assert_eq!(mode, most, "{}", folder.display());
    }
    let group = data.path().metadata().expect("data folder").gid();
    assert_eq!(group, data.path().join("store").metadata().expect("store").gid());
    assert_ne!(group, 0);
}

/// Names of log files below a folder.
fn logs(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type().expect("type") {
                kind if kind.is_dir() => folders.push(entry.path()),
                _ if name.ends_with(".log") => found.push(name),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

#[test]
fn restarting_container_keeps_two_logs() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let container = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", "echo life; exit 1"]});
    assert!(submitted(&up, &pod("crash", json!({"containers": [container]}))));
    status(&up, "crash", |status| status["restartCount"].as_u64() >= Some(2));
    up.eventually("logs crash -p", |log| log == "life\n");
    assert_eq!(logs(&up.data().join("pods")), ["1.log", "2.log"]);
}
