//! Ids outside, and what the kernel counts for each of them, are one sandbox's alone.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::json;

use crate::harness::Up;
use crate::ordinary::{Caller, Place, apply};

/// A field of `/proc/PID/status`.
fn status(pid: &str, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

/// First id outside of each jail of a server, by the pid of its init.
fn bases(server: &Up) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let parent = |pid: &str| status(pid, "PPid");
        let up = parent(&pid).and_then(|warden| parent(&warden)).unwrap_or_default();
        let words = std::fs::read_to_string(format!("/proc/{up}/cmdline")).unwrap_or_default();
        let of_server = words.split('\0').any(|word| word == server.data().display().to_string());
        let map = std::fs::read_to_string(entry.path().join("uid_map")).unwrap_or_default();
        let fields: Vec<u64> = map.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        if let (true, [0, base, 65536]) = (of_server, &fields[..]) {
            found.insert(pid, *base);
        }
    }
    found
}

#[test]
fn two_servers_never_give_pods_the_same_ids() {
    hutch_testkit::require!(root, kubectl);
    // 14 addresses each, and 8 Pods: ids that follow from addresses would meet.
    let servers = [Up::start(&["--pod-cidr", "10.99.0.0/28"]), Up::start(&["--pod-cidr", "10.99.1.0/28"])];
    for up in &servers {
        for number in 0..8 {
            let name = format!("p{number}");
            apply(
                up,
                &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {"containers": [{"name": "c", "image": "hutch/pause"}]}}),
            );
        }
    }
    for up in &servers {
        up.ok("wait --for=condition=Ready pod --all --timeout=60s");
    }
    let mut all: Vec<u64> = servers.iter().flat_map(|up| bases(up).into_values()).collect();
    assert_eq!(all.len(), 16, "{all:?}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 16, "two Pods have the same ids: {all:?}");
    assert!(all.iter().all(|base| *base >= 0x7000_0000), "ids of users and services of the machine: {all:?}");
}

#[test]
fn inotify_instances_of_a_jail_are_not_counted_for_root() {
    hutch_testkit::require!(root, user_namespaces, python);
    let place = Place::new();
    let script = "import ctypes, sys\nlibc = ctypes.CDLL(None)\ncount = 0\n\
                  while libc.inotify_init() >= 0: count += 1\nprint(count, flush=True)\nsys.stdin.readline()";
    let mut command = place.program(Caller::Root, &["run", "--", "python3", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch run");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("stdout")).read_line(&mut line).expect("read");
    assert!(line.trim().parse::<u32>().expect("a number") > 0);
    // This process is root: it has as many left as before.
    let made = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    child.stdin.take().expect("stdin").write_all(b"\n").expect("write");
    child.wait().expect("wait");
    assert!(made.is_ok(), "{made:?} while a jail holds {line}");
}
