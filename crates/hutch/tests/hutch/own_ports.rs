//! Servers in a sandbox on a port of a host outside, to which its programs have connections.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::captured::Attempts;
use crate::egress::{Site, callers, server};
use crate::harness::Up;
use crate::policies::{applied, enforced, policy, sandbox};

const PROGRAM: &str = include_str!("fixtures/own_ports.py");
/// Address of the servers outside: loopback, and of no other test.
const OUTSIDE: &str = "127.77.9.1";
const GREETING: &[u8] = b"outside";

/// Results until the first `ready`: without `SO_REUSEADDR`, and with it. A connection that the proxy serves has the port of the
/// host in the sandbox. Only a server at every address meets it.
const OPEN: &[(&str, &str)] = &[
    ("before 0.0.0.0", "listens, listens"),
    ("before ::", "listens, listens"),
    ("before 127.0.0.1", "listens, listens"),
    ("before ::1", "listens, listens"),
    ("outside", "outside"),
    ("open 0.0.0.0", "EADDRINUSE, listens"),
    ("open ::", "EADDRINUSE, listens"),
    ("open 127.0.0.1", "listens, listens"),
    ("open ::1", "listens, listens"),
    ("outside again", "outside"),
    ("stolen", "False"),
    ("inside", "True"),
];

/// Results after it. The side that ends a connection first keeps it in `TIME_WAIT`. If that is the proxy, because the server
/// outside has ended it, the port is in use for another minute.
const CLOSED: &[(&str, &str)] = &[
    ("foreign", "False"),
    ("closed 0.0.0.0", "listens, listens"),
    ("closed ::", "listens, listens"),
    ("closed 127.0.0.1", "listens, listens"),
    ("closed ::1", "listens, listens"),
    ("end", "b''"),
    ("ended by the server 0.0.0.0", "EADDRINUSE, listens"),
    ("ended by the server ::", "EADDRINUSE, listens"),
    ("ended by the server 127.0.0.1", "listens, listens"),
    ("ended by the server ::1", "listens, listens"),
];

/// Results with the address of a Pod.
const OPEN_POD: &[(&str, &str)] = &[("before own 0", "listens, listens"), ("open own 0", "listens, listens")];
const CLOSED_POD: &[(&str, &str)] =
    &[("closed own 0", "listens, listens"), ("ended by the server own 0", "listens, listens")];

fn check(who: &str, found: &BTreeMap<String, String>, tables: &[&[(&str, &str)]]) {
    let rows = tables.iter().flat_map(|table| table.iter());
    let expected: BTreeMap<String, String> =
        rows.map(|(name, result)| ((*name).to_owned(), (*result).to_owned())).collect();
    assert_eq!(*found, expected, "{who}");
}

#[test]
fn server_of_a_command_shares_the_port_of_captured_connections() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    std::fs::write(site.folder.path().join("hosts"), format!("{OUTSIDE} web.example\n")).expect("written");
    for caller in callers() {
        let (port, _received) = server(&format!("{OUTSIDE}:0"), GREETING);
        let (port, allow) = (port.to_string(), format!("web.example:{port}"));
        let options = ["--allow", &allow, "--allow-private", OUTSIDE];
        let command = ["python3", "-c", PROGRAM, "web.example", &port];
        let mut attempts = Attempts::start(site.command(caller, &options, &command));
        let who = format!("{caller:?}");
        check(&who, &attempts.series(), &[OPEN]);
        check(&who, &attempts.next_series(), &[CLOSED]);
    }
}

#[test]
fn server_of_a_pod_shares_the_port_of_captured_connections_and_gets_none_of_others() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start_with_hosts(&format!("127.0.0.1 localhost\n{OUTSIDE} web.example\n"));
    let (port, _received) = server(&format!("{OUTSIDE}:0"), GREETING);
    let rule = json!({"name": "web", "hosts": ["web.example"], "ports": [port], "protocol": "TCP", "private": [OUTSIDE]});
    applied(&up, &policy("ClusterSandboxPolicy", "web", &json!({}), &json!([rule])));
    let mut classes = vec!["hutch"];
    match hutch_testkit::Need::Runsc.missing() {
        None => classes.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("servers of a pod in gVisor", reason),
    }
    applied(&up, &sandbox("other", &json!({}), None));
    for class in classes {
        applied(&up, &sandbox(class, &json!({}), Some(class)));
        for name in [class, "other"] {
            up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
            enforced(&up, name, "Enforced");
        }
        let address = up.ok(&format!("get pod {class} -o jsonpath={{.status.podIP}}"));
        let port = port.to_string();
        let arguments =
            ["exec", "-i", class, "--", "python3", "-c", PROGRAM, "web.example", &port, address.trim()];
        let mut attempts = Attempts::start(up.kubectl_command(&arguments));
        check(class, &attempts.series(), &[OPEN, OPEN_POD]);
        // Another Pod reaches the host, and not the server of this one by the address of its Pod.
        let program = "import socket, sys\n\
            def tcp(host):\n    \
                try:\n        \
                    with socket.create_connection((host, int(sys.argv[1])), 60) as s: return s.recv(16).decode()\n    \
                except OSError as error: return type(error).__name__\n\
            print(tcp('web.example'), tcp(sys.argv[2]))\n";
        let found = up.ok_args(&["exec", "other", "--", "python3", "-c", program, &port, address.trim()]);
        assert_eq!(found, "outside ConnectionResetError\n", "{class}");
        // No more does this machine.
        for host in ["127.0.0.1", address.trim()] {
            let target = format!("{host}:{port}").parse().expect("an address");
            let connected = TcpStream::connect_timeout(&target, Duration::from_millis(500));
            assert!(connected.is_err(), "{class}: {target}");
        }
        check(class, &attempts.next_series(), &[CLOSED, CLOSED_POD]);
    }
}
