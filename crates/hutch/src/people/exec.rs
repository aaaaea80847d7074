//! `hutch exec`, `hutch shell`.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::remote::{self, CANNOT_START, Command, Ended};
use super::sandbox::Cluster;
use super::stdio::{Printer, send_stdin};
use super::terminal::{Raw, send_sizes};
use super::{NOBODY_READS, finish, plain};
use crate::cli::{ExecArguments, ShellArguments};

/// Pieces of input that wait to be sent.
const QUEUE: usize = 4;
/// Starts what there is of shells; the argument is the type of this terminal.
const SHELL: &str =
    "[ -z \"$1\" ] || export TERM=\"$1\"\ncommand -v bash >/dev/null 2>&1 && exec bash\nexec sh";

/// Runs a command; its exit status is the command's.
pub(crate) fn main(arguments: ExecArguments) -> ExitCode {
    finish("exec", CANNOT_START, run("exec", arguments))
}

/// Runs bash, else sh, with a terminal if there is one here.
pub(crate) fn shell(arguments: ShellArguments) -> ExitCode {
    let term = std::env::var("TERM").unwrap_or_default();
    let command = ["sh", "-c", SHELL, "sh", &term].map(str::to_owned).to_vec();
    let ShellArguments { place, readiness, container, sandbox } = arguments;
    let tty = std::io::stdin().is_terminal();
    let exec = ExecArguments { place, readiness, stdin: true, tty, container, sandbox, command };
    finish("shell", CANNOT_START, run("shell", exec))
}

async fn run(called: &str, arguments: ExecArguments) -> anyhow::Result<u8> {
    let cluster = Cluster::connect(&arguments.place).await?;
    let container = arguments.container.name.as_deref();
    let target = cluster.target(&arguments.sandbox.named, container, &arguments.readiness).await?;
    let ExecArguments { stdin, tty, command: argv, .. } = arguments;
    let mut ending = Ending::new().context("signals")?;
    let session = tokio::select! {
        session = remote::start(&cluster, &target, Command { argv, stdin, tty }) => session,
        status = ending.asked() => return Ok(status),
    };
    let session =
        session.with_context(|| format!("sandbox {}: container {}", target.sandbox, target.container))?;
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
        // The connection goes with this program, and the command with the connection.
        status = ending.asked() => return Ok(status),
    };
    let printed = tokio::select! {
        printed = printer.finish() => printed,
        status = ending.asked() => return Ok(status),
    };
    drop(raw);
    match ended.with_context(|| format!("sandbox {}", target.sandbox))? {
        Ended::Exited(_) | Ended::Unread if !printed => Ok(NOBODY_READS),
        Ended::Exited(status) => Ok(status),
        Ended::Unread => Ok(NOBODY_READS),
        Ended::NotStarted(status, why) => {
            let hint =
                if status == CANNOT_START { "" } else { "; look at its name, and at what the image has" };
            eprintln!("hutch {called}: sandbox {}: {}{hint}", target.sandbox, plain(&why));
            Ok(status)
        }
    }
}

/// The signals that ask this program to end. With a terminal, keys go to the command and make no signal here.
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

    /// The exit status that goes with the first of them.
    async fn asked(&mut self) -> u8 {
        tokio::select! {
            _ = self.hang_up.recv() => 129,
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
        }
    }
}
