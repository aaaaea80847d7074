//! Names in a Pod that are paths, clash with names of the node, or are used twice.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Up, text};

/// Gives an object to the server without kubectl's own checks. False when the API refuses it as invalid.
#[track_caller]
pub(crate) fn submitted(up: &Up, object: &Value) -> bool {
    let file = up.folder().join("object.json");
    fs::write(&file, object.to_string()).expect("write");
    let file = file.to_str().expect("a path");
    let output = up.kubectl_args(&["create", "--validate=false", "-f", file]);
    let stderr = text(&output.stderr);
    assert!(output.status.success() || stderr.contains("invalid"), "{stderr}");
    output.status.success()
}

/// A Pod with these fields in its spec.
pub(crate) fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Waits until the Pod's containers run or are refused; its status.
#[track_caller]
pub(crate) fn settled(up: &Up, name: &str) -> String {
    up.eventually(&format!("get pod {name} -o jsonpath={{.status}}"), |status| {
        ["\"running\"", "\"terminated\"", "CreateContainerConfigError"]
            .iter()
            .any(|word| status.contains(word))
    })
}

#[track_caller]
fn deleted(up: &Up, name: &str) {
    up.ok(&format!("delete pod {name} --grace-period=0 --force --timeout=60s --ignore-not-found"));
    up.eventually("get pods -o name", |pods| !pods.contains(&format!("pod/{name}\n")));
}

/// A folder with a file in it that no Pod may touch.
fn planted(folder: &Path) -> String {
    let planted = folder.join("planted");
    fs::create_dir(&planted).expect("folder");
    fs::write(planted.join("kept"), "kept").expect("write");
    planted.to_str().expect("a path").to_owned()
}

#[test]
fn container_name_that_is_a_path_deletes_no_folder() {
    hutch_testkit::require!(root, kubectl);
    let outside = tempfile::tempdir().expect("tempdir");
    let planted = planted(outside.path());
    let up = Up::start(&[]);
    for (number, name) in [planted.as_str(), "../../../planted", ".."].into_iter().enumerate() {
        let pod_name = format!("path-{number}");
        let container = json!({"name": name, "image": "hutch/host", "command": ["sleep", "600"]});
        if submitted(&up, &pod(&pod_name, json!({"containers": [container]}))) {
            let status = settled(&up, &pod_name);
            assert!(!status.contains("\"running\""), "{name}: {status}");
            deleted(&up, &pod_name);
        }
        assert!(Path::new(&planted).join("kept").is_file(), "{name}");
    }
}

#[test]
fn volume_name_that_is_a_path_mounts_no_host_folder() {
    hutch_testkit::require!(root, kubectl);
    let outside = tempfile::tempdir().expect("tempdir");
    let planted = planted(outside.path());
    let up = Up::start(&[]);
    for (number, medium) in ["", "Memory"].into_iter().enumerate() {
        let pod_name = format!("volume-{number}");
        let container = json!({"name": "c", "image": "hutch/host",
            "command": ["sh", "-c", "echo reached > /v/reached; sleep 600"],
            "volumeMounts": [{"name": planted, "mountPath": "/v"}]});
        let volumes = json!([{"name": planted, "emptyDir": {"medium": medium}}]);
        if submitted(&up, &pod(&pod_name, json!({"containers": [container], "volumes": volumes}))) {
            let status = settled(&up, &pod_name);
            assert!(!status.contains("\"running\""), "{status}");
            deleted(&up, &pod_name);
        }
        assert!(Path::new(&planted).join("kept").is_file() && !Path::new(&planted).join("reached").exists());
    }
}

#[test]
fn containers_named_like_folders_of_the_node_start() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let names = ["hosts", "volumes", "roots", "env", "logs", "files", "given"];
    let containers: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({"name": name, "image": "hutch/host", "command": ["sh", "-c", format!("echo I am {name}; sleep 600")],
                "volumeMounts": [{"name": "hosts", "mountPath": "/v"}]})
        })
        .collect();
    let volumes = json!([{"name": "hosts", "emptyDir": {}}]);
    assert!(submitted(&up, &pod("named", json!({"containers": containers, "volumes": volumes}))));
    up.ok("wait --for=condition=Ready pod/named --timeout=60s");
    for name in names {
        up.eventually(&format!("logs named -c {name}"), |log| log == format!("I am {name}\n"));
    }
}

#[test]
fn volumes_of_one_name_write_no_host_file() {
    hutch_testkit::require!(root, kubectl);
    let outside = tempfile::tempdir().expect("tempdir");
    let target = outside.path().join("target");
    let mut up = Up::start(&[]);
    up.ok("create configmap map --from-literal=key=written");
    let script = format!("rm -f /v/key; ln -s {} /v/key; sleep 600", target.display());
    let container = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let volumes = json!([{"name": "v", "configMap": {"name": "map"}}, {"name": "v", "emptyDir": {}}]);
    if !submitted(&up, &pod("twice", json!({"containers": [container], "volumes": volumes}))) {
        return;
    }
    if settled(&up, "twice").contains("\"running\"") {
        up.eventually("exec twice -- readlink /v/key", |link| !link.is_empty());
    }
    up.kill();
    up.restart();
    settled(&up, "twice");
    let events = up.eventually("get events -o jsonpath={.items[*].message}", |events| !events.is_empty());
    assert!(!target.exists(), "{events}");
    deleted(&up, "twice");
}
