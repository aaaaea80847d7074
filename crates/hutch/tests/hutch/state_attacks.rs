//! Hostile and bad input for suspends with memory: images that were changed, another runtime, a full disk, programs that are
//! hard to save, and ends of Sandboxes at bad moments.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hutch_testkit::disk::Disk;
use hutch_testkit::wait::until;
use serde_json::json;

use crate::harness::{Up, running, text};
use crate::kept::{
    READY_MESSAGE, ROUTER, SERVER, answer, images, object, ready, resume, run, set, snapshots, start,
    suspend, suspended,
};

/// Image of a suspended Sandbox.
fn image(up: &Up, name: &str) -> PathBuf {
    let uid = up.ok(&format!("get sandbox {name} -o jsonpath={{.metadata.uid}}"));
    let uid = up.ok(&format!("get sandboxsnapshot suspend-{} -o jsonpath={{.metadata.uid}}", uid.trim()));
    up.data().join("snapshots").join(uid.trim())
}

/// Resumes a Sandbox in vain: its Pod waits and has this text. Suspends it again.
#[track_caller]
fn refused(up: &Up, name: &str, why: &str) {
    set(up, name, "Running");
    let path = "jsonpath={.status.containerStatuses[0].state.waiting}";
    let said = up.eventually(&format!("get pod {name} -o {path} --ignore-not-found"), |said| {
        said.contains("RestoreFailed")
    });
    assert!(said.contains(why), "{why:?} is not in {said}");
    up.eventually("get events -o json", |events| events.contains("RestoreFailed"));
    suspend(up, name);
    assert!(image(up, name).is_dir(), "the image stays");
}

/// Changes a file of an image, and returns its content.
fn change(file: &Path, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let whole = std::fs::read(file).expect("a file");
    let mut changed = whole.clone();
    change(&mut changed);
    std::fs::write(file, changed).expect("written");
    whole
}

#[test]
fn images_that_were_changed_are_refused_by_name_and_restored_once_they_are_whole() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    for name in ["a", "b"] {
        run(&up, &object(name));
        assert_eq!(answer(&up, name), "0");
        suspend(&up, name);
    }
    let (a, b) = (image(&up, "a"), image(&up, "b"));
    let pages = a.join("memory/main/pages.img");
    let whole = change(&pages, |bytes| bytes.truncate(bytes.len() / 2));
    refused(&up, "a", "pages.img has");
    std::fs::write(&pages, whole).expect("written");

    let manifest = a.join("manifest.json");
    let whole = change(&manifest, |bytes| {
        let text = String::from_utf8(bytes.clone()).expect("text").replace("\"format\":1", "\"format\":0");
        *bytes = text.into_bytes();
    });
    refused(&up, "a", "manifest.json has been changed");
    std::fs::write(&manifest, whole).expect("written");

    let added = a.join("memory/other");
    std::fs::create_dir(&added).expect("a folder");
    refused(&up, "a", "memory/other");
    std::fs::remove_dir(&added).expect("removed");

    let aside = up.folder().join("aside");
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        std::fs::rename(from, to).expect("renamed");
    }
    refused(&up, "a", "is swapped");
    for (from, to) in [(&b, &aside), (&a, &b), (&aside, &a)] {
        std::fs::rename(from, to).expect("renamed");
    }

    std::fs::rename(&a, &aside).expect("renamed");
    set(&up, "a", "Running");
    let path = "jsonpath={.status.containerStatuses[0].state.waiting.message}";
    up.eventually(&format!("get pod a -o {path}"), |said| said.contains("is not on this node"));
    suspend(&up, "a");
    std::fs::rename(&aside, &a).expect("renamed");

    // Another key.
    let key = up.data().join("snapshots/key");
    let other = tempfile::tempdir().expect("tempdir");
    assert_eq!(up.stop(), Some(0));
    let aside = other.path().join("key");
    std::fs::copy(&key, &aside).expect("copied");
    std::fs::remove_file(&key).expect("removed");
    let mut bytes = std::fs::read(&aside).expect("a key");
    bytes[0] ^= 1;
    std::fs::write(&key, bytes).expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    up.restart();
    up.eventually("get sandboxsnapshots -o json", |said| said.contains("a key that is not the one"));
    set(&up, "a", "Running");
    up.eventually("get events -o json", |events| events.contains("RestoreFailed"));
    suspend(&up, "a");
    assert_eq!(images(&up).len(), 2, "the images stay");
    assert_eq!(up.stop(), Some(0));
    std::fs::copy(&aside, &key).expect("copied");
    up.restart();
    for name in ["a", "b"] {
        resume(&up, name);
        assert_eq!(answer(&up, name), "1");
    }
}

#[test]
fn image_of_another_runtime_is_refused_until_the_runtime_is_back() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &object("a"));
    assert_eq!(answer(&up, "a"), "0");
    suspend(&up, "a");
    let folder = up.folder().join("bin");
    std::fs::create_dir(&folder).expect("a folder");
    let path = std::env::var("PATH").expect("PATH");
    let runsc = std::env::split_paths(&path).map(|folder| folder.join("runsc")).find(|file| file.exists());
    let mut program = std::fs::read(runsc.expect("runsc")).expect("runsc");
    program.push(0);
    std::fs::write(folder.join("runsc"), program).expect("written");
    std::fs::set_permissions(folder.join("runsc"), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(up.stop(), Some(0));
    up.restart_on_path(&format!("{}:{path}", folder.display()));
    refused(&up, "a", "it was made by runsc");
    assert_eq!(up.stop(), Some(0));
    up.restart();
    resume(&up, "a");
    assert_eq!(answer(&up, "a"), "1");
}

/// Fills a file system but for so many bytes. Returns the file that fills it.
pub(crate) fn fill(folder: &Path, leave: u64) -> PathBuf {
    let file = folder.join("fill");
    let found = rustix::fs::statvfs(folder).expect("statvfs");
    let free = (found.f_bavail * found.f_frsize).saturating_sub(leave);
    let opened = std::fs::File::create(&file).expect("a file");
    // What does not fit is left out.
    let _ = rustix::fs::fallocate(&opened, rustix::fs::FallocateFlags::empty(), 0, free.max(1));
    file
}

#[test]
fn sandbox_whose_memory_finds_no_room_runs_on_and_is_suspended_when_there_is_room() {
    hutch_testkit::require!(root, kubectl, runsc);
    let disk = Disk::new(2 << 30, &["mkfs.ext4", "-q", "-F", "-m", "0"]);
    let data = disk.path().join("data");
    let up = Up::start_on(&data, &ROUTER);
    run(&up, &object("s"));
    assert_eq!(answer(&up, "s"), "0");
    // Before it begins.
    let filler = fill(&disk.path(), 64 << 20);
    set(&up, "s", "Suspended");
    let said = up.eventually(&format!("get sandbox s -o {READY_MESSAGE}"), |said| {
        said.contains("its memory cannot be kept")
    });
    assert!(said.contains("bytes are needed") && said.contains("disk"), "{said}");
    set(&up, "s", "Running");
    ready(&up, "s");
    assert_eq!(answer(&up, "s"), "1");
    std::fs::remove_file(&filler).expect("removed");
    // While it is written.
    let writes = || running(&format!("checkpoint --leave-running --image-path {}", data.display()));
    let is_suspended =
        || up.ok("get sandbox s -o jsonpath={.status.conditions[?(@.type==\"Suspended\")].status}") == "True";
    // It can be written between two looks.
    let patch = json!({"spec": {"operatingMode": "Suspended"}}).to_string();
    for _ in 0..10 {
        let mut kubectl = up.kubectl_command(&["patch", "sandbox", "s", "--type=merge", "-p", &patch]);
        let mut kubectl = kubectl.stdout(std::process::Stdio::null()).spawn().expect("kubectl");
        let mut seen = false;
        until("runsc writes the memory, or has written it", || {
            seen = (0..100).any(|_| writes());
            seen || is_suspended()
        });
        let _ = kubectl.wait();
        if seen {
            break;
        }
        set(&up, "s", "Running");
        ready(&up, "s");
    }
    let filler = fill(&disk.path(), 0);
    until("runsc has written the memory, or could not", || !writes());
    std::fs::remove_file(&filler).expect("removed");
    up.eventually("get sandboxsnapshots -o json", |said| {
        said.contains("\"Failed\"") || said.contains("\"Completed\"")
    });
    // Either it was fast enough, or it runs on.
    set(&up, "s", "Running");
    ready(&up, "s");
    assert_eq!(answer(&up, "s"), "2");
    suspend(&up, "s");
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "3");
    up.ok("delete sandbox s");
    until("the images are gone", || images(&up).is_empty());
}

/// Programs that are hard to save. Each line runs before the server.
const HARD: [(&str, &str); 6] = [
    (
        "threads",
        "import threading, time\nfor _ in range(1000): threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()",
    ),
    (
        "forks",
        r#"
import os, time
if os.fork() == 0:
    while True:
        try:
            if os.fork() == 0:
                time.sleep(0.05)
                os._exit(0)
        except OSError: pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except OSError: pass
"#,
    ),
    (
        "mapping",
        "import mmap\nmapping = mmap.mmap(-1, 100 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\nmapping[50 << 30] = 1",
    ),
    (
        "deleted",
        r#"
import os
files = []
for number in range(500):
    file = open(f"/tmp/deleted-{number}", "w+")
    file.write("x" * 4096)
    file.flush()
    os.unlink(file.name)
    files.append(file)
"#,
    ),
    (
        "inotify",
        r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
watcher = libc.inotify_init()
os.mkdir("/tmp/watched")
for number in range(200):
    os.mkdir(f"/tmp/watched/{number}")
    assert libc.inotify_add_watch(watcher, f"/tmp/watched/{number}".encode(), 0xfff) >= 0
"#,
    ),
    (
        "stopped",
        r#"
import os, signal, subprocess
child = subprocess.Popen(["sleep", "1000000"])
os.kill(child.pid, signal.SIGSTOP)
"#,
    ),
];

#[test]
fn program_that_is_hard_to_save_is_saved_whole_or_runs_on() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &object("other"));
    let mut refused = Vec::new();
    for (name, before) in HARD {
        let mut hard = object(name);
        let container = &mut hard["spec"]["podTemplate"]["spec"]["containers"][0];
        container["command"] = json!(["python3", "-u", "-c", format!("{before}\n{SERVER}")]);
        run(&up, &hard);
        assert_eq!(answer(&up, name), "0");
        set(&up, name, "Suspended");
        // Others are served meanwhile.
        answer(&up, "other");
        let path = "jsonpath={.status.conditions}";
        let said = up.eventually(&format!("get sandbox {name} -o {path}"), |said| {
            said.contains("its memory cannot be kept") || said.contains("PodTerminated")
        });
        if !said.contains("PodTerminated") {
            refused.push(format!("{name}: {said}"));
        }
        resume(&up, name);
        assert_eq!(answer(&up, name), "1", "{name}");
        up.ok(&format!("delete sandbox {name}"));
    }
    hutch_testkit::say(&format!("not suspended, of {}: {refused:?}\n", HARD.len()));
    until("no image stays", || images(&up).is_empty());
}

#[test]
fn snapshot_of_a_suspend_is_named_by_no_user() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &object("s"));
    suspend(&up, "s");
    let name = snapshots(&up)[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    let mut other = object("other");
    other["metadata"]["annotations"]["hutch.dev/restore-from"] = name.clone().into();
    let mut of_template = object("other");
    of_template["spec"]["podTemplate"]["metadata"] =
        json!({"annotations": {"hutch.dev/restore-from": name.clone()}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {
        "hutch.dev/restore-from": name.clone()}}, "spec": {"containers": [
            {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]}]}});
    let snapshot = json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot",
        "metadata": {"name": "suspend-mine"}, "spec": {"source": {"sandbox": "s"}, "content": "Full"}});
    for object in [other, of_template, pod, snapshot] {
        let file = up.folder().join("refused.json");
        std::fs::write(&file, object.to_string()).expect("written");
        let output = up.kubectl(&format!("create -f {}", file.display()));
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("suspend-"), "{said}");
    }
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
}

#[test]
fn sandbox_that_is_deleted_while_its_memory_is_written_leaves_nothing() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    for begun in [false, true] {
        run(&up, &object("s"));
        let pod = up.ok("get pod s -o jsonpath={.metadata.uid}").trim().to_owned();
        set(&up, "s", "Suspended");
        let memory = format!("checkpoint --leave-running --image-path {}", up.data().display());
        until("its memory is being written", || !begun || running(&memory) || !images(&up).is_empty());
        up.ok("delete sandbox s --wait=false");
        up.eventually("get sandboxes,pods,sandboxsnapshots -o name", str::is_empty);
        until("its image is gone", || images(&up).is_empty());
        until("its processes are gone", || !running(&pod));
    }
}

#[test]
fn image_of_a_sandbox_that_expires_while_suspended_ends_with_the_sandbox() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    for (name, policy) in [("kept", "Retain"), ("deleted", "Delete")] {
        let mut object = object(name);
        object["spec"]["shutdownPolicy"] = policy.into();
        run(&up, &object);
        suspend(&up, name);
    }
    let kept = image(&up, "kept");
    for name in ["kept", "deleted"] {
        let patch = json!({"spec": {"shutdownTime": "2026-01-01T00:00:00Z"}}).to_string();
        up.ok_args(&["patch", "sandbox", name, "--type=merge", "-p", &patch]);
    }
    up.eventually("get sandboxes -o name", |names| names.trim() == "sandbox.agents.x-k8s.io/kept");
    until("one image stays", || images(&up) == [kept.clone()]);
    let reason = "jsonpath={.status.conditions[?(@.type==\"Ready\")].reason}";
    up.eventually(&format!("get sandbox kept -o {reason}"), |reason| reason == "SandboxExpired");
    up.ok("delete sandbox kept");
    until("it goes with the Sandbox", || images(&up).is_empty() && snapshots(&up).is_empty());
}

#[test]
fn suspend_that_is_taken_back_ends_in_one_state() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &object("s"));
    for expected in 0..3_u32 {
        assert_eq!(answer(&up, "s"), expected.to_string());
        for mode in ["Suspended", "Running", "Suspended", "Running"] {
            set(&up, "s", mode);
        }
        until("one state", || {
            ready(&up, "s");
            snapshots(&up).is_empty() && images(&up).is_empty()
        });
    }
    set(&up, "s", "Suspended");
    suspended(&up, "s");
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "3");
}
