//! Starts a container: its log, the container itself by its runtime, and the tasks that follow it.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use hutch_kubelet::{ByteWriter, Exit};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::kills::Reported;
use super::{MainExit, Output, Running, Screened, Stream, exit_of, keep_logs, late_env, log_tail, message};
use crate::places::log_file;
use crate::runtime::{Beginning, Container, ContainerPlan, PodSandbox, Spawned, StartError};
use crate::stdio::{Ends, Terminal, pipes};

/// Maximum time for output to arrive after everything inside was killed. It is in pipes then, so this is ample.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// Starts a container in a sandbox and returns when its main process runs. `logs` is the folder of its logs, `restarts`
/// counts the containers before it, `screened` scans what it prints.
pub(crate) async fn start(
    sandbox: &dyn PodSandbox,
    plan: ContainerPlan,
    logs: PathBuf,
    restarts: u32,
    screened: Screened,
) -> Result<Arc<Running>, StartError> {
    let (blueprint, beginning) = (plan.blueprint.clone(), plan.beginning.clone());
    let (late_env, message) = (blueprint.late_env.clone(), blueprint.message.clone());
    let output = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(&logs)?;
        keep_logs(&logs, restarts)?;
        late_env.as_deref().map_or(Ok(()), late_env::prepare)?;
        message.as_deref().map_or(Ok(()), message::prepare)?;
        Output::new(&log_file(&logs, restarts), screened)
    });
    let output = Arc::new(output.await??);
    let container = sandbox.create_container(plan).await?;
    let (stdio, mut ends, terminal) = if blueprint.terminal {
        let (terminal, stdio) = container.terminal()?;
        (stdio, Ends::default(), Some(terminal))
    } else {
        let (ends, stdio) = pipes(blueprint.stdin, true, true)?;
        (stdio, ends, None)
    };
    let restored = matches!(beginning, Beginning::Restored(_));
    let pumps = pumps(&output, &mut ends, terminal.as_ref());
    let main = match container.start(stdio).await {
        Err(error) if restored => return Err(with_output(error, &container, &output, pumps).await),
        started => started?,
    };
    let stdin: Option<ByteWriter> = match (&terminal, ends.stdin) {
        (Some(terminal), _) if blueprint.stdin => Some(Box::pin(terminal.clone())),
        (_, stdin) => stdin.map(|pipe| Box::pin(pipe) as ByteWriter),
    };
    let (ended_tx, ended) = watch::channel(None);
    let message = blueprint.message.clone();
    tokio::spawn(follow(main, container.clone(), output.clone(), pumps, message, ended_tx));
    let (stdin, env) = (Mutex::new(stdin), RwLock::new(blueprint.env.clone()));
    let out_of_memory = Reported::default();
    Ok(Arc::new(Running { blueprint, env, container, output, stdin, terminal, out_of_memory, ended }))
}

/// Adds what was printed to the error of a container that was not restored: runsc says there why.
async fn with_output(
    error: StartError,
    container: &Arc<dyn Container>,
    output: &Arc<Output>,
    pumps: Vec<JoinHandle<()>>,
) -> StartError {
    container.kill();
    finish_pumps(pumps).await;
    let output = output.clone();
    let tail = tokio::task::spawn_blocking(move || {
        output.finish();
        log_tail(output.path())
    });
    let said = tail.await.ok().flatten().unwrap_or_default();
    StartError { message: format!("{}: {}", error.message, said.trim()), of_policy: error.of_policy }
}

/// Waits until all output of a container that was killed has arrived.
async fn finish_pumps(pumps: Vec<JoinHandle<()>>) {
    for mut pump in pumps {
        if tokio::time::timeout(OUTPUT_GRACE, &mut pump).await.is_err() {
            pump.abort();
        }
    }
}

/// Copies what the main process prints to its log and to attached clients.
fn pumps(output: &Arc<Output>, ends: &mut Ends, terminal: Option<&Terminal>) -> Vec<JoinHandle<()>> {
    let mut pumps = Vec::new();
    for (stream, pipe) in [(Stream::Stdout, ends.stdout.take()), (Stream::Stderr, ends.stderr.take())] {
        pumps.extend(pipe.map(|pipe| tokio::spawn(output.clone().pump(stream, pipe))));
    }
    pumps.extend(terminal.map(|terminal| tokio::spawn(output.clone().pump_terminal(terminal.clone()))));
    pumps
}

/// Waits for the end of the main process, kills what it left behind, and reports when all output has arrived.
async fn follow(
    mut main: Spawned,
    container: Arc<dyn Container>,
    output: Arc<Output>,
    pumps: Vec<JoinHandle<()>>,
    message: Option<PathBuf>,
    ended: watch::Sender<Option<MainExit>>,
) {
    let exit: Exit = exit_of(main.exited().await);
    let out_of_memory = exit != Exit::Code(0) && {
        let container = container.clone();
        let usage = tokio::task::spawn_blocking(move || container.stats()).await;
        usage.ok().flatten().is_some_and(|usage| usage.oom_kills > 0)
    };
    container.kill();
    finish_pumps(pumps).await;
    // Fails only when the runtime is shutting down.
    let failed = exit != Exit::Code(0);
    let finished = tokio::task::spawn_blocking(move || {
        output.finish();
        let message = message.and_then(|folder| message::read(&folder, output.screened()));
        (message, if failed { log_tail(output.path()) } else { None })
    });
    let (message, output) = finished.await.unwrap_or_default();
    // An error means that the Pod's own task has ended.
    let _ = ended.send(Some(MainExit { exit, out_of_memory, message, output }));
}
