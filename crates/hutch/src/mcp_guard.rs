//! `hutch mcp-guard`: a server of MCP on standard input and output, whose client's calls are decided by policies.

mod ids;
mod lines;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use hutch_egress::{Recorder, Stdio as Guard, Verdict};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncWrite, AsyncWriteExt, BufReader, Stdout};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::timeout;

use crate::cli::McpGuardArguments;
use crate::run;
use lines::{Line, Lines};

/// Exit status if the server cannot be started, as for `hutch run`.
const CANNOT_START: u8 = 125;
/// Maximum time without output after the server has ended, while another process holds its output open.
const QUIET: Duration = Duration::from_secs(1);
/// Time after the client has gone in which the server may end by itself, and then after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Signals that are passed on.
const SIGNALS: [(Signal, SignalKind); 6] = [
    (Signal::TERM, SignalKind::terminate()),
    (Signal::INT, SignalKind::interrupt()),
    (Signal::HUP, SignalKind::hangup()),
    (Signal::QUIT, SignalKind::quit()),
    (Signal::USR1, SignalKind::user_defined1()),
    (Signal::USR2, SignalKind::user_defined2()),
];

/// Standard output, to which the server's messages and the answers to refused calls are written.
type Output = Arc<Mutex<Stdout>>;

/// Runs the command.
pub(crate) fn main(arguments: &McpGuardArguments) -> ExitCode {
    let status = crate::runtime::one_thread()
        .and_then(|runtime| {
            let status = runtime.block_on(guard(arguments));
            // A thread may still wait for standard input.
            runtime.shutdown_background();
            status
        })
        .unwrap_or_else(|error| {
            eprintln!("hutch: {error:#}");
            CANNOT_START
        });
    ExitCode::from(status)
}

async fn guard(arguments: &McpGuardArguments) -> anyhow::Result<u8> {
    let levels = run::Policies::without_files(&arguments.policy)?;
    anyhow::ensure!(
        levels.iter().all(|level| level.credentials.is_empty()),
        "--policy: spec.credentials: has an effect only for requests of HTTP, not for a server on standard input"
    );
    if run::all_observe(&levels) {
        eprintln!("hutch: --policy: all policies only observe, so nothing allows a message");
    }
    let guard = Guard::new(&levels, to_errors()).context(
        "--policy: no rule is about a server on standard input and output; it needs `mcp`, and `hosts: [stdio]` or \
         `any: true`",
    )?;
    let guard = Arc::new(guard);
    let mut signals = Signals::new()?;
    let Some((mut child, input, output)) = start(&arguments.command)? else { return Ok(127) };
    let stdout: Output = Arc::new(Mutex::new(tokio::io::stdout()));
    let (ended, has_ended) = watch::channel(false);
    let mut to_server = tokio::spawn(from_client(guard.clone(), input, stdout.clone()));
    let gone = Arc::new(Notify::new());
    let mut to_client = tokio::spawn(from_server(guard, output, (stdout, gone.clone()), has_ended));
    let (mut reads, mut writes) = (true, true);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.context("the server")?,
            signal = signals.next() => pass_on(&child, signal),
            end = &mut to_server, if reads => {
                reads = false;
                if matches!(end, Ok(End::ClientHasGone)) {
                    break stop(&mut child).await?;
                }
            }
            () = gone.notified() => {
                to_server.abort();
                break stop(&mut child).await?;
            }
            _ = &mut to_client, if writes => writes = false,
        }
    };
    to_server.abort();
    // What the server has written before its end arrives.
    ended.send_replace(true);
    if writes {
        tokio::select! {
            _ = &mut to_client => {}
            // A second signal does not wait for a client that reads nothing.
            _ = signals.next() => {}
        }
    }
    Ok(code(status))
}

/// Starts the server in a process group of its own, so that each signal reaches it once. `None` if there is no such program.
fn start(command: &[OsString]) -> anyhow::Result<Option<(Child, ChildStdin, ChildStdout)>> {
    let [program, arguments @ ..] = command else { bail!("COMMAND is empty") };
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("hutch: {}: {error}", program.display());
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| program.display().to_string()),
    };
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (input, output) = input.zip(output).context("the server has no pipes")?;
    Ok(Some((child, input, output)))
}

/// Returns the status as a shell does.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(CANNOT_START)
}

fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, signal);
    }
}

/// Ends a server whose client has gone. Its standard input is closed.
async fn stop(child: &mut Child) -> anyhow::Result<ExitStatus> {
    for signal in [Signal::TERM, Signal::KILL] {
        if let Ok(status) = timeout(GRACE, child.wait()).await {
            return status.context("the server");
        }
        pass_on(child, signal);
    }
    child.wait().await.context("the server")
}

/// Returns a recorder that prints each decision on standard error.
fn to_errors() -> Recorder {
    Arc::new(|record| {
        let line = record.line() + "\n";
        // The client decides whether it reads them.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    })
}

/// Signals that were received.
struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        let listen = |(sent, kind)| Ok((sent, signal(kind).context("signals")?));
        SIGNALS.into_iter().map(listen).collect::<anyhow::Result<_>>().map(Signals)
    }

    async fn next(&mut self) -> Signal {
        let received = self.0.iter_mut().map(|(sent, signal)| {
            let sent = *sent;
            Box::pin(async move {
                signal.recv().await;
                sent
            })
        });
        futures::future::select_all(received).await.0
    }
}

/// Reason why nothing more comes from the client.
enum End {
    /// Its source has ended, or the server takes no more.
    Ended,
    /// The client reads no more.
    ClientHasGone,
}

/// Writes a line and its end.
async fn write(output: &mut (impl AsyncWrite + Unpin), line: &[u8]) -> std::io::Result<()> {
    output.write_all(line).await?;
    output.write_all(b"\n").await?;
    output.flush().await
}

/// Passes the client's messages on.
async fn from_client(guard: Arc<Guard>, mut server: ChildStdin, client: Output) -> End {
    let mut lines = Lines::new(BufReader::new(tokio::io::stdin()));
    loop {
        let (verdict, line) = match lines.next().await {
            Ok(Line::Whole(line)) => (guard.client(&line), line),
            Ok(Line::TooLong(ids)) => (guard.too_long(&ids.requests), Vec::new()),
            Ok(Line::End) | Err(_) => return End::Ended,
        };
        match verdict {
            Verdict::Pass if write(&mut server, &line).await.is_err() => return End::Ended,
            Verdict::Replace(other) if write(&mut server, &other).await.is_err() => return End::Ended,
            Verdict::Answer(answer) => {
                if write(&mut *client.lock().await, answer.as_bytes()).await.is_err() {
                    return End::ClientHasGone;
                }
            }
            Verdict::Pass | Verdict::Replace(_) | Verdict::Drop => {}
        }
    }
}

/// Passes the server's messages on. After its end, those that are there already. What it writes is read also when the client
/// has gone, so that it can end in order.
async fn from_server(
    guard: Arc<Guard>,
    server: ChildStdout,
    (client, gone): (Output, Arc<Notify>),
    mut has_ended: watch::Receiver<bool>,
) {
    let (mut lines, mut reads) = (Lines::new(BufReader::new(server)), true);
    loop {
        let quiet = async {
            let _ = has_ended.wait_for(|ended| *ended).await;
            tokio::time::sleep(QUIET).await;
        };
        let line = tokio::select! {
            biased;
            line = lines.next() => line,
            () = quiet => return,
        };
        let message = match &line {
            Ok(Line::Whole(line)) => guard.server(line),
            Ok(Line::TooLong(ids)) => guard.server_too_long(&ids.answers).map(Cow::Owned),
            Ok(Line::End) | Err(_) => return,
        };
        if let Some(message) = message
            && reads
            && write(&mut *client.lock().await, &message).await.is_err()
        {
            reads = false;
            gone.notify_one();
        }
    }
}
