//! Volumes on a file system that has quotas.

use std::process::Command;

use hutch_testkit::disk::{Disk, run};
use serde_json::json;

use crate::machine::Machine;

/// Size of the disk, in bytes.
const DISK_BYTES: u64 = 400 << 20;

/// Writes 16 MiB as the termination message and into each folder, and prints what is there then. Limits of folders are 4 MiB.
const SCRIPT: &str = "head -c 16M /dev/zero > /dev/termination-log 2>/dev/null; \
    size=$(stat -c %s /dev/termination-log); [ $size -le 262144 ] && echo message; for each in /scratch /data /var; do \
    head -c 16M /dev/zero > $each/file; size=$(stat -c %s $each/file); \
    [ $size -le 4194304 ] && echo within; [ $size -ge 3000000 ] && echo near; done 2>/tmp/errors; \
    grep -c 'quota exceeded' /tmp/errors; rm -f /data/file; rm /var/file; sleep 1000";

const PRINTED: &str = "message\nwithin\nnear\nwithin\nnear\nwithin\nnear\n3\n";

async fn printed(machine: &Machine, class: &str) -> String {
    let spec = json!({
        "runtimeClassName": class,
        "main": {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/data"},
                                  {"name": "errors", "mountPath": "/tmp"}],
                 "resources": {"limits": {"ephemeral-storage": "4Mi"}}},
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "4Mi"}}, {"name": "errors", "emptyDir": {}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    });
    machine.run(class, SCRIPT, spec).await;
    let pod = machine.ready(class).await;
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let log = machine.log(&pod, hutch_kubelet::LogRequest::default()).await;
        if log.lines().count() >= 8 || std::time::Instant::now() > until {
            machine.delete(class).await;
            return log;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_beyond_a_limit_fail_on_btrfs_with_quotas() {
    hutch_testkit::require!(root, btrfs);
    let disk = Disk::new(DISK_BYTES, &["mkfs.btrfs", "-q"]);
    run(Command::new("btrfs").args(["quota", "enable"]).arg(disk.path()));
    let data = disk.path().join("data");
    let machine = Machine::start(&data).await;
    let _: k8s_openapi::api::core::v1::PersistentVolumeClaim = machine
        .create(json!({"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Mi"}}}}))
        .await;
    assert_eq!(printed(&machine, "hutch").await, PRINTED);
    // Nothing of the Pod is left, subvolumes included.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while std::fs::read_dir(data.join("pods")).unwrap().next().is_some() {
        let left = || Command::new("find").arg(data.join("pods")).arg("-ls").output().unwrap().stdout;
        let late = std::time::Instant::now() > until;
        assert!(!late, "the folder of the Pod is still there: {}", String::from_utf8_lossy(&left()));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    if hutch_testkit::Need::Runsc.missing().is_none() {
        assert_eq!(printed(&machine, "gvisor").await, PRINTED);
    }
    machine.stop().await;
}
