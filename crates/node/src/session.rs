//! Streams to processes in containers.

use std::pin::Pin;
use std::sync::Arc;

use futures::FutureExt;
use hutch_kubelet::{
    ByteReader, ByteWriter, ExecRequest, Exit, PipedSession, Session, StreamError, TerminalSize,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{broadcast, mpsc};

use crate::container::{Running, Stream, exit_of};
use crate::runtime::Exec;
use crate::stdio::{Ends, pipes};

/// Terminal sizes that may wait; only the last one matters.
const SIZES: usize = 4;
/// Buffer of an attached client, in bytes.
const ATTACH_BYTES: usize = 64 << 10;

fn internal(error: std::io::Error) -> StreamError {
    tracing::warn!(%error, "failed to open streams for a command");
    StreamError::Internal("streams for the command could not be made".into())
}

fn program(request: &ExecRequest) -> Result<String, StreamError> {
    let text = "you must specify at least one command for the container";
    request.command.first().cloned().ok_or_else(|| StreamError::BadRequest(text.into()))
}

/// Starts a command in a container.
pub(crate) async fn exec(running: Arc<Running>, request: ExecRequest) -> Result<Session, StreamError> {
    let program = program(&request)?;
    if request.tty {
        let terminal = running.container.terminal();
        let (terminal, stdio) = terminal.map_err(|error| StreamError::Internal(error.message))?;
        let exec = running.exec(request.command, true, stdio).await.map_err(StreamError::Internal)?;
        return Ok(Session {
            stdin: request.stdin.then(|| Box::pin(terminal.clone()) as ByteWriter),
            stdout: Some(Box::pin(terminal.clone())),
            stderr: None,
            resize: Some(sizes(move |size| terminal.resize(size))),
            exit: exit(running, exec, program),
        });
    }
    let (ends, exit) = start(running, request, program).await?;
    Ok(Session {
        stdin: ends.stdin.map(|pipe| Box::pin(pipe) as ByteWriter),
        stdout: ends.stdout.map(|pipe| Box::pin(pipe) as ByteReader),
        stderr: ends.stderr.map(|pipe| Box::pin(pipe) as ByteReader),
        resize: None,
        exit,
    })
}

/// Starts a command in a container without a terminal, with pipes for another process.
pub(crate) async fn exec_pipes(
    running: Arc<Running>,
    request: ExecRequest,
) -> Result<PipedSession, StreamError> {
    let program = program(&request)?;
    let (ends, exit) = start(running, request, program).await?;
    Ok(PipedSession {
        stdin: ends.stdin.map(|pipe| pipe.into_nonblocking_fd()).transpose().map_err(internal)?,
        stdout: ends.stdout.map(|pipe| pipe.into_nonblocking_fd()).transpose().map_err(internal)?,
        stderr: ends.stderr.map(|pipe| pipe.into_nonblocking_fd()).transpose().map_err(internal)?,
        exit,
    })
}

/// Starts a command without a terminal.
async fn start(
    running: Arc<Running>,
    request: ExecRequest,
    program: String,
) -> Result<(Ends, Pin<Box<dyn Future<Output = Exit> + Send>>), StreamError> {
    let (ends, stdio) = pipes(request.stdin, request.stdout, request.stderr).map_err(internal)?;
    let exec = running.exec(request.command, false, stdio).await.map_err(StreamError::Internal)?;
    Ok((ends, exit(running, exec, program)))
}

/// Takes terminal sizes until the client is gone.
fn sizes(set: impl Fn(TerminalSize) + Send + 'static) -> mpsc::Sender<TerminalSize> {
    let (sender, mut receiver) = mpsc::channel(SIZES);
    tokio::spawn(async move {
        while let Some(size) = receiver.recv().await {
            set(size);
        }
    });
    sender
}

/// Resolves with the exit of the process; dropped before, it kills the process.
fn exit(
    running: Arc<Running>,
    mut exec: Exec,
    program: String,
) -> Pin<Box<dyn Future<Output = Exit> + Send>> {
    async move {
        let exit = match exec.started().await {
            Ok(()) => exit_of(exec.exited().await),
            Err(failed) => Exit::Failed(format!("exec: {program:?}: {}", failed.reason)),
        };
        // The last reference to a container kills everything in it.
        drop(running);
        exit
    }
    .boxed()
}

/// Joins the streams of the main process. Its output from now on is given; what came before is in the log.
pub(crate) async fn attach(running: Arc<Running>, request: ExecRequest) -> Result<Session, StreamError> {
    let has_terminal = running.blueprint.terminal;
    if request.tty && !has_terminal {
        return Err(StreamError::BadRequest("the container's process has no terminal".into()));
    }
    let stdin = match request.stdin {
        true if running.blueprint.stdin => Some(attach_stdin(running.clone())),
        true => return Err(StreamError::BadRequest("the container's process has no standard input".into())),
        false => None,
    };
    let chunks = running.output.subscribe();
    let want_stderr = request.stderr && !has_terminal;
    let (stdout_reader, stdout) = tokio::io::duplex(ATTACH_BYTES);
    let (stderr_reader, stderr) = tokio::io::duplex(ATTACH_BYTES);
    let mut ended = running.ended.clone();
    let copied = tokio::spawn(copy(chunks, ended.clone(), stdout, stderr));
    let exit = async move {
        let exit = match ended.wait_for(Option::is_some).await.map(|exit| exit.clone()) {
            Ok(Some(main)) => main.exit,
            _ => Exit::Failed("the container has ended".into()),
        };
        // All of the output is on its way when this resolves.
        let _ = copied.await;
        exit
    };
    let resizer = running.clone();
    Ok(Session {
        stdin,
        stdout: request.stdout.then(|| Box::pin(stdout_reader) as ByteReader),
        stderr: want_stderr.then(|| Box::pin(stderr_reader) as ByteReader),
        resize: has_terminal.then(|| sizes(move |size| resizer.resize(size))),
        exit: exit.boxed(),
    })
}

/// Gives the main process's input to a client. It is closed with the client only if the container says so.
fn attach_stdin(running: Arc<Running>) -> ByteWriter {
    let (client, mut from_client) = tokio::io::duplex(ATTACH_BYTES);
    tokio::spawn(async move {
        // One client at a time writes; others wait for their turn.
        let mut input = running.stdin.lock().await;
        if let Some(writer) = input.as_mut() {
            // Either side may go away first, and neither failure concerns the other.
            let _ = tokio::io::copy(&mut from_client, writer).await;
            let _ = writer.flush().await;
        }
        if running.blueprint.stdin_once {
            *input = None;
        }
    });
    Box::pin(client)
}

async fn copy(
    mut chunks: broadcast::Receiver<(Stream, bytes::Bytes)>,
    mut ended: tokio::sync::watch::Receiver<Option<crate::container::MainExit>>,
    mut stdout: tokio::io::DuplexStream,
    mut stderr: tokio::io::DuplexStream,
) {
    loop {
        let chunk = tokio::select! {
            biased;
            chunk = chunks.recv() => chunk,
            _ = ended.wait_for(Option::is_some) => return,
        };
        let (stream, bytes) = match chunk {
            Ok(chunk) => chunk,
            // A client that is too slow loses pieces; they are in the log.
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        // A stream that the client did not ask for is closed, and what comes from it goes nowhere.
        let _ = match stream {
            Stream::Stdout => stdout.write_all(&bytes).await,
            Stream::Stderr => stderr.write_all(&bytes).await,
        };
    }
}
