//! Rules about requests: TLS ends at the proxy, and programs inside trust it without a setting of their own.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use crate::egress::{Caller, Site, callers, policy};
use crate::harness::{succeeded, text};
use crate::peers::Peer;
use crate::registries::{Registry, allowing, host, printed, python_index};

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.8.1";

/// A server of HTTPS whose authority the machine trusts.
struct Server {
    site: Site,
    peer: Peer,
    port: u16,
}

/// Makes an authority in `ca.pem`, and a certificate of it in `cert.pem` and `key.pem`.
pub(crate) fn authority(folder: &Path, names: &[&str]) {
    std::fs::create_dir_all(folder).expect("a folder");
    let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let script = "new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'\n\
        openssl req -x509 $new -days 2 -subj /CN=authority -keyout ca.key -out ca.pem\n\
        openssl req $new -subj /CN=server -keyout key.pem -out server.csr\n\
        echo \"subjectAltName=$1\" > extensions\n\
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -days 2 -extfile extensions -out cert.pem\n\
        chmod 644 *";
    let mut shell = Command::new("sh");
    shell.args(["-euc", script, "sh", &names.join(",")]).current_dir(folder);
    succeeded("openssl", &shell.output().expect("sh"));
}

/// Starts a server with the certificate and the files of a folder. Returns its port.
pub(crate) fn serve(address: &str, folder: &Path, log: &Path) -> (Peer, u16) {
    let mut node = Command::new("node");
    node.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/inspected.js"));
    with_port(node_arguments(node, address, folder), log)
}

/// Starts a server that prints its port. Returns the port.
pub(crate) fn with_port(server: Command, log: &Path) -> (Peer, u16) {
    let mut peer = Peer::start(server, log);
    peer.printed_until(".");
    let printed = peer.printed();
    let port = printed.strip_prefix("port ").and_then(|rest| rest.split('.').next()).expect(&printed);
    let port = port.parse().expect(port);
    (peer, port)
}

fn node_arguments(mut node: Command, address: &str, folder: &Path) -> Command {
    node.arg(address).arg(folder);
    node
}

impl Server {
    fn start() -> Server {
        let site = Site::new();
        let path = |name: &str| site.folder.path().join(name);
        let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example other.example\n");
        std::fs::write(path("hosts"), hosts).expect("written");
        authority(&path("public"), &["web.example"]);
        let (peer, port) = serve(SERVER, &path("public"), &path("log"));
        Server { site, peer, port }
    }

    fn path(&self, name: &str) -> String {
        self.site.folder.path().join(name).display().to_string()
    }

    /// A policy with one rule for the server, with more fields.
    fn rule(&self, name: &str, host: &str, more: &str) -> String {
        let port = self.port;
        let rule =
            format!("    - {{name: {name}, hosts: [{host}], ports: [{port}], private: [{SERVER}]{more}}}\n");
        policy(&self.site, name, "Enforce", &rule)
    }

    /// Runs a command whose proxy trusts the authority of the server.
    fn run(&self, caller: Caller, options: &[&str], command: &[&str]) -> Output {
        let mut hutch = self.site.command(caller, options, command);
        hutch.env("SSL_CERT_FILE", self.path("public/ca.pem")).output().expect("unshare")
    }

    /// Requests that the server has received.
    fn requests(&self) -> usize {
        self.peer.printed().lines().filter(|line| !line.starts_with("port")).count()
    }
}

/// Variables that name the file with the certificates inside, beside `PIP_CERT`. They are sorted.
const VARIABLES: [&str; 8] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Reads from `/ok` may pass, writes may not.
const READS: &str = ", http: [{methods: [GET, HEAD], paths: [/ok/**]}, {methods: [POST], decision: Deny}]";

#[test]
fn every_client_trusts_the_proxy_and_its_requests_are_decided() {
    hutch_testkit::require!(root, user_namespaces, curl, git, node, openssl, python);
    let server = Server::start();
    let url = format!("https://web.example:{}/ok", server.port);
    let repository = "git init -q --bare --initial-branch main ok/repo && cd ok/repo && \
        git commit-tree -m m $(git hash-object -w -t tree /dev/null) > refs/heads/main && git update-server-info";
    let mut git = Command::new("sh");
    git.args(["-euc", repository]).current_dir(server.path("public"));
    for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
        git.env(name, "a@b.example");
    }
    succeeded("git", &git.output().expect("sh"));
    let rules = server.rule("reads", "web.example", READS);
    let python = format!(
        "import urllib.request as r, urllib.error\n\
        print(r.urlopen('{url}/a').read().decode(), end='')\n\
        try: r.urlopen('{url}/a', data=b'x')\n\
        except urllib.error.HTTPError as error: print(error.code, error.read().decode(), end='')\n"
    );
    let fetch = format!(
        "fetch('{url}/a').then((answer) => answer.text()).then((text) => process.stdout.write(text))"
    );
    let script = format!(
        "curl -sS --http1.1 {url}/a; curl -sS --http2 {url}/a; \
        curl -sS -o /dev/null -w '%{{http_code}}\\n' {url}/../secret --path-as-is; \
        curl -sS -d x {url}/a | grep -c 'rule .*reads.* denies'; \
        /usr/bin/python3 -c \"$1\" | cut -c 1-200; node -e \"$2\"; git ls-remote {url}/repo main | cut -f 2"
    );
    for caller in callers() {
        let options = ["--policy", &rules];
        let output = server.run(caller, &options, &["sh", "-euc", &script, "sh", &python, &fetch]);
        let printed = succeeded("clients", &output);
        let lines: Vec<&str> = printed.lines().collect();
        let context = format!("{caller:?}: {printed} {}", text(&output.stderr));
        assert_eq!(lines.len(), 8, "{context}");
        assert_eq!(lines[..3], ["GET HTTP/1.1", "GET HTTP/2.0", "403"], "{context}");
        assert_eq!((lines[3], lines[4], &lines[5][..4]), ("1", "GET HTTP/1.1", "403 "), "{context}");
        assert_eq!(lines[6..], ["GET HTTP/1.1", "refs/heads/main"], "{context}");
    }
    assert!(!server.peer.printed().contains("POST") && !server.peer.printed().contains("secret"));
}

#[test]
fn requests_of_python_trusts_the_proxy_by_its_variable() {
    hutch_testkit::require!(root, user_namespaces, node, openssl, python, sandbox_client);
    let server = Server::start();
    let rules = server.rule("reads", "web.example", READS);
    // Where an ordinary user can read it.
    let packages = server.path("packages");
    let mut copy = Command::new("sh");
    copy.args([
        "-euc",
        "mkdir \"$1\" && cd \"$0\" && cp -rL requests urllib3 idna certifi charset_normalizer \"$1\"",
    ]);
    copy.arg(hutch_testkit::python_package("1.0.8")).arg(&packages);
    succeeded("cp", &copy.output().expect("sh"));
    let (mount, path) = (format!("{packages}:ro"), format!("PYTHONPATH={packages}"));
    let program = format!(
        "import requests\n\
        url = 'https://web.example:{}/ok/a'\n\
        print(requests.get(url).content.decode(), end='')\n\
        refused = requests.post(url, data=b'x')\n\
        print(refused.status_code, refused.headers['content-type'], requests.__file__)\n\
        try: requests.get(url, verify='/etc/passwd')\n\
        except OSError as error: print('not trusted')\n",
        server.port
    );
    let options = ["--policy", &rules, "--mount", &mount, "--env", &path];
    for caller in callers() {
        let output = server.run(caller, &options, &["/usr/bin/python3", "-c", &program]);
        let expected = format!(
            "GET HTTP/1.1\n403 application/problem+json {packages}/requests/__init__.py\nnot trusted\n"
        );
        assert_eq!(text(&output.stdout), expected, "{caller:?} {}", text(&output.stderr));
    }
    assert!(!server.peer.printed().contains("POST"));
}

#[test]
fn apt_installs_from_a_repository_whose_tls_ends_at_the_proxy() {
    hutch_testkit::require!(root, node, openssl);
    if printed("apt-get", &["--version"]).is_none() || printed("dpkg-deb", &["--version"]).is_none() {
        return hutch_testkit::note_skip("apt over TLS that ends at the proxy", "needs apt-get and dpkg-deb");
    }
    let server = Server::start();
    let control = "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@b.example>\nDescription: text\n";
    let script = "mkdir -p ok/apt made/DEBIAN && printf %s \"$1\" > made/DEBIAN/control && \
        dpkg-deb --root-owner-group --build made ok/apt/greeting.deb >&2 && cd ok/apt && \
        { printf %s \"$1\"; echo \"Filename: greeting.deb\"; echo \"Size: $(stat -c %s greeting.deb)\"; \
        echo \"SHA256: $(sha256sum < greeting.deb | cut -d ' ' -f 1)\"; echo; } > Packages";
    let mut build = Command::new("sh");
    build.args(["-euc", script, "sh", control]).current_dir(server.path("public"));
    succeeded("dpkg-deb", &build.output().expect("sh"));
    let script = format!(
        "mkdir -p /tmp/lists/partial /tmp/cache/archives/partial && touch /tmp/status && cd /tmp\n\
        echo 'deb [trusted=yes] https://web.example:{}/ok/apt /' > list\n\
        apt() {{ apt-get -qq -o Dir::State=/tmp -o Dir::State::Lists=/tmp/lists -o Dir::State::status=/tmp/status \
            -o Dir::Cache=/tmp/cache -o Dir::Etc::SourceList=/tmp/list -o Dir::Etc::SourceParts=/dev/null \
            -o APT::Sandbox::User= -o Debug::NoLocking=1 -o Acquire::Languages=none -o Acquire::Retries=0 \
            -o Acquire::AllowInsecureRepositories=true \"$@\"; }}\n\
        apt update && apt download greeting && dpkg-deb --field greeting_*.deb Package\n",
        server.port
    );
    let scanned = READS.to_owned() + "}\n  scanner: {rules: [builtin/secrets]}\n  #";
    for (name, more) in [("reads", READS), ("scans", scanned.as_str())] {
        let rules = server.rule(name, "web.example", more);
        let output = server.run(Caller::Root, &["--policy", &rules], &["sh", "-euc", &script]);
        assert_eq!(text(&output.stdout).trim(), "greeting", "{name} {}", text(&output.stderr));
        assert!(server.peer.printed().contains("GET /ok/apt/greeting.deb"), "{}", server.peer.printed());
    }
}

#[test]
fn scanner_reads_what_leaves_a_sandbox_and_the_names_that_it_resolves() {
    hutch_testkit::require!(root, user_namespaces, curl, node, openssl, python);
    let server = Server::start();
    let port = server.port;
    let rule = |name: &str, host: &str| {
        format!("    - {{name: {name}, hosts: [\"{host}\"], ports: [{port}], private: [{SERVER}]}}\n")
    };
    let rules = rule("web", "web.example") + &rule("labels", "**.web.example") + "  scanner: {}\n";
    let rules = policy(&server.site, "scanned", "Enforce", &rules);
    // Made of parts, so that scanners of repositories do not report this file.
    let token = ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat();
    let label = "68656c6c6f20776f726c6420616761696e";
    let script = format!(
        "url=https://web.example:{port}/ok/a; curl -sS -d 'weather in Berlin' $url; \
        curl -sS -d \"note=$1\" $url | grep -c 'the scanner finds'; \
        curl -sS -d \"note=$(printf %s \"$1\" | base64 -w 0)\" $url | grep -c 'the scanner finds'; \
        python3 -c 'import socket; print(socket.gethostbyname(\"www.web.example\")[:7])'; \
        python3 -c 'import socket; socket.gethostbyname(\"{label}.web.example\")' 2>&1 | tail -1"
    );
    for caller in callers() {
        let output = server.run(caller, &["--policy", &rules], &["sh", "-uc", &script, "sh", &token]);
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines.len(), 5, "{caller:?}: {printed} {errors}");
        assert_eq!(lines[..4], ["POST HTTP/2.0", "1", "1", "198.18."], "{caller:?}: {errors}");
        assert!(lines[4].contains("gaierror: [Errno -2]"), "no such name: {printed}");
        let refused = "refused *.web.example: the scanner finds `host-label-encoded` in the host name";
        assert!(errors.contains(refused) && !errors.contains(label) && !errors.contains(&token), "{errors}");
    }
    assert_eq!(server.peer.printed().matches("POST").count(), callers().len());
}

#[test]
fn websocket_needs_a_rule_that_says_so() {
    hutch_testkit::require!(root, user_namespaces, node, openssl);
    let server = Server::start();
    let program = format!(
        "const socket = new WebSocket('wss://web.example:{}/ok/socket');\n\
        socket.onopen = () => socket.send('text');\n\
        socket.onmessage = ({{data}}) => {{ console.log(data); process.exit(); }};\n\
        socket.onerror = () => {{ console.log('refused'); process.exit(); }};\n",
        server.port
    );
    let node = ["node", "--experimental-websocket", "-e", &program];
    let with = server.rule("with", "web.example", ", http: [{paths: [/ok/**], websocket: true}]");
    let without = server.rule("without", "web.example", ", http: [{paths: [/ok/**]}]");
    for caller in callers() {
        let output = server.run(caller, &["--policy", &without], &node);
        assert_eq!(text(&output.stdout), "refused\n", "{caller:?} {}", text(&output.stderr));
        assert_eq!(server.peer.printed().matches("upgrade").count(), 0);
    }
    for (count, caller) in (1..).zip(callers()) {
        let output = server.run(caller, &["--policy", &with], &node);
        assert_eq!(text(&output.stdout), "text\n", "{caller:?} {}", text(&output.stderr));
        assert_eq!(server.peer.printed().matches("upgrade").count(), count);
    }
}

#[test]
fn server_that_cannot_be_verified_gets_nothing() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, node);
    let server = Server::start();
    // The certificate is for another name.
    let rules = server.rule("reads", "other.example", READS);
    let url = format!("https://other.example:{}/ok/a", server.port);
    let curl = ["curl", "-sS", "-w", "\n%{http_code}", "-H", "x: secret", &url];
    for caller in callers() {
        let output = server.run(caller, &["--policy", &rules], &curl);
        let printed = text(&output.stdout);
        assert!(printed.ends_with("\n502") && printed.contains("certificate"), "{caller:?} {printed}");
    }
    // Authorities that the machine does not trust.
    let rules = server.rule("others", "web.example", READS);
    let url = format!("https://web.example:{}/ok/a", server.port);
    let curl = ["curl", "-sS", "-w", "\n%{http_code}", &url];
    let mut hutch = server.site.command(Caller::Root, &["--policy", &rules], &curl);
    let output = hutch.env_remove("SSL_CERT_FILE").output().expect("unshare");
    assert!(text(&output.stdout).ends_with("\n502"), "{output:?}");
    assert_eq!(server.requests(), 0);
}

#[test]
fn passed_through_tls_ends_at_the_server() {
    hutch_testkit::require!(root, curl, openssl, node);
    let server = Server::start();
    let rules = server.rule("through", "web.example", ", tls: Passthrough");
    let url = format!("https://web.example:{}/", server.port);
    let mount = format!("{}:ro", server.path("public"));
    let authority = server.path("public/ca.pem");
    let trusting = ["curl", "-sS", "--cacert", &authority, "-d", "x", &url];
    let output = server.run(Caller::Root, &["--policy", &rules, "--mount", &mount], &trusting);
    assert_eq!(succeeded("curl", &output), "POST HTTP/2.0\n");
    let output = server.run(Caller::Root, &["--policy", &rules], &["sh", "-c", "echo -$SSL_CERT_FILE-"]);
    assert_eq!(text(&output.stdout), "--\n", "without rules about requests, nothing is added");
}

#[test]
fn variables_of_the_user_stay_and_the_key_stays_outside() {
    hutch_testkit::require!(root, user_namespaces, openssl, node);
    let server = Server::start();
    let rules = server.rule("reads", "web.example", READS);
    let script = "echo $PIP_CERT $NODE_EXTRA_CA_CERTS; grep -c BEGIN.CERTIFICATE $NODE_EXTRA_CA_CERTS; \
        (echo > $SSL_CERT_FILE) 2>&- || echo read-only; \
        grep -rl 'PRIVATE KEY' /etc /tmp /workspace /dev/shm $SSL_CERT_FILE || echo none; \
        env | grep -c PRIVATE || true; env | grep '=/etc/ssl/certs/ca-certificates.crt$' | cut -d = -f 1 | LC_ALL=C sort";
    let set = VARIABLES.map(|name| format!("{name}\n")).concat();
    let authority = std::fs::read(server.path("public/ca.pem")).expect("the authority");
    let left = || {
        let files = std::fs::read_dir("/dev/shm").expect("a folder").flatten();
        files
            .filter(|file| std::fs::read(file.path()).is_ok_and(|bytes| bytes.starts_with(&authority)))
            .count()
    };
    for caller in callers() {
        let options = ["--policy", &rules, "--env", "PIP_CERT=/mine"];
        let output = server.run(caller, &options, &["sh", "-c", script]);
        let file = "/etc/ssl/certs/ca-certificates.crt";
        // The authority of the test, and that of the sandbox.
        let expected = format!("/mine {file}\n2\nread-only\nnone\n0\n{set}");
        assert_eq!(text(&output.stdout), expected, "{caller:?} {}", text(&output.stderr));
    }
    assert_eq!(left(), 0, "the files of the runs are removed");
}

/// Runs a script in a sandbox that may only read from these hosts. `None` if the machine cannot reach them.
fn reading(test: &str, hosts: &BTreeSet<(String, u16)>, options: &[&str], script: &str) -> Option<Output> {
    // It finds the addresses of the hosts, or a reason to skip the test.
    let flags = match allowing(hosts) {
        Ok(flags) => flags,
        Err(reason) => {
            hutch_testkit::note_skip(test, &reason);
            return None;
        }
    };
    let private: Vec<&str> =
        flags.windows(2).filter(|pair| pair[0] == "--allow-private").map(|pair| pair[1].as_str()).collect();
    let rule = |(number, (host, port)): (usize, &(String, u16))| {
        let private = private.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
        format!(
            "    - {{name: r{number}, hosts: [{host}], ports: [{port}], private: [{private}], \
            http: [{{methods: [GET, HEAD]}}]}}\n"
        )
    };
    let rules: String = hosts.iter().enumerate().map(rule).collect();
    let site = Site::new();
    std::fs::copy("/etc/hosts", site.folder.path().join("hosts")).expect("copied");
    let policy = policy(&site, "reading", "Enforce", &rules);
    let all = [&["--policy", &policy, "--env", "HOME=/tmp"], options].concat();
    let mut hutch = site.command(Caller::Root, &all, &["sh", "-euc", script]);
    // Its home is not that of the toolchains.
    let home = std::path::PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        hutch.env(name, std::env::var_os(name).unwrap_or_else(|| home.join(folder).into()));
    }
    Some(hutch.output().expect("unshare"))
}

#[test]
fn clients_of_registries_work_with_rules_that_only_read() {
    hutch_testkit::require!(root, node, python);
    if let Some((index, hosts)) = python_index() {
        let index = index.trim_end_matches('/');
        let script = format!(
            "cd /tmp && /usr/bin/python3 -m venv v && v/bin/pip install -q -i {index}/ requests httpx\n\
            v/bin/python -c 'import httpx, requests\n\
            for client in requests, httpx:\n  \
                print(client.get(\"{index}/six/\").status_code, client.post(\"{index}/six/\").status_code)'\n"
        );
        if let Some(output) = reading("pip with rules about requests", &hosts, &[], &script) {
            assert_eq!(succeeded("pip", &output), "200 403\n200 403\n", "{}", text(&output.stderr));
        }
    } else {
        hutch_testkit::note_skip("pip with rules about requests", "needs pip and its index");
    }
    if let Some(registry) = printed("npm", &["config", "get", "registry"]) {
        let script = format!(
            "cd /tmp && npm install --no-audit --no-fund --registry {registry} is-number@7.0.0 >&2 && \
            node -e 'console.log(require(\"is-number\")(1))'"
        );
        let hosts = host(&registry).into_iter().collect();
        if let Some(output) = reading("npm with rules about requests", &hosts, &[], &script) {
            assert_eq!(succeeded("npm", &output), "true\n", "{}", text(&output.stderr));
        }
    } else {
        hutch_testkit::note_skip("npm with rules about requests", "needs npm");
    }
    if let Some(proxies) = printed("go", &["env", "GOPROXY"]) {
        let script = "export GOPATH=/tmp/go GOFLAGS=-mod=mod GONOSUMDB='*' GOTOOLCHAIN=local; mkdir /tmp/m && cd /tmp/m\n\
            go mod init m 2>&- && go get golang.org/x/exp@v0.0.0-20240719175910-8a7402abbf56 2>&- && echo got";
        let hosts = proxies.split([',', '|']).filter_map(host).collect();
        let options = ["--tools", "--env", &format!("GOPROXY={proxies}")];
        if let Some(output) = reading("go with rules about requests", &hosts, &options, script) {
            assert_eq!(succeeded("go", &output), "got\n", "{}", text(&output.stderr));
        }
    } else {
        hutch_testkit::note_skip("go with rules about requests", "needs go");
    }
    let script = "mkdir /tmp/c && cd /tmp/c && touch lib.rs && printf '[package]\\nname = \"c\"\\nversion = \"0.1.0\"\\n\
        [lib]\\npath = \"lib.rs\"\\n[dependencies]\\nitoa = \"1\"\\n' > Cargo.toml && cargo -q fetch && grep -c itoa Cargo.lock";
    let cargo = printed("cargo", &["--version"]).and_then(|_| Registry::of_cargo());
    let options = cargo.iter().flat_map(|registry| registry.flags.iter().map(String::as_str));
    let options: Vec<&str> = ["--tools"].into_iter().chain(options).collect();
    let Some(registry) = &cargo else {
        return hutch_testkit::note_skip("cargo with rules about requests", "needs cargo and its index");
    };
    if let Some(output) = reading("cargo with rules about requests", &registry.hosts, &options, script) {
        assert!(succeeded("cargo", &output).trim() != "0", "{}", text(&output.stderr));
    }
}
