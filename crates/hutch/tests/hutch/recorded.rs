//! The differential suite under `hutch controller` as a process of its own on a real API server: the flags, the connections,
//! the start and the conversion webhook are part of what is compared.

use std::process::Command;

use hutch_testkit::{note_skip, require};

use crate::harness::HUTCH;
use crate::lives::{self, Controller};

#[tokio::test(flavor = "multi_thread")]
async fn lives_are_equal_to_those_of_the_go_controller() {
    require!(kubernetes);
    let program = Controller::Program(Box::new(|| {
        let mut program = Command::new(HUTCH);
        program.arg("controller");
        program
    }));
    if !program.converts() {
        note_skip("lives of objects in two versions", "needs a network address");
    }
    let failures = lives::compare_under(program).await.expect("the lives could be run");
    assert!(failures.is_empty(), "{} lives went otherwise:\n\n{}", failures.len(), failures.join("\n\n"));
}
