//! Policies of `hutch up`: a Sandbox reaches what every policy that applies to it allows, and nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{self, Up, refused};

/// Exit status of curl whose time limit is over. No refused request ends so.
pub(crate) const CURL_TIMED_OUT: i32 = 28;
/// Address of the servers: loopback.
pub(crate) const SERVER: &str = "127.77.3.1";

/// Server that answers every request with `hello`, and counts its connections.
pub(crate) struct Server {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) fn start() -> Server {
        let listener = TcpListener::bind((SERVER, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer(stream.expect("a connection")));
            }
        });
        Server { port, connections }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
}

pub(crate) fn start() -> Up {
    Up::start_with_hosts(&format!("127.0.0.1 localhost\n{SERVER} web.example other.example\n"))
}

pub(crate) fn apply(up: &Up, object: &Value) -> std::process::Output {
    let file = up.folder().join("object.json");
    std::fs::write(&file, object.to_string()).expect("written");
    up.kubectl_args(&["apply", "-f", &file.display().to_string()])
}

pub(crate) fn applied(up: &Up, object: &Value) {
    harness::succeeded("kubectl apply", &apply(up, object));
}

/// A rule that opens the server by this name.
pub(crate) fn rule(name: &str, server: &Server) -> Value {
    json!({"name": "web", "hosts": [name], "ports": [server.port], "plaintext": true, "private": [SERVER]})
}

/// Rule for the server by which a client that waits for its server stays connected.
fn bytes_to(server: &Server) -> Value {
    json!({"name": "web", "hosts": ["web.example"], "ports": [server.port], "protocol": "TCP", "private": [SERVER]})
}

pub(crate) fn policy(kind: &str, name: &str, applies: &Value, rules: &Value) -> Value {
    json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": {"appliesTo": applies, "egress": {"rules": rules}},
    })
}

pub(crate) fn sandbox(name: &str, metadata: &Value, class: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": metadata,
        "spec": {"podTemplate": {"spec": {"runtimeClassName": class, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]},
        ]}}},
    });
    object["metadata"]["name"] = name.into();
    object
}

/// Returns the answer to a request from inside a Sandbox; empty if the request fails.
pub(crate) fn get(up: &Up, sandbox: &str, host: &str, server: &Server) -> String {
    let url = format!("http://{host}:{}/", server.port);
    let output = up.kubectl_args(&["exec", sandbox, "--", "curl", "-s", "-m", "60", &url]);
    assert_ne!(output.status.code(), Some(CURL_TIMED_OUT), "{sandbox}: {url}");
    harness::text(&output.stdout)
}

/// Reason of the condition of a Sandbox.
pub(crate) fn enforced(up: &Up, sandbox: &str, reason: &str) {
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].reason}";
    up.eventually(&format!("get sandbox {sandbox} -o {path}"), |found| found.trim() == reason);
}

/// Process id of the proxy.
pub(crate) fn proxy(up: &Up) -> Option<i32> {
    let mut all = std::fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let is_proxy = status.starts_with("Name:\thutch-egress\n");
        let parent = format!("\nPPid:\t{}\n", up.pid());
        (is_proxy && status.contains(&parent)).then_some(id)
    });
    all.next()
}

/// Regression: the policies of a Pod followed its labels only when something else changed.
#[test]
fn policies_of_a_pod_without_a_sandbox_follow_its_labels() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    let selector = json!({"selector": {"matchLabels": {"app": "agent"}}});
    let rules = json!([rule("web.example", &server)]);
    applied(&up, &policy("ClusterSandboxPolicy", "web", &selector, &rules));
    let container = json!({"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]});
    applied(
        &up,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}),
    );
    up.ok("wait --for=condition=Ready pod/p --timeout=180s");
    assert_eq!(get(&up, "p", "web.example", &server), "");
    for (label, answer) in [("app=agent", "hello"), ("app-", ""), ("app=agent", "hello")] {
        up.ok(&format!("label pod p {label}"));
        until(label, || get(&up, "p", "web.example", &server) == answer);
    }
}

#[test]
fn sandbox_reaches_what_its_policies_allow_and_another_one_nothing() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    let agent = json!({"labels": {"app": "agent"}});
    let selected = json!({"selector": {"matchLabels": {"app": "agent"}}});
    applied(&up, &policy("ClusterSandboxPolicy", "web", &selected, &json!([rule("web.example", &server)])));
    let mut classes = vec![("hutch", "native")];
    match hutch_testkit::Need::Runsc.missing() {
        None => classes.push(("gvisor", "gvisor")),
        Some(reason) => hutch_testkit::note_skip("policies in gVisor", reason),
    }
    for (class, name) in classes {
        let other = format!("{name}-other");
        applied(&up, &sandbox(name, &agent, Some(class)));
        applied(&up, &sandbox(&other, &json!({}), Some(class)));
        for sandbox in [name, &other] {
            up.ok(&format!("wait --for=condition=Ready sandbox/{sandbox} --timeout=180s"));
        }
        enforced(&up, name, "Enforced");
        enforced(&up, &other, "NoPolicy");
        assert_eq!(get(&up, name, "web.example", &server), "hello", "{class}");
        let before = server.connections();
        for (sandbox, host) in
            [(name, "other.example"), (name, SERVER), (&other, "web.example"), (&other, SERVER)]
        {
            assert_eq!(get(&up, sandbox, host, &server), "", "{class}: {sandbox} {host}");
        }
        let address = format!("http://192.0.2.1:{}/", server.port);
        let answer = up.kubectl_args(&["exec", name, "--", "curl", "-s", "-m", "20", &address]);
        assert!(harness::text(&answer.stdout).contains("no rule of policy"), "{class}: {answer:?}");
        // Pods trust the proxy, so it answers within TLS.
        let tls = ["exec", &other, "--", "curl", "-sS", "-m", "20", "https://8.8.8.8/"];
        let answer = up.kubectl_args(&tls);
        let advice = format!("nothing allows it; to allow it: hutch allow -n default {other} 8.8.8.8:443");
        assert!(harness::text(&answer.stdout).contains(&advice), "{class}: {answer:?}");
        up.eventually("get events", |events| {
            events.contains("EgressRefused") && events.contains("192.0.2.1")
        });
        assert_eq!(server.connections(), before, "{class}");
        // The name is allowed, and another policy denies the address to which it leads.
        let open = json!({"name": "all", "any": true, "ports": [server.port], "plaintext": true, "private": [SERVER]});
        let denied =
            json!({"name": "no", "cidrs": ["127.77.0.0/16"], "ports": [server.port], "decision": "Deny"});
        applied(&up, &policy("ClusterSandboxPolicy", "addresses", &selected, &json!([open, denied])));
        until("the address is denied", || {
            let answer = get(&up, name, "web.example", &server);
            assert!(
                answer == "hello" || answer.is_empty() || answer.contains("denies it by its `cidrs`"),
                "{answer}"
            );
            answer != "hello"
        });
        let asked = server.connections();
        get(&up, name, "web.example", &server);
        assert_eq!(server.connections(), asked, "{class}");
        let reason = r#"rule "no" of policy "addresses" denies it by its `cidrs`"#;
        up.eventually("get events", |events| events.contains(reason));
        up.ok("delete clustersandboxpolicy addresses");
        until("the address is open", || get(&up, name, "web.example", &server) == "hello");
    }
}

#[test]
fn policies_only_take_away_from_each_other_and_a_change_counts_at_once() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    let opened = json!([bytes_to(&server)]);
    applied(&up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    assert_eq!(get(&up, "a", "web.example", &server), "");
    applied(&up, &policy("ClusterSandboxPolicy", "floor", &json!({}), &opened));
    until("the policy counts", || get(&up, "a", "web.example", &server) == "hello");
    // A program that is connected.
    let script = format!(
        "import socket; s=socket.create_connection(('web.example',{})); print('open',flush=True); print(repr(s.recv(1)))",
        server.port
    );
    let mut connected = up.kubectl_command(&["exec", "a", "--", "python3", "-u", "-c", &script]);
    let connected = connected.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut connected = connected.spawn().expect("kubectl");
    let mut line = [0; 5];
    connected.stdout.as_mut().expect("piped").read_exact(&mut line).expect("open");
    // A namespace has no say about addresses of the machine, so it can only close this one.
    applied(&up, &policy("SandboxPolicy", "more", &json!({"sandboxes": ["a"]}), &opened));
    let ended = connected.wait_with_output().expect("kubectl");
    assert!(harness::text(&ended.stderr).contains("reset by peer"), "{ended:?}");
    until("both count", || get(&up, "a", "web.example", &server) != "hello");
    up.ok("delete sandboxpolicy more");
    until("one counts", || get(&up, "a", "web.example", &server) == "hello");
    up.ok("delete clustersandboxpolicy floor");
    until("none counts", || get(&up, "a", "web.example", &server).is_empty());
    enforced(&up, "a", "NoPolicy");
}

#[test]
fn connection_ends_with_the_time_of_its_policy() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    applied(&up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    let mut ends = policy("ClusterSandboxPolicy", "ends", &json!({}), &json!([bytes_to(&server)]));
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(20);
    ends["spec"]["expires"] = end.to_string().into();
    applied(&up, &ends);
    until("the policy counts", || get(&up, "a", "web.example", &server) == "hello");
    let script = format!(
        "import socket; s=socket.create_connection(('web.example',{})); print('open',flush=True); print(repr(s.recv(1)))",
        server.port
    );
    let connected = up.kubectl_args(&["exec", "a", "--", "python3", "-u", "-c", &script]);
    assert!(jiff::Timestamp::now() >= end, "it ended early: {connected:?}");
    assert!(harness::text(&connected.stdout).starts_with("open"), "{connected:?}");
    assert!(harness::text(&connected.stderr).contains("reset by peer"), "{connected:?}");
    enforced(&up, "a", "NoPolicy");
}

#[test]
fn policy_that_is_named_but_missing_or_named_by_the_claim_alone_opens_nothing() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    applied(
        &up,
        &policy("ClusterSandboxPolicy", "floor", &json!({}), &json!([rule("web.example", &server)])),
    );
    let naming = |name: &str| json!({"annotations": {"policy.hutch.dev/policies": name}});
    applied(&up, &sandbox("a", &naming("later"), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    enforced(&up, "a", "PolicyNotFound");
    let events = "get events --field-selector reason=PolicyNotEnforced,involvedObject.kind=Sandbox";
    up.eventually(events, |events| events.contains("PolicyNotFound: "));
    assert_eq!(get(&up, "a", "web.example", &server), "");
    let mut observes = policy("SandboxPolicy", "later", &json!({}), &json!([]));
    observes["spec"] = json!({"mode": "Observe", "egress": {"rules": []}});
    applied(&up, &observes);
    enforced(&up, "a", "Enforced");
    until("both count", || get(&up, "a", "web.example", &server) == "hello");
    up.ok("delete clustersandboxpolicy floor");
    let everything = json!([{"name": "all", "any": true, "ports": ["1-65535"], "plaintext": true}]);
    let mut named = observes;
    named["spec"] = json!({"egress": {"rules": everything}});
    applied(&up, &named);
    until("the Sandbox's own opens nothing", || get(&up, "a", "web.example", &server).is_empty());
    let message = "get sandbox a -o jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}";
    up.eventually(message, |message| message.contains("names later, which opens nothing"));
}

/// Connects to so many addresses that no rule allows.
const REFUSED: &str = "
import socket, sys
for number in range(int(sys.argv[1])):
    sock = socket.create_connection(('192.0.2.%d' % number, 9), 20)
    try:
        sock.sendall(b'x')
        sock.recv(1)
    except ConnectionResetError: pass
";

#[test]
fn ninth_policy_closes_everything_and_a_pod_has_at_most_20_events() {
    hutch_testkit::require!(root, kubectl, python);
    let (up, server) = (start(), Server::start());
    applied(&up, &sandbox("a", &json!({}), None));
    for number in 0..8 {
        let opened = json!([rule("web.example", &server)]);
        applied(&up, &policy("ClusterSandboxPolicy", &format!("p{number}"), &json!({}), &opened));
    }
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    until("eight policies count", || get(&up, "a", "web.example", &server) == "hello");
    enforced(&up, "a", "Enforced");
    let ninth = policy("ClusterSandboxPolicy", "p8", &json!({}), &json!([rule("web.example", &server)]));
    applied(&up, &ninth);
    enforced(&up, "a", "TooManyPolicies");
    until("nothing is open", || get(&up, "a", "web.example", &server).is_empty());
    up.ok("delete clustersandboxpolicy p8");
    until("eight policies count again", || get(&up, "a", "web.example", &server) == "hello");

    up.ok_args(&["exec", "a", "--", "python3", "-c", REFUSED, "30"]);
    let events = "get events --field-selector reason=EgressRefused,involvedObject.kind=Pod -o name";
    up.eventually(events, |found| found.lines().count() >= 20);
    up.ok_args(&["exec", "a", "--", "python3", "-c", REFUSED, "30"]);
    assert_eq!(up.ok(events).lines().count(), 20);
}

#[test]
fn policy_without_meaning_is_refused_by_its_field() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    let with = |applies: Value, rule: Value| {
        let object = policy("SandboxPolicy", "p", &applies, &json!([rule]));
        apply(&up, &object)
    };
    for (applies, rule, field) in [
        (json!({}), json!({"name": "a", "hosts": ["*.com"]}), "spec.egress.rules[0].hosts[0]"),
        (json!({}), json!({"name": "a"}), "spec.egress.rules[0]"),
        (json!({}), json!({"name": "a", "any": true, "ports": ["9-1"]}), "spec.egress.rules[0].ports[0]"),
        (
            json!({"namespaceSelector": {}}),
            json!({"name": "a", "any": true}),
            "spec.appliesTo.namespaceSelector",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            json!({"name": "a", "any": true}),
            "spec.appliesTo.selector.matchExpressions[0]",
        ),
        (
            json!({}),
            json!({"name": "a", "any": true, "credentials": ["X"]}),
            "spec.egress.rules[0].credentials",
        ),
        (json!({}), json!({"name": "a", "any": true, "when": "1"}), "spec.egress.rules[0].when"),
        (
            json!({}),
            json!({"name": "a", "any": true, "when": "session.anomaly < 3"}),
            "spec.egress.rules[0].when: \"session.anomaly < 3\": session has no field \"anomaly\"; the fields are",
        ),
        (
            json!({}),
            json!({"name": "a", "any": true, "private": ["10.0.0.0/8", "169.254.169.254"]}),
            "spec.egress.rules[0].private[1]",
        ),
        (json!({}), json!({"name": "a", "cidrs": ["169.254.169.254"]}), "spec.egress.rules[0].cidrs[0]"),
    ] {
        refused(&with(applies, rule), 1, &[field]);
    }
}

#[test]
fn unknown_field_of_a_policy_is_refused_whatever_the_client_wants() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    let rule = json!({"name": "a", "any": true});
    let fields = [
        ("/spec", "commands", json!([{"command": "rm"}])),
        ("/spec", "approvals", json!({})),
        ("/spec", "behavior", json!({})),
        ("/spec", "audit", json!({})),
        ("/spec/egress", "defaultAction", json!("Deny")),
        ("/spec/egress/rules/0", "decison", json!("Deny")),
    ];
    for validate in ["ignore", "warn", "strict"] {
        let flag = format!("--validate={validate}");
        for (at, field, value) in &fields {
            let mut object = policy("SandboxPolicy", "p", &json!({}), &json!([rule]));
            object.pointer_mut(at).expect("a place")[field] = value.clone();
            let file = up.folder().join("object.json");
            std::fs::write(&file, object.to_string()).expect("written");
            let output = up.kubectl_args(&["create", &flag, "-f", &file.display().to_string()]);
            refused(&output, 1, &["strict decoding error: unknown field", field]);
        }
    }
    // Neither may a change bring one in.
    applied(&up, &policy("SandboxPolicy", "p", &json!({}), &json!([rule])));
    for kind in ["merge", "json"] {
        let patch = match kind {
            "merge" => json!({"spec": {"approvals": {}}}),
            _ => json!([{"op": "add", "path": "/spec/approvals", "value": {}}]),
        };
        let output =
            up.kubectl_args(&["patch", "sandboxpolicy", "p", "--type", kind, "-p", &patch.to_string()]);
        refused(&output, 1, &["unknown field", "approvals"]);
    }
}

#[test]
fn policy_that_has_no_effect_yet_answers_with_a_warning() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    let rules = json!([{"name": "a", "any": true, "private": ["10.0.0.0/8", "127.0.0.1"]}]);
    let warnings = |object: &Value| {
        let output = apply(&up, object);
        harness::succeeded("kubectl apply", &output);
        harness::text(&output.stderr)
    };
    let mut named = policy("SandboxPolicy", "named", &json!({}), &json!([]));
    named["spec"] = json!({"egress": {"rules": []}});
    let nobody = warnings(&named);
    assert!(
        nobody.starts_with("Warning: spec.appliesTo: ")
            && nobody.contains("policy.hutch.dev/policies: named")
    );
    applied(&up, &sandbox("a", &json!({"annotations": {"policy.hutch.dev/policies": "other, named"}}), None));
    named["spec"]["egress"]["rules"] = json!([{"name": "b", "hosts": ["b.example"]}]);
    assert_eq!(warnings(&named), "");
    let private = warnings(&policy("SandboxPolicy", "private", &json!({}), &rules));
    assert!(
        private.starts_with("Warning: spec.egress.rules[0].private[1]: 127.0.0.1/32 opens nothing"),
        "{private}"
    );
    assert_eq!(private.lines().count(), 1, "{private}");
    assert_eq!(warnings(&policy("ClusterSandboxPolicy", "private", &json!({}), &rules)), "");
    let mut cluster = policy("ClusterSandboxPolicy", "none", &json!({}), &rules);
    cluster["spec"].as_object_mut().expect("a spec").remove("appliesTo");
    assert!(
        warnings(&cluster)
            .starts_with("Warning: spec.appliesTo: without it the policy applies to no sandbox;")
    );
}

#[test]
fn proxy_that_is_killed_serves_again_and_lets_nothing_else_through() {
    hutch_testkit::require!(root, kubectl);
    let (up, server, closed) = (start(), Server::start(), Server::start());
    applied(&up, &policy("ClusterSandboxPolicy", "web", &json!({}), &json!([rule("web.example", &server)])));
    applied(&up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    until("the policy counts", || get(&up, "a", "web.example", &server) == "hello");
    // One program inside that connects all the time, to an address that it resolved once.
    let script = format!(
        "import socket,time\nopen_,closed=[(socket.gethostbyname('web.example'),p) for p in ({},{})]\nwhile True:\n for a in (open_,closed):\n  try: s=socket.create_connection(a,5); s.send(b'GET / HTTP/1.1\\r\\nHost: web.example:%d\\r\\n\\r\\n'%a[1]); s.recv(9); s.close()\n  except OSError: pass\n time.sleep(.005)",
        server.port, closed.port
    );
    let mut busy = up.kubectl_command(&["exec", "a", "--", "python3", "-c", &script]);
    let mut busy = busy.stdout(std::process::Stdio::null()).spawn().expect("kubectl");
    for _ in 0..10 {
        let pid = proxy(&up).expect("a proxy");
        let before = server.connections();
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        until("it serves again", || proxy(&up).is_some() && server.connections() > before + 1);
    }
    let _ = busy.kill();
    let _ = busy.wait();
    assert_eq!(closed.connections(), 0);
}

#[test]
fn claim_has_the_policies_of_its_template_and_can_only_take_away() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    let python = json!({"templates": ["python"]});
    applied(&up, &policy("ClusterSandboxPolicy", "python", &python, &json!([rule("web.example", &server)])));
    let mut nothing = policy("SandboxPolicy", "nothing", &json!({}), &json!([]));
    nothing["spec"] = json!({"egress": {"rules": []}});
    applied(&up, &nothing);
    let group = "extensions.agents.x-k8s.io/v1beta1";
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 0, "containers": [
        {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]},
    ]}});
    applied(
        &up,
        &json!({"apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": "python"},
        "spec": {"podTemplate": pod}}),
    );
    applied(
        &up,
        &json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": "pool"},
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "python"}}}),
    );
    up.eventually("get sandboxwarmpool pool -o jsonpath={.status.readyReplicas}", |ready| {
        ready.trim() == "1"
    });
    for (name, annotations, answer, launch) in [
        ("open", json!({}), "hello", "warm"),
        ("closed", json!({"policy.hutch.dev/policies": "nothing"}), "", "cold"),
    ] {
        applied(
            &up,
            &json!({"apiVersion": group, "kind": "SandboxClaim",
            "metadata": {"name": name, "annotations": annotations}, "spec": {"warmPoolRef": {"name": "pool"}}}),
        );
        up.ok(&format!("wait --for=condition=Ready sandboxclaim/{name} --timeout=180s"));
        let sandbox = up.ok(&format!("get sandboxclaim {name} -o jsonpath={{.status.sandbox.name}}"));
        let label =
            format!("get sandbox {sandbox} -o jsonpath={{.metadata.labels.agents\\.x-k8s\\.io/launch-type}}");
        assert_eq!(up.ok(&label), launch, "{name}");
        enforced(&up, &sandbox, "Enforced");
        assert_eq!(get(&up, &sandbox, "web.example", &server), answer, "{name}");
    }
}

/// Creates a template with this network policy, a pool and a claim; returns the name of the claim's Sandbox.
fn claimed(up: &Up, template: &str, network: &Value) -> String {
    let group = "extensions.agents.x-k8s.io/v1beta1";
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 0, "containers": [
        {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]},
    ]}});
    let mut spec = json!({"podTemplate": pod});
    if !network.is_null() {
        spec["networkPolicy"] = network.clone();
    }
    let object = |kind: &str, spec: &Value| json!({"apiVersion": group, "kind": kind, "metadata": {"name": template}, "spec": spec});
    applied(up, &object("SandboxTemplate", &spec));
    applied(
        up,
        &object("SandboxWarmPool", &json!({"replicas": 0, "sandboxTemplateRef": {"name": template}})),
    );
    applied(up, &object("SandboxClaim", &json!({"warmPoolRef": {"name": template}})));
    up.ok(&format!("wait --for=condition=Ready sandboxclaim/{template} --timeout=180s"));
    up.ok(&format!("get sandboxclaim {template} -o jsonpath={{.status.sandbox.name}}"))
}

#[test]
fn explicit_network_policy_of_a_template_decides_about_addresses_and_the_managed_one_about_nothing() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    let network = json!({"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.99.0.0/16"]}}],
        "ports": [{"port": 4433}]}]});
    let (explicit, managed) = (claimed(&up, "explicit", &network), claimed(&up, "managed", &Value::Null));
    enforced(&up, &explicit, "Enforced");
    enforced(&up, &managed, "NoPolicy");
    // Whether something answers there depends on the machine. Only a refusal names a policy or the kind of address.
    let tried = |sandbox: &str, destination: &str| {
        let url = format!("http://{destination}/");
        let answer = up.kubectl_args(&["exec", sandbox, "--", "curl", "-s", "-m", "30", &url]);
        let answer = harness::text(&answer.stdout);
        let refusals = ["no rule of policy", "nothing allows it", "it is an address of a private network"];
        !refusals.iter().any(|text| answer.contains(text))
    };
    assert!(tried(&explicit, "10.98.0.1:4433"));
    for (sandbox, destination) in [
        (&explicit, "10.99.0.1:4433"),
        (&explicit, "10.98.0.2:4434"),
        (&explicit, "192.168.0.1:4433"),
        (&managed, "10.98.0.3:4433"),
    ] {
        assert!(!tried(sandbox, destination), "{sandbox} {destination}");
    }
    let closes = harness::hutch(&up, &["allow", &explicit, "other.example"]);
    harness::refused(&closes, 1, &["a policy for other.example would close them", "nothing was written"]);
    let of_managed = "get networkpolicy managed-network-policy -o json";
    let before: Value = serde_json::from_str(&up.ok(of_managed)).expect("JSON");
    assert!(before["spec"]["egress"][0]["to"][0]["ipBlock"]["except"].is_array(), "{before}");
    // Beside another policy it takes addresses away, also those to which a name leads.
    let mut all = rule("web.example", &server);
    all["cidrs"] = json!(["10.0.0.0/8", "192.168.0.0/16"]);
    all["ports"] = json!(["1-65535"]);
    all["private"] = json!(["10.0.0.0/8", "192.168.0.0/16", SERVER]);
    applied(&up, &policy("ClusterSandboxPolicy", "all", &json!({}), &json!([all])));
    let names = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}";
    up.eventually(&format!("get sandbox {explicit} -o {names}"), |message| {
        message.contains("all") && message.contains("networkPolicy of explicit")
    });
    assert!(!tried(&explicit, "192.168.0.2:4433"));
    assert!(tried(&managed, "192.168.0.3:4433"));
    let resolved = up.kubectl_args(&["exec", &explicit, "--", "getent", "hosts", "web.example"]);
    harness::succeeded("getent", &resolved);
    assert_eq!(get(&up, &managed, "web.example", &server), "hello");
    // The object is upstream's, whatever the policies are.
    let after: Value = serde_json::from_str(&up.ok(of_managed)).expect("JSON");
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"]["generation"], 1);
    let refused = get(&up, &explicit, "web.example", &server);
    assert!(refused.contains("the `networkPolicy` of the template does not allow it"), "{refused}");
    let host = format!("web.example:{}", server.port);
    for (sandbox, is_explicit) in [(&explicit, true), (&managed, false)] {
        let output = harness::hutch(&up, &["allow", sandbox, &host]);
        let printed = harness::succeeded("hutch allow", &output);
        assert!(printed.contains("already, by policy all"), "{printed}");
        assert_eq!(
            printed.contains("the networkPolicy of its template must allow"),
            is_explicit,
            "{printed}"
        );
    }
}

/// Attributes are sent to the proxy that all sandboxes share. Control characters take six bytes of JSON each.
#[test]
fn oversized_attributes_of_one_sandbox_close_no_other() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    applied(&up, &policy("ClusterSandboxPolicy", "web", &json!({}), &json!([rule("web.example", &server)])));
    for name in ["a", "b"] {
        applied(&up, &sandbox(name, &json!({}), None));
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
    }
    until("the policy counts", || get(&up, "a", "web.example", &server) == "hello");
    let large = json!({"attr.policy.hutch.dev/x": "\u{1}".repeat(32_000)});
    let patch = json!({"metadata": {"annotations": large}}).to_string();
    let file = up.folder().join("patch.json");
    std::fs::write(&file, patch).expect("written");
    let file = file.display().to_string();
    let patched = up.kubectl_args(&["patch", "sandbox", "b", "--type=merge", "--patch-file", &file]);
    harness::succeeded("kubectl patch", &patched);
    // A later order shows that the proxy still follows.
    applied(
        &up,
        &policy("ClusterSandboxPolicy", "web", &json!({}), &json!([rule("other.example", &server)])),
    );
    until("the change counts", || get(&up, "a", "other.example", &server) == "hello");
    assert_eq!(get(&up, "a", "web.example", &server), "");
}
