//! Policies of Pods from the first instruction on, in conditions, and with budgets.

use std::net::{TcpListener, UdpSocket};
use std::process::Stdio;

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::egress::{Site, callers, policy as policy_file};
use crate::harness::{Up, succeeded, text};
use crate::policies::{SERVER, Server, applied, enforced, get, policy, rule, sandbox, start};

/// Address of this machine by which a packet would leave it; loopback without one.
fn own_address() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let _ = socket.connect("192.0.2.1:9");
    let address = socket.local_addr().expect("an address").ip();
    if address.is_unspecified() { SERVER.to_owned() } else { address.to_string() }
}

fn message(up: &Up, sandbox: &str) -> String {
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}";
    up.ok(&format!("get sandbox {sandbox} -o {path}"))
}

#[test]
fn first_instruction_of_a_pod_finds_its_network_captured_and_open_by_policy() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    // On every address of this machine.
    let closed = TcpListener::bind("0.0.0.0:0").expect("bind");
    closed.set_nonblocking(true).expect("set");
    let port = closed.local_addr().expect("an address").port();
    applied(&up, &policy("ClusterSandboxPolicy", "web", &json!({}), &json!([rule("web.example", &server)])));
    // A shell connects by itself, so this is the first thing that the process does. It tries once.
    let act = format!(
        "for to in {own}/{port} {SERVER}/{port} web.example/{port}; do \
            (exec 3<>/dev/tcp/$to; printf 'GET / HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3 >/dev/null) 2>&-; done; \
        exec 3<>/dev/tcp/web.example/{open} && \
        printf 'GET / HTTP/1.1\\r\\nHost: web.example:{open}\\r\\nConnection: close\\r\\n\\r\\n' >&3 && tail -c 5 <&3 && echo",
        own = own_address(),
        open = server.port,
    );
    let mut classes = vec!["hutch"];
    match hutch_testkit::Need::Runsc.missing() {
        None => classes.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("the first instruction in gVisor", reason),
    }
    for class in classes {
        let mut object = sandbox(class, &json!({}), Some(class));
        let pod = &mut object["spec"]["podTemplate"]["spec"];
        pod["initContainers"] =
            json!([{"name": "first", "image": "hutch/host", "command": ["bash", "-c", act]}]);
        pod["containers"][0]["command"] = json!(["bash", "-c", format!("{act}; exec sleep 1000")]);
        applied(&up, &object);
        up.ok(&format!("wait --for=condition=Ready sandbox/{class} --timeout=180s"));
        for container in ["first", "main"] {
            let logs = format!("logs {class} -c {container}");
            let printed = up.eventually(&logs, |printed| !printed.is_empty());
            assert_eq!(printed, "hello\n", "{class} {container}");
        }
    }
    let arrived = closed.accept().map(|(_, from)| from).map_err(|error| error.kind());
    assert_eq!(arrived, Err(std::io::ErrorKind::WouldBlock));
}

#[test]
fn condition_names_destinations_about_which_policies_disagree() {
    hutch_testkit::require!(root, kubectl, curl);
    let (up, server) = (start(), Server::start());
    let through = |more: &Value| {
        let mut through = rule("web.example", &server);
        for (name, value) in more.as_object().expect("fields") {
            through[name] = value.clone();
        }
        through
    };
    let cluster = |name: &str, first: Value| {
        let mut second = rule("other.example", &server);
        second["name"] = "other".into();
        applied(&up, &policy("ClusterSandboxPolicy", name, &json!({}), &json!([first, second])));
    };
    cluster("through", through(&json!({"tls": "Passthrough"})));
    applied(&up, &sandbox("a", &json!({}), None));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    until("the policy counts", || get(&up, "a", "web.example", &server) == "hello");
    enforced(&up, "a", "Enforced");
    cluster("reads", through(&json!({"http": [{"methods": ["GET"]}]})));
    enforced(&up, "a", "Conflict");
    let said = message(&up, "a");
    for part in ["reads", "through", "`tls: Passthrough`", &format!("web.example:{}", server.port)] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let status = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].status}";
    assert_eq!(up.ok(&format!("get sandbox a -o {status}")), "True", "what agrees is enforced");
    let described = up.ok("describe sandbox a");
    assert!(described.contains("PolicyEnforced") && described.contains("Conflict"), "{described}");
    let before = server.connections();
    assert!(get(&up, "a", "web.example", &server).contains("tls: Passthrough"));
    assert_eq!(server.connections(), before);
    assert_eq!(get(&up, "a", "other.example", &server), "hello");
    up.ok("delete clustersandboxpolicy through");
    enforced(&up, "a", "Enforced");
    until("the others count", || get(&up, "a", "web.example", &server) == "hello");
}

/// Returns the status of an object without the conditions that are about its policies and its isolation, and their number.
fn without_conditions(object: &Value) -> (Value, usize) {
    let mut status = object["status"].clone();
    let mut found = 0;
    if let Some(conditions) = status["conditions"].as_array_mut() {
        let before = conditions.len();
        conditions
            .retain(|condition| condition["type"] != "PolicyEnforced" && condition["type"] != "Isolation");
        found = before - conditions.len();
    }
    (status, found)
}

#[test]
fn condition_about_policies_needs_no_write_of_its_own() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (start(), Server::start());
    let output = std::fs::File::create(up.folder().join("watched")).expect("a file");
    let mut watch = up.kubectl_command(&["get", "sandboxes", "--watch", "-o", "json"]);
    let mut watch = watch.stdout(output).stderr(Stdio::null()).spawn().expect("kubectl");
    let selected = json!({"selector": {"matchLabels": {"app": "agent"}}});
    applied(&up, &policy("ClusterSandboxPolicy", "web", &selected, &json!([rule("web.example", &server)])));
    let versions = || {
        let text = std::fs::read_to_string(up.folder().join("watched")).expect("watched");
        let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        objects.map_while(Result::ok).collect::<Vec<_>>()
    };
    for (name, labels, reason) in
        [("open", json!({"app": "agent"}), "Enforced"), ("closed", json!({}), "NoPolicy")]
    {
        applied(&up, &sandbox(name, &json!({"labels": labels}), None));
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
        enforced(&up, name, reason);
        let isolation = "jsonpath={.status.conditions[?(@.type==\"Isolation\")].reason}";
        up.eventually(&format!("get sandbox {name} -o {isolation}"), |found| !found.is_empty());
        let current = up.ok(&format!("get sandbox {name} -o jsonpath={{.metadata.resourceVersion}}"));
        until("the watch has it", || {
            versions().iter().any(|object| object["metadata"]["resourceVersion"] == current)
        });
        let mut all = versions();
        all.retain(|object| object["metadata"]["name"] == name && object["status"].is_object());
        let statuses: Vec<_> = all.iter().map(without_conditions).collect();
        assert!(statuses.iter().any(|(_, found)| *found == 2), "{name}: {all:?}");
        // A write that only adds a condition differs in nothing else.
        let own = statuses.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1);
        assert_eq!(own, None, "{name}");
    }
    let _ = watch.kill();
    let _ = watch.wait();
}

/// Policies with budgets: the strictest amount of each kind is in another one.
fn budgets(rules: &Value) -> [(&'static str, Value); 2] {
    let budget = |requests: u32, hosts: u32| json!({"rules": rules, "budget": {"requests": requests, "requestsPer": "1h", "hosts": hosts}});
    [("few", budget(3, 9)), ("one", budget(9, 1))]
}

/// Requests to one host twice, to another one, and to the first one twice.
fn requests(port: u16) -> String {
    format!(
        "for host in web web other web web; do curl -s -m 20 -w '\\n' http://$host.example:{port}/ | \
            sed -n -e 's/.*\\(hello\\|budget of policy[^:]*: [a-z]*: [0-9]*\\).*/\\1/p'; done"
    )
}

/// Answers to these requests.
const ANSWERS: &str = "hello\nhello\nbudget of policy \\\"one\\\" is used up: hosts: 1\nhello\n\
    budget of policy \\\"few\\\" is used up: requests: 3\n";

#[test]
fn smallest_budgets_of_several_policies_count_for_a_command() {
    hutch_testkit::require!(root, user_namespaces, curl);
    let (site, server) = (Site::new(), Server::start());
    let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example other.example\n");
    std::fs::write(site.folder.path().join("hosts"), hosts).expect("written");
    let rule = json!({"name": "web", "hosts": ["web.example", "other.example"], "ports": [server.port],
        "plaintext": true, "private": [SERVER]});
    let files = budgets(&json!([rule])).map(|(name, egress)| {
        let path = policy_file(&site, name, "Enforce", "");
        let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
            "metadata": {"name": name}, "spec": {"egress": egress}});
        std::fs::write(&path, object.to_string()).expect("written");
        path
    });
    let options = ["--policy", &files[0], "--policy", &files[1]];
    for caller in callers() {
        let output = site.run(caller, &options, &["sh", "-c", &requests(server.port)]);
        assert_eq!(text(&output.stdout), ANSWERS, "{caller:?} {}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("the budget of policy \"few\" is used up: requests: 3 per 3600s")
        );
    }
}

#[test]
fn budgets_count_for_each_sandbox_over_its_pods_and_a_policy_that_observes_makes_events() {
    hutch_testkit::require!(root, kubectl, curl);
    let (up, server) = (start(), Server::start());
    let rule = json!({"name": "web", "hosts": ["web.example", "other.example"], "ports": [server.port],
        "plaintext": true, "private": [SERVER]});
    for (name, egress) in budgets(&json!([rule])) {
        let mut object = policy("ClusterSandboxPolicy", name, &json!({}), &json!([]));
        object["spec"]["egress"] = egress;
        applied(&up, &object);
    }
    let mut watches = policy("SandboxPolicy", "watches", &json!({}), &json!([]));
    watches["spec"]["mode"] = "Observe".into();
    applied(&up, &watches);
    for name in ["a", "b"] {
        applied(&up, &sandbox(name, &json!({}), None));
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
        enforced(&up, name, "Enforced");
        let said = message(&up, name);
        assert_eq!(said, "egress as allowed by each of: few, one; only observed by: watches", "{name}");
        let output = up.kubectl_args(&["exec", name, "--", "sh", "-c", &requests(server.port)]);
        assert_eq!(succeeded("requests", &output), ANSWERS, "{name}");
        let events = format!("get events --field-selector involvedObject.name={name}");
        up.eventually(&events, |events| {
            events.contains("would refuse GET http://web.example")
                && events.contains("no rule of policy \"watches\" allows it, but it only observes")
                && events.contains("the budget of policy \"one\" is used up")
        });
    }
    // Regression: the next Pod of a Sandbox had all budgets anew, also after an idle one was suspended.
    let before = up.ok("get pod a -o jsonpath={.metadata.uid}");
    up.ok("delete pod a");
    up.eventually("get pod a -o jsonpath={.metadata.uid}", |uid| !uid.is_empty() && uid != before);
    up.ok("wait --for=condition=Ready pod/a --timeout=60s");
    enforced(&up, "a", "Enforced");
    let output = up.kubectl_args(&["exec", "a", "--", "sh", "-c", &requests(server.port)]);
    let printed = succeeded("requests", &output);
    assert!(!printed.contains("hello") && printed.matches("is used up").count() == 5, "{printed}");
}
