//! Synthetic addresses of names: memory that is restored may hold them, and they mean the same names then.

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::egress::server;
use crate::harness::{Up, text};
use crate::kept::{self, resume, start, suspend};
use crate::policies::{applied, enforced, policy, sandbox};

/// Address that a name has inside a Sandbox.
fn address(up: &Up, sandbox: &str, name: &str) -> String {
    let found = up.ok_args(&["exec", sandbox, "--", "getent", "ahostsv4", name]);
    let address = found.split_whitespace().next().expect("an address");
    assert!(address.starts_with("198.18.1."), "{found}");
    address.to_owned()
}

#[test]
fn names_keep_their_addresses_in_memory_that_is_restored() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    let rule = json!([{"name": "all", "hosts": ["*.names.example"]}]);
    applied(&up, &policy("ClusterSandboxPolicy", "names", &json!({}), &rule));
    let mut object = kept::object("s");
    object["metadata"]["annotations"]["hutch.dev/shares-generators"] = "true".into();
    kept::run(&up, &object);
    enforced(&up, "s", "Enforced");
    let names = ["b.names.example", "a.names.example", "c.names.example"];
    let before = names.map(|name| address(&up, "s", name));
    assert_eq!(before.iter().collect::<std::collections::HashSet<_>>().len(), 3);

    suspend(&up, "s");
    resume(&up, "s");
    // In another order, by which they would have others.
    for (name, before) in names.iter().zip(&before).rev() {
        assert_eq!(address(&up, "s", name), *before, "{name}");
    }

    let fork = json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxFork", "metadata": {"name": "f"},
        "spec": {"source": {"sandbox": "s"}, "replicas": 1, "content": "Full"}});
    kept::apply(&up, &fork);
    up.eventually("get sandbox f-0 -o name", |found| found.contains("f-0"));
    kept::ready(&up, "f-0");
    for (name, before) in names.iter().zip(&before).rev() {
        assert_eq!(address(&up, "f-0", name), *before, "{name} in a fork");
    }
    // Another Sandbox has names of its own.
    kept::run(&up, &kept::object("other"));
    enforced(&up, "other", "Enforced");
    assert_eq!(address(&up, "other", "c.names.example"), before[0]);
}

/// Addresses of the servers of two names: loopback, and of no other test.
const SERVERS: [&str; 2] = ["127.77.9.2", "127.77.9.3"];
/// Hosts file of the machine.
const HOSTS: &str = "127.0.0.1 localhost\n127.77.9.2 a.names.example\n127.77.9.3 b.names.example\n";

/// Starts the two servers on one port.
fn servers() -> u16 {
    let (port, _) = server(&format!("{}:0", SERVERS[0]), b"a");
    server(&format!("{}:{port}", SERVERS[1]), b"b");
    port
}

fn opened(port: u16, hosts: &Value) -> Value {
    let rule =
        json!([{"name": "all", "hosts": hosts, "ports": [port], "protocol": "TCP", "private": SERVERS}]);
    policy("ClusterSandboxPolicy", "names", &json!({}), &rule)
}

/// Returns what the server answers to which an address leads inside a Sandbox, or the error; nothing if the Sandbox does not run.
fn answer_of(up: &Up, sandbox: &str, address: &str, port: u16) -> String {
    let program = format!(
        "import socket\n\
         try: print(socket.create_connection(('{address}', {port}), 60).recv(1).decode())\n\
         except OSError as error: print(type(error).__name__)"
    );
    text(&up.kubectl_args(&["exec", sandbox, "--", "python3", "-c", &program]).stdout).trim().to_owned()
}

#[test]
fn address_means_its_name_after_a_suspend_and_a_restart() {
    hutch_testkit::require!(root, kubectl, python);
    let port = servers();
    let mut up = Up::start_with_hosts(HOSTS);
    applied(&up, &opened(port, &json!(["*.names.example"])));
    let mut classes = vec!["hutch"];
    match hutch_testkit::Need::Runsc.missing() {
        None => classes.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("names in gVisor", reason),
    }
    let names = ["a.names.example", "b.names.example"];
    let mut before = Vec::new();
    for class in &classes {
        kept::run(&up, &sandbox(class, &json!({}), Some(class)));
        enforced(&up, class, "Enforced");
        let addresses = names.map(|name| address(&up, class, name));
        assert_eq!(answer_of(&up, class, &addresses[0], port), "a");
        suspend(&up, class);
        before.push(addresses);
    }
    assert_eq!(up.stop(), Some(0));
    up.restart();
    let check = |up: &Up, when: &str| {
        for (class, [a, b]) in classes.iter().zip(&before) {
            enforced(up, class, "Enforced");
            // By their addresses before any name is resolved, and in another order.
            for (address, expected) in [(a, "a"), (b, "b")] {
                until("the policy counts", || answer_of(up, class, address, port) == expected);
            }
            assert_eq!(address(up, class, names[1]), *b, "{class} after {when}");
            assert_eq!(address(up, class, names[0]), *a, "{class} after {when}");
        }
    };
    classes.iter().for_each(|class| resume(&up, class));
    check(&up, "a suspend");
    // The Pods start again, with new networks.
    up.kill();
    up.restart();
    classes.iter().for_each(|class| kept::ready(&up, class));
    check(&up, "a crash");
    // A name that is no longer allowed keeps its address from others.
    applied(&up, &opened(port, &json!(["b.names.example", "c.names.example"])));
    for (class, [a, b]) in classes.iter().zip(&before) {
        until("the policy counts", || answer_of(&up, class, a, port) == "ConnectionResetError");
        suspend(&up, class);
        resume(&up, class);
        enforced(&up, class, "Enforced");
        let c = address(&up, class, "c.names.example");
        assert!(![a, b].contains(&&c), "{class}: {c}");
        until("the policy counts", || answer_of(&up, class, b, port) == "b");
        assert_eq!(answer_of(&up, class, a, port), "ConnectionResetError", "{class}");
    }
    let files = up.data().join("names");
    assert_eq!(files.read_dir().expect("names").count(), classes.len());
    classes.iter().for_each(|class| drop(up.ok(&format!("delete sandbox {class}"))));
    until("the names are forgotten", || files.read_dir().expect("names").count() == 0);
}

/// Answers each request with what the servers send whose addresses it has resolved at the first one.
const HOLDS: &str = r#"
import http.server, socket, sys
held = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if not held:
            held.extend(socket.gethostbyname(f"{name}.names.example") for name in "ab")
        body = b"".join(socket.create_connection((address, int(sys.argv[1])), 60).recv(1) for address in held)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8888), Handler).serve_forever()
"#;

#[test]
fn address_in_memory_means_its_name_after_a_restart() {
    hutch_testkit::require!(root, kubectl, runsc);
    let port = servers();
    let mut up = Up::start_outside(HOSTS, &[], &kept::ROUTER);
    applied(&up, &opened(port, &json!(["*.names.example"])));
    let mut object = kept::object("s");
    object["spec"]["podTemplate"]["spec"]["containers"][0]["command"] =
        json!(["python3", "-u", "-c", HOLDS, port.to_string()]);
    kept::run(&up, &object);
    enforced(&up, "s", "Enforced");
    assert_eq!(kept::answer(&up, "s"), "ab");
    for names in [None, Some("b.names.example\na.names.example\nc.names.example\n"), Some("")] {
        suspend(&up, "s");
        assert_eq!(up.stop(), Some(0));
        // An older version may have run meanwhile, which keeps no names: those in memory count.
        if let Some(names) = names {
            let file = up.data().join("names").read_dir().expect("names").next().expect("one").expect("one");
            std::fs::write(file.path(), names).expect("written");
        }
        up.restart();
        resume(&up, "s");
        enforced(&up, "s", "Enforced");
        until("the policy counts", || {
            let found = up.kubectl("exec s -- getent ahostsv4 b.names.example");
            text(&found.stdout).starts_with("198.18.1.1 ")
        });
        assert_eq!(kept::answer(&up, "s"), "ab", "{names:?}");
    }
}

/// Resolves many names.
const MANY: &str = include_str!("fixtures/many_names.py");

#[test]
fn sandbox_with_too_many_names_has_an_event_and_keeps_those_that_it_has() {
    hutch_testkit::require!(root, kubectl, python);
    let port = servers();
    let up = Up::start_with_hosts(HOSTS);
    let mut hosts: Vec<String> = (0..=8).map(|pattern| format!("*.p{pattern}.names.example")).collect();
    hosts.push("a.names.example".to_owned());
    applied(&up, &opened(port, &json!(hosts)));
    for name in ["s", "other"] {
        kept::run(&up, &sandbox(name, &json!({}), None));
        enforced(&up, name, "Enforced");
    }
    let before = address(&up, "s", "a.names.example");
    let resolve = |name: &str, patterns: &str| {
        up.ok_args(&["exec", name, "--", "python3", "-c", MANY, patterns]).trim().to_owned()
    };
    let events = |name: &str| {
        let selected = format!("reason=EgressRefused,involvedObject.kind=Pod,involvedObject.name={name}");
        format!("get events --field-selector {selected} -o jsonpath={{.items[*].message}}")
    };
    // A pattern has its limit in an hour.
    assert_eq!(resolve("s", "1"), "[0] 2 0");
    let of_pattern = "refused more.p0.names.example: too many names: \"*.p0.names.example\" allows 512 new names an hour at most";
    let found = up.eventually(&events("s"), |found| !found.is_empty());
    assert!(found.contains(of_pattern), "{found}");
    // 4,096 names with those of the first query, and one of the eighth pattern that has no address.
    assert_eq!(resolve("s", "8"), "[0, 2] 2 2");
    let of_all = "a sandbox can resolve 4096 different names at most";
    let found = up.eventually(&events("s"), |found| found.contains(of_all));
    assert_eq!(found.matches(of_all).count(), 1, "{found}");
    assert_eq!(answer_of(&up, "s", &before, port), "a");
    assert_eq!(address(&up, "s", "a.names.example"), before);
    // The limit is that of a Sandbox, also of its next Pod.
    assert_eq!(resolve("other", "1"), "[0] 2 0");
    suspend(&up, "s");
    resume(&up, "s");
    enforced(&up, "s", "Enforced");
    until("the policy counts", || answer_of(&up, "s", &before, port) == "a");
    assert_eq!(resolve("s", "8"), "[0, 2] 2 2");
    // Within the hour it was reported once, for both Pods.
    let found = up.ok_args(&events("s").split(' ').collect::<Vec<_>>());
    assert!(found.matches(of_all).count() == 1 && !found.contains("n0.p0"), "{found}");
}
