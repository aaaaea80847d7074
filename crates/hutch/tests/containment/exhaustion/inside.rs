//! Attackers in a Pod.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::quiet::Quiet;
use super::{Attacker, Bound, RESOURCES, Resource};
use crate::harness::Up;
use crate::names::pod;
use crate::ordinary::apply;

/// Start of all scripts.
pub(super) const PRELUDE: &str = include_str!("attackers/prelude.py");
/// Attackers at a time.
const GROUP: usize = 6;
/// Maximum log of one life of a container, and one write more.
const LOG_BYTES: u64 = (20 << 20) + (64 << 10);
/// Maximum memory of TCP that all attackers together may add, in bytes: more than the bound of one, and a part of what
/// one took before it had any.
const TCP_BYTES: u64 = 192 << 20;

/// The name of the attacker's Pod.
pub(super) fn name_of(resource: Resource) -> String {
    format!("{resource:?}").to_lowercase()
}

/// A Pod that attacks.
pub(super) fn noisy(resource: Resource, script: &str, arguments: &[&str], memory: &str) -> Value {
    let script = format!("{PRELUDE}\n{script}");
    let command = ["python3", "-c", &script].into_iter().chain(arguments.iter().copied());
    let container = json!({"name": "c", "image": "hutch/host", "command": command.collect::<Vec<_>>(),
        "resources": {"limits": {"memory": memory, "cpu": "250m"}},
        "volumeMounts": [{"name": "memory", "mountPath": "/memory"}]});
    let volumes = json!([{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}]);
    pod(
        &name_of(resource),
        json!({"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}),
    )
}

/// Memory of TCP buffers of the whole machine, in bytes.
fn tcp_bytes() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").expect("sockstat");
    let line = text.lines().find(|line| line.starts_with("TCP:")).expect("TCP");
    let pages: u64 = line.split(' ').next_back().and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Sizes of the files below a folder whose names begin like those of logs.
fn log_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => log_bytes(&entry.path()),
        Ok(_) if entry.file_name().to_string_lossy().contains(".log") => {
            entry.metadata().map_or(0, |m| m.len())
        }
        _ => 0,
    };
    entries.map(size).sum()
}

/// Waits until the bound answers as it should.
#[track_caller]
fn reached(up: &Up, resource: Resource) {
    let name = name_of(resource);
    match resource.bound() {
        Bound::Errno(errno) => {
            let line = format!("bound {errno}\n");
            let log = up.eventually(&format!("logs {name}"), |log| !log.is_empty());
            assert_eq!(log, line, "{resource:?}");
        }
        Bound::OutOfMemory => {
            let reasons = "jsonpath={.status.containerStatuses[0]['state','lastState'].terminated.reason}";
            up.eventually(&format!("get pod {name} -o {reasons}"), |reason| reason.contains("OOMKilled"));
        }
        Bound::Dropped => {
            let folder = up.data().join("pods");
            // The first file was put aside.
            up.eventually("get namespaces", |_| log_bytes(&folder) > LOG_BYTES / 2);
            assert!(log_bytes(&folder) < LOG_BYTES);
            up.ok(&format!("logs {name} --tail=1"));
        }
        other => panic!("{resource:?} inside a sandbox has the bound {other:?}"),
    }
}

#[test]
fn noisy_sandbox_reaches_its_own_limits_and_others_continue() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start(&[]);
    let quiet = Quiet::start(&up);
    quiet.works();
    let tcp_before = tcp_bytes();
    let inside: Vec<_> = RESOURCES
        .into_iter()
        .filter_map(|resource| match resource.attacker() {
            Attacker::Inside { script, arguments, memory } => {
                Some((resource, noisy(resource, script, arguments, memory)))
            }
            Attacker::Disk { .. } | Attacker::Client => None,
        })
        .collect();
    for group in inside.chunks(GROUP) {
        group.iter().for_each(|(_, pod)| apply(&up, pod));
        quiet.continues();
        group.iter().for_each(|(resource, _)| reached(&up, *resource));
        // They still press.
        quiet.works();
        quiet.continues();
        assert!(tcp_bytes() < tcp_before + TCP_BYTES, "{} bytes of TCP buffers", tcp_bytes());
        assert!(log_bytes(&up.data().join("pods")) < 2 * LOG_BYTES);
        let names: Vec<String> = group.iter().map(|(resource, _)| name_of(*resource)).collect();
        up.ok(&format!("delete pod {} --timeout=90s", names.join(" ")));
    }
    quiet.continues();
}
