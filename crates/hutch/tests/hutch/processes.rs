//! The two processes of `hutch up`: what the front may do, and what is left when one of them is killed.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Up, WAIT_LIMIT, binary};

/// Process id of the front of a server.
fn front_of(up: &Up) -> u32 {
    child_of(up, "hutch-front")
}

pub(crate) fn child_of(up: &Up, program: &str) -> u32 {
    let root = up.pid();
    let children = std::fs::read_to_string(format!("/proc/{root}/task/{root}/children")).expect("children");
    let named = format!("{program}\0");
    let is_it = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(&named))
    };
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.into_iter().find(is_it).expect("a process")
}

fn status(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:"))).expect("a field");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WAIT_LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| !text.contains("State:\tZ"))
}

#[test]
fn descriptors_of_the_caller_reach_neither_front_nor_warden() {
    hutch_testkit::require!(root);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("left-open");
    let file = std::fs::File::create(&path).expect("a file");
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("inheritable");
    let up = Up::start(&[]);
    let root = up.pid();
    // A process that has ended has no descriptors: the server also starts short programs.
    let has_it = |pid: u32| {
        let mut targets = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .ok()?
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .peekable();
        targets.peek()?;
        Some(targets.any(|target| target == path))
    };
    assert_eq!(has_it(root), Some(true), "the server inherited it");
    let threads = std::fs::read_dir(format!("/proc/{root}/task")).expect("threads").flatten();
    let children: Vec<u32> = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect::<Vec<_>>())
        .collect();
    let found: Vec<(u32, bool)> =
        { children }.into_iter().filter_map(|pid| Some((pid, has_it(pid)?))).collect();
    assert!(found.len() >= 2, "front and warden: {found:?}");
    assert!(found.iter().all(|(_, has_it)| !has_it), "{found:?}");
}

/// Checks that all threads of a process have this user and no privilege.
pub(crate) fn unprivileged(pid: u32, owner: u32) {
    // The kernel gives the files of a process that is not dumpable to root.
    let status_file = std::fs::metadata(format!("/proc/{pid}/status")).expect("status");
    assert_eq!(status_file.uid(), 0, "it is dumpable");
    assert!(!attaches(owner, pid), "another process of its user reads its memory");
    let four = [owner; 4].map(|id| id.to_string()).join(" ");
    let none = "0000000000000000";
    for (field, expected) in [
        ("Uid", four.as_str()),
        ("Gid", &four),
        ("Groups", ""),
        ("CapPrm", none),
        ("CapEff", none),
        ("CapInh", none),
        ("CapBnd", none),
        ("CapAmb", none),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        assert_eq!(status(pid, field), expected, "{field}");
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        for thread in threads.flatten() {
            let thread = thread.file_name().into_string().expect("a number").parse().expect("a number");
            assert_eq!(status(thread, field), expected, "{field} of thread {thread}");
        }
    }
}

/// Returns true if a process of this user may attach to a process, which reading its environment needs too.
fn attaches(user: u32, pid: u32) -> bool {
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let mut setpriv = std::process::Command::new("setpriv");
    setpriv.args(ids).args(["--clear-groups", "cat"]).arg(format!("/proc/{pid}/environ"));
    setpriv.output().expect("setpriv").status.success()
}

#[test]
fn process_that_is_dumpable_is_one_to_which_its_user_attaches() {
    hutch_testkit::require!(root);
    let mut setpriv = std::process::Command::new("setpriv");
    setpriv.args(["--reuid=70001", "--regid=70001", "--clear-groups", "sleep", "1000"]);
    let mut process = setpriv.spawn().expect("setpriv");
    until("it runs as its user", || status(process.id(), "Name") == "sleep");
    assert!(attaches(70001, process.id()));
    process.kill().expect("kill");
    process.wait().expect("wait");
}

#[test]
fn front_has_its_own_user_and_no_privilege() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&["--router-listen", "127.0.0.1:0"]);
    let front = front_of(&up);
    let owner = up.data().join("store/objects.redb").metadata().expect("the store").uid();
    assert!(owner >= 65536, "{owner}");
    unprivileged(front, owner);
    assert_eq!(status(up.pid(), "Uid"), "0 0 0 0");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", up.pid())).expect("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
    assert_eq!(core.split_whitespace().skip(4).collect::<Vec<_>>(), ["1", "1", "bytes"], "{core}");
    // The front holds no descriptor of the node: no jail, no Pod, no folder but its own.
    let data = up.data();
    for entry in std::fs::read_dir(format!("/proc/{front}/fd")).expect("descriptors").flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let own = [data.join("store"), data.join("ca"), data.join("lock")];
        assert!(
            !target.starts_with(&data) || own.iter().any(|folder| target.starts_with(folder)),
            "{}",
            target.display()
        );
    }
    assert_eq!(
        doctor(front),
        json!({"role": "front", "pid": front, "user": owner, "capabilities": false, "seccomp": true})
    );
    let node = doctor(up.pid());
    assert_eq!(
        (&node["role"], &node["user"], &node["capabilities"]),
        (&json!("node"), &json!(0), &json!(true))
    );
    assert_eq!(up.stop(), Some(0));
    assert!(!is_running(front));
}

#[test]
fn proxy_has_another_user_and_no_privilege() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let proxy = child_of(&up, "hutch-egress");
    // It has no order before that, and `ready` does not wait for it.
    until("it is confined", || status(proxy, "Seccomp") == "2");
    let ids = status(proxy, "Uid");
    let owner: u32 = ids.split(' ').next().and_then(|id| id.parse().ok()).expect("an id");
    assert!(owner >= 65536, "{owner}");
    assert_ne!(ids, status(front_of(&up), "Uid"));
    unprivileged(proxy, owner);
    assert_eq!(
        doctor(proxy),
        json!({"role": "proxy", "pid": proxy, "user": owner, "capabilities": false, "seccomp": true})
    );
    // Its descriptors are sockets and what its runtime needs: no file, no folder.
    for entry in std::fs::read_dir(format!("/proc/{proxy}/fd")).expect("descriptors").flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.display().to_string();
        let harmless = ["socket:", "anon_inode:", "pipe:", "/dev/null", "/dev/pts/"];
        let output = ["0", "1", "2"].iter().any(|standard| entry.file_name() == *standard);
        assert!(output || harmless.iter().any(|start| target.starts_with(start)), "{target}");
    }
}

#[test]
fn process_that_pulls_images_has_a_user_of_its_own_and_starts_again() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&["--pull-from", "*"]);
    let puller = child_of(&up, "hutch-pull");
    until("it is confined", || status(puller, "Seccomp") == "2");
    let owner = up.data().join("pulled-for-pods").metadata().expect("its folder").uid();
    assert!(owner >= 65536, "{owner}");
    unprivileged(puller, owner);
    assert_eq!(
        doctor(puller),
        json!({"role": "puller", "pid": puller, "user": owner, "capabilities": false, "seccomp": true})
    );
    // It has made its store, so it could open it where it is confined.
    until("the store", || up.data().join("pulled-for-pods/index.json").exists());
    kill(puller);
    // Another thread starts it.
    let restarted = |pid: u32| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pid != puller && words.starts_with("hutch-pull\0")
    };
    let pids = || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", up.pid())).expect("threads").flatten();
        let lists = threads.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
        lists.collect::<Vec<_>>().join(" ")
    };
    until("it runs again", || pids().split_whitespace().any(|pid| pid.parse().is_ok_and(restarted)));
}

#[test]
fn broker_has_a_user_of_its_own_and_no_privilege() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let broker = child_of(&up, "hutch-broker");
    let ids = status(broker, "Uid");
    let owner: u32 = ids.split(' ').next().and_then(|id| id.parse().ok()).expect("an id");
    assert!(owner >= 65536, "{owner}");
    for other in ["hutch-front", "hutch-egress"] {
        assert_ne!(ids, status(child_of(&up, other), "Uid"), "{other}");
    }
    unprivileged(broker, owner);
    assert_eq!(
        doctor(broker),
        json!({"role": "broker", "pid": broker, "user": owner, "capabilities": false, "seccomp": true})
    );
    let key = up.data().join("broker/machine.key").metadata().expect("the key");
    assert_eq!((key.uid(), key.permissions().mode() & 0o7777), (owner, 0o600));
    // It holds no file, and one socket.
    let mut sockets = 0;
    for entry in std::fs::read_dir(format!("/proc/{broker}/fd")).expect("descriptors").flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.display().to_string();
        sockets += usize::from(target.starts_with("socket:"));
        let output = ["1", "2"].iter().any(|standard| entry.file_name() == *standard);
        assert!(output || target.starts_with("socket:"), "{target}");
    }
    assert_eq!(sockets, 1);
}

/// Returns the report of `hutch doctor` about a process.
fn doctor(pid: u32) -> Value {
    let output =
        std::process::Command::new(binary()).args(["doctor", "--json"]).output().expect("hutch doctor");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = report["processes"].as_array().expect("processes").clone();
    all.into_iter().find(|process| process["pid"] == pid).expect("the process")
}

#[test]
fn other_users_cannot_list_the_data_folder() {
    hutch_testkit::require!(root);
    let mut up = Up::start(&[]);
    let mode = |path: &Path| path.metadata().expect("folder").permissions().mode() & 0o7777;
    let data = up.data();
    assert_eq!((mode(&data), data.metadata().expect("folder").uid()), (0o710, 0));
    for folder in ["store", "ca", "broker", "pods", "volumes", "images", "run", "memory"] {
        assert_eq!(mode(&data.join(folder)) & 0o077, 0, "{folder}");
    }
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn killed_front_ends_the_server_and_the_next_start_has_everything() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    up.ok("create configmap kept --from-literal=a=b");
    up.ok("run p --image=hutch/host --restart=Never -- sleep 1000");
    up.ok("wait --for=condition=Ready pod/p --timeout=60s");
    kill(front_of(&up));
    assert_eq!(up.wait(), Some(1));
    up.restart();
    assert_eq!(up.ok("get configmap kept -o jsonpath={.data.a}"), "b");
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn killed_root_process_ends_the_front_and_the_next_start_follows_at_once() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    let address =
        up.printed.iter().find_map(|line| line.strip_prefix("API")).expect("an address").trim().to_owned();
    let listen = address.trim_start_matches("https://").to_owned();
    up.ok("create configmap kept --from-literal=a=b");
    for _ in 0..5 {
        let front = front_of(&up);
        up.kill();
        // On the same port, which the front still had.
        up.restart_with(&["--api-listen", &listen]);
        assert!(!is_running(front));
        assert_eq!(up.ok("get configmap kept -o jsonpath={.data.a}"), "b");
    }
    let front = front_of(&up);
    up.kill();
    until("the front ends", || !is_running(front));
    up.restart();
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn data_folder_of_version_1_is_brought_up_and_keeps_its_objects() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    up.ok("create configmap kept --from-literal=a=b");
    assert_eq!(up.stop(), Some(0));
    // Version 1: the same files, all of them root's.
    let data = up.data();
    for path in ["", "store", "store/objects.redb", "ca", "ca/ca.key", "ca/admin.token"] {
        chown(data.join(path), Some(0), Some(0)).expect("chown");
    }
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700)).expect("chmod");
    std::fs::write(data.join("version"), "1\n").expect("version");
    up.restart();
    assert_eq!(up.ok("get configmap kept -o jsonpath={.data.a}"), "b");
    assert_eq!(std::fs::read_to_string(data.join("version")).expect("version"), "2\n");
    assert!(data.join("ca/ca.key").metadata().expect("the key").uid() >= 65536);
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn copy_of_the_data_folder_has_every_object_and_file() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    let sandbox = r#"{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "kept"},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main",
            "image": "hutch/host", "command": ["sleep", "infinity"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}}"#;
    let file = up.folder().join("sandbox.json");
    std::fs::write(&file, sandbox).expect("written");
    up.ok(&format!("create -f {}", file.display()));
    up.ok("wait --for=condition=Ready sandbox/kept --timeout=60s");
    up.ok_args(&["exec", "kept", "--", "sh", "-c", "echo content > /data/file"]);
    assert_eq!(up.stop(), Some(0));
    let copy = up.folder().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").args([&up.data(), &copy]).status();
    assert!(copied.expect("cp").success());
    let restored = Up::start_on(&copy, &[]);
    restored.ok("wait --for=condition=Ready sandbox/kept --timeout=60s");
    assert_eq!(restored.ok("exec kept -- cat /data/file"), "content\n");
}

#[test]
fn deleted_admin_token_is_replaced_and_the_old_one_refused() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    let old = up.folder().join("old");
    std::fs::copy(up.kubeconfig(), &old).expect("copied");
    let address = |file: &Path| {
        let text = std::fs::read_to_string(file).expect("a kubeconfig");
        text.lines().find_map(|line| line.trim().strip_prefix("server: ")).expect("an address").to_owned()
    };
    assert_eq!(up.stop(), Some(0));
    std::fs::remove_file(up.data().join("ca/admin.token")).expect("removed");
    up.restart();
    up.ok("get nodes");
    let mut kubectl = std::process::Command::new("kubectl");
    kubectl.args(["get", "nodes", "--server", &address(&up.kubeconfig()), "--kubeconfig"]).arg(&old);
    // Its message depends on what it has stored about a server.
    kubectl.env("HOME", up.folder().join("new"));
    let refused = kubectl.output().expect("kubectl");
    let text = crate::harness::text(&refused.stderr);
    assert!(!refused.status.success() && text.contains("provide credentials"), "{text}");
}

#[test]
fn link_that_the_front_left_is_not_followed() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    assert_eq!(up.stop(), Some(0));
    let host = up.folder().join("host-file");
    std::fs::write(&host, "host").expect("a file");
    std::os::unix::fs::symlink(&host, up.data().join("store/link")).expect("a link");
    std::os::unix::fs::symlink(up.folder(), up.data().join("ca/folder")).expect("a link");
    up.restart();
    assert_eq!(host.metadata().expect("the file").uid(), 0);
    assert_eq!(up.folder().metadata().expect("the folder").uid(), 0);
    assert_eq!(up.stop(), Some(0));
}
