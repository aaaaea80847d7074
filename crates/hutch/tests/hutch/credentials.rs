//! Credentials: a server receives the value, and nothing in the sandbox has it.

mod aws;

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::process::{Command, Output, Stdio};

use hutch_testkit::wait::until;

use crate::egress::{Caller, Site, callers};
use crate::harness::{refused, succeeded, text};
use crate::inspected::{authority, with_port};
use crate::peers::Peer;

/// Address of the server. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.31.1";
/// Value of the credential.
const VALUE: &str = "a-value-that-stays-outside-5f0c9e7d1b";

struct Server {
    site: Site,
    peer: Peer,
    port: u16,
}

impl Server {
    fn start() -> Server {
        Server::of("credentials.py", &[])
    }

    /// Starts the server of a fixture with these further arguments.
    fn of(fixture: &str, arguments: &[&str]) -> Server {
        let site = Site::new();
        let path = |name: &str| site.folder.path().join(name);
        let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example other.example\n");
        std::fs::write(path("hosts"), hosts).expect("written");
        authority(&path("public"), &["web.example", "other.example"]);
        let mut python = Command::new("python3");
        python.arg(format!("{}/tests/hutch/fixtures/{fixture}", env!("CARGO_MANIFEST_DIR")));
        python.arg(SERVER).arg(path("public")).args(arguments);
        let (peer, port) = with_port(python, &path("log"));
        Server { site, peer, port }
    }

    fn path(&self, name: &str) -> String {
        self.site.folder.path().join(name).display().to_string()
    }

    /// Writes a policy with one credential for the first of two hosts.
    fn policy(&self, source: &str, more: &str) -> String {
        let (port, path) = (self.port, self.path("policy.yaml"));
        let text = format!(
            "apiVersion: policy.hutch.dev/v1alpha1\nkind: SandboxPolicy\nmetadata: {{name: team}}\nspec:\n  \
             egress:\n    rules:\n    - {{name: web, hosts: [web.example, other.example], ports: [{port}], \
             private: [{SERVER}], http: [{{}}]}}\n  credentials:\n  - {{name: github, source: {source}, \
             hosts: [web.example], ports: [{port}], env: GITHUB_TOKEN{more}}}\n"
        );
        std::fs::write(&path, text).expect("written");
        path
    }

    fn command(&self, caller: Caller, policy: &str, script: &str) -> Command {
        let script = script.replace("PORT", &self.port.to_string());
        let mut hutch = self.site.command(caller, &["--policy", policy], &["sh", "-c", &script]);
        hutch.env("SSL_CERT_FILE", self.path("public/ca.pem")).env("CALLER_TOKEN", VALUE);
        hutch
    }

    fn run(&self, caller: Caller, policy: &str, script: &str) -> Output {
        self.command(caller, policy, script).output().expect("unshare")
    }
}

#[test]
fn value_in_a_compressed_answer_without_a_header_does_not_arrive() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    let script = "curl -sS -H \"Authorization: Bearer $GITHUB_TOKEN\" https://web.example:PORT/archive | gunzip; \
        curl -sS -H \"Authorization: Bearer $GITHUB_TOKEN\" https://web.example:PORT/archive/own | gunzip | tail -n 1";
    let output = server.run(callers()[0], &server.policy("{env: CALLER_TOKEN}", ""), script);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(server.peer.printed().contains(&format!("/archive authorization=Bearer {VALUE}")), "it was sent");
    assert!(!out.contains(&VALUE[..8]) && error.contains("curl: ("), "{out}\n{error}");
    assert!(out.ends_with("a line of an archive\n"), "{out}\n{error}");
}

/// Returns a process and all that descend from it, without the proxy.
pub(crate) fn descendants(first: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let all: Vec<u32> = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let mut found = HashSet::from([first]);
    while let Some(more) = all
        .iter()
        .find(|pid| !found.contains(pid) && parent(**pid).is_some_and(|parent| found.contains(&parent)))
    {
        found.insert(*more);
    }
    let is_proxy = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "hutch-egress\n")
    };
    found.into_iter().filter(|pid| !is_proxy(pid)).collect()
}

/// Bytes of a page of memory.
const PAGE: u64 = 4096;
/// Maximum bytes of memory that are searched at a time.
const PIECE: u64 = 1 << 20;

/// Returns true if one of the texts stands in the memory of a process. One that has ended has no memory.
///
/// # Panics
/// The memory of a process that runs cannot be read.
pub(crate) fn in_memory(pid: u32, texts: &[&str]) -> bool {
    let mut found = None;
    // A process that just ends or executes another program has no memory for a moment.
    until(&format!("the memory of process {pid} is read"), || {
        found = search_memory(pid, texts);
        found.is_some() || has_ended(pid)
    });
    found.unwrap_or(false)
}

fn has_ended(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX"))
}

/// Searches all readable memory of a process. Returns `None` if most of it cannot be read. Single ranges, such as `[vvar]`, never
/// can.
fn search_memory(pid: u32, texts: &[&str]) -> Option<bool> {
    use std::io::Write;
    let open = |name: &str| std::fs::File::open(format!("/proc/{pid}/{name}"));
    let (memory, pages) = (open("mem").ok()?, open("pagemap").ok()?);
    let maps = text(&std::fs::read(format!("/proc/{pid}/maps")).ok()?);
    let mut grep = Command::new("grep");
    grep.env("LC_ALL", "C").arg("-caF").args(texts.iter().flat_map(|text| ["-e", text]));
    let mut grep = grep.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("grep");
    let mut input = grep.stdin.take().expect("piped");
    // A text that begins in one piece may end in the next one.
    let overlap = texts.iter().map(|text| text.len() as u64).max().unwrap_or(0);
    let (mut read, mut unreadable) = (0, 0);
    for line in maps.lines() {
        let mut fields = line.split(' ');
        let range = fields.next().and_then(|range| range.split_once('-'));
        let (Some((start, end)), Some(flags)) = (range, fields.next()) else { continue };
        if !flags.starts_with('r') {
            continue;
        }
        let number = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        for (mut from, end) in resident(&pages, number(start), number(end)) {
            while from < end {
                let mut piece = vec![0; PIECE.min(end - from) as usize];
                let count = memory.read_at(&mut piece, from).unwrap_or(0);
                input.write_all(&piece[..count]).and_then(|()| input.write_all(b"\n")).expect("grep reads");
                read += count as u64;
                from += count as u64;
                if count < piece.len() {
                    unreadable += PAGE;
                    from = from / PAGE * PAGE + PAGE;
                } else if from < end {
                    from -= overlap;
                }
            }
        }
    }
    drop(input);
    let found = text(&grep.wait_with_output().expect("grep").stdout).trim() != "0";
    (read > unreadable).then_some(found)
}

/// Returns the parts of a range of addresses that have pages, in memory or in swap. Other parts hold nothing, and a read would
/// give them pages.
fn resident(pages: &std::fs::File, start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut entries = vec![0; ((end - start) / PAGE * 8) as usize];
    let mut parts: Vec<(u64, u64)> = Vec::new();
    // The kernel has no entries for `[vsyscall]`.
    if pages.read_exact_at(&mut entries, start / PAGE * 8).is_err() {
        return parts;
    }
    for (number, entry) in entries.chunks_exact(8).enumerate() {
        let page = start + number as u64 * PAGE;
        // The two highest bits of an entry, whose bytes are in the order of the machine.
        if u64::from_ne_bytes(entry.try_into().expect("eight bytes")) >> 62 == 0 {
            continue;
        }
        match parts.last_mut() {
            Some((_, last)) if *last == page => *last += PAGE,
            _ => parts.push((page, page + PAGE)),
        }
    }
    parts
}

#[test]
fn server_receives_the_value_and_the_sandbox_has_only_the_placeholder() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    std::fs::write(server.path("token"), format!("{VALUE}\n")).expect("written");
    std::os::unix::fs::chown(server.path("token"), Some(1000), None).expect("chown");
    let script = "env; cat /proc/*/environ | tr '\\0' '\\n'; curl -sSi -H \"Authorization: Bearer $GITHUB_TOKEN\" \
        https://web.example:PORT/bearer; curl -sSi -u \"git:$GITHUB_TOKEN\" https://web.example:PORT/basic; \
        curl -sSi \"https://web.example:PORT/query?key=$GITHUB_TOKEN\"";
    for caller in callers() {
        for source in ["{env: CALLER_TOKEN}".to_owned(), format!("{{file: {}}}", server.path("token"))] {
            let before = server.peer.printed().len();
            let output = server.run(caller, &server.policy(&source, ""), script);
            succeeded(&format!("{caller:?} {source}"), &output);
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            assert!(!out.contains(VALUE) && !error.contains(VALUE), "{caller:?} {source}: {out}\n{error}");
            let token = out.lines().find_map(|line| line.strip_prefix("GITHUB_TOKEN=")).expect(&out);
            assert!(token.starts_with("ghp_") && token.len() == 40, "{token}");
            // In the head of the answer and in its body, which comes in pieces.
            assert!(out.contains(&format!("echo: Bearer {token}")), "{out}");
            assert!(out.contains(&format!("uthorization: Bearer {token}")), "{out}");
            assert!(out.contains(&format!("/query?key={token}")), "{out}");
            let received = server.peer.printed()[before..].to_owned();
            let basic =
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("git:{VALUE}"));
            for expected in [
                format!("/bearer authorization=Bearer {VALUE}"),
                format!("/basic authorization=Basic {basic}"),
                format!("/query?key={VALUE}"),
            ] {
                assert!(received.contains(&expected), "{expected}: {received}");
            }
            assert!(!out.contains(&basic), "{out}");
        }
    }
}

#[test]
fn sandbox_config_offers_credentials_by_a_policy_that_opens_nothing_more() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    let policy = server.policy("{env: CALLER_TOKEN}", "");
    let script = "echo $GITHUB_TOKEN; curl -sS -o /dev/null -w '%{http_code}\\n' \
        -H \"Authorization: Bearer $GITHUB_TOKEN\" https://web.example:PORT/bearer";
    let script = script.replace("PORT", &server.port.to_string());
    // The file says which isolation it is.
    for caller in callers().into_iter().filter(|caller| !matches!(caller, Caller::InGvisor)) {
        for (listed, opens) in [("web.example", true), ("elsewhere.example", false), ("", false)] {
            let network = match listed {
                "" => "mode: none".to_owned(),
                _ => format!("egress_allowlist: [\"{listed}:{}\"]", server.port),
            };
            let config = server.path("config.yaml");
            let text_of = format!(
                "network: {{{network}}}\ncredentials: {{mode: just_in_time, secret_scanning: true}}\n"
            );
            std::fs::write(&config, text_of).expect("written");
            let flags = ["--config", &config, "--policy", &policy, "--allow-private", SERVER];
            let mut hutch = server.site.command(caller, &flags, &["sh", "-c", &script]);
            hutch.env("SSL_CERT_FILE", server.path("public/ca.pem")).env("CALLER_TOKEN", VALUE);
            let before = server.peer.printed().len();
            let output = hutch.output().expect("unshare");
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            assert!(out.starts_with("ghp_") && !out.contains(VALUE), "{caller:?} {listed}: {out}{error}");
            assert_eq!(out.ends_with("\n200\n"), opens, "{caller:?} {listed}: {out}{error}");
            let received = server.peer.printed()[before..].contains(&format!("authorization=Bearer {VALUE}"));
            assert_eq!(received, opens, "{caller:?} {listed}: {error}");
        }
    }
}

#[test]
fn git_clones_and_pushes_with_the_placeholder_as_its_password() {
    hutch_testkit::require!(root, user_namespaces, openssl, python, git);
    let repositories = tempfile::tempdir().expect("a folder");
    let git = |folder: &std::path::Path, script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).current_dir(folder).env("HOME", folder);
        succeeded(script, &shell.output().expect("sh"))
    };
    let identity = "git config --global user.name test; git config --global user.email test@example; \
        git config --global init.defaultBranch main";
    git(
        repositories.path(),
        &format!(
            "{identity}; git init -q --bare team.git; git clone -q team.git seed 2> /dev/null; cd seed; \
            echo seeded > file; git add file; git commit -qm seed; git push -q origin HEAD"
        ),
    );
    let (root, user) = (repositories.path().display().to_string(), format!("git:{VALUE}"));
    let server = Server::of("git.py", &[&root, &user]);
    let script = format!(
        "export HOME=/tmp GIT_TERMINAL_PROMPT=0; cd /tmp; {identity}; \
         git clone -q https://git:$GITHUB_TOKEN@web.example:PORT/team.git work; cd work; cat file; \
         echo inside > new; git add new; git commit -qm inside; git push -q origin HEAD; cat .git/config; \
         git clone -q https://git:wrong@web.example:PORT/team.git other || echo refused"
    );
    let output = server.run(Caller::Root, &server.policy("{env: CALLER_TOKEN}", ""), &script);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(out.starts_with("seeded\n") && out.ends_with("refused\n"), "{out}\n{error}");
    assert!(
        out.contains("https://git:ghp_") && !out.contains(VALUE) && !error.contains(VALUE),
        "{out}\n{error}"
    );
    assert_eq!(git(repositories.path(), "git -C team.git show main:new"), "inside\n");
    let basic = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, user);
    let printed = server.peer.printed();
    for request in ["GET /team.git/info/refs?service=git-upload-pack", "POST /team.git/git-receive-pack"] {
        assert!(printed.contains(&format!("request {request} authorization=Basic {basic}")), "{printed}");
    }
}

#[test]
fn value_stands_in_forms_and_json_only_where_the_credential_has_body() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    let script = "curl -sS -d \"key=$GITHUB_TOKEN&b=1\" https://web.example:PORT/form; \
        curl -sS --json \"{\\\"key\\\": \\\"$GITHUB_TOKEN\\\"}\" https://web.example:PORT/json; \
        curl -sS -d \"key=$GITHUB_TOKEN\" https://other.example:PORT/other; echo; echo $GITHUB_TOKEN";
    for (more, sent) in [("", false), (", body: true", true)] {
        let before = server.peer.printed().len();
        let output = server.run(Caller::Root, &server.policy("{env: CALLER_TOKEN}", more), script);
        let (out, received) = (text(&output.stdout), server.peer.printed()[before..].to_owned());
        assert!(!out.contains(VALUE), "{out}");
        let expected = match sent {
            true => VALUE,
            false => out.lines().last().expect("a placeholder"),
        };
        for body in [format!("body key={expected}&b=1\n"), format!("body {{\"key\": \"{expected}\"}}\n")] {
            assert!(received.contains(&body), "{body}: {received}");
        }
        // The other host gets a request without its body.
        assert_eq!(received.matches("body key=").count(), 1, "{received}");
    }
}

#[test]
fn memory_of_no_process_but_the_proxy_has_the_value() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    let script = "curl -sS -H \"Authorization: Bearer $GITHUB_TOKEN\" https://web.example:PORT/a; \
        echo $GITHUB_TOKEN; exec sleep 60";
    for caller in [Caller::Root, Caller::Ordinary] {
        let before = server.peer.printed().len();
        let mut hutch = server.command(caller, &server.policy("{env: CALLER_TOKEN}", ""), script);
        let mut child = hutch.stdout(Stdio::null()).spawn().expect("unshare");
        until("the request", || server.peer.printed()[before..].contains(VALUE));
        let asleep = || {
            descendants(child.id()).into_iter().find(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
            })
        };
        until("the command sleeps", || asleep().is_some());
        let sleeping = asleep().expect("it sleeps");
        // The search finds what is there.
        assert!(in_memory(sleeping, &["GITHUB_TOKEN=ghp_"]), "{caller:?}");
        let all = descendants(child.id());
        assert!(all.len() >= 3, "{all:?}");
        let with: Vec<u32> = all.into_iter().filter(|pid| in_memory(*pid, &[VALUE])).collect();
        let named = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        assert!(with.is_empty(), "{caller:?}: {:?}", with.iter().map(named).collect::<Vec<_>>());
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
}

#[test]
fn placeholder_to_another_host_is_refused_and_reported() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    let script = "curl -sS -H \"Authorization: Bearer $GITHUB_TOKEN\" https://other.example:PORT/a";
    let output = server.run(Caller::Root, &server.policy("{env: CALLER_TOKEN}", ""), script);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("credential \\\"github\\\": it is not bound to this host"), "{out}");
    assert!(error.contains("refused GET https://other.example") && error.contains("not bound"), "{error}");
    assert!(!server.peer.printed().contains("request"), "{}", server.peer.printed());
}

#[test]
fn expired_credential_is_refused() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let server = Server::start();
    let request = "curl -sS -o /dev/null -w '%{http_code} ' -H \"Authorization: Bearer $GITHUB_TOKEN\" \
        https://web.example:PORT/a";
    let policy = server.policy("{env: CALLER_TOKEN}", ", expires: 3s");
    let output = server.run(Caller::Root, &policy, &format!("{request}; sleep 4; {request}"));
    assert_eq!(text(&output.stdout), "200 403 ", "{}", text(&output.stderr));
}

#[test]
fn credential_without_a_value_is_refused_by_name() {
    hutch_testkit::require!(root, user_namespaces, openssl, python);
    let server = Server::start();
    for (source, more, expected) in [
        ("{env: NOT_SET}", "", "credential \"github\" of policy \"team\": source.env: NOT_SET is not set"),
        ("{file: /nonexistent}", "", "source.file: /nonexistent"),
        ("{env: CALLER_TOKEN}", ", value: x", "unknown field `value`"),
    ] {
        let output = server.run(Caller::Root, &server.policy(source, more), "echo ran");
        refused(&output, 125, &[expected]);
        assert!(!text(&output.stdout).contains("ran"));
    }
    let options = ["--policy", &server.policy("{env: CALLER_TOKEN}", ""), "--env", "GITHUB_TOKEN=x"];
    let output = server.site.run(Caller::Root, &options, &["true"]);
    refused(&output, 125, &["--env GITHUB_TOKEN: a credential of --policy sets this variable"]);
}

#[test]
fn file_with_a_value_that_the_sandbox_shows_is_refused() {
    hutch_testkit::require!(root, user_namespaces, openssl, python);
    let server = Server::start();
    let folder = server.path("shown");
    std::fs::create_dir(&folder).expect("made");
    let (file, link) = (format!("{folder}/token"), server.path("link"));
    std::fs::write(&file, format!("{VALUE}\n")).expect("written");
    std::os::unix::fs::symlink(&file, &link).expect("linked");
    let (mount, read_only) = (format!("{folder}:/data"), format!("{folder}:ro"));
    for (source, flag, value, inside) in [
        (&file, "--workspace", folder.as_str(), file.as_str()),
        (&link, "--workspace", &folder, &file),
        (&file, "--mount", &mount, "/data/token"),
        (&file, "--mount", &read_only, &file),
    ] {
        let policy = server.policy(&format!("{{file: {source}}}"), "");
        let output = server.site.run(Caller::Root, &["--policy", &policy, flag, value], &["echo", "ran"]);
        let expected = format!(
            "credential \"github\" of policy \"team\": source.file: the sandbox could read it as {inside}"
        );
        refused(&output, 125, &[&expected]);
        let options = ["--policy", &policy, flag, value, "--deny-read", &file];
        succeeded("hidden", &server.site.run(Caller::Root, &options, &["true"]));
    }
}

#[test]
fn credential_that_no_rule_opens_is_reported() {
    hutch_testkit::require!(root, user_namespaces, openssl, python);
    let server = Server::start();
    let line = "credential \"github\" of policy \"team\": no rule opens its hosts";
    let policy = server.policy("{env: CALLER_TOKEN}", "");
    let output = server.run(Caller::Root, &policy, "true");
    assert!(!text(&output.stderr).contains(line), "{}", text(&output.stderr));
    let closed = std::fs::read_to_string(&policy)
        .expect("read")
        .replace("hosts: [web.example]", "hosts: [no.example]");
    std::fs::write(&policy, closed).expect("written");
    let output = server.run(Caller::Root, &policy, "true");
    succeeded("only reported", &output);
    assert!(text(&output.stderr).contains(line), "{}", text(&output.stderr));
}
