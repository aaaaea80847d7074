//! Protocols of others through the proxy, by name: the servers and clients are programs that many people use.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;

use crate::egress::{Caller, Site, callers, policy, server};
use crate::harness::{succeeded, text};
use crate::peers::{
    Peer, SSH_OPTIONS, USER, certificate, folder, free_port, passwd, sshd, tunnel_programs, with_files,
};
use crate::tunnels::Namespace;

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.6.1";

/// A site whose names lead to the servers, and a folder with a certificate of them.
fn site() -> (Site, String) {
    let site = Site::new();
    let path = |name: &str| site.folder.path().join(name);
    let hosts =
        format!("127.0.0.1 localhost\n{SERVER} web.example db.example git.example\n::1 six.example\n");
    std::fs::write(path("hosts"), hosts).expect("written");
    std::fs::create_dir(path("public")).expect("a folder");
    certificate(&path("public"), &["web.example", "db.example", "git.example"]);
    let folder = path("public").display().to_string();
    (site, folder)
}

/// The word after this one in what a server printed once it listens.
fn port(server: &mut Peer, before: &str) -> u16 {
    server.printed_until(".");
    let printed = server.printed();
    let (_, rest) = printed.split_once(before).expect(&printed);
    rest.split(['.', ' ']).next().and_then(|port| port.parse().ok()).expect(&printed)
}

/// A server of HTTPS, and its port.
fn https(site: &Site, public: &str) -> (Peer, u16) {
    let mut node = Command::new("node");
    node.args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/carried.js"), SERVER, public]);
    let mut server = Peer::start(node, &site.folder.path().join("https.log"));
    let port = port(&mut server, "port ");
    (server, port)
}

/// A policy for the port of a host, with more fields of its rule.
fn rule(site: &Site, name: &str, host: &str, port: u16, more: &str) -> String {
    let rule = format!("    - {{name: it, hosts: [{host}], ports: [{port}], private: [{SERVER}]{more}}}\n");
    policy(site, name, "Enforce", &rule)
}

#[test]
fn http_keeps_its_version_and_its_connection() {
    hutch_testkit::require!(root, user_namespaces, curl, node, openssl);
    let (site, public) = site();
    let (_server, port) = https(&site, &public);
    let rules = rule(&site, "https", "web.example", port, "");
    let mount = format!("{public}:ro");
    let options = ["--policy", &rules, "--mount", &mount];
    let url = format!("https://web.example:{port}/");
    // 1 MiB, twice over one connection.
    let script = format!(
        "cd /tmp && head -c 1048576 /dev/urandom > data && for version in 1.1 2; do \
        curl -sS --http$version --cacert {public}/cert.pem -w '%{{http_version}} %{{num_connects}}\\n' \
        -H Expect: --data-binary @data {url} --next \
        -sS --http$version --cacert {public}/cert.pem -w '%{{http_version}} %{{num_connects}}\\n' \
        -H Expect: --data-binary @data {url}; done"
    );
    for caller in callers() {
        let output = site.run(caller, &options, &["sh", "-euc", &script]);
        let printed = succeeded("curl", &output);
        let first = "HTTP/1.1 http/1.1 1048576\n1.1 1\nHTTP/1.1 http/1.1 1048576\n1.1 0\n";
        let second = "HTTP/2.0 h2 1048576\n2 1\nHTTP/2.0 h2 1048576\n2 0\n";
        assert_eq!(printed, format!("{first}{second}"), "{caller:?}");
    }
    // Node inside, by its own client of HTTP/2 and by fetch.
    let program = format!(
        "const session = require('http2').connect('https://web.example:{port}');\n\
        const stream = session.request({{':method': 'POST'}});\n\
        stream.on('data', (data) => process.stdout.write(data)); stream.end('12345');\n\
        stream.on('close', async () => {{\n  session.close();\n  \
            const answer = await fetch('{url}', {{method: 'POST', body: '123'}});\n  \
            process.stdout.write(await answer.text());\n}});\n"
    );
    let trust = format!("NODE_EXTRA_CA_CERTS={public}/cert.pem");
    let output = site.run(Caller::Ordinary, &options, &["env", &trust, "node", "-e", &program]);
    assert_eq!(succeeded("node", &output), "HTTP/2.0 h2 5\nHTTP/1.1 http/1.1 3\n");
}

#[test]
fn websocket_carries_messages_both_ways() {
    use futures::{SinkExt, StreamExt};
    hutch_testkit::require!(root, user_namespaces, node, openssl);
    let (site, _) = site();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind((SERVER, 0))).expect("bind");
    let port = listener.local_addr().expect("an address").port();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut socket = tokio_tungstenite::accept_async(stream).await.expect("an upgrade");
            while let Some(Ok(message)) = socket.next().await {
                if message.is_binary() || message.is_text() {
                    socket.send(message).await.expect("sent");
                }
            }
        }
    });
    let program = format!(
        "const socket = new WebSocket('ws://web.example:{port}/');\n\
        socket.binaryType = 'arraybuffer';\n\
        let count = 0;\n\
        socket.onopen = () => {{ socket.send('text'); socket.send(new Uint8Array(1 << 20)); }};\n\
        socket.onmessage = ({{data}}) => {{\n  \
            console.log(typeof data == 'string' ? data : data.byteLength);\n  if (++count == 2) socket.close();\n}};\n\
        socket.onerror = (error) => console.log('error', error.message);\n\
        socket.onclose = () => console.log('closed');\n"
    );
    let (plain, tls) = (
        rule(&site, "plain", "web.example", port, ", plaintext: true"),
        rule(&site, "tls", "web.example", port, ""),
    );
    let node = ["node", "--experimental-websocket", "-e", &program];
    for caller in callers() {
        let output = site.run(caller, &["--policy", &plain], &node);
        assert_eq!(text(&output.stdout), "text\n1048576\nclosed\n", "{caller:?} {}", text(&output.stderr));
    }
    let output = site.run(Caller::Ordinary, &["--policy", &tls], &node);
    assert!(text(&output.stderr).contains("`plaintext: true` allows that"), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).contains("text"), "{}", text(&output.stdout));
}

#[test]
fn grpc_carries_calls_and_streams() {
    hutch_testkit::require!(root, user_namespaces, grpcio, openssl);
    let (site, public) = site();
    let packages = site.folder.path().join("packages");
    let mut copy = Command::new("cp");
    copy.arg("-rL").arg(hutch_testkit::python_package("grpc")).arg(&packages);
    succeeded("cp", &copy.output().expect("cp"));
    let packages = packages.display().to_string();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/carried_grpc.py");
    // The same Python as inside.
    let mut python = Command::new("/usr/bin/python3");
    python.args([program, "serve", SERVER, &public]).env("PYTHONPATH", &packages);
    let mut server = Peer::start(python, &site.folder.path().join("grpc.log"));
    let secure = port(&mut server, "ports ");
    let plain = port(&mut server, &format!("ports {secure} "));
    let (tls, tcp) = (
        format!("    - {{name: tls, hosts: [web.example], ports: [{secure}], private: [{SERVER}]}}\n"),
        format!(
            "    - {{name: tcp, hosts: [web.example], ports: [{plain}], protocol: TCP, private: [{SERVER}]}}\n"
        ),
    );
    let rules = policy(&site, "grpc", "Enforce", &(tls + &tcp));
    let client = std::fs::read_to_string(program).expect("a program");
    let (packages_mount, public_mount) = (format!("{packages}:ro"), format!("{public}:ro"));
    let options = ["--policy", &rules, "--mount", &packages_mount, "--mount", &public_mount];
    let path = format!("PYTHONPATH={packages}");
    let (ports, trust) = ([secure.to_string(), plain.to_string()], format!("{public}/cert.pem"));
    let call = ["env", &path, "python3", "-c", &client, "call", "web.example", &ports[0], &ports[1], &trust];
    for caller in callers() {
        let output = site.run(caller, &options, &call);
        let printed = text(&output.stdout);
        assert_eq!(printed, "ONE [5, 100000]\n".repeat(2), "{caller:?} {}", text(&output.stderr));
    }
}

/// The calls are read, one by one, and with a scanner their messages too.
#[test]
fn grpc_is_decided_call_by_call_where_tls_ends_at_the_proxy() {
    hutch_testkit::require!(root, user_namespaces, grpcio, openssl);
    let (site, _) = site();
    let trusted = site.folder.path().join("trusted");
    crate::inspected::authority(&trusted, &["web.example"]);
    let packages = site.folder.path().join("packages");
    let mut copy = Command::new("cp");
    copy.arg("-rL").arg(hutch_testkit::python_package("grpc")).arg(&packages);
    succeeded("cp", &copy.output().expect("cp"));
    let (packages, trusted) = (packages.display().to_string(), trusted.display().to_string());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/carried_grpc.py");
    let mut python = Command::new("/usr/bin/python3");
    python.args([program, "serve", SERVER, &trusted]).env("PYTHONPATH", &packages);
    let mut server = Peer::start(python, &site.folder.path().join("grpc.log"));
    let secure = port(&mut server, "ports ").to_string();
    let client = std::fs::read_to_string(program).expect("a program");
    // Made of parts, so that scanners of repositories do not report this file.
    let token = ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat();
    let call = [
        "python3",
        "-c",
        &client,
        "decided",
        "web.example",
        &secure,
        "/etc/ssl/certs/ca-certificates.crt",
        &token,
    ];
    let entry = "http: [{methods: [POST], paths: [/test.Echo/*]}]";
    let rules = format!(
        "    - {{name: calls, hosts: [web.example], ports: [{secure}], private: [{SERVER}], {entry}}}\n"
    );
    let sent = token.to_uppercase();
    for (name, scanner, last) in [("read", "", sent.as_str()), ("scanned", "  scanner: {}\n", "refused")] {
        let rules = policy(&site, name, "Enforce", &(rules.clone() + scanner));
        let (mount, path) = (format!("{packages}:ro"), format!("PYTHONPATH={packages}"));
        let options = ["--policy", &rules, "--mount", &mount, "--env", &path];
        for caller in callers() {
            let mut hutch = site.command(caller, &options, &call);
            let output = hutch.env("SSL_CERT_FILE", format!("{trusted}/ca.pem")).output().expect("unshare");
            let expected = format!("ONE [5, 100000]\nPERMISSION_DENIED\n{last}\n");
            assert_eq!(text(&output.stdout), expected, "{name} {caller:?} {}", text(&output.stderr));
        }
    }
}

/// A server of PostgreSQL, and its port.
fn postgres(site: &Site, public: &str) -> (Peer, u16) {
    let programs = hutch_testkit::postgres().expect("a folder");
    let data = site.folder.path().join("database");
    folder(&data);
    let users = passwd(site.folder.path());
    let command = |program: &str| {
        let mut command = with_files(&[(&users, "/etc/passwd")], Some(USER));
        command.arg(programs.join(program)).current_dir("/");
        command
    };
    let mut initdb = command("initdb");
    initdb.args(["--auth=trust", "--username=user", "--no-sync", "-D"]).arg(&data);
    succeeded("initdb", &initdb.output().expect("initdb"));
    for name in ["cert.pem", "key.pem"] {
        std::fs::copy(Path::new(public).join(name), data.join(name)).expect("copied");
        std::os::unix::fs::chown(data.join(name), Some(USER), Some(USER)).expect("chown");
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(data.join("key.pem"), mode).expect("chmod");
    let line = format!("\nhostssl all all {SERVER}/8 trust\n");
    let access = std::fs::OpenOptions::new().append(true).open(data.join("pg_hba.conf"));
    access.and_then(|mut file| file.write_all(line.as_bytes())).expect("written");
    let port = free_port(SERVER);
    let mut postgres = command("postgres");
    postgres.args(["-h", SERVER, "-p", &port.to_string(), "-F", "-D"]).arg(&data);
    for setting in ["unix_socket_directories=", "ssl=on", "ssl_cert_file=cert.pem", "ssl_key_file=key.pem"] {
        postgres.args(["-c", setting]);
    }
    let mut server = Peer::start(postgres, &site.folder.path().join("postgres.log"));
    server.printed_until("ready to accept connections");
    (server, port)
}

#[test]
fn postgres_answers_queries_over_its_own_tls() {
    hutch_testkit::require!(root, user_namespaces, postgres, openssl);
    let (site, public) = site();
    let (_server, port) = postgres(&site, &public);
    let (tcp, tls) = (
        rule(&site, "tcp", "db.example", port, ", protocol: TCP"),
        rule(&site, "tls", "db.example", port, ""),
    );
    let mount = format!("{public}:ro");
    let psql = hutch_testkit::postgres().expect("a folder").join("psql").display().to_string();
    let ports = port.to_string();
    // Each answer is checked by the server's sum of what it sent.
    let script = format!(
        "export PGSSLMODE=verify-full PGSSLROOTCERT={public}/cert.pem PGHOST=db.example PGPORT={ports} PGUSER=user \
        PGDATABASE=postgres PGCONNECT_TIMEOUT=30\n\
        {psql} -AXtc 'select ssl from pg_stat_ssl where pid = pg_backend_pid()'\n\
        {psql} -AXtc \"select repeat('x', 1048576)\" | tr -d '\\n' | wc -c\n\
        seq 200000 | {psql} -AXqtc 'create temp table t (n int)' -c '\\copy t from stdin' -c 'select sum(n) from t'\n"
    );
    for caller in callers() {
        let output = site.run(caller, &["--policy", &tcp, "--mount", &mount], &["bash", "-c", &script]);
        assert_eq!(text(&output.stdout), "t\n1048576\n20000100000\n", "{caller:?} {}", text(&output.stderr));
    }
    // The first message of PostgreSQL is not TLS.
    let output = site.run(Caller::Root, &["--policy", &tls, "--mount", &mount], &["bash", "-c", &script]);
    assert!(text(&output.stderr).contains("`protocol: TCP` allows that"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), "0");
}

#[test]
fn git_clones_over_https_and_ssh() {
    hutch_testkit::require!(root, user_namespaces, git, node, openssl, tunnels);
    let (site, public) = site();
    let tools = site.folder.path().join("tools");
    tunnel_programs(&tools);
    let (_server, https) = https(&site, &public);
    let port = free_port(SERVER);
    let (sshd, key) = sshd(site.folder.path(), SERVER, &[port]);
    let mut sshd = Peer::start(sshd, &site.folder.path().join("sshd.log"));
    sshd.printed_until("Server listening");
    let script = format!(
        "cd {public} && git init -q work && cd work && head -c 300000 /dev/urandom > file && git add file && \
        git -c user.name=a -c user.email=a@example commit -qm first && git clone -q --bare . ../repository.git && \
        cd ../repository.git && git update-server-info && chown -R {USER}:{USER} .. && sha256sum < ../work/file"
    );
    let prepared = Command::new("sh").args(["-euc", &script]).env("HOME", &tools).output().expect("sh");
    let sum = succeeded("git", &prepared);
    let (tools_mount, certificate) = (format!("{}:ro", tools.display()), format!("{public}/cert.pem"));
    let certificate_mount = format!("{certificate}:ro");
    let rules = policy(
        &site,
        "git",
        "Enforce",
        &format!(
            "    - {{name: https, hosts: [git.example], ports: [{https}], private: [{SERVER}]}}\n\
            \x20   - {{name: ssh, hosts: [git.example], ports: [{port}], protocol: TCP, private: [{SERVER}]}}\n"
        ),
    );
    let options = ["--policy", &rules, "--mount", &tools_mount, "--mount", &certificate_mount];
    let script = format!(
        "cd /tmp && cp {key} key && chmod 600 key && export HOME=/tmp GIT_SSL_CAINFO={certificate}\n\
        export GIT_SSH_COMMAND='ssh -i /tmp/key {SSH_OPTIONS}'\n\
        git clone -q https://git.example:{https}/repository.git one && sha256sum < one/file\n\
        git clone -q ssh://user@git.example:{port}{public}/repository.git two && sha256sum < two/file\n"
    );
    for caller in callers() {
        let output = site.run(caller, &options, &["sh", "-c", &script]);
        assert_eq!(text(&output.stdout), sum.repeat(2), "{caller:?} {}", text(&output.stderr));
    }
}

/// Sends `hello` to each client.
fn greet(listener: TcpListener) -> u16 {
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.write_all(b"hello");
            let _ = client.shutdown(std::net::Shutdown::Write);
            let _ = client.read(&mut [0; 64]);
        }
    });
    port
}

#[test]
fn ipv6_destinations_are_reached_by_name_and_by_address() {
    hutch_testkit::require!(root, user_namespaces, python);
    let (site, _) = site();
    let address = "2001:db8:77::1";
    let network = Namespace::new(&site.folder.path().join("namespace.log"));
    network.run(&format!("ip address add {address}/128 dev lo nodad"));
    let bind = |address: Ipv6Addr| TcpListener::bind((address, 0)).expect("bind");
    let by_name = network.inside(|| greet(bind(Ipv6Addr::LOCALHOST)));
    let by_address = network.inside(|| greet(bind(address.parse().expect("an address"))));
    let (name, literal) = (format!("six.example:{by_name}"), format!("[{address}]:{by_address}"));
    let allow = ["--allow", &name, "--allow", &literal];
    let with = |private: &'static str| {
        [&allow[..], &["--allow-private", "::1", "--allow-private", private]].concat()
    };
    let program = format!(
        "import socket\n\
        for host, port in (('six.example', {by_name}), ('{address}', {by_address}), ('{address}', {by_name})):\n    \
            try:\n        \
                with socket.create_connection((host, port), 60) as s: print(s.recv(9).decode())\n    \
            except OSError as error: print(type(error).__name__)\n"
    );
    for caller in callers() {
        // A range is the network in which the machine is, and does not open the machine itself.
        for (private, expected) in [
            (address, "hello\nhello\nConnectionResetError\n"),
            ("2001:db8:77::/48", "hello\nConnectionResetError\nConnectionResetError\n"),
        ] {
            let command = site.command(caller, &with(private), &["python3", "-c", &program]);
            let output = network.command(&command).output().expect("nsenter");
            assert_eq!(text(&output.stdout), expected, "{caller:?} {private} {}", text(&output.stderr));
        }
        // Without the ranges, the same rules lead nowhere.
        let command = site.command(caller, &allow, &["python3", "-c", &program]);
        let output = network.command(&command).output().expect("nsenter");
        assert_eq!(text(&output.stdout), "ConnectionResetError\n".repeat(3), "{caller:?}");
    }
}

#[test]
fn udp_to_an_allowed_host_does_not_arrive() {
    hutch_testkit::require!(root, user_namespaces, python);
    let (site, _) = site();
    let (port, _) = server(&format!("{SERVER}:0"), b"hello");
    let receiver = UdpSocket::bind((SERVER, port)).expect("bind");
    receiver.set_nonblocking(true).expect("set");
    let allow = format!("web.example:{port}");
    let program = format!(
        "print(tcp('web.example', {port}))\n\
        for host in 'web.example', '{SERVER}':\n    \
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60); s.connect((host, {port}))\n    \
            try: s.send(b'x'); s.recv(1)\n    \
            except OSError as error: print(type(error).__name__)\n"
    );
    for caller in callers() {
        let output = site.python(caller, &["--allow", &allow, "--allow-private", SERVER], &program);
        let printed = text(&output.stdout);
        assert_eq!(printed, "hello\nConnectionRefusedError\nConnectionRefusedError\n", "{caller:?}");
        assert!(receiver.recv(&mut [0; 9]).is_err(), "{caller:?}");
    }
}

#[test]
fn reset_of_one_side_is_a_reset_for_the_other() {
    hutch_testkit::require!(root, user_namespaces, python);
    let (site, _) = site();
    let listener = TcpListener::bind((SERVER, 0)).expect("bind");
    let port = listener.local_addr().expect("an address").port();
    let (results, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            client.write_all(b"part").expect("written");
            let mut byte = [0];
            client.read_exact(&mut byte).expect("a byte");
            if &byte == b"s" {
                // An answer that breaks off must not look like its end.
                rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO))
                    .expect("set");
            } else {
                let _ = results.send(client.read(&mut byte).map_err(|error| error.kind()));
            }
        }
    });
    let allow = format!("web.example:{port}");
    let program = format!(
        "import struct\n\
        for byte in b's', b'c':\n    \
            sock = socket.create_connection(('web.example', {port}), 60)\n    \
            print(sock.recv(4).decode()); sock.sendall(byte)\n    \
            if byte == b'c':\n        \
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); sock.close(); break\n    \
            try: print('end', sock.recv(1))\n    \
            except OSError as error: print(type(error).__name__)\n\
        import time; time.sleep(1)\n"
    );
    for caller in callers() {
        let output = site.python(caller, &["--allow", &allow, "--allow-private", SERVER], &program);
        let printed = text(&output.stdout);
        assert_eq!(printed, "part\nConnectionResetError\npart\n", "{caller:?} {}", text(&output.stderr));
        let found = result.recv_timeout(std::time::Duration::from_secs(60)).expect("a result");
        assert_eq!(found, Err(std::io::ErrorKind::ConnectionReset), "{caller:?}");
    }
}

#[test]
fn bytes_arrive_that_a_command_sends_before_it_ends() {
    hutch_testkit::require!(root, user_namespaces, python);
    let (site, _) = site();
    let listener = TcpListener::bind((SERVER, 0)).expect("bind");
    let port = listener.local_addr().expect("an address").port();
    let (results, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // The command has ended when the first byte is read.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let mut bytes = Vec::new();
            let _ = results.send(client.read_to_end(&mut bytes).map_err(|error| error.kind()));
        }
    });
    let allow = format!("web.example:{port}");
    let program = format!(
        "import os\nsock = socket.create_connection(('web.example', {port}), 60)\n\
        sock.sendall(bytes(1 << 20)); os._exit(0)\n"
    );
    for caller in callers() {
        let output = site.python(caller, &["--allow", &allow, "--allow-private", SERVER], &program);
        assert!(output.status.success(), "{caller:?} {}", text(&output.stderr));
        let found = result.recv_timeout(std::time::Duration::from_secs(60)).expect("a result");
        assert_eq!(found, Ok(1 << 20), "{caller:?}");
    }
}
