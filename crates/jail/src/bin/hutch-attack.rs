//! Tries attacks from inside a sandbox and says on one line each how it went.
//!
//! `hutch-attack ATTEMPT...`, each attempt one argument such as `read /etc/shadow`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let attempts: Vec<String> = std::env::args().skip(1).collect();
    match attempts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            eprintln!("usage: hutch-attack ATTEMPT...");
            ExitCode::FAILURE
        }
        ["install", to] => installed(to),
        _ => match hutch_jail::attack::try_all(&attempts, &mut std::io::stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hutch-attack: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Copies this program, so that a container whose image does not have it finds it in a shared volume.
fn installed(to: &str) -> ExitCode {
    match std::fs::copy("/proc/self/exe", to) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch-attack: {to}: {error}");
            ExitCode::FAILURE
        }
    }
}
