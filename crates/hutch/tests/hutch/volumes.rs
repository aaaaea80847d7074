//! Volumes of `hutch up`, with kubectl and `hutch volume`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{HUTCH, Up, refused, succeeded};

pub(crate) fn apply(up: &Up, object: &Value) {
    let mut kubectl = up.kubectl_command(&["apply", "-f", "-"]);
    let mut child = kubectl.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("kubectl");
    child.stdin.take().expect("stdin").write_all(object.to_string().as_bytes()).expect("written");
    assert!(child.wait().expect("kubectl").success());
}

fn claim(up: &Up, name: &str, size: &str) {
    apply(
        up,
        &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}}),
    );
}

fn pod(up: &Up, name: &str, volume: &Value, script: &str) {
    let mut volume = volume.clone();
    volume["name"] = "v".into();
    apply(
        up,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "terminationGracePeriodSeconds": 0, "volumes": [volume],
            "containers": [{"name": "c", "image": "hutch/host", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "v", "mountPath": "/data"}]}]}}),
    );
}

fn volume(up: &Up, words: &[&str]) -> Command {
    let mut command = Command::new(HUTCH);
    command.arg("volume").args(words).arg("--kubeconfig").arg(up.kubeconfig());
    command
}

fn on_disk(up: &Up, words: &[&str]) -> Command {
    let mut command = volume(up, words);
    command.arg("--data-dir").arg(up.data());
    command
}

fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("hutch")
}

#[test]
fn volumes_are_listed_measured_exported_and_imported() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    claim(&up, "from", "1Gi");
    claim(&up, "to", "1Gi");
    claim(&up, "small", "64Ki");
    let script = "cd /data; mkdir -p a/b; head -c 1M /dev/zero > a/b/file; echo text > a/text; chmod 640 a/text; \
        ln -s /etc/passwd link; ln a/text again; mkfifo pipe; touch done; sleep 1000000";
    pod(&up, "writer", &json!({"persistentVolumeClaim": {"claimName": "from"}}), script);
    up.ok("wait --for=condition=Ready pod/writer --timeout=60s");
    up.eventually("exec writer -- ls /data", |names| names.contains("done"));
    let uid = up.ok("get pvc from -o jsonpath={.metadata.uid}");
    let written = up.data().join("volumes/default").join(uid.trim()).join("a/text");
    std::os::unix::fs::chown(written, Some(7), Some(8)).expect("chown");
    let listed = succeeded("list", &run(volume(&up, &["list"])));
    let row = |name: &str| listed.lines().find(|line| line.contains(name)).expect(name).to_owned();
    for part in ["default", "1Gi", "ReadWriteMany", "Bound", "writer"] {
        assert!(row("from").contains(part), "{listed}");
    }
    assert!(!row(" to ").contains("writer"), "{listed}");
    let measured = succeeded("du", &run(on_disk(&up, &["du", "from"])));
    let bytes: u64 =
        measured.lines().nth(1).and_then(|row| row.split_whitespace().nth(2)).unwrap().parse().unwrap();
    assert!((1 << 20..2 << 20).contains(&bytes), "{measured}");

    let archive = up.folder().join("archive.tar");
    let file = archive.to_str().expect("a path");
    let exported = run(on_disk(&up, &["export", "from", file]));
    succeeded("export", &exported);
    assert!(String::from_utf8_lossy(&exported.stderr).contains("1 sockets, pipes and devices were left out"));
    refused(&run(on_disk(&up, &["export", "from", file])), 1, &["exists"]);
    succeeded("import", &run(on_disk(&up, &["import", "to", file])));
    pod(&up, "reader", &json!({"persistentVolumeClaim": {"claimName": "to"}}), "sleep 1000000");
    up.ok("wait --for=condition=Ready pod/reader --timeout=60s");
    let script = "cd /data; stat -c %a:%u:%g:%s a/text a/b/file; readlink link; stat -c %s again";
    let found = up.ok_args(&["exec", "reader", "--", "sh", "-c", script]);
    assert_eq!(found.trim(), "640:7:8:5\n644:0:0:1048576\n/etc/passwd\n5");
    refused(&run(on_disk(&up, &["import", "small", file])), 1, &["for which the volume has room"]);
    refused(&run(on_disk(&up, &["export", "missing", file])), 1, &["claim missing"]);
    refused(&run(volume(&up, &["du", "from", "--data-dir", "/missing"])), 1, &["--data-dir /missing"]);
}

#[test]
fn archive_that_leads_out_of_a_volume_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    claim(&up, "target", "1Gi");
    let outside = tempfile::tempdir().expect("tempdir");
    let archive = up.folder().join("hostile.tar");
    let mut builder = hutch_archive::Builder::new(std::fs::File::create(&archive).expect("a file"));
    let header = || {
        let mut header = tar::Header::new_gnu();
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(0o644);
        header.set_size(0);
        header
    };
    let mut link = header();
    link.set_entry_type(tar::EntryType::Symlink);
    builder.append_link(&mut link, "way", outside.path()).expect("a link");
    let mut file = header();
    file.set_size(1);
    builder.append_data(&mut file, "way/file", &b"x"[..]).expect("a file");
    builder.into_inner().expect("an archive");
    let file = archive.to_str().expect("a path");
    refused(&run(on_disk(&up, &["import", "target", file])), 1, &["a link is on its path"]);
    assert_eq!(std::fs::read_dir(outside.path()).expect("a folder").count(), 0);
}

#[test]
fn folders_of_the_machine_are_mounted_only_as_the_flag_allows() {
    hutch_testkit::require!(root, kubectl);
    let host = tempfile::tempdir().expect("tempdir");
    let path = |name: &str| host.path().join(name);
    for name in ["sets", "results", "other"] {
        std::fs::create_dir(path(name)).expect("a folder");
    }
    std::fs::write(path("sets/file"), "set\n").expect("written");
    let (sets, results) = (path("sets").display().to_string(), format!("{}:rw", path("results").display()));
    let up = Up::start(&["--host-path", &sets, "--host-path", &results]);
    let on_host = |name: &str| json!({"hostPath": {"path": path(name), "type": "Directory"}});
    let script = "cat /data/file; touch /data/new || echo read-only; sleep 1000000";
    pod(&up, "reader", &on_host("sets"), script);
    pod(&up, "writer", &on_host("results"), "echo result > /data/result; sleep 1000000");
    pod(&up, "refused", &on_host("other"), "sleep 1000000");
    // Output and errors come in either order.
    up.eventually("logs reader", |log| log.contains("set\n") && log.contains("read-only"));
    hutch_testkit::wait::until("a result", || {
        std::fs::read_to_string(path("results/result")).is_ok_and(|text| text == "result\n")
    });
    up.eventually("get events", |events| {
        events.contains("is not beneath a folder that `hutch up --host-path` allows")
    });
    let data = up.data();
    let mut second = Command::new(HUTCH);
    let other = up.folder().join("second");
    second.args(["up", "--api-listen", "127.0.0.1:0", "--data-dir"]).arg(&other).arg("--host-path");
    second.arg(other.parent().expect("a folder"));
    let second = run(second);
    assert_eq!(second.status.code(), Some(1));
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(message.contains("cannot allow") && message.contains("second or lies in it"), "{message}");
    assert!(data.is_dir());
}
