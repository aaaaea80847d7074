//! A Pod that fills the disk of the data folder, and a disk that is full for another reason.

use std::io::Write;
use std::path::Path;

use hutch_testkit::disk::Disk;
use serde_json::json;

use super::inside::{PRELUDE, name_of, noisy};
use super::quiet::Quiet;
use super::{Attacker, Bound, RESOURCES, Resource};
use crate::harness::Up;
use crate::names::pod;
use crate::ordinary::apply;

/// Size of the disk, in bytes.
const DISK_BYTES: u64 = 1 << 30;
/// Files that the disk can have: few, so that they are soon used up.
const INODES: &str = "16384";
/// Free bytes of the disk before the last attack: too few for an eviction to end the pressure.
const LEFT_BYTES: u64 = 8 << 20;

/// A disk of which nothing is kept back for root.
fn disk() -> Disk {
    Disk::new(DISK_BYTES, &["mkfs.ext4", "-q", "-F", "-m", "0", "-N", INODES])
}

fn free(disk: &Path) -> u64 {
    let room = rustix::fs::statvfs(disk).expect("statvfs");
    room.f_bavail * room.f_frsize
}

const PRESSURE: &str =
    "get node -o jsonpath={.items[0].status.conditions[?(@.type==\"DiskPressure\")].status}";

#[track_caller]
fn evicted(up: &Up, resource: Resource) {
    let Bound::Evicted(named) = resource.bound() else { panic!("{resource:?} fills a disk") };
    let status = format!("get pod {} -o jsonpath={{.status.reason}}:{{.status.message}}", name_of(resource));
    let status = up.eventually(&status, |status| status.starts_with("Evicted:"));
    assert!(status.contains(&format!("The node was low on resource: {named}.")), "{status}");
    up.eventually(PRESSURE, |pressure| pressure == "False");
    up.ok(&format!("delete pod {} --timeout=60s", name_of(resource)));
}

#[test]
fn pod_that_fills_the_disk_is_evicted_and_others_continue() {
    hutch_testkit::require!(root, kubectl, python);
    let disk = disk();
    let up = Up::start_on(&disk.path().join("data"), &[]);
    let quiet = Quiet::start(&up);
    for resource in RESOURCES {
        let Attacker::Disk { script } = resource.attacker() else { continue };
        apply(&up, &noisy(resource, script, &["/tmp"], "512Mi"));
        quiet.continues();
        evicted(&up, resource);
        quiet.continues();
    }
    drop(up);
}

#[test]
fn server_answers_and_starts_again_on_a_full_disk() {
    hutch_testkit::require!(root, kubectl, python);
    let disk = disk();
    let mut up = Up::start_on(&disk.path().join("data"), &[]);
    let script = format!("{PRELUDE}\nwhile not os.path.exists('/tmp/go'): time.sleep(0.1)\n");
    let script = format!("{script}{}", include_str!("attackers/files.py"));
    let container = json!({"name": "c", "image": "hutch/host", "command": ["python3", "-c", script, "/tmp"]});
    apply(&up, &pod("noisy", json!({"containers": [container], "terminationGracePeriodSeconds": 0})));
    up.ok("wait --for=condition=Ready pod/noisy --timeout=90s");
    {
        let quiet = Quiet::start(&up);
        // Others fill the disk, and the Pod takes the rest and keeps trying.
        let fill = std::fs::File::create(disk.path().join("filler")).expect("a file");
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&fill, flags, 0, free(&disk.path()) - LEFT_BYTES).expect("fallocate");
        up.ok("exec noisy -- touch /tmp/go");
        up.eventually("logs noisy", |_| free(&disk.path()) == 0);
        up.eventually(PRESSURE, |pressure| pressure == "True");
        for _ in 0..5 {
            quiet.continues();
        }
        // Evicting it would not end the pressure.
        assert_eq!(up.ok("get pod noisy -o jsonpath={.status.phase}"), "Running");
        // A new Pod waits, and can be deleted.
        let waiting = json!({"name": "c", "image": "hutch/host", "command": ["sleep", "1000"]});
        apply(&up, &pod("waiting", json!({"containers": [waiting]})));
        up.eventually("get events", |events| events.contains("node.kubernetes.io/disk-pressure"));
        assert_eq!(up.ok("get pod waiting -o jsonpath={.status.phase}"), "Pending");
        // Kilobytes of objects, so that the store grows.
        let large = "x".repeat(100 << 10);
        for count in 0..10 {
            let literal = format!("--from-literal=key={large}");
            up.ok_args(&["create", "configmap", &format!("large-{count}"), &literal]);
        }
    }
    up.kill();
    // What the dead leave, others take.
    let rest = disk.path().join("rest");
    let mut file = std::fs::File::create(&rest).expect("a file");
    hutch_testkit::wait::until("a full disk", || {
        while file.write_all(&[1; 4096]).is_ok() {}
        free(&disk.path()) == 0
    });
    up.restart();
    up.ok("create configmap again --from-literal=key=value");
    up.ok("delete pod noisy waiting --timeout=90s");
    std::fs::remove_file(disk.path().join("filler")).expect("remove");
    std::fs::remove_file(rest).expect("remove");
    up.eventually(PRESSURE, |pressure| pressure == "False");
    up.ok("wait --for=condition=Ready pod/quiet-exec pod/quiet-http --timeout=90s");
    drop(up);
}
