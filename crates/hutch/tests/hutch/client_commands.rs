//! `hutch exec|shell|cp|logs|suspend|resume` against a `hutch up`, black box.

pub(crate) mod checks;
mod copy;
mod exec;
mod mode;
mod terminal;

use std::process::{Command, Output, Stdio};

use crate::harness::{self, HUTCH, Up, fixture, refused, text};

/// A server with the Sandbox `notes`, which has a volume at `/data` and is ready.
fn started() -> Up {
    let up = Up::start(&[]);
    up.ok(&format!("apply -f {}", fixture("notes.yaml")));
    up
}

/// This program with these words, as a client of that server.
fn hutch(up: &Up, words: &[&str]) -> Command {
    let mut hutch = Command::new(HUTCH);
    hutch.args(words).env("KUBECONFIG", up.kubeconfig()).env("HOME", up.folder()).stdin(Stdio::null());
    hutch
}

fn run(up: &Up, words: &[&str]) -> Output {
    hutch(up, words).output().expect("hutch starts")
}

/// It must succeed; what it printed.
#[track_caller]
fn ok(up: &Up, words: &[&str]) -> String {
    harness::succeeded(&words.join(" "), &run(up, words))
}
