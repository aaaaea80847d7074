//! Folders that a container made: removing them ends neither the server nor the removal of others.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::harness::Up;
use crate::names::{pod, submitted};

/// Nests folders until no path and no stack is long enough.
const NEST: &str = r"
import os, sys
os.chdir(sys.argv[1])
for _ in range(10000):
    os.mkdir('d')
    os.chdir('d')
open('file', 'w').close()
print('nested', flush=True)
os.execvp('sleep', ['sleep', '600'])
";

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("entry").path()).collect()
}

/// A server whose data folder is removed by a program that takes any depth, also after a failure.
struct Server {
    up: Option<Up>,
    data: PathBuf,
}

impl Server {
    fn start() -> Server {
        let data = tempfile::tempdir().expect("tempdir").keep();
        Server { up: Some(Up::start_on(&data, &[])), data }
    }

    fn up(&mut self) -> &mut Up {
        self.up.as_mut().expect("a server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.up.take());
        // What stays is in a temporary folder.
        let _ = Command::new("rm").arg("-rf").arg(&self.data).status();
    }
}

/// Waits until a folder holds nothing.
#[track_caller]
fn emptied(up: &Up, folder: &Path) {
    // A request each time, so that a server that died shows.
    up.eventually("get namespaces", |_| entries(folder).is_empty());
}

#[test]
fn nested_folders_of_a_deleted_pod_are_removed() {
    hutch_testkit::require!(root, kubectl, python);
    let mut server = Server::start();
    let up = server.up();
    let container = json!({"name": "c", "image": "hutch/host", "command": ["python3", "-c", NEST, "/v"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    assert!(submitted(up, &pod("deep", json!({"containers": [container], "volumes": volumes}))));
    up.eventually("logs deep", |log| log == "nested\n");
    up.ok("delete pod deep --grace-period=1 --wait=false");
    emptied(up, &up.data().join("pods"));
    up.kill();
    up.restart();
    up.ok("get namespaces");
}

#[test]
fn nested_folders_of_a_restarted_container_are_removed() {
    hutch_testkit::require!(root, kubectl, python);
    let mut server = Server::start();
    let up = server.up();
    let container =
        json!({"name": "c", "image": "hutch/host", "command": ["python3", "-c", NEST, "/var/tmp"]});
    assert!(submitted(up, &pod("deep", json!({"containers": [container]}))));
    up.eventually("logs deep", |log| log == "nested\n");
    up.kill();
    up.restart();
    up.eventually("get pod deep -o jsonpath={.status.containerStatuses[0]}", |status| {
        status.contains("\"restartCount\":1") && status.contains("\"running\"")
    });
    up.eventually("logs deep", |log| log == "nested\n");
}

#[test]
fn volume_that_cannot_be_removed_keeps_no_other() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let claims: Vec<_> = ["a", "b", "c", "d"].map(|name| format!("claim-{name}")).into();
    for name in &claims {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        assert!(submitted(&up, &claim));
    }
    let mounts: Vec<_> =
        claims.iter().map(|name| json!({"name": name, "mountPath": format!("/{name}")})).collect();
    let volumes: Vec<_> = claims
        .iter()
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .collect();
    let container =
        json!({"name": "c", "image": "hutch/host", "command": ["sleep", "600"], "volumeMounts": mounts});
    assert!(submitted(&up, &pod("user", json!({"containers": [container], "volumes": volumes}))));
    up.ok("wait --for=condition=Ready pod/user --timeout=60s");
    let folder = up.data().join("volumes/default");
    assert_eq!(entries(&folder).len(), claims.len());
    // The first that the server will meet cannot be removed: something is mounted in it.
    let stuck = entries(&folder).swap_remove(0);
    let busy = stuck.join("busy");
    std::fs::create_dir(&busy).expect("folder");
    let mount = |words: &[&str]| {
        assert!(Command::new(words[0]).args(&words[1..]).arg(&busy).status().expect("start").success());
    };
    mount(&["mount", "-t", "tmpfs", "tmpfs"]);
    up.ok("delete pod user --grace-period=1 --timeout=60s");
    up.ok("delete persistentvolumeclaims --all --timeout=60s");
    let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        up.eventually("get namespaces", |_| entries(&folder).len() == 1);
    }));
    mount(&["umount"]);
    left.expect("the others are removed");
    assert_eq!(entries(&folder), [stuck]);
}
