//! `cargo xtask test`: runs the checks, fastest first, then every test.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::tally::Tally;
use crate::{arrows, language, licenses, links, root, tidy};

/// Maximum time that output may arrive after `cargo test` has ended.
const LATE_OUTPUT: Duration = Duration::from_secs(5);
/// Maximum time without output. What runs then is killed, so that CI names the test that hangs and runs the others.
const SILENCE: Duration = Duration::from_secs(600);
/// How often the end of `cargo test` is looked for.
const POLL: Duration = Duration::from_millis(50);
/// Makes cargo compile the workspace with clippy's compiler, as `cargo clippy -- -D warnings` does. That one also makes
/// programs, so that nothing is compiled twice: once for the warnings and once for the tests.
const CLIPPY: [(&str, &str); 2] = [
    ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
    ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"),
];

/// Runs everything; returns an error when anything failed. The last line is the count.
pub(crate) fn all() -> anyhow::Result<()> {
    let mut tally = Tally::default();
    let started = Instant::now();
    step(&mut tally, "arrows between crates", || arrows::check(&root()));
    step(&mut tally, "house rules", || tidy::check(&root()));
    step(&mut tally, "links of documentation", || links::check(&root()));
    step(&mut tally, "plain language", || language::check(&root(), &language::Options::default()));
    step(&mut tally, "licenses of dependencies", || licenses::check(&root()));
    step(&mut tally, "cargo fmt --check", || run(&["fmt", "--all", "--check"]));
    let compiled = step(&mut tally, "cargo clippy, which compiles the tests too", compile);
    println!("== cargo test, after {} s", started.elapsed().as_secs());
    // Tests run without clippy too, so that one warning does not hide their results.
    tests(&mut tally, if compiled { &CLIPPY } else { &[] })?;
    println!("== {} s", started.elapsed().as_secs());
    for skipped in &tally.skipped {
        println!("skipped: {skipped}");
    }
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    println!("{}", tally.line());
    if tally.failed > 0 {
        bail!("{} failed", tally.failed);
    }
    Ok(())
}

/// Compiles all tests and programs, with clippy's warnings. In one build, so that a crate has the same features everywhere:
/// without the tests, some would be compiled again, with everything that uses them.
pub(crate) fn compile() -> anyhow::Result<()> {
    run_with(&["build", "--quiet", "--locked", "--workspace", "--all-targets"], &CLIPPY)
}

/// Runs `hutch doctor --attack` and the tests that try attacks.
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

/// Records lives with an ignored test, so that recording and comparison share their code.
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
    // Without this, a missing tool would skip the test and look like a success.
    finish(cargo.env("HUTCH_TEST_REQUIRE_ALL", "1"))
}

/// Runs one check, counts it, and returns whether it passed.
fn step(tally: &mut Tally, name: &str, check: impl FnOnce() -> anyhow::Result<()>) -> bool {
    println!("== {name}");
    let outcome = check();
    tally.check(outcome.is_ok());
    if let Err(error) = &outcome {
        println!("FAILED: {name}: {error:#}");
    }
    outcome.is_ok()
}

/// Runs every test of the workspace, compiled with these environment variables.
fn tests(tally: &mut Tally, variables: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--locked", "--workspace", "--all-targets", "--no-fail-fast"]);
    command.envs(variables.iter().copied());
    // Most tests wait for a while: three at once keep two processors busy.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    command.env("RUST_TEST_THREADS", (processors + processors.div_ceil(2)).to_string());
    // Servers of Kubernetes live for seconds here: collecting garbage less often saves a quarter of their processor time.
    command.env("GOGC", "400");
    // The folder of the newer sandbox client also holds the Python client of Kubernetes.
    command.env("PYTHONPATH", root().join(".tools/python/1.0.8"));
    let (status, counted) = counted(&mut command, std::io::stdout(), SILENCE)?;
    tally.passed += counted.passed;
    tally.failed += counted.failed;
    tally.skipped.extend(counted.skipped);
    tally.failures.extend(counted.failures);
    if !status.success() && counted.failed == 0 {
        println!("FAILED: cargo test ended with {status} before every test had run");
        tally.check(false);
    }
    Ok(())
}

/// Runs a command to its end; passes its output on and counts the tests in it. Its children are killed, and count as a
/// failed test, when nothing is printed for as long as `silence`.
fn counted(
    command: &mut Command,
    mut through: impl Write + Send + 'static,
    silence: Duration,
) -> anyhow::Result<(ExitStatus, Tally)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test")?;
    let output = child.stdout.take().context("its output")?;
    let (lines, received) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let _ = through.write_all(&[&line, &b"\n"[..]].concat());
            let _ = lines.send(line);
        }
    });
    let mut tally = Tally::default();
    let mut last_output = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("cargo test")? {
            break status;
        }
        match received.recv_timeout(POLL) {
            Ok(line) => {
                tally.read(String::from_utf8_lossy(&line).trim_end());
                last_output = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL),
        }
        if last_output.elapsed() > silence {
            println!("FAILED: a test hangs: nothing was printed for {} s", silence.as_secs());
            tally.check(false);
            Command::new("pkill").args(["-KILL", "-P", &child.id().to_string()]).status().context("pkill")?;
            last_output = Instant::now();
        }
    };
    // A process that a failed test left behind may keep the pipe open.
    while let Ok(line) = received.recv_timeout(LATE_OUTPUT) {
        tally.read(String::from_utf8_lossy(&line).trim_end());
    }
    Ok((status, tally))
}

fn run(args: &[&str]) -> anyhow::Result<()> {
    finish(&mut cargo(args))
}

/// Runs cargo with additional environment variables.
pub(crate) fn run_with(args: &[&str], variables: &[(&str, impl AsRef<OsStr>)]) -> anyhow::Result<()> {
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

/// Returns a PATH that starts with the tools of `scripts/install-test-tools`, so that its kubectl is used.
fn path() -> OsString {
    let mut folders = vec![root().join(".tools/bin")];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    std::env::join_paths(folders).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_process_does_not_delay_the_count() {
        let folder = std::env::temp_dir().join(format!("hutch-xtask-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        // It writes a file when it ends, while the folder exists.
        let script = "(sleep 20; test -d . && echo > ended) 2>&- & echo 'test result: 1 passed;'; exit 3";
        let mut command = Command::new("sh");
        let (status, tally) =
            counted(command.args(["-c", script]).current_dir(&folder), std::io::sink(), SILENCE).unwrap();
        let ended = folder.join("ended").exists();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((status.code(), tally.passed), (Some(3), 1));
        assert!(!ended, "it was waited for");
    }

    #[test]
    fn test_that_hangs_is_killed_and_fails() {
        // What runs after it still counts.
        let script = "sleep 600; echo 'test result: 1 passed;'";
        let mut command = Command::new("sh");
        let second = Duration::from_secs(1);
        let (status, tally) = counted(command.args(["-c", script]), std::io::sink(), second).unwrap();
        assert_eq!((status.code(), tally.passed, tally.failed), (Some(0), 1, 1));
    }
}
