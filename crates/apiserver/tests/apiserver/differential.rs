//! Bad objects, and what a real kube-apiserver says of them: the same words from this one. The answers are recorded in
//! `differential/answers.json`, one line for each case; where a control plane is installed they are compared with it too, so
//! that the record cannot grow stale.
//!
//! `cargo test -p hutch-apiserver --test apiserver differential::record -- --ignored` records anew.

mod answer;
mod cases;
mod kinds;
mod metadata;
mod numbers;
mod pods;
mod queries;

use std::collections::BTreeMap;
use std::path::Path;

use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_testkit::cluster::{Cluster, Conversion, Options};
use hutch_testkit::require;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use self::answer::Answer;
use self::cases::Case;

type Answers = BTreeMap<String, Answer>;

/// A control plane of what answers these requests.
const SMALL: Options = Options { crds: Some(Conversion::None), controllers: false, node: false };

fn file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apiserver/differential/answers.json")
}

fn all() -> Vec<Case> {
    let cases =
        [metadata::cases(), numbers::cases(), pods::cases(), queries::cases(), kinds::cases()].concat();
    let names: std::collections::HashSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "each case has a name of its own");
    cases
}

async fn ask(client: &Client) -> Answers {
    cases::prepare(client).await;
    let mut answers = Answers::new();
    for case in all() {
        let answer = cases::send(client, &case).await;
        answers.insert(case.name, answer);
    }
    answers
}

async fn real() -> Answers {
    let cluster = Cluster::start(SMALL).await.expect("a control plane");
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    // That something is busy is an answer too.
    config.default_retry = false;
    ask(&Client::try_from(config).expect("a client")).await
}

fn recorded() -> Answers {
    let text = std::fs::read_to_string(file()).expect("the record");
    serde_json::from_str(&text).expect("the record is JSON")
}

/// Each case that went otherwise, with both answers.
fn differences(wanted: &Answers, found: &Answers) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    let shown = |answer: Option<&Answer>| answer.map_or("no such case".to_owned(), ToString::to_string);
    let differs = names.into_iter().filter(|name| wanted.get(*name) != found.get(*name));
    differs
        .map(|name| {
            format!("{name}\n  wanted {}\n  found  {}", shown(wanted.get(name)), shown(found.get(name)))
        })
        .collect()
}

#[tokio::test]
async fn bad_objects_get_the_answers_of_a_real_server() {
    let server = ApiServer::open(Config::default()).await.expect("a server");
    let found = ask(&server.client(Identity::admin(), "default")).await;
    let differences = differences(&recorded(), &found);
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), found.len(), differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_answers_as_recorded() {
    require!(kubernetes);
    let differences = differences(&recorded(), &real().await);
    assert!(differences.is_empty(), "{}:\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes differential/answers.json"]
async fn record() {
    require!(kubernetes);
    let lines = real().await.into_iter().map(|(name, answer)| {
        let answer = serde_json::to_string(&answer).expect("an answer is JSON");
        format!("{}: {answer}", serde_json::Value::from(name))
    });
    let lines: Vec<String> = lines.collect();
    std::fs::write(file(), format!("{{\n{}\n}}\n", lines.join(",\n"))).expect("the record is written");
}
