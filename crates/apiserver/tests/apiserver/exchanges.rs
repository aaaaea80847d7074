//! Access compared with a real kube-apiserver: requests of several callers in a fixed order, and the answers to
//! them. The answers are recorded in `exchanges/answers.json`, one line for each exchange; where a control plane is
//! installed it is compared with the record too.
//!
//! `cargo test -p hutch-apiserver --test apiserver exchanges::record -- --ignored` records anew.

mod escalations;
mod impersonation;
mod objects;
mod quotas;
mod requests;
mod reviews;
mod server;
mod setup;
mod tokens;

use std::collections::BTreeMap;
use std::path::Path;

use hutch_testkit::cluster::{Cluster, Conversion, Options};
use hutch_testkit::require;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::server::Server;

/// The controllers aggregate roles and fill Secrets of tokens.
const CONTROLLERS: Options = Options { crds: Some(Conversion::None), controllers: true, node: false };

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Caller {
    /// A member of `system:masters`.
    Admin,
    /// A caller without a credential.
    Anonymous,
    /// The admin on behalf of a user with groups.
    User(&'static str, &'static [&'static str]),
    /// The ServiceAccount `bot` of the namespace `team-a`.
    Bot,
    /// The bearer of a token that is not valid.
    Stranger,
}

/// One request.
#[derive(Clone, Debug)]
struct Exchange {
    name: String,
    caller: Caller,
    method: &'static str,
    path: String,
    body: Value,
    headers: Vec<(&'static str, String)>,
    /// JSON pointer to what is compared of an object that is answered. Empty compares the code alone.
    place: &'static str,
    /// A real server needs time before this and after it, until its controllers and caches know.
    settles: bool,
}

impl Exchange {
    fn new(caller: Caller, method: &'static str, path: impl Into<String>, body: Value) -> Exchange {
        let path = path.into();
        let name = match caller {
            Caller::User(name, []) => format!("{name}: {method} {path}"),
            Caller::User(name, groups) => format!("{name} of {}: {method} {path}", groups.join(",")),
            other => format!("{other:?}: {method} {path}"),
        };
        Exchange { name, caller, method, path, body, headers: Vec::new(), place: "", settles: false }
    }

    fn named(self, detail: &str) -> Exchange {
        Exchange { name: format!("{} ({detail})", self.name), ..self }
    }

    fn showing(self, place: &'static str) -> Exchange {
        Exchange { place, ..self }
    }

    fn settling(self) -> Exchange {
        Exchange { settles: true, ..self }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Exchange {
        self.headers.push((name, value.into()));
        self
    }
}

/// An answer: a refusal as a whole, or what matters of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    code: u16,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    body: Value,
}

type Answers = BTreeMap<String, Answer>;

fn file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apiserver/exchanges/answers.json")
}

async fn ask(server: &Server) -> Answers {
    setup::run(server).await;
    let groups = [
        requests::all(),
        reviews::all(),
        impersonation::all(),
        objects::all(),
        escalations::all(),
        tokens::all(),
        quotas::all(),
    ];
    let mut answers = Answers::new();
    for exchange in groups.into_iter().flatten() {
        let answer = server.send(&exchange).await;
        let twice = answers.insert(exchange.name.clone(), answer);
        assert!(twice.is_none(), "{} has a name of its own", exchange.name);
    }
    answers
}

async fn real() -> Answers {
    let cluster = Cluster::start(CONTROLLERS).await.expect("a control plane");
    ask(&Server::of_cluster(&cluster).await).await
}

fn recorded() -> Answers {
    let text = std::fs::read_to_string(file()).expect("the record");
    serde_json::from_str(&text).expect("the record is JSON")
}

fn differences(wanted: &Answers, found: &Answers) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    let shown = |answer: Option<&Answer>| {
        answer.map_or("no such exchange".into(), |answer| serde_json::to_string(answer).unwrap_or_default())
    };
    let differs = names.into_iter().filter(|name| wanted.get(*name) != found.get(*name));
    differs
        .map(|name| {
            format!("{name}\n  wanted {}\n  found  {}", shown(wanted.get(name)), shown(found.get(name)))
        })
        .collect()
}

#[tokio::test]
async fn exchanges_get_the_answers_of_a_real_server() {
    let found = ask(&Server::embedded().await).await;
    let differences = differences(&recorded(), &found);
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), found.len(), differences.join("\n"));
    assert!(found.len() >= 150, "{} exchanges", found.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_answers_the_exchanges_as_recorded_and_kubectl_lists_the_same_rules() {
    require!(kubernetes, kubectl);
    let cluster = Cluster::start(CONTROLLERS).await.expect("a control plane");
    let real = Server::of_cluster(&cluster).await;
    let differences = differences(&recorded(), &ask(&real).await);
    assert!(differences.is_empty(), "{}:\n{}", differences.len(), differences.join("\n"));
    let own = Server::embedded().await;
    setup::run(&own).await;
    for user in ["alice", "victor", "adam", "olga", "nora", "nobody"] {
        let lines = own.can_i(user, "team-a").await;
        assert_eq!(lines, real.can_i(user, "team-a").await, "{user}");
        assert!(lines.len() > 5, "{lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes exchanges/answers.json"]
async fn record() {
    require!(kubernetes);
    let lines = real().await.into_iter().map(|(name, answer)| {
        let answer = serde_json::to_string(&answer).expect("an answer is JSON");
        format!("{}: {answer}", Value::from(name))
    });
    let lines: Vec<String> = lines.collect();
    std::fs::write(file(), format!("{{\n{}\n}}\n", lines.join(",\n"))).expect("the record is written");
}
