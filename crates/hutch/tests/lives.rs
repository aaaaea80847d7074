//! Some of the differential suite's lives, under `hutch controller` as a process of its own on a real API server: the
//! flags, the connections and the start are part of what is compared.

#[path = "../../controller/tests/lives/mod.rs"]
#[allow(dead_code, reason = "what runs and records all lives is the controller's")]
mod lives;

use std::process::Command;

use hutch_testkit::require;

/// At least one of each kind.
const LIVES: [&str; 10] = [
    "a warm claim comes and goes",
    "a warm claim with labels, annotations and a creator",
    "a claim on an empty pool starts cold",
    "a claim expires and is deleted in the foreground",
    "a pool is made, grows, shrinks to nothing, and goes",
    "a running Sandbox is suspended and resumed",
    "a Sandbox expires and is deleted",
    "a Service with the ports of the containers",
    "a template gets its label and the default policy",
    "volumes are made, kept while suspended, and go with the Sandbox",
];

#[tokio::test(flavor = "multi_thread")]
async fn lives_under_the_program_go_as_under_the_go_controller() {
    require!(kubernetes);
    let mut program = Command::new(env!("CARGO_BIN_EXE_hutch"));
    program.arg("controller");
    let failures = lives::compare_some(program, &LIVES).await.expect("the lives could be run");
    assert!(failures.is_empty(), "{} lives went otherwise:\n\n{}", failures.len(), failures.join("\n\n"));
}
