//! What the tests of the jail run: `launch` makes a jail as a single-threaded program has to, `attempt` is an attack
//! that is tried inside it and says on one line how it went: `ok`, the name of an error, or what was found.
//!
//! It is for tests alone and no part of what is installed.

mod attempts;
mod calls;

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use hutch_jail::run::{RunOptions, run};
use hutch_jail::{Process, Spec};
use serde::{Deserialize, Serialize};

/// Most bytes of each output stream that are kept.
const KEPT: usize = 256 * 1024;

/// What `launch` reads.
#[derive(Deserialize)]
struct Job {
    spec: Spec,
    process: Process,
    timeout_ms: u64,
    /// A file that is held open, inheritably, while the jail is launched.
    leak: Option<String>,
}

/// What `launch` writes.
#[derive(Default, Serialize)]
struct Report {
    error: Option<String>,
    ended: Option<String>,
    stdout: String,
    stderr: String,
    landlock: bool,
    /// The session keyring of this process.
    keyring: i64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["launch"] => launch(),
        ["attempt", name, ref rest @ ..] => match attempts::attempt(name, rest) {
            Ok(found) => {
                println!("{found}");
                ExitCode::SUCCESS
            }
            Err(unknown) => {
                eprintln!("{unknown}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: hutch-jail-probe launch | attempt NAME [ARGUMENT]...");
            ExitCode::FAILURE
        }
    }
}

fn launch() -> ExitCode {
    let mut text = String::new();
    let job: Result<Job, String> = std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let job = match job {
        Ok(job) => job,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut report = Report { keyring: calls::new_session_keyring(), ..Report::default() };
    if let Some(path) = &job.leak {
        calls::open_inheritable(path);
    }
    let options = RunOptions {
        timeout: Some(Duration::from_millis(job.timeout_ms)),
        grace: Duration::from_millis(100),
        capture: Some(KEPT),
    };
    match run(&job.spec, &job.process, &options) {
        Ok(outcome) => {
            let text = |kept: Option<hutch_jail::run::Captured>| {
                String::from_utf8_lossy(&kept.unwrap_or_default().bytes).into_owned()
            };
            report.ended = Some(format!("{:?}", outcome.ended));
            report.landlock = outcome.isolation.landlock;
            report.stdout = text(outcome.stdout);
            report.stderr = text(outcome.stderr);
        }
        Err(error) => report.error = Some(error.to_string()),
    }
    println!("{}", serde_json::to_string(&report).unwrap_or_default());
    ExitCode::SUCCESS
}
