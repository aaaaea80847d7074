//! `cargo xtask test`: the checks in the order in which they fail fastest, then every test.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::tally::Tally;
use crate::{arrows, root, tidy};

/// How long after the end of `cargo test` its output may go on.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs everything; an error when anything failed. The last line is the count.
pub(crate) fn all() -> anyhow::Result<()> {
    let mut tally = Tally::default();
    let started = Instant::now();
    step(&mut tally, "arrows between crates", || arrows::check(&root()));
    step(&mut tally, "house rules", || tidy::check(&root()));
    step(&mut tally, "cargo fmt --check", || run(&["fmt", "--all", "--check"]));
    step(&mut tally, "cargo clippy", || {
        run(&["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    deny(&mut tally);
    println!("== cargo test");
    tests(&mut tally)?;
    println!("== {} s", started.elapsed().as_secs());
    for skipped in &tally.skipped {
        println!("skipped: {skipped}");
    }
    println!("{}", tally.line());
    if tally.failed > 0 {
        bail!("{} failed", tally.failed);
    }
    Ok(())
}

/// What `hutch doctor --attack` says, and the tests that try attacks.
pub(crate) fn escape() -> anyhow::Result<()> {
    run(&["run", "--quiet", "--locked", "-p", "hutch", "--", "doctor", "--attack"])?;
    run(&["test", "--locked", "-p", "hutch-jail", "--test", "jail"])?;
    run(&["test", "--locked", "-p", "hutch", "--test", "containment", "--", "ways::", "known::"])
}

/// Builds the release binary and runs the benchmarks against it.
pub(crate) fn bench(names: &[String]) -> anyhow::Result<()> {
    run(&["build", "--release", "--locked", "-p", "hutch", "-p", "hutch-bench"])?;
    let mut args = vec!["run", "--quiet", "--release", "--locked", "-p", "hutch-bench", "--"];
    args.extend(names.iter().map(String::as_str));
    run(&args)
}

/// The recording is a test that is ignored otherwise, so that it runs by the very code that compares.
pub(crate) fn record_lives(controller: Option<PathBuf>, only: Option<String>) -> anyhow::Result<()> {
    let peers =
        || std::env::var_os("HUTCH_PEERS").map(|folder| Path::new(&folder).join("upstream-controller"));
    let controller = controller.or_else(peers).context("name the Go controller, or set HUTCH_PEERS")?;
    let controller = controller.canonicalize().with_context(|| controller.display().to_string())?;
    let mut cargo = cargo(&["test", "--locked", "-p", "hutch-controller", "--test", "lives"]);
    cargo
        .args(["--", "--ignored", "--exact", "record", "--nocapture"])
        .env("HUTCH_GO_CONTROLLER", controller);
    if let Some(only) = only {
        cargo.env("HUTCH_LIVES", only);
    }
    // A tool that is missing must not look like a recording.
    finish(cargo.env("HUTCH_TEST_REQUIRE_ALL", "1"))
}

fn step(tally: &mut Tally, name: &str, check: impl FnOnce() -> anyhow::Result<()>) {
    println!("== {name}");
    let outcome = check();
    tally.check(outcome.is_ok());
    if let Err(error) = outcome {
        println!("FAILED: {name}: {error:#}");
    }
}

/// Licences, sources and bans. Advisories need a database from the network and are not asked.
fn deny(tally: &mut Tally) {
    let installed = Command::new("cargo").args(["deny", "--version"]).env("PATH", path()).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        tally.check(true);
        tally.skipped.push("cargo deny: needs cargo-deny".to_owned());
        return;
    }
    step(tally, "cargo deny", || {
        run(&["deny", "--log-level", "error", "check", "licenses", "bans", "sources"])
    });
}

/// Every test of the workspace.
fn tests(tally: &mut Tally) -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--locked", "--workspace", "--no-fail-fast"]);
    // The Python client of Kubernetes came along with the newer of the two sandbox clients.
    command.env("PYTHONPATH", root().join(".tools/python/1.0.8"));
    let (status, counted) = counted(&mut command, std::io::stdout())?;
    tally.passed += counted.passed;
    tally.failed += counted.failed;
    tally.skipped.extend(counted.skipped);
    if !status.success() && counted.failed == 0 {
        println!("FAILED: cargo test ended with {status} before every test had run");
        tally.check(false);
    }
    Ok(())
}

/// Runs it to its end. Its output goes through, and is counted on the way.
fn counted(
    command: &mut Command,
    mut through: impl Write + Send + 'static,
) -> anyhow::Result<(ExitStatus, Tally)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test")?;
    let output = child.stdout.take().context("its output")?;
    let (lines, told) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let _ = through.write_all(&[&line, &b"\n"[..]].concat());
            let _ = lines.send(line);
        }
    });
    let status = child.wait().context("cargo test")?;
    let mut tally = Tally::default();
    // A process that a failed test left behind may hold the pipe open.
    while let Ok(line) = told.recv_timeout(LAST_WORDS) {
        tally.read(String::from_utf8_lossy(&line).trim_end());
    }
    Ok((status, tally))
}

fn run(args: &[&str]) -> anyhow::Result<()> {
    finish(&mut cargo(args))
}

/// Runs cargo with more in its environment.
pub(crate) fn run_with(args: &[&str], variables: &[(&str, String)]) -> anyhow::Result<()> {
    finish(cargo(args).envs(variables.iter().map(|(name, value)| (name, value))))
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root()).env("PATH", path());
    command
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().context("cargo")?;
    if !status.success() {
        let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!("cargo {} ended with {status}", args.join(" "));
    }
    Ok(())
}

/// What `scripts/install-test-tools` brought comes first, so that its kubectl is the one used.
fn path() -> OsString {
    let mut folders = vec![root().join(".tools/bin")];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    std::env::join_paths(folders).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_a_test_left_behind_does_not_hold_up_the_count() {
        let folder = std::env::temp_dir().join(format!("hutch-xtask-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        // It tells when it ends, as long as the folder is there.
        let script = "(sleep 20; test -d . && echo > ended) 2>&- & echo 'test result: 1 passed;'; exit 3";
        let mut command = Command::new("sh");
        let (status, tally) =
            counted(command.args(["-c", script]).current_dir(&folder), std::io::sink()).unwrap();
        let ended = folder.join("ended").exists();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((status.code(), tally.passed), (Some(3), 1));
        assert!(!ended, "it was waited for");
    }
}
