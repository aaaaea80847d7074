//! `hutch exec|shell|cp|logs|suspend|resume` against a `hutch up`, black box.

pub(crate) mod checks;
mod copy;
mod exec;
mod library;
mod mode;
pub(crate) mod terminal;

use std::process::{Command, Output, Stdio};

use crate::harness::{self, HUTCH, Up, fixture, refused, text};

/// Starts a server with the Sandbox `notes`, which has a volume at `/data` and is ready.
fn started() -> Up {
    let up = Up::start(&[]);
    up.ok(&format!("apply -f {}", fixture("notes.yaml")));
    up
}

/// Returns this program with these arguments, as a client of the server.
fn hutch(up: &Up, words: &[&str]) -> Command {
    let mut hutch = Command::new(HUTCH);
    hutch.args(words).env("KUBECONFIG", up.kubeconfig()).env("HOME", up.folder()).stdin(Stdio::null());
    hutch
}

fn run(up: &Up, words: &[&str]) -> Output {
    hutch(up, words).output().expect("hutch starts")
}

/// Runs a command that must succeed; returns its output.
#[track_caller]
fn ok(up: &Up, words: &[&str]) -> String {
    harness::succeeded(&words.join(" "), &run(up, words))
}
