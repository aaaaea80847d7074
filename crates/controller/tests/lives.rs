//! The differential suite: lives of objects, scripted in `lives/scripts`, run on a real API server under this controller,
//! and compared with how they went under the Go controller, which is recorded in `lives/answers`.
//!
//! `cargo xtask record-lives` records anew, given the Go controller. A difference that is meant is named in the script, or
//! for all of them in `lives/differences.yaml`, with the row of docs/differences.md that gives the reason.
//! `HUTCH_LIVES=TEXT,TEXT` runs only those whose name holds one of the texts or whose file is called so, and `HUTCH_LIVES_CONTROLLER=PROGRAM` another controller, which
//! takes the Go controller's flags; with the Go controller itself it shows what is recorded and yet not always so. Lives of
//! objects in two versions need the conversion webhook, so they are run under a program alone.

#[path = "lives/mod.rs"]
mod lives;

use hutch_testkit::require;

#[tokio::test(flavor = "multi_thread")]
async fn lives_go_as_under_the_go_controller() {
    require!(kubernetes);
    let failures = lives::compare().await.expect("the lives could be run");
    assert!(failures.is_empty(), "{} lives went otherwise:\n\n{}", failures.len(), failures.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes lives/answers; run by cargo xtask record-lives"]
async fn record() {
    require!(kubernetes);
    let controller =
        std::env::var_os("HUTCH_GO_CONTROLLER").expect("HUTCH_GO_CONTROLLER names the Go controller");
    lives::record(controller.into()).await.expect("the lives could be recorded");
}
