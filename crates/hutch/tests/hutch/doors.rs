//! `hutch egress`: the proxy for programs of this machine, with curl, Python, WebSockets, SOCKS and a proxy upstream.

mod attacks;
mod confined;
mod guard;
pub(crate) mod origin;
mod scanned;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use hutch_testkit::wait::until;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::{HUTCH, refused, text};
use origin::{Origin, SERVER};

/// Names of the tests, which only the program under test sees, and the policies.
pub(crate) struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().expect("tempdir");
        let hosts = format!(
            "127.0.0.1 localhost\n{SERVER} web.example plain.example db.example mcp.example other.example\n\
             169.254.169.254 metadata.example\n"
        );
        std::fs::write(folder.path().join("hosts"), hosts).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), mode).expect("chmod");
        Site { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a policy with these rules, and returns its path.
    fn policy(&self, name: &str, rules: &Value) -> String {
        self.policy_of(name, &json!({"egress": rules}))
    }

    /// Writes a policy, and returns its path.
    fn policy_of(&self, name: &str, spec: &Value) -> String {
        let policy = json!({
            "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": name},
            "spec": spec,
        });
        let path = self.path(&format!("{name}.yaml"));
        std::fs::write(&path, policy.to_string()).expect("written");
        path.display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let script = "mount --bind \"$1\" /etc/hosts && shift && cd / && exec \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "bash", "-c", script, "bash"]).arg(self.path("hosts")).arg(HUTCH);
        unshare.args(arguments).stdin(Stdio::null()).env_remove("SSL_CERT_FILE");
        unshare
    }

    /// Starts the proxy with a policy of these rules.
    fn proxy(&self, rules: &Value, options: &[&str]) -> Proxy {
        let policy = self.policy("clients", rules);
        let arguments = [&["egress", "--policy", &policy, "--listen", "127.0.0.1:0"], options].concat();
        Proxy::start(self.command(&arguments))
    }
}

/// A running `hutch egress`.
struct Proxy {
    child: Child,
    address: String,
    /// Lines of standard error until it served.
    printed: Vec<String>,
    log: Arc<Mutex<Vec<Value>>>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    fn start(mut command: Command) -> Proxy {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unshare");
        let mut errors = BufReader::new(child.stderr.take().expect("errors")).lines();
        let mut printed = Vec::new();
        let address = loop {
            let line = errors.next().unwrap_or_else(|| panic!("it ended: {printed:?}")).expect("a line");
            printed.push(line.clone());
            if let Some(address) = line.strip_prefix("hutch: proxy at http://") {
                break address.to_owned();
            }
        };
        let log = Arc::<Mutex<Vec<Value>>>::default();
        let (output, lines) = (child.stdout.take().expect("output"), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                lines.lock().expect("lines").push(value);
            }
        });
        // What comes later is the test's output.
        let later = Arc::new(Mutex::new(errors));
        std::thread::spawn(move || {
            let mut errors = later.lock().expect("errors");
            errors.by_ref().map_while(Result::ok).for_each(|line| println!("{line}"));
        });
        Proxy { child, address, printed, log }
    }

    /// Sends bytes to the proxy and returns what it answers until its end.
    fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the proxy");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        // The proxy may refuse it before everything is sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends bytes to the proxy and returns what it answers at once.
    fn exchange_head(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the proxy");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        stream.write_all(bytes).expect("sent");
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer[..count]).into_owned()
    }

    /// Waits for a line of the log with these fields.
    fn logged(&self, fields: &Value) {
        let fields = fields.as_object().expect("fields");
        let has = |line: &Value| fields.iter().all(|(name, value)| &line[name] == value);
        until(&format!("{fields:?} in the log"), || self.log.lock().expect("lines").iter().any(has));
    }

    fn curl(&self, options: &[&str]) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "-x", &format!("http://{}", self.address)]).args(options);
        for name in ["http_proxy", "https_proxy", "no_proxy", "NO_PROXY"] {
            curl.env_remove(name);
        }
        curl.output().expect("curl")
    }
}

/// A rule for hosts that lead to the servers of the tests.
fn rule(name: &str, host: &str, port: u16, more: &Value) -> Value {
    let mut rule = json!({"name": name, "hosts": [host], "ports": [port], "private": ["127.78.0.0/16"]});
    let fields = rule.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    rule
}

#[test]
fn curl_and_python_reach_what_is_allowed_and_learn_what_is_not() {
    hutch_testkit::require!(root, curl, python);
    let site = Site::new();
    let origin = Origin::plain();
    let port = origin.port;
    let paths = json!({"plaintext": true, "http": [{"methods": ["GET"], "paths": ["/ok/**"]}]});
    let proxy = site.proxy(&json!({"rules": [rule("web", "web.example", port, &paths)]}), &[]);
    let url = |path: &str| format!("http://web.example:{port}{path}");
    for options in [&["-p"][..], &[]] {
        let output = proxy.curl(&[options, &[&url("/ok/a?token=secret")]].concat());
        assert_eq!(text(&output.stdout), "ok", "{options:?} {}", text(&output.stderr));
        let output = proxy.curl(&[options, &["-i", &url("/no")]].concat());
        let answer = text(&output.stdout);
        assert!(answer.contains("403 Forbidden") && answer.contains("application/problem+json"), "{answer}");
        assert!(answer.contains("no rule of policy \\\"clients\\\" allows it"), "{answer}");
    }
    let output = proxy.curl(&["-i", "http://other.example/"]);
    assert!(text(&output.stdout).contains("403 Forbidden"), "{}", text(&output.stdout));
    let output = proxy.curl(&["https://other.example/"]);
    assert!(text(&output.stderr).contains("403"), "{}", text(&output.stderr));
    let program = "import sys, urllib.request, urllib.error\n\
        for url in sys.argv[1:]:\n    \
            try: print(urllib.request.urlopen(url, timeout=20).read().decode())\n    \
            except urllib.error.HTTPError as error: print(error.code)\n    \
            except OSError as error: print(error)\n";
    let python = |urls: &[&str]| {
        let mut python = Command::new("python3");
        python.args(["-c", program]).args(urls).env_remove("no_proxy").env_remove("NO_PROXY");
        let (name, value) = ("http_proxy", format!("http://{}", proxy.address));
        text(&python.env(name, &value).env("https_proxy", &value).output().expect("python3").stdout)
    };
    let printed = python(&[&url("/ok/b"), &url("/no"), "https://other.example/"]);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!((lines[0], lines[1]), ("ok", "403"), "{printed}");
    assert!(lines[2].contains("403"), "{printed}");
    assert_eq!(origin.paths(), ["/ok/a?token=secret", "/ok/a?token=secret", "/ok/b"]);
    let destination = format!("web.example:{port}");
    let (path, reason) = ("/no", "no rule of policy \"clients\" allows it");
    proxy.logged(&json!({"decision": "deny", "destination": destination, "method": "GET", "path": path,
        "policy": "clients", "reason": reason}));
    proxy.logged(
        &json!({"decision": "allow", "method": "GET", "path": "/ok/a", "policy": "clients", "rule": "web"}),
    );
    proxy.logged(&json!({"decision": "deny", "destination": "other.example:443", "method": null}));
    until("a line for each decision", || proxy.log.lock().expect("lines").len() >= 9);
    let log = proxy.log.lock().expect("lines");
    let field = |line: &Value, name: &str| line[name].as_str().unwrap_or("-").to_owned();
    let mut lines: Vec<_> = log
        .iter()
        .map(|line| ["decision", "destination", "path"].map(|name| field(line, name)).join(" "))
        .collect();
    lines.sort();
    // A CONNECT whose requests are read has none of its own.
    let web = |decision: &str, path: &str| format!("{decision} {destination} {path}");
    let (ok, no, closed) = (web("allow", "/ok/a"), web("deny", "/no"), "deny other.example:443 -".to_owned());
    let plain = "deny other.example:80 /".to_owned();
    let expected =
        [ok.clone(), ok, web("allow", "/ok/b"), closed.clone(), closed, plain, no.clone(), no.clone(), no];
    assert_eq!(lines, expected);
    assert!(!log.iter().any(|line| line.to_string().contains("secret")), "{log:?}");
    assert!(log.iter().all(|line| line["time"].as_str().is_some_and(|time| time.ends_with('Z'))), "{log:?}");
}

#[test]
fn tls_ends_at_the_proxy_where_rules_read_requests() {
    hutch_testkit::require!(root, curl);
    let site = Site::new();
    let (origin, authority) = Origin::tls(&site.path("upstream"), &["web.example", "plain.example"]);
    let port = origin.port;
    let rules = json!({"rules": [
        rule("web", "web.example", port, &json!({"http": [{"paths": ["/ok/**"]}]})),
        rule("through", "plain.example", port, &json!({})),
    ]});
    let policy = site.policy("clients", &rules);
    let folder = site.path("ca");
    let arguments = [
        "egress",
        "--policy",
        &policy,
        "--listen",
        "127.0.0.1:0",
        "--ca-dir",
        folder.to_str().expect("text"),
    ];
    let certificate = folder.join("ca.pem").display().to_string();
    let (web, through) =
        (format!("https://web.example:{port}"), format!("https://plain.example:{port}/anything"));
    for _ in 0..2 {
        let mut command = site.command(&arguments);
        command.env("SSL_CERT_FILE", &authority);
        let proxy = Proxy::start(command);
        let line = format!("hutch: clients must trust the authority in {certificate}");
        assert!(proxy.printed.contains(&line), "{:?}", proxy.printed);
        for version in ["--http1.1", "--http2"] {
            let options = [version, "--cacert", &certificate, "-i"];
            let output = proxy.curl(&[&options[..], &[&format!("{web}/ok/a")]].concat());
            assert!(text(&output.stdout).ends_with("ok"), "{}{}", text(&output.stdout), text(&output.stderr));
            let output = proxy.curl(&[&options[..], &[&format!("{web}/no")]].concat());
            assert!(text(&output.stdout).contains("application/problem+json"), "{}", text(&output.stdout));
        }
        // Its TLS is not ended, so it is that of the server.
        let output = proxy.curl(&["--cacert", authority.to_str().expect("text"), &through]);
        assert_eq!(text(&output.stdout), "ok", "{}", text(&output.stderr));
        proxy.logged(
            &json!({"decision": "allow", "destination": format!("web.example:{port}"), "path": "/ok/a"}),
        );
        proxy.logged(
            &json!({"decision": "allow", "destination": format!("plain.example:{port}"), "rule": "through"}),
        );
    }
    let proxy = site.proxy(&rules, &[]);
    let line =
        "rule \"web\" of policy \"clients\" reads requests: without --ca-dir, TLS to its hosts is refused";
    assert!(proxy.printed.iter().any(|printed| printed.contains(line)), "{:?}", proxy.printed);
    let output = proxy.curl(&["-k", &format!("{web}/ok/a")]);
    assert!(!output.status.success());
    proxy.logged(&json!({"decision": "deny", "destination": format!("web.example:{port}")}));
}

#[test]
fn websockets_pass_and_end_with_a_close_code() {
    hutch_testkit::require!(root);
    let site = Site::new();
    let port = origin::websocket();
    let rules = json!({
        "rules": [
            rule("read", "web.example", port, &json!({"plaintext": true, "http": [{"websocket": true}]})),
            rule("joined", "plain.example", port, &json!({"plaintext": true})),
        ],
        "budget": {"bytesOut": 4096, "per": "1h"},
    });
    let proxy = site.proxy(&rules, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for host in ["plain.example", "web.example"] {
            let stream = tunnel(&proxy.address, &format!("{host}:{port}")).await;
            let url = format!("ws://{host}:{port}/chat");
            let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.expect("switched");
            for word in ["hello", "again"] {
                socket.send(Message::text(word)).await.expect("sent");
                let answer = socket.next().await.expect("an answer").expect("a message");
                assert_eq!(answer.into_text().expect("text").as_str(), word.to_uppercase(), "{host}");
            }
            if host == "web.example" {
                socket.send(Message::text("x".repeat(8192))).await.expect("sent");
                let Some(Ok(Message::Close(Some(close)))) = socket.next().await else {
                    panic!("no close frame")
                };
                assert_eq!(u16::from(close.code), 1008);
                assert!(close.reason.contains("bytesOut"), "{}", close.reason);
            }
        }
        // In absolute form, as some clients send it.
        let stream = tokio::net::TcpStream::connect(&proxy.address).await.expect("the proxy");
        let refused = tokio_tungstenite::client_async(format!("ws://other.example:{port}/"), stream).await;
        assert!(refused.is_err());
    });
    proxy.logged(&json!({"decision": "deny", "destination": format!("web.example:{port}"), "path": "/chat"}));
}

/// Returns a connection to a destination through the proxy.
async fn tunnel(proxy: &str, destination: &str) -> tokio::net::TcpStream {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(proxy).await.expect("the proxy");
    let request = format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", text(&head));
    stream
}

#[test]
fn socks_names_are_resolved_and_decided_by_the_proxy() {
    hutch_testkit::require!(root, curl);
    let site = Site::new();
    let origin = Origin::plain();
    let port = origin.port;
    let proxy =
        site.proxy(&json!({"rules": [rule("db", "db.example", port, &json!({"protocol": "TCP"}))]}), &[]);
    let curl = |url: String| {
        let socks = format!("socks5h://{}", proxy.address);
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "-x", &socks, &url])
            .env_remove("no_proxy")
            .env_remove("NO_PROXY");
        curl.output().expect("curl")
    };
    assert_eq!(text(&curl(format!("http://db.example:{port}/")).stdout), "ok");
    for url in [format!("http://other.example:{port}/"), format!("http://{SERVER}:{port}/")] {
        assert!(!curl(url.clone()).status.success(), "{url}");
    }
    assert_eq!(origin.paths(), ["/"]);
    proxy.logged(&json!({"decision": "deny", "destination": format!("{SERVER}:{port}")}));
}

#[test]
fn each_request_within_connect_is_for_the_host_of_the_rule() {
    hutch_testkit::require!(root);
    let site = Site::new();
    let origin = Origin::plain();
    let port = origin.port;
    let proxy =
        site.proxy(&json!({"rules": [rule("web", "web.example", port, &json!({"plaintext": true}))]}), &[]);
    let name = format!("web.example:{port}");
    let connect = format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n");
    let get =
        |path: &str, host: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    let requests = get("/first", &name, "") + &get("/second", "attacker.example", "Connection: close\r\n");
    let answer = proxy.exchange((connect + &requests).as_bytes());
    assert!(answer.contains(" 200 ") && answer.contains("403 Forbidden"), "{answer}");
    assert_eq!(origin.paths(), ["/first"]);
}

#[test]
fn redirect_is_an_answer_and_each_request_is_decided_by_itself() {
    hutch_testkit::require!(root, curl);
    let site = Site::new();
    let origin = Origin::plain();
    let port = origin.port;
    let proxy =
        site.proxy(&json!({"rules": [rule("web", "web.example", port, &json!({"plaintext": true}))]}), &[]);
    let url = format!("http://web.example:{port}/redirect");
    let output = proxy.curl(&["-i", &url]);
    let answer = text(&output.stdout);
    assert!(answer.starts_with("HTTP/1.1 302") && answer.contains("169.254.169.254"), "{answer}");
    let output = proxy.curl(&["-iL", &url]);
    assert!(text(&output.stdout).contains("403 Forbidden"), "{}", text(&output.stdout));
    assert_eq!(origin.paths(), ["/redirect", "/redirect"]);
    proxy.logged(&json!({"decision": "deny", "destination": "169.254.169.254:80"}));
}

#[test]
fn process_that_parses_is_confined_and_counts() {
    hutch_testkit::require!(root, curl);
    let site = Site::new();
    let origin = Origin::plain();
    let rules = json!({"rules": [rule("web", "web.example", origin.port, &json!({"plaintext": true}))]});
    let mut proxy = site.proxy(&rules, &["--metrics-listen", "127.0.0.1:0"]);
    assert_eq!(text(&proxy.curl(&[&format!("http://web.example:{}/", origin.port)]).stdout), "ok");
    assert!(!proxy.curl(&["https://other.example/"]).status.success());
    let parent = proxy.child.id();
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("children");
    let child: u32 = children.trim().parse().expect("one child");
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).expect("status");
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Name:\thutch-egress"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).expect("ids");
    assert!(uid.split('\t').next().expect("an id").parse::<u32>().expect("a number") >= 0x7000_0000, "{uid}");
    let url = proxy.printed.iter().find_map(|line| line.strip_prefix("hutch: metrics at ")).expect("metrics");
    let output = Command::new("curl").args(["-sS", "--noproxy", "*", url]).output().expect("curl");
    let metrics = text(&output.stdout);
    for line in [
        "hutch_egress_requests_total{decision=\"allow\"} 1\n",
        "hutch_egress_connections_total{decision=\"deny\"} 1\n",
        "hutch_egress_bytes_total{direction=\"in\"} 2\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let pid = rustix::process::Pid::from_raw(child.cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    assert_eq!(proxy.child.wait().expect("ends").code(), Some(1));
    let mut proxy = site.proxy(&rules, &[]);
    let pid = rustix::process::Pid::from_raw(proxy.child.id().cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    assert_eq!(proxy.child.wait().expect("ends").code(), Some(0));
}

#[test]
fn upstream_proxy_gets_the_credential_and_nothing_else_shows_it() {
    hutch_testkit::require!(root, curl, user_namespaces);
    let site = Site::new();
    let origin = Origin::plain();
    let (upstream, heads) = origin::upstream_proxy(SERVER);
    let port = origin.port;
    let policy = site.policy(
        "clients",
        &json!({"rules": [rule("web", "web.example", port, &json!({"plaintext": true}))]}),
    );
    let url = format!("http://user:s%65cret@{upstream}");
    let arguments = ["egress", "--policy", &policy, "--listen", "127.0.0.1:0"];
    let mut command = site.command(&arguments);
    command.env("HUTCH_UPSTREAM_PROXY", &url);
    let proxy = Proxy::start(command);
    assert_eq!(text(&proxy.curl(&[&format!("http://web.example:{port}/a")]).stdout), "ok");
    let head = heads.recv_timeout(Duration::from_secs(20)).expect("a CONNECT");
    assert!(head.starts_with(&format!("CONNECT web.example:{port} HTTP/1.1\r\n")), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n"), "{head}");
    let flag = Proxy::start(site.command(&[&arguments[..], &["--upstream-proxy", &url]].concat()));
    assert_eq!(text(&flag.curl(&[&format!("http://web.example:{port}/b")]).stdout), "ok");
    let parent = flag.child.id();
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("children");
    let child = children.trim();
    for file in ["cmdline", "environ"] {
        let shown = std::fs::read(format!("/proc/{child}/{file}")).expect("readable");
        assert!(!text(&shown).contains("cret"), "{file}");
    }
    assert!(heads.recv_timeout(Duration::from_secs(20)).is_ok());
    let run = |options: &[&str]| {
        let allow = format!("web.example:{port}");
        let web = format!("http://web.example:{port}/c");
        let tail = ["--allow", &allow, "--", "curl", "-sS", "--max-time", "20", &web];
        site.command(&[&["run"], options, &tail].concat()).output().expect("unshare")
    };
    // The proxy upstream resolves the name.
    let output = run(&["--upstream-proxy", &url]);
    assert_eq!(text(&output.stdout), "ok", "{}", text(&output.stderr));
    assert!(heads.recv_timeout(Duration::from_secs(20)).is_ok());
    for wrong in ["https://user:secret@a.example:1", "http://user:secret@a.example"] {
        let output = run(&["--upstream-proxy", wrong]);
        refused(&output, 125, &["--upstream-proxy", "write it like"]);
        assert!(!text(&output.stderr).contains("secret"), "{}", text(&output.stderr));
    }
    let output = site.command(&["run", "--upstream-proxy", &url, "--", "true"]).output().expect("unshare");
    refused(&output, 125, &["--upstream-proxy", "--allow"]);
}

#[test]
fn private_ranges_are_open_only_with_the_flag() {
    hutch_testkit::require!(root, curl);
    let site = Site::new();
    let origin = Origin::plain();
    let port = origin.port;
    let rules = json!({"rules": [{"name": "any", "any": true, "ports": [port, 80], "plaintext": true}]});
    let url = format!("http://web.example:{port}/");
    let proxy = site.proxy(&rules, &[]);
    let answer = text(&proxy.curl(&["-i", &url]).stdout);
    assert!(answer.contains("403 Forbidden") && answer.contains("address of this machine"), "{answer}");
    let proxy = site.proxy(&rules, &["--allow-private", "0.0.0.0/0"]);
    assert_eq!(text(&proxy.curl(&[&url]).stdout), "ok");
    let answer = text(&proxy.curl(&["-i", "http://metadata.example/"]).stdout);
    assert!(answer.contains("403 Forbidden") && answer.contains("which no rule opens"), "{answer}");
}

#[test]
fn flags_and_files_without_meaning_are_refused() {
    hutch_testkit::require!(root);
    let site = Site::new();
    let good = site.policy("good", &json!({"rules": [{"name": "a", "any": true}]}));
    let bad = site.policy("bad", &json!({"rules": [{"name": "a"}]}));
    let credential = json!({"name": "a", "source": {"env": "T"}, "hosts": ["web.example"], "env": "T"});
    let credentials = site.policy_of("credentials", &json!({"credentials": [credential]}));
    let key = site.path("shown");
    std::fs::create_dir(&key).expect("made");
    std::fs::write(key.join("ca.key.json"), "{}").expect("written");
    let shown = key.display().to_string();
    for (arguments, status, named) in [
        (vec!["egress", "--listen", "127.0.0.1:0"], 2, "--policy"),
        (vec!["egress", "--policy", &good], 2, "--listen"),
        (vec!["egress", "--policy", &good, "--listen", "localhost"], 2, "--listen"),
        (vec!["egress", "--policy", &bad, "--listen", "127.0.0.1:0"], 1, "spec.egress.rules[0]"),
        (vec!["egress", "--policy", &good, "--listen", "127.0.0.1:0", "--ca-dir", &shown], 1, "must be 600"),
        (vec!["egress", "--policy", &good, "--listen", "192.0.2.1:1"], 1, "--listen"),
        (vec!["egress", "--policy", &credentials, "--listen", "127.0.0.1:0"], 1, "needs --ca-dir"),
        (
            vec!["egress", "--policy", &good, "--listen", "127.0.0.1:0", "--allow-private", "10.0.0.1/8"],
            2,
            "10.0.0.0/8",
        ),
    ] {
        refused(&site.command(&arguments).output().expect("unshare"), status, &[named]);
    }
}
