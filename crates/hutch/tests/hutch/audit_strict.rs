//! `hutch up --audit strict` on a disk that is full: what has no record does not happen.

use std::path::{Path, PathBuf};
use std::process::Command;

use hutch_testkit::swap::Swap;
use hutch_testkit::wait::until;
use serde_json::Value;

use crate::audited::{eventually, read};
use crate::harness::{Up, succeeded, text};
use crate::policies::{SERVER, Server, applied, policy, rule, sandbox};

/// Disk of 1 MiB for the audit log, which begins anew.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it for the log of a server.
    pub(crate) fn under(up: &mut Up) -> SmallDisk {
        up.stop();
        let disk = SmallDisk::at(up.data().join("audit"));
        up.restart();
        disk
    }

    /// Mounts it at a folder that exists.
    pub(crate) fn at(folder: PathBuf) -> SmallDisk {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m,mode=700", "none"]).arg(&folder);
        succeeded("mount", &mount.output().expect("mount"));
        SmallDisk(folder)
    }

    pub(crate) fn fill(&self) {
        let _ = std::fs::write(self.0.join("fill"), vec![0; 2 << 20]);
    }

    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.0.join("fill")).expect("removed");
    }

    pub(crate) fn remove(self, up: &mut Up) {
        up.stop();
        succeeded("umount", &Command::new("umount").arg(&self.0).output().expect("umount"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Of a test that fails, or that keeps it to its end.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn strict_log_on_a_full_disk_holds_writes_back() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&["--audit", "strict"]);
    let disk = SmallDisk::under(&mut up);
    up.ok("create configmap before");
    disk.fill();
    // The last page of the segment may have room for some more records.
    let refused = (0..20).find_map(|number| {
        let output = up.kubectl(&format!("create configmap during-{number}"));
        (!output.status.success()).then(|| (number, text(&output.stderr)))
    });
    let (number, error) = refused.expect("a write that is refused");
    assert!(error.contains("the audit log cannot be written"), "{error}");
    disk.empty();
    up.ok("create configmap after");
    let maps = up.ok("get configmaps -o name");
    assert!(maps.contains("before") && maps.contains("after"), "{maps}");
    assert!(!maps.contains(&format!("during-{number}")), "{maps}");
    disk.remove(&mut up);
}

/// Output of the only container of a server. On a full disk it cannot be read through the API.
pub(crate) struct Printed(PathBuf);

impl Printed {
    pub(crate) fn of(up: &Up) -> Printed {
        Printed::below(&up.data().join("pods"))
    }

    /// Output of the only container of a Pod.
    fn of_pod(up: &Up, name: &str) -> Printed {
        let uid = up.ok(&format!("get pod {name} -o jsonpath={{.metadata.uid}}"));
        Printed::below(&up.data().join("pods").join(uid.trim()))
    }

    fn below(folder: &Path) -> Printed {
        let mut find = Command::new("find");
        let found = find.arg(folder).args(["-path", "*/logs/*", "-type", "f"]).output();
        Printed(succeeded("find", &found.expect("find")).trim().into())
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = std::fs::read_to_string(&self.0).expect("the log of the container");
        lines.lines().map(str::to_owned).collect()
    }

    /// Waits until the last lines end with a code.
    pub(crate) fn all(&self, code: &str) {
        until(code, || {
            let lines = self.lines();
            let last = &lines[lines.len().saturating_sub(6)..];
            last.len() == 6 && last.iter().all(|line| line.trim_end().ends_with(code))
        });
    }
}

#[test]
fn strict_log_on_a_full_disk_holds_commands_and_requests_to_sandboxes_back() {
    hutch_testkit::require!(root, kubectl, curl);
    let mut up = Up::start(&["--router-listen", "127.0.0.1:0", "--audit", "strict"]);
    let disk = SmallDisk::under(&mut up);
    let mut runtime = sandbox("box", &serde_json::json!({}), None);
    runtime["spec"]["podTemplate"]["spec"]["containers"] =
        serde_json::json!([{"name": "main", "image": "hutch/python-runtime"}]);
    applied(&up, &runtime);
    up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    let (address, token) = (up.router(), std::fs::read_to_string(up.data().join("ca/router.token")).unwrap());
    let exec = |file: &str| up.kubectl_args(&["exec", "box", "--", "touch", &format!("/tmp/{file}")]);
    // Status of a request through the router.
    let status = |arguments: &[&str]| {
        let bearer = format!("Authorization: Bearer {}", token.trim());
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "60", "-H", "X-Sandbox-ID: box"]);
        curl.args(["-H", &bearer]).args(arguments);
        text(&curl.output().expect("curl").stdout)
    };
    let post = |file: &str| {
        let body = format!(r#"{{"command": "touch /tmp/{file}"}}"#);
        status(&["--json", &body, &format!("http://{address}/execute")])
    };
    let get = || status(&[&format!("http://{address}/")]);
    succeeded("exec", &exec("exec-before"));
    until("the runtime serves", || post("post-before") == "200");
    assert_eq!(get(), "200");
    disk.fill();
    // The last page of the segment may have room for some more records.
    let refused = (0..20).find(|number| !exec(&format!("exec-{number}")).status.success());
    let refused = format!("exec-{}", refused.expect("a command that is refused"));
    let error = text(&exec("exec-refused").stderr);
    assert!(error.contains("the audit log cannot be written"), "{error}");
    for file in ["post-refused", "post-again"] {
        assert_eq!(post(file), "503");
    }
    assert_eq!(get(), "503");
    disk.empty();
    until("a command runs again", || exec("exec-after").status.success());
    assert_eq!(get(), "200");
    assert_eq!(post("post-after"), "200");
    let files = text(&up.kubectl_args(&["exec", "box", "--", "ls", "/tmp"]).stdout);
    for there in ["exec-before", "post-before", "exec-after", "post-after"] {
        assert!(files.contains(there), "{there}: {files}");
    }
    for absent in ["exec-refused", "post-refused", "post-again", &refused] {
        assert!(!files.lines().any(|file| file == absent), "{absent}: {files}");
    }
    disk.remove(&mut up);
}

#[test]
fn strict_log_on_a_full_disk_holds_connections_and_requests_of_sandboxes_back() {
    hutch_testkit::require!(root, kubectl, curl);
    let (web, joined) = (Server::start(), Server::start());
    let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example joined.example\n");
    let mut up = Up::start_outside(&hosts, &[], &["--audit", "strict"]);
    let disk = SmallDisk::under(&mut up);
    let mut joins = rule("joined.example", &joined);
    (joins["name"], joins["protocol"], joins["plaintext"]) = ("joined".into(), "TCP".into(), Value::Null);
    let rules = Value::from(vec![rule("web.example", &web), joins]);
    applied(&up, &policy("ClusterSandboxPolicy", "open", &serde_json::json!({}), &rules));
    let url = |host: &str, server: &Server| format!("http://{host}.example:{}/", server.port);
    let script = format!(
        "while :; do curl -s -o /dev/null -m 20 -w 'web %{{http_code}}\\n' {}; \
         curl -s -o /dev/null -m 20 -w 'joined %{{http_code}}\\n' {}; sleep 0.05; done",
        url("web", &web),
        url("joined", &joined)
    );
    let mut held = sandbox("box", &serde_json::json!({}), None);
    held["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = vec!["sh", "-c", &script].into();
    applied(&up, &held);
    up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    let output = Printed::of(&up);
    let (lines, all) = (|| output.lines(), |code: &str| output.all(code));
    all("200");
    disk.fill();
    all("503");
    let before = (web.connections(), joined.connections());
    let from = lines().len();
    until("more tries", || lines().len() > from + 20);
    assert_eq!((web.connections(), joined.connections()), before);
    disk.empty();
    all("200");
    eventually(&up, &["list", "--kind", "http", "--denied"], "web.example&the audit log cannot be written");
    disk.remove(&mut up);
}

#[test]
fn strict_log_on_a_full_disk_holds_names_and_containers_back() {
    hutch_testkit::require!(root, kubectl);
    let swap = hutch_testkit::Need::Swap.missing().is_none().then(|| Swap::new(256 << 20));
    let mut up = Up::start(&["--audit", "strict"]);
    let disk = SmallDisk::under(&mut up);
    let rules = serde_json::json!([{"name": "names", "hosts": ["*.names.example"]}]);
    applied(&up, &policy("ClusterSandboxPolicy", "open", &serde_json::json!({}), &rules));
    // It would be frozen after the disk is full.
    applied(
        &up,
        &sandbox("idle", &serde_json::json!({"annotations": {"hutch.dev/idle-after": "40s"}}), None),
    );
    // It is frozen before, and its memory would be written to swap after it.
    let frozen = serde_json::json!({"hutch.dev/idle-after": "1s", "hutch.dev/page-out-after": "60s"});
    if swap.is_some() {
        applied(&up, &sandbox("swapped", &serde_json::json!({"annotations": frozen}), None));
    }
    let script = "n=0; while sleep 0.3; do n=$((n+1)); \
                  getent ahostsv4 n$n.names.example > /dev/null && echo $n found || echo $n missing; done";
    let command = |name: &str, command: &[&str]| {
        let mut object = sandbox(name, &serde_json::json!({}), None);
        object["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = command.into();
        applied(&up, &object);
    };
    command("resolves", &["sh", "-c", script]);
    up.ok("wait --for=condition=Ready sandbox/resolves sandbox/idle --timeout=120s");
    let output = Printed::of_pod(&up, "resolves");
    output.all("found");
    command("ends", &["sleep", "2"]);
    up.eventually("get pod ends -o jsonpath={.status.phase}", |phase| phase == "Running");
    if swap.is_some() {
        eventually(&up, &["list", "--kind", "lifecycle"], "default/swapped&container main frozen");
    }
    disk.fill();
    output.all("missing");
    let waits = "get pod ends -o jsonpath={.status.containerStatuses[0].state.waiting.message}";
    up.eventually(waits, |why| why.contains("the audit log cannot be written"));
    let count = "get pod ends -o jsonpath={.status.containerStatuses[0].restartCount}";
    let before = up.ok(count);
    let reasons = ["CannotFreeze", "CannotPageOut"];
    for reason in &reasons[..if swap.is_some() { 2 } else { 1 }] {
        let events = format!("get events --field-selector reason={reason} -o jsonpath={{.items[*].message}}");
        up.eventually(&events, |found| found.contains("the audit log cannot be written"));
    }
    if swap.is_some() {
        let lifecycle = read(&up, &["list", "--kind", "lifecycle", "--sandbox", "swapped"]);
        assert!(!lifecycle.contains("paged out"), "{lifecycle}");
    }
    disk.empty();
    output.all("found");
    up.eventually(count, |count| count != before);
    eventually(&up, &["list", "--kind", "lifecycle"], "default/ends&allowed&container main started");
    eventually(&up, &["list", "--kind", "lifecycle"], "default/idle&allowed&container main frozen");
    eventually(&up, &["list", "--kind", "dns"], "default/resolves&allowed&n1.names.example");
    let denied = read(&up, &["list", "--kind", "connection", "--denied"]);
    assert!(denied.contains("names.example"), "{denied}");
    disk.remove(&mut up);
}
