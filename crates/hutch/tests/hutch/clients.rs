//! Unmodified clients, method by method: the script in `tests/clients` runs a function for each cell of the tables in
//! `docs/clients.md`, on one machine and in front of a real API server. The tables say what ran, or these tests fail. CI runs each
//! way to a sandbox with one kind of client.

mod cluster;
mod script;

use serde_json::Value;

use self::script::{Script, Settings, documented, rendered};
use crate::harness::Up;
use crate::killed::rounds;

#[test]
fn document_has_the_tables_of_the_script() {
    hutch_testkit::require!(async_sandbox_client);
    assert_eq!(
        documented(),
        rendered(),
        "docs/clients.md: put in what `python3 tests/clients --render` prints"
    );
}

#[test]
fn every_public_method_of_the_package_has_a_row_or_a_reason() {
    hutch_testkit::require!(async_sandbox_client);
    let printed = Script::new(None).ok(&["--contract"]);
    assert!(printed.contains("have rows"), "{printed}");
}

#[test]
fn cells_on_one_machine() {
    hutch_testkit::require!(root, kubectl, sandbox_client);
    on_one_machine(&["up tunnel", "up direct", "up pod", "up"]);
}

#[test]
fn asynchronous_cells_on_one_machine() {
    hutch_testkit::require!(root, kubectl, async_sandbox_client);
    on_one_machine(&["up direct async", "up pod async"][..rounds(1, 2)]);
}

#[test]
fn cells_of_snapshots_on_one_machine() {
    hutch_testkit::require!(root, kubectl, runsc, sandbox_client);
    on_one_machine(&["hutch up"]);
}

fn on_one_machine(columns: &[&str]) {
    let up = Up::start(&["--router-listen", "127.0.0.1:0"]);
    let line =
        up.printed.iter().find_map(|line| line.strip_prefix("router")).expect("it says where the router is");
    let router = line.split_whitespace().next().expect("an address").to_owned();
    let token = std::fs::read_to_string(up.data().join("ca/router.token")).expect("the router's token");
    let settings = Settings {
        kubeconfig: up.kubeconfig(),
        router,
        token: token.trim().to_owned(),
        tls: Value::Null,
        scoped: Value::Null,
    };
    Script::new(Some(&settings)).cells(columns);
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_on_a_cluster() {
    hutch_testkit::require!(root, kubernetes, kubectl, sandbox_client);
    let all = &["cluster tunnel", "cluster pod", "cluster", "cluster direct", "cluster pod tunnel"];
    on_a_cluster(&all[..rounds(3, 5)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_cells_on_a_cluster() {
    hutch_testkit::require!(root, kubernetes, kubectl, async_sandbox_client);
    let all = &["cluster direct async", "cluster pod tunnel async", "cluster pod async"];
    on_a_cluster(&all[..rounds(2, 3)]).await;
}

async fn on_a_cluster(columns: &'static [&'static str]) {
    let running = cluster::Running::start().await;
    let settings = running.settings();
    tokio::task::spawn_blocking(move || Script::new(Some(&settings)).cells(columns))
        .await
        .expect("the cells");
}
