//! `hutch run --allow` and `--policy`: a sandbox reaches what is allowed, by name, and nothing else.
//!
//! Names of the tests are in a hosts file that only the program under test sees, and lead to servers on loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use hutch_testkit::wait::until;

use crate::harness::{link_program, printed_before, text};
use crate::processes::{kill, unprivileged};

/// Address of the servers. It is loopback, and no other test uses it.
pub(crate) const SERVER: &str = "127.77.0.1";

/// Caller of `hutch run`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller {
    Root,
    Ordinary,
    /// Root, with the command in gVisor.
    InGvisor,
}

/// All callers, without gVisor where it is missing.
pub(crate) fn callers() -> Vec<Caller> {
    let mut callers = vec![Caller::Root, Caller::Ordinary];
    match hutch_testkit::Need::Runsc.missing() {
        None => callers.push(Caller::InGvisor),
        Some(reason) => hutch_testkit::note_skip("hutch run in gVisor", reason),
    }
    callers
}

/// Names and programs of the tests.
pub(crate) struct Site {
    pub(crate) folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Site {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| folder.path().join(name);
        let hosts = format!(
            "127.0.0.1 localhost\n{SERVER} web.example db.example\n169.254.169.254 metadata.example\n"
        );
        std::fs::write(path("hosts"), hosts).expect("written");
        // Where an ordinary user can read it.
        link_program(path("hutch"));
        std::fs::create_dir(path("home")).expect("made");
        std::os::unix::fs::chown(path("home"), Some(1000), Some(1000)).expect("chown");
        printed_before(&path("home"), 1000);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), mode).expect("chmod");
        Site { folder }
    }

    /// `hutch run` with these options, as this caller.
    pub(crate) fn command(&self, caller: Caller, options: &[&str], command: &[&str]) -> Command {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let script = "mount --bind \"$1\" /etc/hosts && shift && cd / && exec \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "bash", "-c", script, "bash", &path("hosts")]);
        if matches!(caller, Caller::Ordinary) {
            unshare.args(["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]);
        }
        unshare.arg(path("hutch")).arg("run");
        if matches!(caller, Caller::InGvisor) {
            unshare.args(["--isolation", "gvisor"]);
        }
        unshare.args(options).arg("--").args(command);
        unshare.env("HOME", path("home")).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
        unshare.stdin(Stdio::null());
        unshare
    }

    pub(crate) fn run(&self, caller: Caller, options: &[&str], command: &[&str]) -> Output {
        self.command(caller, options, command).output().expect("unshare")
    }

    pub(crate) fn python(&self, caller: Caller, options: &[&str], program: &str) -> Output {
        let head = "import socket\n\
            def tcp(host, port, send=b''):\n    \
                try:\n        \
                    with socket.create_connection((host, port), 60) as s:\n            \
                        s.sendall(send)\n            \
                        return s.recv(100).decode()\n    \
                except socket.gaierror as error: return 'EAI_NONAME' if error.errno == socket.EAI_NONAME else repr(error)\n    \
                except OSError as error: return type(error).__name__\n";
        self.run(caller, options, &["python3", "-c", &format!("{head}{program}")])
    }
}

/// A server that sends what it has received to the test and `answer` to the client.
pub(crate) fn server(address: &str, answer: &'static [u8]) -> (u16, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind(address).expect("bind");
    let port = listener.local_addr().expect("address").port();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), sender) = (client, sender.clone()) else { return };
            std::thread::spawn(move || {
                let mut bytes = vec![0; 4096];
                let _ = client.write_all(answer);
                let count = client.read(&mut bytes).unwrap_or(0);
                let _ = sender.send(bytes[..count].to_vec());
            });
        }
    });
    (port, receiver)
}

#[test]
fn allowed_name_is_reached_and_nothing_else() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    for caller in callers() {
        let (port, received) = server(&format!("{SERVER}:0"), b"hello");
        let (other, nothing) = server(&format!("{SERVER}:0"), b"never");
        let allow = format!("web.example:{port}");
        let options = ["--allow", &allow, "--allow-private", SERVER];
        let program = format!(
            "print(tcp('web.example', {port}, b'data'), tcp('web.example', {other}), tcp('{SERVER}', {port}),\n  \
                tcp('db.example', {port}), tcp('169.254.169.254', 80), tcp('2001:db8::1', 443))"
        );
        let output = site.python(caller, &options, &program);
        let stderr = text(&output.stderr);
        let printed = text(&output.stdout);
        let words: Vec<&str> = printed.split_whitespace().collect();
        assert_eq!((words[0], words[3]), ("hello", "EAI_NONAME"), "{caller:?}: {printed} {stderr}");
        for word in [words[1], words[2], words[4], words[5]] {
            assert!(word.starts_with("Connection"), "{caller:?}: {printed} {stderr}");
        }
        assert_eq!(received.recv_timeout(Duration::from_secs(20)).expect("a connection"), b"data");
        assert!(nothing.try_recv().is_err() && received.try_recv().is_err(), "{caller:?}");
        for line in [
            format!("hutch: refused web.example:{other}; --allow web.example:{other} allows it\n"),
            "hutch: refused 169.254.169.254:80: it is link-local or serves metadata of a cloud, which no rule opens\n"
                .to_owned(),
            "hutch: refused [2001:db8::1]:443; --allow [2001:db8::1]:443 with --allow-private 2001:db8::1 allows it\n"
                .to_owned(),
            "hutch: refused db.example; --allow db.example allows it\n".to_owned(),
        ] {
            assert!(stderr.contains(&line), "{caller:?}: {line:?} is not in {stderr}");
        }
    }
}

#[test]
fn first_instruction_of_a_command_finds_its_network_captured_and_open() {
    hutch_testkit::require!(root, user_namespaces);
    let site = Site::new();
    for caller in callers() {
        let (port, received) = server(&format!("{SERVER}:0"), b"hello\n");
        let (other, nothing) = server(&format!("{SERVER}:0"), b"never\n");
        let allow = format!("web.example:{port}");
        let options = ["--allow", &allow, "--allow-private", SERVER];
        for (port, expected) in [(port, "hello\n"), (other, "closed\n")] {
            // A shell connects by itself, so this is the first thing that the process does. It tries once.
            let act =
                format!("exec 3<>/dev/tcp/web.example/{port}; read -r line <&3 && echo $line || echo closed");
            let output = site.run(caller, &options, &["bash", "-c", &act]);
            let stderr = text(&output.stderr);
            assert_eq!(text(&output.stdout), expected, "{caller:?}: {stderr}");
            let refused = stderr.contains(&format!("hutch: refused web.example:{port};"));
            assert_eq!(refused, port == other, "{caller:?}: {stderr}");
        }
        received.recv_timeout(Duration::from_secs(20)).expect("a connection");
        assert!(received.try_recv().is_err() && nothing.try_recv().is_err(), "{caller:?}");
    }
}

#[test]
fn name_leads_to_private_addresses_only_with_the_flag_and_never_to_metadata() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    let (port, received) = server(&format!("{SERVER}:0"), b"hello");
    let allow = format!("web.example:{port}");
    let program = format!("print(tcp('web.example', {port}, b'x'))");
    let output = site.python(Caller::Root, &["--allow", &allow], &program);
    assert!(text(&output.stderr).contains("address of this machine"), "{}", text(&output.stderr));
    assert!(received.try_recv().is_err());
    let options = ["--allow", "metadata.example:8080", "--allow-private", "0.0.0.0/0"];
    let output = site.python(Caller::Root, &options, "print(tcp('metadata.example', 8080, b'x'))");
    assert!(text(&output.stderr).contains("which no rule opens"), "{}", text(&output.stderr));
}

#[test]
fn on_web_ports_the_connection_is_for_the_allowed_name() {
    hutch_testkit::require!(root, python);
    let site = Site::new();
    let (_, received) = server("127.77.0.2:443", b"");
    let hosts = site.folder.path().join("hosts");
    std::fs::write(&hosts, "127.77.0.2 web.example\n").expect("written");
    let options = ["--allow", "web.example", "--allow-private", "127.77.0.2"];
    let hello = "import ssl\n\
        def hello(name):\n    \
            context = ssl.create_default_context()\n    \
            context.check_hostname = False\n    \
            try:\n        \
                with socket.create_connection(('web.example', 443), 60) as s: context.wrap_socket(s, server_hostname=name)\n    \
            except OSError as error: return type(error).__name__\n";
    let program = format!(
        "{hello}print(hello('other.example'), hello(None), tcp('web.example', 443, b'SSH-2.0-x\\r\\n'),\n  \
            tcp('web.example', 443, b'GET / HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n'))\n"
    );
    let output = site.python(Caller::Root, &options, &program);
    let stderr = text(&output.stderr);
    let printed = text(&output.stdout);
    let rest = printed.strip_prefix(&"ConnectionResetError ".repeat(3)).expect(&printed);
    assert!(rest.starts_with("HTTP/1.1 403 Forbidden"), "{printed} {stderr}");
    assert!(stderr.contains("it is for \"other.example\"") && stderr.contains("names no server"), "{stderr}");
    assert!(received.try_recv().is_err(), "no byte arrived");
    site.python(Caller::Root, &options, &format!("{hello}hello('web.example')\n"));
    let bytes = received.recv_timeout(Duration::from_secs(20)).expect("a connection");
    assert_eq!(bytes.first(), Some(&22), "the hello arrives as it was sent");
}

#[test]
fn names_resolve_by_every_server_and_over_tcp() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    let options = ["--allow", "web.example:8080"];
    for caller in callers() {
        let script = "getent ahostsv4 web.example | head -1; RES_OPTIONS=use-vc getent ahostsv4 web.example | head -1; \
            getent hosts 198.18.1.0; getent hosts db.example || echo none";
        let output = site.run(caller, &options, &["sh", "-c", script]);
        let printed = text(&output.stdout);
        let lines: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((lines[0][0], lines[1][0]), ("198.18.1.0", "198.18.1.0"), "{caller:?}: {printed}");
        assert_eq!((lines[2][1], lines[3][0]), ("web.example", "none"), "{caller:?}: {printed}");
        let program = "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60); s.connect(('8.8.8.8', 53))\n\
            s.send(bytes.fromhex('00070100000100000000000003776562076578616d706c650000010001')); print(s.recv(99)[-4:].hex())\n\
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60); s.connect(('8.8.8.8', 443)); s.send(b'x')\n\
            try: s.recv(1)\n\
            except OSError as error: print(type(error).__name__)\n";
        let output = site.python(caller, &options, program);
        assert_eq!(text(&output.stdout), "c6120100\nConnectionRefusedError\n", "{}", text(&output.stderr));
    }
}

/// Serves HTTP: each answer is the first line of its request.
pub(crate) fn http_server() -> u16 {
    let listener = TcpListener::bind(format!("{SERVER}:0")).expect("bind");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && client.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let head = text(&head);
                let line = head.lines().next().unwrap_or_default();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{line}\n",
                    line.len() + 1
                );
                let _ = client.write_all(answer.as_bytes());
            });
        }
    });
    port
}

#[test]
fn clients_that_name_their_destinations_themselves_are_decided_alike() {
    hutch_testkit::require!(root, user_namespaces, curl);
    let site = Site::new();
    let port = http_server();
    let allow = format!("web.example:{port}");
    let options = ["--allow", &allow, "--allow-private", SERVER];
    let script = format!(
        "env | grep -ic proxy; for host in web.example other.example 169.254.169.254; do \
            for way in '-x http://198.18.0.1:3128' '-p -x http://198.18.0.1:3128' '-x socks5h://198.18.0.1:1080' '-x socks5://198.18.0.1:1080' \
                '-x http://[fd00:6875::1]:3128'; do \
                curl -s -f -m 60 $way http://$host:{port}/path || echo refused $?; \
            done; \
        done; curl -s -i -m 60 -x http://198.18.0.1:3128 http://other.example:{port}/ | grep -c 'HTTP/1.1 403'"
    );
    for caller in callers() {
        let output = site.run(caller, &options, &["sh", "-c", &script]);
        // 403 and refusals of SOCKS: none is 28, the time limit.
        let refused = [22, 22, 97, 97, 22].map(|code| format!("refused {code}\n")).concat().repeat(2);
        let expected = "0\n".to_owned() + &"GET /path HTTP/1.1\n".repeat(5) + &refused + "1\n";
        let stderr = text(&output.stderr);
        assert_eq!(text(&output.stdout), expected, "{caller:?}: {stderr}");
        let line = format!("hutch: refused other.example:{port}; --allow other.example:{port} allows it\n");
        assert!(stderr.contains(&line), "{caller:?}: {stderr}");
    }
}

#[test]
fn bytes_arrive_whole_and_each_direction_ends_by_itself() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    let listener = TcpListener::bind(format!("{SERVER}:0")).expect("bind");
    let port = listener.local_addr().expect("address").port();
    // It sends back everything once the client has ended its direction.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client): Result<TcpStream, _> = client else { return };
            let mut bytes = Vec::new();
            let _ = client.read_to_end(&mut bytes);
            let _ = client.write_all(&bytes);
        }
    });
    let allow = format!("web.example:{port}");
    let options = ["--allow", &allow, "--allow-private", SERVER];
    let program = format!(
        "import os, threading\n\
         data = os.urandom(8 << 20)\n\
         s = socket.create_connection(('web.example', {port}), 30)\n\
         s.sendall(data); s.shutdown(socket.SHUT_WR)\n\
         back = b''.join(iter(lambda: s.recv(1 << 16), b''))\n\
         print(back == data)\n"
    );
    for caller in callers() {
        let output = site.python(caller, &options, &program);
        assert_eq!(text(&output.stdout), "True\n", "{caller:?}: {}", text(&output.stderr));
    }
}

/// Kills a process, and waits until its last thread has closed its descriptors.
pub(crate) fn kill_whole(id: u32) {
    kill(id);
    let lives = |task: &Path| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        !state.is_empty() && !state.starts_with(['Z', 'X'])
    };
    until("it has ended", || {
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        !tasks.into_iter().any(|task| lives(&task.path()))
    });
}

/// Process ids of the proxies that run with this program.
pub(crate) fn proxies(site: &Path) -> Vec<u32> {
    let is_ours = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        name == "hutch-egress\n" && program.starts_with(site)
    };
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

#[test]
fn proxy_has_no_privilege_and_without_it_the_network_is_closed() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = Site::new();
    for caller in callers() {
        let (port, received) = server(&format!("{SERVER}:0"), b"hello");
        let allow = format!("web.example:{port}");
        let options = ["--allow", &allow, "--allow-private", SERVER];
        let program = format!(
            "import socket, sys\n\
             address = socket.gethostbyname('web.example')\n\
             print('ready', flush=True); sys.stdin.readline()\n\
             try: socket.create_connection((address, {port}), 60).recv(1); print('reached')\n\
             except OSError as error: print(type(error).__name__)\n"
        );
        let mut command = site.command(caller, &options, &["python3", "-c", &program]);
        // Left open by the caller.
        let left = std::fs::File::create(site.folder.path().join("left-open")).expect("a file");
        rustix::io::fcntl_setfd(&left, rustix::io::FdFlags::empty()).expect("inheritable");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        drop(left);
        let mut output = child.stdout.take().expect("output");
        let mut ready = [0; 6];
        output.read_exact(&mut ready).expect("ready");
        let [proxy] = proxies(site.folder.path())[..] else { panic!("one proxy: {caller:?}") };
        let status = std::fs::read_to_string(format!("/proc/{proxy}/status")).expect("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:\t")));
            line.expect("a field").split_whitespace().next().expect("a word").to_owned()
        };
        let uid: u32 = field("Uid").parse().expect("a number");
        match caller {
            Caller::Root | Caller::InGvisor => {
                assert!(uid >= 0x7000_0000, "{uid}");
                unprivileged(proxy, uid);
            }
            Caller::Ordinary => assert_eq!(uid, 1000),
        }
        let found = ["CapEff", "CapPrm", "NoNewPrivs", "Seccomp"].map(field);
        assert_eq!(found, ["0000000000000000", "0000000000000000", "1", "2"], "{caller:?}");
        assert!(std::fs::read(format!("/proc/{proxy}/environ")).is_ok_and(|text| !text.contains(&b'/')));
        let open = std::fs::read_dir(format!("/proc/{proxy}/fd")).expect("descriptors").flatten();
        let targets = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let files: Vec<_> = targets.filter(|target| target.starts_with(site.folder.path())).collect();
        assert!(files.is_empty(), "{files:?}");
        kill_whole(proxy);
        child.stdin.take().expect("input").write_all(b"\n").expect("written");
        let mut printed = String::new();
        output.read_to_string(&mut printed).expect("read");
        assert!(printed.starts_with("Connection"), "{caller:?}: {printed}");
        assert!(child.wait().expect("ends").success());
        assert!(received.try_recv().is_err());
    }
    let _ = site.run(Caller::Root, &["--allow", "web.example"], &["true"]);
    until("the proxy ends with the command", || proxies(site.folder.path()).is_empty());
}

/// Writes a policy with these rules and this mode, and returns its path.
pub(crate) fn policy(site: &Site, name: &str, mode: &str, rules: &str) -> String {
    let path = site.folder.path().join(format!("{name}.yaml"));
    let text = format!(
        "apiVersion: policy.hutch.dev/v1alpha1\nkind: SandboxPolicy\nmetadata: {{name: {name}}}\n\
        spec:\n  mode: {mode}\n  egress:\n    rules:\n{rules}"
    );
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}
