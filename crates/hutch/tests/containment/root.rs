//! The host's root file system is out of sight: `/..` is `/`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Up, succeeded, text};
use crate::ordinary::{Caller, Place, apply};

/// Reads the planted file through `..`, and compares the listings of `/` and `/..`.
fn attack(planted: &Path) -> String {
    format!(
        "if cat /..{0} /../..{0}; then echo LEAKED; fi; [ \"$(ls -ai /)\" = \"$(ls -ai /..)\" ] && echo same",
        planted.display()
    )
}

/// A file that must not be read from inside.
fn plant(folder: &Path) -> std::path::PathBuf {
    let file = folder.join("planted");
    fs::write(&file, "LEAKED\n").expect("write");
    file
}

/// A root file system without mount points: busybox-like, with the host's programs copied in.
fn bare_rootfs(folder: &Path) -> std::path::PathBuf {
    let root = folder.join("rootfs");
    fs::create_dir(&root).expect("folder");
    let script = "for program in sh ls cat; do path=$(command -v $program); \
         for file in $path $(ldd $path | grep -o '/[^ ]*'); do mkdir -p \"$0/$(dirname $file)\"; cp -L $file \"$0$file\"; done; \
         done; mkdir -p $0/bin; [ -e $0/bin/sh ] || cp $(command -v sh) $0/bin/sh";
    let made = Command::new("sh").arg("-c").arg(script).arg(&root).output().expect("sh");
    succeeded("copying programs", &made);
    root
}

#[test]
fn parent_of_root_in_hutch_run_is_root() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let script = attack(&plant(place.path()));
    let workspace = place.folder_of(Caller::Ordinary, "work");
    let (rootfs, workspace) =
        (bare_rootfs(place.path()).display().to_string(), workspace.display().to_string());
    for caller in [Caller::Root, Caller::Ordinary] {
        for options in [&[][..], &["--workspace", &workspace], &["--rootfs", &rootfs]] {
            let output = place.run(caller, options, &script).output().expect("hutch run");
            let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
            assert!(
                !printed.contains("LEAKED") && printed.contains("same"),
                "{caller:?}, {options:?}: {printed}"
            );
        }
    }
}

#[test]
fn parent_of_root_in_a_pod_is_root() {
    hutch_testkit::require!(root, kubectl);
    let place = Place::new();
    let file = plant(place.path());
    let up = Up::start(&[]);
    for read_only in [false, true] {
        let name = if read_only { "read-only" } else { "overlay" };
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "hutch/host",
                "securityContext": {"readOnlyRootFilesystem": read_only},
                "command": ["sh", "-c", attack(&file)]}]}});
        apply(&up, &pod);
        up.eventually(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |phase| phase == "Succeeded");
        let printed = up.ok(&format!("logs {name}"));
        assert!(!printed.contains("LEAKED") && printed.contains("same"), "{name}: {printed}");
    }
}
