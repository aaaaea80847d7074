//! The streams of Pods, from their processes. As with any kubelet, what is forwarded into a Pod that has gone ends at its next
//! use.

use std::process::Stdio;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{
    ByteReader, ByteWriter, Duplex, ExecRequest, Exit, Kubelet, LogRequest, PodId, Session, StreamError,
};
use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::process::Command;

use super::container::Container;
use super::pod::Pod;
use super::pods::Pods;
use super::process::Process;
use super::terminal;

impl Kubelet for Pods {
    fn exec<'a>(
        &'a self,
        id: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            let pod = self.get(id)?;
            start(&pod, pod.container(request.container.as_deref())?, &request)
        }
        .boxed()
    }

    /// The output from now on; the input of main processes is closed.
    fn attach<'a>(
        &'a self,
        id: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            let pod = self.get(id)?;
            let container = pod.container(request.container.as_deref())?;
            let rest = LogRequest { follow: true, tail_lines: Some(0), ..LogRequest::default() };
            let stdout = request.stdout.then(|| container.log.read(&rest, Timestamp::now()));
            let stderr = request.stderr.then(|| Box::pin(tokio::io::empty()) as ByteReader);
            let stdin = request.stdin.then(|| Box::pin(tokio::io::sink()) as ByteWriter);
            let (name, pod) = (container.name.clone(), pod.clone());
            let exit = async move {
                match pod.container(Some(&name)) {
                    Ok(container) => container.ended().await,
                    Err(error) => return Exit::Failed(error.to_string()),
                }
                Exit::Code(0)
            };
            Ok(Session { stdin, stdout, stderr, resize: None, exit: exit.boxed() })
        }
        .boxed()
    }

    fn connect<'a>(
        &'a self,
        id: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async move {
            let address = self.get(id)?.address;
            match TcpStream::connect((address, port)).await {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Duplex>),
                Err(error) => Err(StreamError::Unavailable(error.to_string())),
            }
        }
        .boxed()
    }

    fn logs<'a>(
        &'a self,
        id: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        async move {
            let pod = self.get(id)?;
            let container = pod.container(request.container.as_deref())?;
            if request.previous {
                let text = format!(
                    "previous terminated container {:?} in pod {:?} not found",
                    container.name, id.name
                );
                return Err(StreamError::BadRequest(text));
            }
            Ok(container.log.read(&request, Timestamp::now()))
        }
        .boxed()
    }
}

fn start(pod: &Pod, container: &Container, request: &ExecRequest) -> Result<Session, StreamError> {
    let (program, arguments) =
        request.command.split_first().ok_or_else(|| StreamError::BadRequest("no command".into()))?;
    let mut command = container.command(program, arguments);
    let over = pod.over();
    let until = |process: Process| {
        async move {
            tokio::select! {
                exit = process.ended() => exit,
                () = over => Exit::Signal(rustix::process::Signal::KILL.as_raw()),
            }
        }
        .boxed()
    };
    if request.tty {
        return match terminal::start(container, program, arguments) {
            Ok((process, streams)) => Ok(Session {
                stdin: Some(streams.keys),
                stdout: Some(streams.screen),
                stderr: None,
                resize: Some(streams.resize),
                exit: until(process),
            }),
            Err(error) => Ok(failed(program, &error)),
        };
    }
    match Process::start(piped(&mut command, request), container.minder()) {
        Ok(mut process) => {
            let child = process.child();
            Ok(Session {
                stdin: child.stdin.take().map(|pipe| Box::pin(pipe) as ByteWriter),
                stdout: child.stdout.take().map(|pipe| Box::pin(pipe) as ByteReader),
                stderr: child.stderr.take().map(|pipe| Box::pin(pipe) as ByteReader),
                resize: None,
                exit: until(process),
            })
        }
        Err(error) => Ok(failed(program, &error)),
    }
}

fn piped<'a>(command: &'a mut Command, request: &ExecRequest) -> &'a mut Command {
    let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
    command
        .stdin(pipe(request.stdin))
        .stdout(pipe(request.stdout))
        .stderr(pipe(request.stderr))
        .process_group(0)
}

/// Returns the message of a kubelet over containerd and runc.
fn failed(program: &str, error: &std::io::Error) -> Session {
    let why = match error.kind() {
        std::io::ErrorKind::NotFound if program.contains('/') => {
            format!("stat {program}: no such file or directory")
        }
        std::io::ErrorKind::NotFound => "executable file not found in $PATH".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    let text = format!(
        "failed to exec in container: OCI runtime exec failed: exec failed: unable to start container process: \
         exec: {program:?}: {why}: unknown"
    );
    let exit = std::future::ready(Exit::Failed(text)).boxed();
    Session { stdin: None, stdout: None, stderr: None, resize: None, exit }
}
