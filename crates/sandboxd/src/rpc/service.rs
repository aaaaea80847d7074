//! Methods of `process.v1.ProcessService`.

use futures::stream::{self, Stream, StreamExt};
use hyper::Response;
use rustix::process::Signal as Kill;

use super::Rpc;
use super::call::{Call, Messages, late};
use super::messages::{
    ConnectRequest, DroppedEvent, Empty, ExecuteRequest, ExecuteResponse, ExitEvent, InitEvent, ListResponse,
    Payload, ProcessConfig, ProcessEvent, ProcessInfo, ResizeTtyRequest, SIGNALS, SendSignalRequest, Signal,
    StartRequest, StartResponse, WaitRequest, WaitResponse, WriteStdinRequest,
};
use super::protocol::Wire;
use super::reply;
use super::status::{Code, Status};
use crate::answer::Body;
use crate::files::FileError;
use crate::process::{
    Event, Exit, Job, OUT_OF_MEMORY, OUTPUT_LIMIT, ProcessError, Program, RunError, Size, Source, StartError,
    Started,
};

pub(super) async fn dispatch(rpc: &Rpc, method: &str, mut call: Call) -> Response<Body> {
    let (protocol, deadline) = (call.protocol, call.deadline);
    let incoming = &mut call.incoming;
    macro_rules! one {
        ($work:expr) => {
            reply::one(protocol, Call::in_time(deadline, $work).await)
        };
    }
    match method {
        "Start" | "Connect" | "StreamStdin" if protocol.wire == Wire::ConnectUnary => reply::no_stream(),
        "Start" => match Call::in_time(deadline, rpc.start(incoming)).await {
            Ok(started) => reply::many(protocol, events(started, deadline)),
            Err(status) => reply::failure(protocol, &status),
        },
        "Connect" => match Call::in_time(deadline, rpc.connect(incoming)).await {
            Ok(started) => reply::many(protocol, events(started, deadline)),
            Err(status) => reply::failure(protocol, &status),
        },
        "Execute" => one!(rpc.execute(incoming)),
        "WriteStdin" => one!(rpc.write_stdin(incoming)),
        "StreamStdin" => one!(rpc.stream_stdin(incoming)),
        "SendSignal" => one!(rpc.send_signal(incoming)),
        "ResizeTTY" => one!(rpc.resize(incoming)),
        "List" => one!(rpc.list(incoming)),
        "Wait" => one!(rpc.wait(incoming)),
        _ => call.unknown(),
    }
}

/// Converts the events of a process to messages: its number first, its exit last.
fn events(
    started: Started,
    deadline: Option<tokio::time::Instant>,
) -> impl Stream<Item = Result<StartResponse, Status>> + Send + 'static {
    let init = ProcessEvent::Init(InitEvent { process_id: started.id });
    let rest = stream::unfold(Some(started.events), move |events| async move {
        let mut events = events?;
        let next = async { Ok(events.next().await) };
        match Call::in_time(deadline, next).await {
            Ok(None) => None,
            Ok(Some(Event::Exit(exit))) => Some((Ok(ProcessEvent::Exit(exit_event(exit))), None)),
            Ok(Some(Event::Output(Source::Stdout, content))) => {
                Some((Ok(ProcessEvent::Stdout(content)), Some(events)))
            }
            Ok(Some(Event::Output(Source::Stderr, content))) => {
                Some((Ok(ProcessEvent::Stderr(content)), Some(events)))
            }
            Ok(Some(Event::Dropped(bytes))) => {
                Some((Ok(ProcessEvent::Dropped(DroppedEvent { bytes })), Some(events)))
            }
            Err(_) => Some((Err(late()), None)),
        }
    });
    stream::iter([Ok(init)]).chain(rest).map(|event| event.map(|event| StartResponse { event: Some(event) }))
}

fn exit_event(exit: Exit) -> ExitEvent {
    match exit {
        Exit::Code(exit_code) => ExitEvent { exit_code, signal: 0 },
        Exit::Signal(signal) => ExitEvent { exit_code: -1, signal },
    }
}

impl Rpc {
    async fn start(&self, incoming: &mut Messages) -> Result<Started, Status> {
        let request: StartRequest = incoming.only().await?;
        let size = request.pty.map(|pty| size(pty.cols, pty.rows)).transpose()?;
        let program = self.program(request.config).await?;
        let started = self.processes.start(program, size, request.detach).await;
        started.map_err(|error| of_process(error, "start"))
    }

    async fn connect(&self, incoming: &mut Messages) -> Result<Started, Status> {
        let request: ConnectRequest = incoming.only().await?;
        let id = request.process_id;
        let events =
            self.processes.connect(id, request.offset).map_err(|error| of_process(error, "start"))?;
        Ok(Started { id, events })
    }

    async fn execute(&self, incoming: &mut Messages) -> Result<ExecuteResponse, Status> {
        let request: ExecuteRequest = incoming.only().await?;
        let program = self.program(request.config).await?;
        let job = Job { program, time_limit: None, to_last_writer: false };
        let finished = self.runner.run(&job).await.map_err(|error| match error {
            RunError::Start(error) => of_start(&error, "execute"),
            error => Status::new(Code::Internal, format!("failed to execute command: {error}")),
        })?;
        let ExitEvent { exit_code, signal } = exit_event(finished.exit);
        let dropped = finished.stdout.dropped + finished.stderr.dropped;
        if dropped > 0 {
            let how =
                if signal == 0 { format!("with code {exit_code}") } else { format!("by signal {signal}") };
            let message = format!(
                "the command ended {how}, but its output is {dropped} bytes over what one answer holds ({OUTPUT_LIMIT} \
                 each of stdout and stderr, less when many commands run); use Start, which streams it"
            );
            return Err(Status::new(Code::ResourceExhausted, message));
        }
        let (stdout, mut stderr) = (finished.stdout.kept, finished.stderr.kept);
        if finished.out_of_memory {
            stderr.extend_from_slice(OUT_OF_MEMORY.as_bytes());
        }
        Ok(ExecuteResponse { exit_code, stdout: stdout.into(), stderr: stderr.into() })
    }

    async fn program(&self, config: Option<ProcessConfig>) -> Result<Program, Status> {
        let ProcessConfig { command: argv, env_vars, cwd } = config.unwrap_or_default();
        if argv.is_empty() {
            return Err(Status::new(Code::InvalidArgument, "command is required"));
        }
        let env = env_vars.into_iter().collect();
        let path = cwd.map(|cwd| self.root.locate(cwd.as_ref())).filter(|path| !path.as_os_str().is_empty());
        let Some(path) = path else {
            return Ok(Program { argv, env, folder: self.root.path().to_owned(), opened: None });
        };
        let (root, wanted) = (self.root.clone(), path.clone());
        let opened = crate::files::work::on_files(move || root.folder(wanted))
            .await
            .map_err(|error| of_cwd(&error))?;
        Ok(Program { argv, env, folder: self.root.path().join(path), opened: Some(opened) })
    }

    async fn write_stdin(&self, incoming: &mut Messages) -> Result<Empty, Status> {
        let request: WriteStdinRequest = incoming.only().await?;
        self.write(request).await
    }

    async fn stream_stdin(&self, incoming: &mut Messages) -> Result<Empty, Status> {
        while let Some(request) = incoming.next().await? {
            self.write(request).await?;
        }
        Ok(Empty {})
    }

    async fn write(&self, request: WriteStdinRequest) -> Result<Empty, Status> {
        let id = request.process_id;
        let done = match request.payload {
            None => return Err(Status::new(Code::InvalidArgument, "one of input and eof is required")),
            Some(Payload::Input(content)) => self.processes.write(id, &content).await,
            Some(Payload::Eof(_)) => self.processes.end_input(id).await,
        };
        done.map(|()| Empty {}).map_err(|error| of_process(error, "write to"))
    }

    async fn send_signal(&self, incoming: &mut Messages) -> Result<Empty, Status> {
        let request: SendSignalRequest = incoming.only().await?;
        let unsupported = || {
            let named = Signal::try_from(request.signal).ok();
            let name =
                SIGNALS.iter().find(|(_, signal)| Some(*signal) == named).map(|(name, _)| (*name).to_owned());
            let name = name.unwrap_or_else(|| request.signal.to_string());
            Status::new(Code::InvalidArgument, format!("unsupported or unspecified signal: {name}"))
        };
        let signal = match Signal::try_from(request.signal).map_err(|_| unsupported())? {
            Signal::Unspecified => return Err(unsupported()),
            Signal::Sighup => Kill::HUP,
            Signal::Sigint => Kill::INT,
            Signal::Sigquit => Kill::QUIT,
            Signal::Sigkill => Kill::KILL,
            Signal::Sigusr1 => Kill::USR1,
            Signal::Sigusr2 => Kill::USR2,
            Signal::Sigterm => Kill::TERM,
            Signal::Sigcont => Kill::CONT,
            Signal::Sigstop => Kill::STOP,
        };
        let sent = self.processes.signal(request.process_id, signal);
        sent.map(|()| Empty {}).map_err(|error| of_process(error, "signal"))
    }

    async fn resize(&self, incoming: &mut Messages) -> Result<Empty, Status> {
        let request: ResizeTtyRequest = incoming.only().await?;
        let resized = self.processes.resize(request.process_id, size(request.cols, request.rows)?);
        resized.map(|()| Empty {}).map_err(|error| of_process(error, "resize"))
    }

    async fn list(&self, incoming: &mut Messages) -> Result<ListResponse, Status> {
        let Empty {} = incoming.only().await?;
        let processes = self.processes.list().into_iter().map(|listed| ProcessInfo {
            process_id: listed.id,
            command: listed.command,
            detached: listed.detached,
            pty: listed.terminal,
            exit: listed.exit.map(exit_event),
            output_start: listed.output.0,
            output_end: listed.output.1,
        });
        Ok(ListResponse { processes: processes.collect() })
    }

    async fn wait(&self, incoming: &mut Messages) -> Result<WaitResponse, Status> {
        let request: WaitRequest = incoming.only().await?;
        let exit =
            self.processes.wait(request.process_id).await.map_err(|error| of_process(error, "wait for"))?;
        Ok(WaitResponse { exit: Some(exit_event(exit)) })
    }
}

fn size(cols: u32, rows: u32) -> Result<Size, Status> {
    match (u16::try_from(cols), u16::try_from(rows)) {
        (Ok(cols), Ok(rows)) => Ok(Size { cols, rows }),
        _ => Err(Status::new(
            Code::InvalidArgument,
            format!("cols and rows, {cols} and {rows}, must be at most 65535"),
        )),
    }
}

fn of_cwd(error: &FileError) -> Status {
    let (code, text) = match error {
        FileError::Outside => {
            (Code::PermissionDenied, "path traversal outside sandbox root is forbidden".to_owned())
        }
        FileError::NotFound => (Code::NotFound, "path does not exist within the sandbox".to_owned()),
        FileError::System { source, .. } => (of_system(source), source.to_string()),
        other => (Code::InvalidArgument, other.to_string()),
    };
    Status::new(code, format!("cwd: {text}"))
}

fn of_process(error: ProcessError, doing: &str) -> Status {
    let code = match &error {
        ProcessError::Start(error) => return of_start(error, doing),
        ProcessError::NotFound(_) => Code::NotFound,
        ProcessError::NoTerminal(_) | ProcessError::Resize(_) => Code::FailedPrecondition,
        ProcessError::NoStdin(_) | ProcessError::Attached(_) => Code::FailedPrecondition,
        ProcessError::Offset { .. } => Code::OutOfRange,
        ProcessError::TooMany(_) => Code::ResourceExhausted,
        ProcessError::Input(_) => Code::Internal,
        ProcessError::Signal { source, .. } => of_system(source),
    };
    Status::new(code, error.to_string())
}

fn of_start(error: &StartError, doing: &str) -> Status {
    let (code, text) = match error {
        StartError::Empty => (Code::InvalidArgument, "command is required".to_owned()),
        StartError::Nul | StartError::Variable(_) => (Code::InvalidArgument, error.to_string()),
        StartError::Program { source, .. } if of_system(source) == Code::NotFound => {
            (Code::NotFound, format!("failed to {doing} command: command or path not found: {error}"))
        }
        StartError::Program { source, .. }
        | StartError::Folder { source, .. }
        | StartError::Variables(source)
        | StartError::Terminal(source) => (of_system(source), format!("failed to {doing} command: {error}")),
    };
    Status::new(code, text)
}

fn of_system(source: &std::io::Error) -> Code {
    match source.kind() {
        std::io::ErrorKind::NotFound => Code::NotFound,
        std::io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        _ => Code::Internal,
    }
}
