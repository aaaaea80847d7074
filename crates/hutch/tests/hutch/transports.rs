//! Clients of QUIC and MPTCP. To an allowed name they use TCP at once, and to any other host they send no byte.
//!
//! Without a sandbox, the same clients speak both with the same servers.

use std::path::Path;
use std::process::{Command, Output};

use crate::egress::{Caller, Site, callers};
use crate::harness::{succeeded, text};
use crate::peers::{Peer, USER, certificate, with_files};
use crate::tunnels::Namespace;

/// Address of the servers, in a network namespace of each test.
const SERVER: &str = "203.0.113.1";
/// Python inside, which is also that of the controls.
const PYTHON: &str = "/usr/bin/python3";

/// Returns the text of a program whose client makes attempts.
fn client_of(program: &str) -> String {
    include_str!("fixtures/attempt.py").to_owned() + &std::fs::read_to_string(program).expect("a program")
}

/// A site with names of the server, and the network namespace that has its address.
struct Network {
    site: Site,
    namespace: Namespace,
}

impl Network {
    fn new() -> Network {
        let site = Site::new();
        let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example db.example\n");
        std::fs::write(site.folder.path().join("hosts"), hosts).expect("written");
        let namespace = Namespace::new(&site.folder.path().join("namespace.log"));
        namespace.run(&format!("ip address add {SERVER}/32 dev lo"));
        Network { site, namespace }
    }

    fn path(&self, name: &str) -> String {
        self.site.folder.path().join(name).display().to_string()
    }

    /// Starts a server, and waits until it has printed this.
    fn serve(&self, command: &Command, ready: &str) -> Peer {
        let log = self.site.folder.path().join("server.log");
        let mut server = Peer::start(self.namespace.command(command), &log);
        server.printed_until(ready);
        server
    }

    /// Runs a client without a sandbox, as an ordinary user with the names of the site.
    fn outside(&self, command: &[&str]) -> String {
        let hosts = self.site.folder.path().join("hosts");
        let mut client = with_files(&[(&hosts, "/etc/hosts")], Some(USER));
        let output = self.namespace.command(client.args(command)).output().expect("nsenter");
        succeeded("a client without a sandbox", &output)
    }

    /// Runs a client in a sandbox that may reach one name of the server.
    fn inside(&self, caller: Caller, allow: &str, more: &[&str], command: &[&str]) -> Output {
        let options = [&["--allow", allow, "--allow-private", SERVER][..], more].concat();
        self.namespace.command(&self.site.command(caller, &options, command)).output().expect("nsenter")
    }
}

#[test]
fn client_of_quic_is_refused_at_once_and_uses_tcp() {
    hutch_testkit::require!(root, user_namespaces, quic, openssl);
    let network = Network::new();
    let path = |name: &str| network.path(name);
    std::fs::create_dir(path("public")).expect("a folder");
    certificate(Path::new(&path("public")), &["web.example"]);
    let (packages, public) = (path("packages"), path("public"));
    let mut copy = Command::new("cp");
    copy.arg("-rL").arg(hutch_testkit::python_package("quic")).arg(&packages);
    succeeded("cp", &copy.output().expect("cp"));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/quic.py");
    let mut python = Command::new(PYTHON);
    python.args([program, "serve", SERVER, "443", &public]).env("PYTHONPATH", &packages);
    let server = network.serve(&python, "ready");
    let client = client_of(program);
    let (python_path, trust) = (format!("PYTHONPATH={packages}"), format!("{public}/cert.pem"));
    let command = ["env", &python_path, PYTHON, "-B", "-c", &client, "get", "443", &trust];
    let hosts = |hosts: &[&'static str]| [&command[..], hosts].concat();
    assert_eq!(network.outside(&hosts(&["web.example"])), "QUIC: page over HTTP/3\nlibrary: connected\n");
    assert!(server.printed().contains("datagram\nrequest over QUIC\n"), "{}", server.printed());
    drop(server);

    // Another server, at which nothing has arrived yet.
    let server = network.serve(&python, "ready");
    let mounts = [&packages, &public].map(|folder| format!("{folder}:ro"));
    let options = ["--mount", &mounts[0], "--mount", &mounts[1]];
    for caller in callers() {
        let before = server.printed();
        let command = hosts(&["web.example", SERVER, "db.example"]);
        let output = network.inside(caller, "web.example", &options, &command);
        let expected = "QUIC: ECONNREFUSED\nlibrary: no answer\nTCP: page over HTTP/1.1\n\
            QUIC: ECONNREFUSED\nlibrary: no answer\nTCP: ECONNRESET\n\
            QUIC: EAI_NONAME\nlibrary: EAI_NONAME\nTCP: EAI_NONAME\n";
        assert_eq!(text(&output.stdout), expected, "{caller:?}: {}", text(&output.stderr));
        assert_eq!(server.printed(), format!("{before}request over TCP\n"), "{caller:?}");
    }
}

#[test]
fn client_of_mptcp_is_refused_at_once_and_uses_tcp() {
    hutch_testkit::require!(root, user_namespaces, python);
    let network = Network::new();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/mptcp.py");
    let mut python = Command::new(PYTHON);
    python.args([program, "serve", SERVER]);
    let mut server = network.serve(&python, ".\n");
    let printed = server.printed();
    let ports =
        printed.split_once("\nports ").and_then(|(_, rest)| rest.split_once(".\n")).expect(&printed).0;
    let (open, denied) = ports.split_once(' ').expect(ports);
    let client = client_of(program);
    let command = [PYTHON, "-c", &client, "connect"];

    // With such a kernel, the listeners and this client speak MPTCP with each other.
    if printed.contains("no MPTCP") {
        hutch_testkit::note_skip("a client of MPTCP without a sandbox", "needs a kernel with MPTCP");
    } else {
        let both = ["web.example", open, "db.example", denied];
        assert_eq!(network.outside(&[&command[..], &both].concat()), "MPTCP: hello over MPTCP\n".repeat(2));
        for name in ["open", "denied"] {
            server.printed_until(&format!("{name}: MPTCP data\n"));
        }
    }
    let allow = format!("web.example:{open}");
    let hosts = ["web.example", open, "web.example", denied, SERVER, open, "db.example", open];
    for caller in callers() {
        let before = server.printed();
        let output = network.inside(caller, &allow, &[], &[&command[..], &hosts].concat());
        // The socket is refused, whether the kernel has MPTCP or not.
        let refused = if matches!(caller, Caller::InGvisor) { "EAFNOSUPPORT" } else { "EPROTONOSUPPORT" };
        let expected: String = ["hello over TCP", "ECONNRESET", "ECONNRESET", "EAI_NONAME"]
            .map(|result| format!("MPTCP: {refused}\nTCP: {result}\n"))
            .concat();
        assert_eq!(text(&output.stdout), expected, "{caller:?}: {}", text(&output.stderr));
        server.printed_until(&format!("{before}open: TCP data\n"));
        assert_eq!(server.printed(), format!("{before}open: TCP data\n"), "{caller:?}");
    }
}
