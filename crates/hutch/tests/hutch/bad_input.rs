//! Invalid input of `hutch up`: one clear line, or the `Status` that a Kubernetes client expects, and no partial result.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::{self, HUTCH, Up, refused, text};

fn up_with(data: &Path, options: &[&str]) -> Output {
    Command::new(HUTCH)
        .args(["up", "--api-listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .args(options)
        .stdin(Stdio::null())
        .output()
        .expect("hutch starts")
}

/// kubectl must fail and name this.
#[track_caller]
fn rejected(up: &Up, args: &[&str], named: &[&str]) {
    let output = up.kubectl_args(args);
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "{args:?} was taken: {}", text(&output.stdout));
    for named in named {
        assert!(stderr.contains(named), "{named:?} is not in {stderr:?}");
    }
}

fn manifest(up: &Up, content: &str) -> String {
    let file = up.folder().join("manifest.yaml");
    std::fs::write(&file, content).expect("write");
    file.display().to_string()
}

#[test]
fn invalid_flag_is_named() {
    let folder = tempfile::tempdir().expect("tempdir");
    refused(&up_with(folder.path(), &["--no-such-flag"]), 2, &["--no-such-flag"]);
    refused(&up_with(folder.path(), &["--pod-cidr", "127.0.0.0/8"]), 2, &["--pod-cidr"]);
    refused(&up_with(folder.path(), &["--router-allow-unauthenticated"]), 2, &["--router-listen"]);
    let hutch = |words: &[&str]| Command::new(HUTCH).args(words).output().expect("hutch starts");
    refused(&hutch(&["up", "--api-listen", "24643"]), 2, &["--api-listen", "write it like 127.0.0.1:24643"]);
    refused(&hutch(&["run", "ls"]), 125, &["'ls'", "a command comes after `--`"]);
}

#[test]
fn stopped_server_is_named_in_one_line() {
    hutch_testkit::require!(root);
    let file = tempfile::NamedTempFile::new().expect("a file");
    // Nothing listens on port 1.
    let config = "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}], \
                users: [{name: c, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: c}}]}";
    std::fs::write(file.path(), config).expect("written");
    for (words, status) in [
        ("exec box -- true", 125),
        ("suspend box", 1),
        ("logs box", 1),
        ("volume list", 1),
        ("user list", 1),
        ("snapshot list", 1),
        ("migrate --phase migrate", 1),
        ("image commit box app:v2 --data-dir /nonexistent", 1),
    ] {
        let mut hutch = Command::new(HUTCH);
        hutch.args(words.split(' ')).env("KUBECONFIG", file.path()).stdin(Stdio::null());
        let output = hutch.output().expect("hutch starts");
        refused(&output, status, &["https://127.0.0.1:1/", "is it running? `hutch up` starts one"]);
        assert!(!text(&output.stderr).contains("ServiceError"), "{words}: {}", text(&output.stderr));
    }
}

#[test]
fn runtime_class_with_an_unknown_handler_is_refused() {
    hutch_testkit::require!(root);
    let folder = tempfile::tempdir().expect("tempdir");
    refused(&up_with(folder.path(), &["--runtime-class", "gvisor=magic"]), 1, &["magic"]);
}

#[test]
fn port_in_use_is_named() {
    hutch_testkit::require!(root);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address").to_string();
    let folder = tempfile::tempdir().expect("tempdir");
    let output = Command::new(HUTCH)
        .args(["up", "--api-listen", &address, "--data-dir"])
        .arg(folder.path())
        .output()
        .expect("hutch starts");
    refused(&output, 1, &[&address]);
}

#[test]
fn data_folder_is_locked() {
    hutch_testkit::require!(root);
    let up = Up::start(&[]);
    refused(&up_with(&up.data(), &[]), 1, &[&up.data().display().to_string()]);
}

#[test]
fn data_folder_of_a_newer_version_is_unchanged() {
    hutch_testkit::require!(root);
    let mut up = Up::start(&[]);
    assert_eq!(up.stop(), Some(0));
    let version = up.data().join("version");
    std::fs::write(&version, "999\n").expect("write");
    refused(&up_with(&up.data(), &[]), 1, &["newer"]);
    assert_eq!(std::fs::read_to_string(&version).expect("read"), "999\n");
}

#[test]
fn ordinary_user_gets_an_error_that_names_root() {
    hutch_testkit::require!(root);
    let folder = tempfile::tempdir().expect("tempdir");
    let binary = folder.path().join("hutch");
    hutch_testkit::copy_program(HUTCH, &binary);
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), permissions).expect("chmod");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .args(["up", "--data-dir", "/tmp/never"])
        .output()
        .expect("setpriv");
    refused(&output, 1, &["root"]);
}

#[test]
fn request_without_a_credential_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let config = std::fs::read_to_string(up.kubeconfig()).expect("read");
    let wrong: String =
        config.lines().filter(|line| !line.contains("token:")).map(|l| format!("{l}\n")).collect();
    let wrong = wrong.replace("  user:", "  user: {token: not-the-one}");
    let file = up.folder().join("wrong");
    std::fs::write(&file, wrong).expect("write");
    let output =
        Command::new("kubectl").args(["get", "pods"]).env("KUBECONFIG", &file).output().expect("kubectl");
    assert!(!output.status.success() && text(&output.stderr).contains("must be logged in"), "{output:?}");
}

#[test]
fn kubectl_shows_the_reason_of_a_refusal() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    unknown_field(&up);
    wrong_type(&up);
    out_of_range(&up);
    immutable(&up);
    claim_without_pool(&up);
    image_that_cannot_be_had(&up);
    command_not_found(&up);
    more_than_the_node_has(&up);
    fields_without_effect(&up);
}

/// Such a Pod waits, with the message of a scheduler.
fn more_than_the_node_has(up: &Up) {
    for (name, requests, message) in [
        ("large", "{cpu: '64000', memory: 900Ti}", "1 Insufficient cpu, 1 Insufficient memory."),
        ("wide", "{ephemeral-storage: 900Pi}", "1 Insufficient ephemeral-storage."),
        ("gpu", "{nvidia.com/gpu: '1'}", "1 Insufficient nvidia.com/gpu."),
    ] {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: c, image: hutch/pause, \
             resources: {{requests: {requests}, limits: {requests}}}}}\n"
        );
        up.ok(&format!("create -f {}", manifest(up, &pod)));
        let path = "jsonpath={.status.phase}: {.status.conditions[?(@.type=='PodScheduled')].message}";
        let shown = || text(&up.kubectl_args(&["get", "pod", name, "-o", path]).stdout);
        let wanted = format!("Pending: 0/1 nodes are available: {message}");
        hutch_testkit::wait::until("the Pod shows what is lacking", || shown() == wanted);
        up.ok(&format!("delete pod {name}"));
    }
}

fn fields_without_effect(up: &Up) {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: outside}\n\
                   spec: {type: NodePort, ports: [{port: 80}]}\n";
    let created = up.kubectl_args(&["create", "-f", &manifest(up, service)]);
    assert!(created.status.success(), "{}", text(&created.stderr));
    let warning = "Warning: spec.type: has no effect on hutch up: nothing opens on the machine";
    assert!(text(&created.stderr).contains(warning), "{}", text(&created.stderr));
}

fn unknown_field(up: &Up) {
    let pool = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxWarmPool\nmetadata: {name: p}\n\
                spec: {replicas: 1, replica: 2, sandboxTemplateRef: {name: t}}\n";
    let file = manifest(up, pool);
    rejected(up, &["apply", "-f", &file], &["unknown field \"spec.replica\""]);
    rejected(up, &["create", "--validate=strict", "-f", &file], &["spec.replica"]);
    rejected(up, &["get", "sandboxwarmpool", "p"], &["not found"]);
}

fn wrong_type(up: &Up) {
    let pool = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxWarmPool\nmetadata: {name: p}\n\
                spec: {replicas: two, sandboxTemplateRef: {name: t}}\n";
    rejected(up, &["create", "--validate=false", "-f", &manifest(up, pool)], &["spec.replicas", "integer"]);
}

fn out_of_range(up: &Up) {
    let pool = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxWarmPool\nmetadata: {name: p}\n\
                spec: {replicas: -1, sandboxTemplateRef: {name: t}}\n";
    let named = ["spec.replicas", "should be greater than or equal to 0"];
    rejected(up, &["create", "-f", &manifest(up, pool)], &named);
}

fn immutable(up: &Up) {
    let notes = std::fs::read_to_string(harness::fixture("notes.yaml")).expect("read");
    up.ok(&format!("create -f {}", manifest(up, &notes)));
    let changed = notes.replace("storage: 1Gi", "storage: 2Gi");
    rejected(up, &["replace", "-f", &manifest(up, &changed)], &["volumeClaimTemplates is immutable"]);
    up.ok("delete sandbox notes");
}

fn claim_without_pool(up: &Up) {
    let claim = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxClaim\nmetadata: {name: lost}\n\
                 spec: {warmPoolRef: {name: no-such-pool}}\n";
    up.ok(&format!("create -f {}", manifest(up, claim)));
    let reason = "get sandboxclaim lost -o jsonpath={.status.conditions[?(@.type=='Ready')].reason}";
    up.eventually(reason, |reason| reason == "WarmPoolNotFound");
}

fn image_that_cannot_be_had(up: &Up) {
    up.ok("run far --image=docker.io/library/redis:7 --restart=Never");
    let reason = "get pod far -o jsonpath={.status.containerStatuses[0].state.waiting.reason}";
    up.eventually(reason, |reason| reason == "ErrImagePull" || reason == "ImagePullBackOff");
    up.eventually("get events -o jsonpath={.items[*].message}", |printed| {
        printed.contains("docker.io/library/redis:7")
    });
}

fn command_not_found(up: &Up) {
    up.ok("run typo --image=hutch/host --restart=Never --command -- no-such-command");
    up.eventually("get events -o jsonpath={.items[*].message}", |printed| {
        printed.contains("no-such-command")
    });
    up.eventually("get pod typo -o jsonpath={.status.phase}", |phase| phase == "Failed");
}

#[test]
fn full_disk_loses_nothing_and_leaves_no_partial_object() {
    hutch_testkit::require!(root, kubectl);
    let folder = tempfile::tempdir().expect("tempdir");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("mkdir");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(&data).status();
    assert!(mounted.is_ok_and(|status| status.success()), "a small file system");
    let up = Up::start_on(&data, &[]);
    up.ok("create configmap before --from-literal=k=v");
    let filler = data.join("filler");
    let filled =
        Command::new("dd").args(["if=/dev/zero", "bs=64k"]).arg(format!("of={}", filler.display())).output();
    assert!(filled.is_ok_and(|o| !o.status.success()), "the disk is full");
    let value = format!("--from-literal=k={}", "x".repeat(100_000));
    let mut refusals = Vec::new();
    // What the store has set aside for itself still takes some.
    for n in 0..200 {
        let output = up.kubectl_args(&["create", "configmap", &format!("full-{n}"), &value]);
        if !output.status.success() {
            refusals.push((n, text(&output.stderr)));
            break;
        }
    }
    let (n, printed) = refusals.pop().expect("a full disk is reported");
    assert!(printed.to_lowercase().contains("space") || printed.contains("disk"), "{printed}");
    rejected(&up, &["get", "configmap", &format!("full-{n}")], &["not found"]);
    std::fs::remove_file(&filler).expect("rm");
    up.ok("get configmap before");
    up.eventually("create configmap after --from-literal=k=v", |_| true);
    drop(up);
    assert!(Command::new("umount").arg("-l").arg(&data).status().is_ok_and(|s| s.success()));
}
