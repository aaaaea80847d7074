//! `hutch exec`, `hutch shell`.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use hutch_client::{CANNOT_START, Command, Ended};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::stdio::{Printer, send_stdin};
use super::terminal::{Raw, send_sizes};
use super::{OUTPUT_CLOSED, connect, finish, plain};
use crate::cli::{ExecArguments, ShellArguments};

/// Maximum queued pieces of input.
const QUEUE: usize = 4;
/// Starts bash, else sh; the argument is the type of this terminal.
const SHELL: &str =
    "[ -z \"$1\" ] || export TERM=\"$1\"\ncommand -v bash >/dev/null 2>&1 && exec bash\nexec sh";

/// Runs a command and ends with its exit status.
pub(crate) fn main(arguments: ExecArguments) -> ExitCode {
    finish("exec", CANNOT_START, run("exec", arguments))
}

/// Runs a shell, with a terminal if standard input is one.
pub(crate) fn shell(arguments: ShellArguments) -> ExitCode {
    let term = std::env::var("TERM").unwrap_or_default();
    let command = ["sh", "-c", SHELL, "sh", &term].map(str::to_owned).to_vec();
    let ShellArguments { place, readiness, container, sandbox } = arguments;
    let tty = std::io::stdin().is_terminal();
    let exec = ExecArguments { place, readiness, stdin: true, tty, container, sandbox, command };
    finish("shell", CANNOT_START, run("shell", exec))
}

async fn run(called: &str, arguments: ExecArguments) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let ExecArguments { readiness, stdin, tty, container, sandbox, command: argv, .. } = arguments;
    let target = super::target(&sandboxes, &sandbox.name, &container, &readiness).await?;
    let mut ending = Ending::new().context("signals")?;
    let session = tokio::select! {
        session = sandboxes.exec(&target, Command { argv, stdin, tty }) => session,
        status = ending.requested() => return Ok(status),
    };
    let session = session.with_context(|| format!("sandbox {}", target.sandbox))?;
    let (to, input) = mpsc::channel(QUEUE);
    let raw = if tty && stdin { Some(Raw::enter().context("the terminal")?) } else { None };
    if tty {
        send_sizes(to.clone()).context("the terminal's size")?;
    }
    if stdin {
        send_stdin(to, tty);
    }
    let printer = Printer::start();
    let ended = tokio::select! {
        ended = session.run(input, printer.pieces.clone()) => ended,
        // The end of this process closes the connection, which ends the command.
        status = ending.requested() => return Ok(status),
    };
    let printed = tokio::select! {
        printed = printer.finish() => printed,
        status = ending.requested() => return Ok(status),
    };
    drop(raw);
    match ended.with_context(|| format!("sandbox {}", target.sandbox))? {
        Ended::Exited(_) | Ended::OutputClosed if !printed => Ok(OUTPUT_CLOSED),
        Ended::Exited(status) => Ok(status),
        Ended::OutputClosed => Ok(OUTPUT_CLOSED),
        Ended::NotStarted(status, why) => {
            let hint =
                if status == CANNOT_START { "" } else { "; look at its name, and at what the image has" };
            eprintln!("hutch {called}: sandbox {}: {}{hint}", target.sandbox, plain(&why));
            Ok(status)
        }
    }
}

/// Signals that end this program. With a terminal, keys go to the command and cause no signal here.
struct Ending {
    hang_up: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Ending {
    fn new() -> std::io::Result<Ending> {
        Ok(Ending {
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Returns the exit status of the first signal.
    async fn requested(&mut self) -> u8 {
        tokio::select! {
            _ = self.hang_up.recv() => 129,
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
        }
    }
}
