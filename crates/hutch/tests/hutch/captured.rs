//! Attempts of a program in a sandbox to reach the network in every way: a table of results, for each caller and runtime.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::egress::{Caller, Site, callers, kill_whole, policy, proxies};
use crate::harness::{Up, WITHOUT_NFTABLES, refused, succeeded};

/// Makes the attempts.
const PROGRAM: &str = include_str!("fixtures/captured.py");

/// Attempts and their results, which are the same for every caller. What is refused fails with an errno that says so:
/// clients do not wait. A client's own limit is a minute, at which the result would be `TIMEOUT`. `proxy` is the proxy's
/// refusal of this destination; `c6120100` is 198.18.1.0, the synthetic address of the first name.
const TABLE: &[(&str, &str)] = &[
    // TCP to any address reaches the proxy.
    ("tcp 192.0.2.1", "proxy 192.0.2.1:80"),
    ("tcp 8.8.8.8", "proxy 8.8.8.8:80"),
    ("tcp 10.0.0.1", "proxy 10.0.0.1:80"),
    ("tcp 100.64.0.1", "proxy 100.64.0.1:80"),
    ("tcp 169.254.169.254", "proxy 169.254.169.254:80"),
    ("tcp 198.18.0.1", "proxy 198.18.0.1:80"),
    ("tcp 240.0.0.1", "proxy 240.0.0.1:80"),
    ("tcp 0.1.2.3", "proxy 0.1.2.3:80"),
    ("tcp 2001:db8::1", "proxy [2001:db8::1]:80"),
    ("tcp fd00:ec2::254", "proxy [fd00:ec2::254]:80"),
    ("tcp ::ffff:1.2.3.4", "proxy 1.2.3.4:80"),
    ("tcp 64:ff9b::102:304", "proxy [64:ff9b::102:304]:80"),
    ("tcp 2002:102:304::", "proxy [2002:102:304::]:80"),
    ("tcp fd00:6875::1", "proxy [fd00:6875::1]:80"),
    ("tcp fe80::1", "proxy [fe80::1]:80"),
    ("tcp port 1", "proxy 192.0.2.1:1"),
    ("tcp port 443", "proxy 192.0.2.1:443"),
    ("tcp port 5432", "proxy 192.0.2.1:5432"),
    ("tcp port 65535", "proxy 192.0.2.1:65535"),
    ("tcp from 127.0.0.1", "proxy 192.0.2.1:80"),
    ("tcp from 9.9.9.9", "proxy 192.0.2.1:80"),
    // Other bytes than a request, and none, end with a reset.
    ("bytes 192.0.2.1 22", "ECONNRESET"),
    ("bytes 2001:db8::1 22", "ECONNRESET"),
    ("silent 192.0.2.1 5432", "ECONNRESET"),
    ("silent 2001:db8::1 5432", "ECONNRESET"),
    ("bytes of an allowed name at another port", "ECONNRESET"),
    ("silent at an allowed name at another port", "ECONNRESET"),
    // The kernel binds no IPv6 address that no device has.
    ("tcp from 2001:db8::9", "EADDRNOTAVAIL"),
    // Addresses of the sandbox are its own.
    ("own 127.0.0.1", "own, then ECONNREFUSED"),
    ("own 127.9.9.9", "own, then ECONNREFUSED"),
    ("own ::1", "own, then ECONNREFUSED"),
    ("own 0.0.0.0", "own, then ECONNREFUSED"),
    ("own ::", "own, then ECONNREFUSED"),
    // No TCP leads to many hosts.
    ("tcp 255.255.255.255", "ENETUNREACH"),
    ("tcp 224.0.0.1", "ENETUNREACH"),
    ("tcp 239.1.2.3", "ENETUNREACH"),
    ("tcp ff02::1", "ENETUNREACH"),
    ("tcp ff0e::1", "ENETUNREACH"),
    // Every server answers DNS, over UDP from its own address.
    ("dns 8.8.8.8", "c6120100"),
    ("dns 192.0.2.53", "c6120100"),
    ("dns 198.18.0.1", "c6120100"),
    ("dns sender 8.8.8.8", "c6120100 from 8.8.8.8"),
    ("dns sender 192.0.2.53", "c6120100 from 192.0.2.53"),
    ("dns sender 198.18.0.1", "c6120100 from 198.18.0.1"),
    ("dns 2001:4860:4860::8888", "c6120100"),
    ("dns fd00:6875::1", "c6120100"),
    ("dns fe80::1", "c6120100"),
    ("dns sender 2001:4860:4860::8888", "c6120100 from 2001:4860:4860::8888"),
    ("dns sender fd00:6875::1", "c6120100 from fd00:6875::1"),
    ("dns over tcp 8.8.8.8", "c6120100"),
    ("dns over tcp 192.0.2.53", "c6120100"),
    ("dns over tcp 198.18.0.1", "c6120100"),
    ("dns over tcp 2001:4860:4860::8888", "c6120100"),
    ("dns over tcp fd00:6875::1", "c6120100"),
    ("dns 127.0.0.1", "ECONNREFUSED"),
    ("dns ::1", "ECONNREFUSED"),
    // Names are answered at once. Without an answer, the error would be EAI_AGAIN.
    ("name web.example", "198.18.1.0"),
    ("name other.example", "EAI_NONAME"),
    ("name x.web.example", "EAI_NONAME"),
    ("name of another host over IPv6", "EAI_NONAME"),
    // Other UDP is refused at once, so that clients fall back to TCP.
    ("udp 192.0.2.1 123", "ECONNREFUSED"),
    ("udp 192.0.2.1 443", "ECONNREFUSED"),
    ("udp 192.0.2.1 853", "ECONNREFUSED"),
    ("udp 2001:db8::1 123", "ECONNREFUSED"),
    ("udp 2001:db8::1 443", "ECONNREFUSED"),
    ("udp 2001:db8::1 853", "ECONNREFUSED"),
    ("udp 169.254.169.254 123", "ECONNREFUSED"),
    ("udp 169.254.169.254 443", "ECONNREFUSED"),
    ("udp 169.254.169.254 853", "ECONNREFUSED"),
    ("udp 198.18.0.1 123", "ECONNREFUSED"),
    ("udp 198.18.0.1 443", "ECONNREFUSED"),
    ("udp 198.18.0.1 853", "ECONNREFUSED"),
    ("udp not connected 192.0.2.1 443", "ECONNREFUSED"),
    // Multicast has no receiver, and broadcast needs an option of the socket.
    ("udp 239.1.2.3", "TIMEOUT"),
    ("udp 255.255.255.255", "EACCES"),
    ("udp ff02::fb", "TIMEOUT"),
    ("udp connected ff02::fb", "EINVAL"),
    // Other protocols. A client of MPTCP then uses TCP.
    ("icmp", "EACCES"),
    ("icmpv6", "EACCES"),
    ("sctp", "EPROTONOSUPPORT"),
    ("sctp seqpacket", "EPERM"),
    ("dccp", "EPERM"),
    ("udp-lite", "EPROTONOSUPPORT"),
    ("mptcp", "EPROTONOSUPPORT"),
    ("raw icmp", "EPERM"),
    ("raw ip", "EPERM"),
    ("raw icmpv6", "EPERM"),
    ("packet", "EAFNOSUPPORT"),
    ("packet datagram", "EAFNOSUPPORT"),
    ("vsock", "EAFNOSUPPORT"),
    // No listener inside takes a connection from the proxy.
    ("transparent", "EPERM"),
    ("transparent v6", "EPERM"),
    ("listen 192.0.2.9:443", "proxy 192.0.2.9:443"),
    ("listen 0.0.0.0:443", "proxy 192.0.2.9:443"),
    ("listen 127.0.0.1:443", "proxy 192.0.2.9:443"),
    ("listen 198.18.0.1:61853", "EADDRINUSE"),
    ("answer 8.8.8.8:53", "c6120100"),
    ("answer 0.0.0.0:53", "EADDRINUSE"),
    ("answer 198.18.0.1:53", "EADDRINUSE"),
];

/// Attempts with another result in gVisor. Its kernel has no such protocols, and requests privileges before it looks for a
/// family that it has not. It ignores options that it does not know, so `transparent` has no effect: what listens inside
/// gets nothing there either.
const IN_GVISOR: &[(&str, &str)] = &[
    ("sctp", "EAFNOSUPPORT"),
    ("sctp seqpacket", "EAFNOSUPPORT"),
    ("dccp", "EAFNOSUPPORT"),
    ("udp-lite", "EAFNOSUPPORT"),
    ("mptcp", "EAFNOSUPPORT"),
    ("packet", "EPERM"),
    ("packet datagram", "EPERM"),
    ("transparent", "set"),
    ("transparent v6", "set"),
];

/// Result at the address of the sandbox.
const OWN_ADDRESS: &[(&str, &str)] = &[("own address 0", "own, then ECONNREFUSED")];

/// Results while the proxy is dead.
const WITHOUT_PROXY: &[(&str, &str)] = &[
    ("dead tcp", "ECONNREFUSED"),
    ("dead tcp v6", "ECONNREFUSED"),
    ("dead dns", "ECONNREFUSED"),
    ("dead dns over tcp", "ECONNREFUSED"),
    ("dead own", "own, then ECONNREFUSED"),
];

/// The program in a sandbox. It waits for a line of input between two series of attempts.
pub(crate) struct Attempts {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    /// Times of the attempts in ms, by the first word of their names and the error.
    delays: BTreeMap<String, Vec<f64>>,
}

impl Attempts {
    pub(crate) fn start(mut command: Command) -> Attempts {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
        let output = BufReader::new(child.stdout.take().expect("output")).lines();
        Attempts { child, output, delays: BTreeMap::new() }
    }

    /// Prints how long the attempts have taken: the median of each kind, and the longest.
    fn print_delays(&mut self, who: &str) {
        for (kind, times) in &mut self.delays {
            times.sort_by(f64::total_cmp);
            let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
            println!("{who}: {kind}: {} attempts, p50 {middle} ms, most {most} ms", times.len());
        }
    }

    /// Returns the results of a series.
    pub(crate) fn series(&mut self) -> BTreeMap<String, String> {
        let mut results = BTreeMap::new();
        for line in self.output.by_ref().map(|line| line.expect("a line")) {
            if line == "ready" {
                return results;
            }
            let (name, result) = line.split_once('=').expect("a result");
            let (result, delay) = result.split_once('\t').unwrap_or((result, ""));
            results.insert(name.to_owned(), result.to_owned());
            // `tcp` is an attempt that reaches the proxy, `tcp ENETUNREACH` one to many hosts.
            let kind = name.split(' ').next().unwrap_or_default();
            let kind = if result.starts_with('E') { format!("{kind} {result}") } else { kind.to_owned() };
            if let Ok(delay) = delay.parse() {
                self.delays.entry(kind).or_default().push(delay);
            }
        }
        panic!("the program ended after {results:?}");
    }

    pub(crate) fn next_series(&mut self) -> BTreeMap<String, String> {
        self.child.stdin.as_mut().expect("input").write_all(b"\n").expect("written");
        self.series()
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Checks that the results are those of these tables, of which a later one replaces rows of an earlier one.
fn check(who: &str, found: &BTreeMap<String, String>, tables: &[&[(&str, &str)]]) {
    let rows = tables.iter().flat_map(|table| table.iter().copied());
    let expected: BTreeMap<&str, &str> = rows.collect();
    let differs = |(name, result): &(&&str, &&str)| found.get(**name).map(String::as_str) != Some(**result);
    let different: Vec<_> =
        expected.iter().filter(differs).map(|(name, _)| (name, found.get(*name))).collect();
    assert!(different.is_empty(), "{who}: {different:#?}");
    let unknown: Vec<_> = found.keys().filter(|name| !expected.contains_key(name.as_str())).collect();
    assert!(unknown.is_empty(), "{who}: {unknown:?}");
}

#[test]
fn attempts_of_a_command_have_the_results_of_the_table() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    for caller in callers() {
        let program = ["python3", "-c", PROGRAM, "198.18.0.2"];
        let mut command = site.command(caller, &["--allow", "web.example:8080"], &program);
        command.stderr(Stdio::null());
        let mut attempts = Attempts::start(command);
        let who = format!("{caller:?}");
        let differences = if matches!(caller, Caller::InGvisor) { IN_GVISOR } else { &[] };
        check(&who, &attempts.series(), &[TABLE, differences, OWN_ADDRESS]);
        let [proxy] = proxies(site.folder.path())[..] else { panic!("one proxy: {who}") };
        kill_whole(proxy);
        check(&who, &attempts.next_series(), &[WITHOUT_PROXY]);
        attempts.print_delays(&who);
    }
}

#[test]
fn without_nftables_nothing_opens_the_network_and_what_is_missing_is_named() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    let run = |caller, options: &[&str]| {
        let hutch = site.command(caller, options, &["echo", "ran"]);
        let mut python = Command::new("python3");
        python.arg(WITHOUT_NFTABLES).arg(hutch.get_program()).args(hutch.get_args());
        python.env("HOME", site.folder.path().join("home")).env_remove("XDG_CACHE_HOME").stdin(Stdio::null());
        python.output().expect("python3")
    };
    let policy = policy(&site, "web", "Enforce", "    - {name: web, hosts: [web.example]}\n");
    for caller in callers() {
        assert_eq!(succeeded("hutch run", &run(caller, &[])), "ran\n");
        for options in [["--allow", "web.example"], ["--policy", &policy]] {
            refused(&run(caller, &options), 125, &["nftables with `tproxy`", "hutch doctor"]);
        }
    }
}

#[test]
fn without_nftables_a_policy_with_egress_is_not_enforceable_and_opens_nothing() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start_without_nftables();
    let policy = r#"{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "web"},
        "spec": {"appliesTo": {}, "egress": {"rules": [{"name": "web", "any": true, "plaintext": true}]}}}"#;
    let sandbox = r#"{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a"},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]}]}}}}"#;
    for (name, text) in [("policy.json", policy), ("sandbox.json", sandbox)] {
        let file = up.folder().join(name);
        std::fs::write(&file, text).expect("written");
        up.ok(&format!("apply -f {}", file.display()));
    }
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")]}";
    let found =
        up.eventually(&format!("get sandbox a -o {path}"), |found| found.contains("PolicyNotEnforceable"));
    assert!(found.contains("\"False\"") && found.contains("cannot capture connections"), "{found}");
    let program = "import socket\n\
        try: socket.create_connection(('192.0.2.1', 80), 60); print('open')\n\
        except OSError as error: print(type(error).__name__)";
    let mut exec = up.kubectl_command(&["exec", "a", "--", "python3", "-c", program]);
    assert_eq!(succeeded("exec", &exec.output().expect("kubectl")), "ConnectionRefusedError\n");
}

#[test]
fn attempts_of_a_pod_have_the_results_of_the_table() {
    hutch_testkit::require!(root, kubectl, python);
    let up = Up::start(&[]);
    let mut classes = vec!["hutch"];
    match hutch_testkit::Need::Runsc.missing() {
        None => classes.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("attempts of a pod in gVisor", reason),
    }
    let policy = r#"{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {"name": "web"},
        "spec": {"appliesTo": {}, "egress": {"rules": [{"name": "web", "hosts": ["web.example"]}]}}}"#;
    let file = up.folder().join("policy.json");
    std::fs::write(&file, policy).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    for class in classes {
        let sandbox = format!(
            r#"{{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {{"name": "{class}"}},
            "spec": {{"podTemplate": {{"spec": {{"runtimeClassName": "{class}", "terminationGracePeriodSeconds": 0,
                "containers": [{{"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]}}]}}}}}}}}"#
        );
        let file = up.folder().join("sandbox.json");
        std::fs::write(&file, sandbox).expect("written");
        up.ok(&format!("apply -f {}", file.display()));
        up.ok(&format!("wait --for=condition=Ready sandbox/{class} --timeout=180s"));
        let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].reason}";
        up.eventually(&format!("get sandbox {class} -o {path}"), |found| found.trim() == "Enforced");
        let address = up.ok(&format!("get pod {class} -o jsonpath={{.status.podIP}}"));
        let command =
            up.kubectl_command(&["exec", "-i", class, "--", "python3", "-c", PROGRAM, address.trim()]);
        let mut attempts = Attempts::start(command);
        let found = attempts.series();
        let differences = if class == "gvisor" { IN_GVISOR } else { &[] };
        let who = format!("a pod of {class}");
        check(&who, &found, &[TABLE, differences, OWN_ADDRESS]);
        attempts.print_delays(&who);
    }
}
