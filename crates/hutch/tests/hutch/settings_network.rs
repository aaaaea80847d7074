//! Settings of srt about TLS, credentials and a proxy outside.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::doors::origin::upstream_proxy;
use crate::egress::{Caller, Site, callers, server};
use crate::harness::{refused, succeeded, text};
use crate::inspected::{authority, with_port};
use crate::peers::Peer;

/// Address of the servers. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.33.1";
/// Value of the credential.
const VALUE: &str = "a-value-that-stays-outside-90d1b6c27e";

/// A site with a folder `work`.
fn site() -> Site {
    let site = Site::new();
    let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example other.example\n");
    std::fs::write(site.folder.path().join("hosts"), hosts).expect("written");
    let work = site.folder.path().join("work");
    std::fs::create_dir(&work).expect("made");
    std::os::unix::fs::chown(&work, Some(1000), Some(1000)).expect("chown");
    site
}

/// `hutch run` with these settings in the folder `work`.
fn command(site: &Site, caller: Caller, settings: &Value, flags: &[&str], script: &str) -> Command {
    let path = |name: &str| site.folder.path().join(name).display().to_string();
    std::fs::write(path("settings.json"), settings.to_string()).expect("written");
    let settings = path("settings.json");
    let options = [&["--settings", &settings], flags].concat();
    let inner = site.command(caller, &options, &["sh", "-c", script]);
    let mut unshare = Command::new(inner.get_program());
    for argument in inner.get_args() {
        // Its script begins in another folder.
        let argument = argument.to_str().expect("text");
        unshare.arg(argument.replace("cd / &&", &format!("cd {} &&", path("work"))));
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => unshare.env(name, value),
            None => unshare.env_remove(name),
        };
    }
    unshare.stdin(Stdio::null());
    unshare
}

fn settings(network: &Value, credentials: &Value) -> Value {
    let files = json!({"denyRead": [], "allowWrite": ["."], "denyWrite": []});
    json!({"network": network, "filesystem": files, "credentials": credentials})
}

/// Starts a server of HTTPS at its usual port.
fn https(site: &Site) -> Peer {
    let public = site.folder.path().join("public");
    authority(&public, &["web.example", "other.example"]);
    let mut python = Command::new("python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/credentials.py"));
    python.arg(SERVER).arg(&public).arg("443");
    with_port(python, &site.folder.path().join("log")).0
}

fn run(mut command: Command) -> Output {
    command.output().expect("unshare")
}

/// Both servers have one address and port, so one test has both.
#[test]
fn tls_ends_at_the_proxy_where_the_settings_say_and_masked_variables_have_values_there() {
    hutch_testkit::require!(root, user_namespaces, curl, openssl, python);
    let site = site();
    let peer = https(&site);
    let authority = site.folder.path().join("public/ca.pem").display().to_string();
    let secret = site.folder.path().join("work/secret");
    std::fs::write(&secret, VALUE).expect("written");
    // The address alone lets the names lead there.
    let allowed = json!(["web.example", "other.example", SERVER]);
    let masked = json!({
        "envVars": [
            {"name": "GITHUB_TOKEN", "mode": "mask", "injectHosts": ["web.example"]},
            {"name": "UNSET", "mode": "mask"},
            {"name": "SECRET", "mode": "deny"},
        ],
        "files": [{"path": "secret", "mode": "deny"}],
    });
    let terminates = settings(&json!({"allowedDomains": allowed, "tlsTerminate": {}}), &masked);
    let script = "auth=\"Authorization: Bearer $GITHUB_TOKEN\"; curl -sS -H \"$auth\" https://web.example/web; \
        curl -sS -o /dev/null -w '%{http_code}\\n' -H \"$auth\" https://other.example/other; echo \"-$SECRET-\"; cat secret; \
        echo $GITHUB_TOKEN | cut -c 1-4";
    for (count, caller) in (1..).zip(callers()) {
        let mut hutch = command(&site, caller, &terminates, &[], script);
        hutch.env("SSL_CERT_FILE", &authority).env("GITHUB_TOKEN", VALUE).env("SECRET", VALUE);
        let output = run(hutch);
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(!out.contains(VALUE) && out.ends_with("\n403\n--\nghp_\n"), "{caller:?}: {out} {error}");
        assert!(error.contains("credentials.envVars[1].name: the variable is not set"), "{error}");
        let sent = format!("request /web authorization=Bearer {VALUE}");
        assert_eq!(peer.printed().matches(&sent).count(), count, "{caller:?}");
        assert!(!peer.printed().contains("/other"), "{caller:?}");
    }
    let denied = run(command(&site, Caller::Root, &terminates, &["--env", "SECRET=x"], "true"));
    refused(&denied, 125, &["--env sets SECRET"]);

    // The proxy does not trust the server here. Programs inside do, where TLS does not end at the proxy.
    let script = "for host in web other; do curl -sS -o /dev/null -w '%{http_code}\\n' https://$host.example/; done; true";
    for (authorities, expected) in [(json!([authority, "/missing"]), "502\n200\n"), (json!([]), "502\n000\n")]
    {
        let terminate = json!({"excludeDomains": ["other.example"], "extraCaCertPaths": authorities});
        let excluding = settings(&json!({"allowedDomains": allowed, "tlsTerminate": terminate}), &json!({}));
        let mut hutch = command(&site, Caller::Ordinary, &excluding, &[], script);
        hutch.env_remove("SSL_CERT_FILE");
        let output = run(hutch);
        assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    }
}

#[test]
fn everything_goes_through_the_parent_proxy() {
    hutch_testkit::require!(root, user_namespaces, python);
    let site = site();
    let (upstream, heads) = upstream_proxy(SERVER);
    let (port, _received) = server(&format!("{SERVER}:0"), b"hello");
    let parent =
        json!({"http": format!("http://user:s%65cret@{upstream}"), "noProxy": "localhost,127.0.0.1"});
    // Only the proxy outside resolves the name.
    let network = json!({"allowedDomains": ["outside.example"], "parentProxy": parent});
    let settings = settings(&network, &json!({}));
    let script = format!(
        "python3 -c \"import socket; print(socket.create_connection(('outside.example', {port}), 60).recv(9).decode())\""
    );
    for caller in callers() {
        let output = run(command(&site, caller, &settings, &[], &script));
        assert_eq!(succeeded("python", &output), "hello\n", "{caller:?}: {}", text(&output.stderr));
        let head = heads.recv_timeout(Duration::from_secs(20)).expect("a CONNECT");
        assert!(head.starts_with(&format!("CONNECT outside.example:{port} HTTP/1.1\r\n")), "{head}");
        assert!(head.contains("\r\nProxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n"), "{head}");
    }
    let both = ["--upstream-proxy", "http://a.example:1"];
    let output = run(command(&site, Caller::Root, &settings, &both, "true"));
    refused(&output, 125, &["network.parentProxy: not together with --upstream-proxy"]);
}
