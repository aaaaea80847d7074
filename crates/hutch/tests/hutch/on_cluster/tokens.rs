//! Tokens for one Sandbox: `hutch token create`, and a `hutch router` that wants them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hutch_testkit::wait::until;
use serde_json::Value;

use super::{KEY, ROUTER, Shared, shared, text};

/// The ways in which a token is sent; `{}` stands for it.
const WAYS: [&str; 3] = ["Bearer {}", "Basic x:{}", "Basic {}:x"];

/// Returns the header for this token.
fn authorization(way: &str, token: &str) -> String {
    match way.replace("{}", token).split_once(' ') {
        Some(("Basic", pair)) => format!("Basic {}", BASE64_STANDARD.encode(pair)),
        Some((scheme, token)) => format!("{scheme} {token}"),
        None => panic!("{way}"),
    }
}

impl Shared {
    fn mint(&self, words: &[&str]) -> String {
        let key = self.plane.file(KEY);
        self.ok(&[&["token", "create", "--key-file", &key], words].concat()).trim().to_owned()
    }

    /// The status of the answer to a request to that Sandbox with this `Authorization`.
    fn ask(&self, sandbox: &str, authorization: &str) -> u16 {
        let address = self.plane.printed(ROUTER, "http ").expect("it listens");
        let mut stream = TcpStream::connect(address).expect("connected");
        let given = if authorization.is_empty() {
            String::new()
        } else {
            format!("authorization: {authorization}\r\n")
        };
        let request = format!(
            "GET / HTTP/1.1\r\nhost: r\r\nconnection: close\r\nx-sandbox-id: {sandbox}\r\n{given}\r\n"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
    }

    /// The status, which is the same whichever way the token is sent.
    #[track_caller]
    fn opens(&self, sandbox: &str, token: &str) -> u16 {
        let statuses = WAYS.map(|way| self.ask(sandbox, &authorization(way, token)));
        assert!(statuses.iter().all(|status| *status == statuses[0]), "{WAYS:?}: {statuses:?}");
        statuses[0]
    }
}

#[test]
fn scoped_token_opens_one_sandbox_of_a_cluster_until_it_expires() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    let first = shared.sandbox("first", Value::Null);
    let other = shared.sandbox("other", Value::Null);
    shared.ready("first");
    shared.ready("other");
    let token = shared.mint(&["first", "--uid", &first]);
    let foreign = shared.mint(&["other", "--uid", &other]);
    let brief = shared.mint(&["first", "--uid", &first, "--ttl", "1s"]);
    let anytime = shared.mint(&["first"]);
    let elsewhere = shared.mint(&["first", "--namespace", "elsewhere"]);
    assert_eq!(shared.opens("first", &token), 200);
    assert_eq!(shared.opens("first", &anytime), 200);
    assert_eq!(shared.opens("other", &foreign), 200);
    assert_eq!(shared.opens("first", &foreign), 403, "another Sandbox's");
    assert_eq!(shared.opens("other", &token), 403, "another Sandbox's");
    assert_eq!(shared.opens("first", &elsewhere), 403, "another namespace's");
    until("its time is over", || shared.opens_or_ended(&brief));
    assert_eq!(shared.ask("first", ""), 401);
    let (claims, signature) = token.rsplit_once('.').expect("a signature");
    let forged = format!("{claims}.{}", signature.chars().rev().collect::<String>());
    assert_eq!(shared.opens("first", &forged), 401);

    let again = a_namesake_is_not_opened(shared, &token);
    let renewed = shared.mint(&["first", "--uid", &again]);
    until("the namesake is there", || shared.opens("first", &renewed) == 200);
    assert_eq!(shared.opens("first", &token), 403, "for the Sandbox that was deleted");
    assert_eq!(shared.opens("first", &anytime), 200, "it names no life");
    in_no_log(shared, &[&token, &foreign, &brief, &anytime, &elsewhere, &forged, &renewed]);
}

impl Shared {
    /// Returns true if the short token has expired. Until then it opens its Sandbox.
    fn opens_or_ended(&self, brief: &str) -> bool {
        match self.ask("first", &authorization(WAYS[0], brief)) {
            200 => false,
            401 => self.opens("first", brief) == 401,
            other => panic!("{other}"),
        }
    }
}

/// Deletes the Sandbox and makes one of the same name; the UID of that. The token is for the old one, and is shown all the while.
fn a_namesake_is_not_opened(shared: &Shared, token: &str) -> String {
    shared.kubectl(&["delete", "sandbox", "first"]);
    let uid = shared.sandbox("first", Value::Null);
    let ready = ["get", "sandbox", "first", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"];
    until("the namesake is ready", || {
        for way in WAYS {
            let status = shared.ask("first", &authorization(way, token));
            assert!([403, 502].contains(&status), "{way}: {status}");
        }
        shared.kubectl(&ready) == "True"
    });
    uid
}

/// Neither as a whole, nor its payload, its signature or what Basic makes of it. Requests are logged, or this would say nothing.
fn in_no_log(shared: &Shared, tokens: &[&str]) {
    let mut secrets: Vec<String> = Vec::new();
    for token in tokens {
        secrets.extend(token.split('.').filter(|part| part.len() > 8).map(str::to_owned));
        secrets.extend(WAYS[1..].iter().map(|way| authorization(way, token)["Basic ".len()..].to_owned()));
    }
    let read = |path: &Path| text(&std::fs::read(path).expect("a log"));
    let folder = std::fs::read_dir(shared.plane.cluster.folder()).expect("the folder of the cluster");
    let logs: Vec<_> = folder
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    let router =
        logs.iter().find(|path| path.file_stem().is_some_and(|stem| stem == ROUTER)).expect("its log");
    let requests = read(router)
        .lines()
        .filter(|line| line.contains(r#""msg":"request""#) && line.contains("first"))
        .count();
    assert!(requests > 20, "{requests}");
    assert!(logs.len() >= 5, "{logs:?}");
    for log in &logs {
        let written = read(log);
        let found: Vec<&String> = secrets.iter().filter(|secret| written.contains(secret.as_str())).collect();
        assert!(found.is_empty(), "{}: {found:?}", log.display());
    }
}
