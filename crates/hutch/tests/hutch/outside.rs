//! The proxy of `hutch up` as the machine sees it: its metrics, and an HTTP proxy through which it connects.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::doors::origin::upstream_proxy;
use crate::harness::{Up, refused, text};
use crate::inspected::{authority, serve};
use crate::policies::{SERVER, Server, applied, enforced, get, policy, proxy, rule, sandbox};

/// Applies a policy that opens the server by this name, and starts the Sandbox `a`.
fn open(up: &Up, name: &str, server: &Server) {
    applied(up, &policy("ClusterSandboxPolicy", "web", &json!({}), &json!([rule(name, server)])));
    applied(up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    enforced(up, "a", "Enforced");
}

/// Returns the metrics that a server prints the address of; empty if it does not answer.
fn metrics(up: &Up) -> String {
    let url = up.printed.iter().find_map(|line| line.strip_prefix("metrics")).expect("an address").trim();
    text(&Command::new("curl").args(["-sS", "--noproxy", "*", url]).output().expect("curl").stdout)
}

#[test]
fn metrics_count_connections_of_pods_without_their_hosts() {
    hutch_testkit::require!(root, kubectl, curl);
    let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example\n");
    let (up, server) =
        (Up::start_outside(&hosts, &[], &["--metrics-listen", "127.0.0.1:0"]), Server::start());
    open(&up, "web.example", &server);
    let allowed = "hutch_egress_requests_total{decision=\"allow\"}";
    let before = metrics(&up);
    assert!(before.contains(&format!("{allowed} 0\n")), "{before}");
    assert_eq!(get(&up, "a", "web.example", &server), "hello");
    assert!(get(&up, "a", "192.0.2.1", &server).contains("no rule of policy"));
    let counted = metrics(&up);
    for line in [
        &format!("{allowed} 1\n"),
        "hutch_egress_connections_total{decision=\"deny\"} 1\n",
        "hutch_egress_bytes_total{direction=\"in\"} 5\n",
    ] {
        assert!(counted.contains(line), "{line}: {counted}");
    }
    for host in ["web.example", "192.0.2.1", SERVER] {
        assert!(!counted.contains(host), "{counted}");
    }
    // The process that takes its place counts anew.
    let pid = proxy(&up).and_then(Pid::from_raw).expect("a proxy");
    kill_process(pid, Signal::KILL).expect("kill");
    until("another process counts", || metrics(&up).contains(&format!("{allowed} 0\n")));
}

#[test]
fn sandboxes_connect_through_the_upstream_proxy() {
    hutch_testkit::require!(root, kubectl, curl);
    let (upstream, heads) = upstream_proxy(SERVER);
    let server = Server::start();
    let url = format!("http://user:s%65cret@{upstream}");
    // Only the proxy outside resolves the name.
    let hosts = "127.0.0.1 localhost\n";
    let servers = [
        Up::start_outside(hosts, &[], &["--upstream-proxy", &url]),
        Up::start_outside(hosts, &[("HUTCH_UPSTREAM_PROXY", url.as_ref())], &[]),
    ];
    for up in &servers {
        open(up, "outside.example", &server);
        assert_eq!(get(up, "a", "outside.example", &server), "hello");
        let head = heads.recv_timeout(Duration::from_secs(20)).expect("a CONNECT");
        let first = format!("CONNECT outside.example:{} HTTP/1.1\r\n", server.port);
        assert!(head.starts_with(&first), "{head}");
        assert!(head.contains("\r\nProxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n"), "{head}");
        // Refused here, before the proxy outside hears of it.
        for host in ["other.example", SERVER, "169.254.169.254"] {
            assert_ne!(get(up, "a", host, &server), "hello", "{host}");
        }
        assert!(heads.try_recv().is_err());
        let log = std::fs::read_to_string(up.folder().join("log")).expect("a log");
        assert!(!log.contains("cret"), "{log}");
        for (id, name) in children(up) {
            for file in ["cmdline", "environ"] {
                let shown = std::fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
                assert!(!text(&shown).contains("cret"), "{name}: {file}");
            }
        }
    }
    let mut wrong = Command::new(crate::harness::binary());
    let folder = tempfile::tempdir().expect("tempdir");
    wrong
        .args(["up", "--upstream-proxy", "http://user:secret@a.example", "--data-dir"])
        .arg(folder.path().join("data"));
    let output = wrong.output().expect("hutch");
    refused(&output, 1, &["--upstream-proxy", "write it like"]);
    assert!(!text(&output.stderr).contains("secret"));
}

/// TLS ends at the proxy of the machine, and a tunnel through the proxy outside leads to the server.
#[test]
fn requests_through_the_upstream_proxy_are_read_and_end_with_their_rule() {
    hutch_testkit::require!(root, kubectl, curl, node, openssl, python);
    let folder = tempfile::tempdir().expect("tempdir");
    let public = folder.path().join("public");
    authority(&public, &["outside.example"]);
    let (peer, port) = serve(SERVER, &public, &folder.path().join("log"));
    let (upstream, heads) = upstream_proxy(SERVER);
    let url = format!("http://{upstream}");
    let trust = public.join("ca.pem");
    let up =
        Up::start_outside("127.0.0.1 localhost\n", &[("SSL_CERT_FILE", &trust)], &["--upstream-proxy", &url]);
    let rule = json!({"name": "reads", "hosts": ["outside.example"], "ports": [port],
        "http": [{"methods": ["GET"], "paths": ["/ok/**"]}]});
    applied(&up, &policy("ClusterSandboxPolicy", "reads", &json!({}), &json!([rule])));
    applied(&up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    enforced(&up, "a", "Enforced");
    let web = format!("https://outside.example:{port}/ok/a");
    let script =
        format!("curl -sS -m 60 {web}; curl -s -m 60 -d x -o /dev/null -w '%{{http_code}}\\n' {web}");
    let asked = || text(&up.kubectl_args(&["exec", "a", "--", "sh", "-c", &script]).stdout);
    until("the policy counts", || asked() == "GET HTTP/2.0\n403\n");
    let head = heads.recv_timeout(Duration::from_secs(20)).expect("a CONNECT");
    assert!(head.starts_with(&format!("CONNECT outside.example:{port} HTTP/1.1\r\n")), "{head}");
    assert!(!peer.printed().contains("POST"), "{}", peer.printed());
    // One connection, which is open while the rule is taken away.
    let program = format!(
        "import http.client, time\n\
        client = http.client.HTTPSConnection('outside.example', {port}, timeout=120)\n\
        client.connect(); client.auto_open = 0\n\
        while True:\n    \
            try:\n        \
                client.request('GET', '/ok/a')\n        \
                answer = client.getresponse()\n        \
                print(answer.status, answer.read().decode().strip(), flush=True)\n    \
            except (OSError, http.client.HTTPException): print('ended', flush=True); break\n    \
            time.sleep(.05)\n"
    );
    let mut live = up.kubectl_command(&["exec", "a", "--", "python3", "-u", "-c", &program]);
    let mut live = live.stdout(Stdio::piped()).spawn().expect("kubectl");
    let mut lines = BufReader::new(live.stdout.take().expect("piped")).lines();
    for _ in 0..3 {
        assert_eq!(lines.next().expect("a line").expect("a line"), "200 GET HTTP/1.1");
    }
    up.ok("delete clustersandboxpolicy reads");
    // A request at the same time may be refused before the connection ends.
    let expected = |line: &String| line == "200 GET HTTP/1.1" || line.starts_with("403 ");
    let rest: Vec<String> = lines.map_while(Result::ok).filter(|line| !expected(line)).collect();
    assert_eq!(rest, ["ended"]);
    assert!(live.wait().expect("kubectl").success());
}

/// Ids and names of the processes that the root process has started.
fn children(up: &Up) -> Vec<(String, String)> {
    let pid = up.pid();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").flatten();
    let children = tasks.flat_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let named = children.map(|id| {
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        (id, name.trim().to_owned())
    });
    let named: Vec<_> = named.collect();
    for name in ["hutch-front", "hutch-egress", "hutch-broker"] {
        assert!(named.iter().any(|(_, found)| found == name), "{name}: {named:?}");
    }
    named
}
