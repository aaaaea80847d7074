//! Names in a sandbox as both C libraries look them up: with search domains, and with and without a dot at the end.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use crate::egress::{Site, callers, server};
use crate::harness::{Up, succeeded, text};

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.34.1";
/// Settings of names in a Pod of a cluster, with one more domain.
const INSIDE: &str = "nameserver 198.18.0.1\nsearch default.svc.cluster.local svc.cluster.local cluster.local example\n\
    options ndots:5\n";

/// Answers DNS outside: one name has an address. Returns the names of all queries.
fn resolver() -> Arc<Mutex<BTreeSet<String>>> {
    let socket = UdpSocket::bind((SERVER, 53)).expect("bind");
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let names = asked.clone();
    std::thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut message) {
            let (name, end) = question(&message[..length]);
            let found = name == "web.example";
            names.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            let is_a = message[end..end + 2] == [0, 1];
            let (code, count) = if found { (0, u8::from(is_a)) } else { (3, 0) };
            let mut answer =
                [&message[..2], &[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0], &message[12..end + 4]]
                    .concat();
            if count == 1 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 77, 34, 1]);
            }
            let _ = socket.send_to(&answer, client);
        }
    });
    asked
}

/// Returns the name of a question, and where its type begins.
fn question(message: &[u8]) -> (String, usize) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while message[at] != 0 {
        let end = at + 1 + usize::from(message[at]);
        labels.push(text(&message[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    (labels.join("."), at + 1)
}

/// Compiles the program that resolves: with the C library of the machine, and with musl, without a library to load.
fn compiled(site: &Site) -> Vec<&'static str> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/resolve.c");
    let tools = site.folder.path().join("tools");
    std::fs::create_dir(&tools).expect("made");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(tools.join("glibc")).arg(source);
    succeeded("cc", &compiler.output().expect("cc"));
    let mut programs = vec!["glibc"];
    match hutch_testkit::musl() {
        Some(musl) => {
            let part = |name: &str| musl.join("lib").join(name);
            let mut compiler = Command::new("cc");
            compiler.args(["-static", "-nostdinc", "-nostdlib", "-isystem"]).arg(musl.join("include"));
            compiler.arg("-o").arg(tools.join("musl")).args([part("crt1.o"), part("crti.o")]).arg(source);
            compiler.arg(part("libc.a")).arg("-lgcc").arg(part("crtn.o"));
            succeeded("cc with musl", &compiler.output().expect("cc"));
            programs.push("musl");
        }
        None => hutch_testkit::note_skip("names with musl", "needs musl (scripts/install-test-tools)"),
    }
    programs
}

#[test]
fn names_are_found_with_search_domains_and_no_such_name_leaves_the_machine() {
    hutch_testkit::require!(root, user_namespaces, compiler);
    let site = Site::new();
    let path = |name: &str| site.folder.path().join(name).display().to_string();
    // Only the name server outside has the name.
    std::fs::write(path("hosts"), "127.0.0.1 localhost\n").expect("written");
    std::fs::write(path("inside"), INSIDE).expect("written");
    let outside = format!("nameserver {SERVER}\nsearch corp.example\noptions ndots:5\n");
    std::fs::write(path("resolv.conf"), outside).expect("written");
    let programs = compiled(&site);
    let asked = resolver();
    let (port, _received) = server(&format!("{SERVER}:0"), b"hello");
    let (allow, port) = (format!("web.example:{port}"), port.to_string());
    let (tools, settings) =
        (format!("{}:ro", path("tools")), format!("{}:/etc/resolv.conf:ro", path("inside")));
    let options = ["--allow", &allow, "--allow-private", SERVER, "--mount", &tools, "--mount", &settings];
    for caller in callers() {
        for program in &programs {
            let program = path(&format!("tools/{program}"));
            let names =
                ["web.example", "web.example.", "web", "other.example", "other.example.", "other", "web."];
            let words = [&[program.as_str(), &port][..], &names].concat();
            let hutch = site.command(caller, &options, &words);
            let mut outer = Command::new("unshare");
            let script = "mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"";
            outer.args(["--mount", "bash", "-c", script, "bash", &path("resolv.conf")]);
            outer.arg(hutch.get_program()).args(hutch.get_args());
            outer.env("HOME", path("home")).env_remove("XDG_CACHE_HOME").stdin(std::process::Stdio::null());
            let output = outer.output().expect("unshare");
            let found = |name: &str| format!("{name} 198.18.1.0 hello\n");
            let expected = ["web.example", "web.example.", "web"].map(found).concat()
                + "other.example none\nother.example. none\nother none\nweb. none\n";
            assert_eq!(text(&output.stdout), expected, "{caller:?} {program}: {}", text(&output.stderr));
        }
    }
    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(*asked, BTreeSet::from(["web.example".to_owned()]), "only the name that is connected to");
}

#[test]
fn names_of_a_pod_are_found_with_search_domains() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start_with_hosts(&format!("127.0.0.1 localhost\n{SERVER} web.example\n"));
    let (port, _received) = server(&format!("{SERVER}:0"), b"hello");
    let objects = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "names", "namespace": "default"},
            "data": {"resolv.conf": INSIDE}},
        {"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "web"},
            "spec": {"appliesTo": {}, "egress": {"rules": [{"name": "web", "hosts": ["web.example"], "ports": [port],
                "protocol": "TCP", "private": [SERVER]}]}}},
        {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "hutch/host", "command": ["sleep", "1000"],
                    "volumeMounts": [{"name": "names", "mountPath": "/etc/resolv.conf", "subPath": "resolv.conf"}]}],
                "volumes": [{"name": "names", "configMap": {"name": "names"}}]}}}},
    ]});
    let file = up.folder().join("objects.json");
    std::fs::write(&file, objects.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].reason}";
    up.eventually(&format!("get sandbox a -o {path}"), |found| found.trim() == "Enforced");
    let program = format!(
        "import socket\n\
        for name in 'web.example', 'web.example.', 'web', 'other.example', 'other.example.', 'other', 'web.':\n    \
            try: print(name, socket.create_connection((name, {port}), 60).recv(9).decode())\n    \
            except socket.gaierror as error: print(name, 'none' if error.errno == socket.EAI_NONAME else error)"
    );
    let mut exec = up.kubectl_command(&["exec", "a", "--", "python3", "-c", &program]);
    let expected = "web.example hello\nweb.example. hello\nweb hello\nother.example none\nother.example. none\n\
        other none\nweb. none\n";
    assert_eq!(succeeded("exec", &exec.output().expect("kubectl")), expected);
}
