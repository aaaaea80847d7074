//! Reads the settings, listens, and serves until SIGTERM.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use hutch_activity::Activity;
use hutch_sandboxd::activity::Counted;
use hutch_sandboxd::files::Root;
use hutch_sandboxd::files::work;
use hutch_sandboxd::first::{First, Signals};
use hutch_sandboxd::legacy::Legacy;
use hutch_sandboxd::process::{Processes, Runner, terminal};
use hutch_sandboxd::rest::{Rest, metadata};
use hutch_sandboxd::rpc::Rpc;
use hutch_sandboxd::{Error, Port, Settings, Usage, generators, reap, server};
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Idle timeout of the file threads: they stay, since a sandbox full of processes may allow no new thread.
const THREAD_IDLE: std::time::Duration = std::time::Duration::from_secs(10 * 365 * 24 * 3600);
const THREAD_STACK: usize = 128 << 10;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == "--clock" => return clock(),
        Some(word) if word == "--after-restore" => return after_restore(),
        Some(word) if word == "--pause" => pause(),
        Some(word) if word == terminal::WORD => {
            terminal::enter(&words.collect::<Vec<_>>());
            return ExitCode::from(127);
        }
        _ => {}
    }
    let mut words = std::env::args_os().skip(1);
    let flags: Vec<String> = words
        .by_ref()
        .take_while(|word| word != "--")
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let command: Vec<OsString> = words.collect();
    let settings = match Settings::read(flags, |name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(usage) => return tell(&usage),
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(work::THREADS);
    builder.thread_keep_alive(THREAD_IDLE).thread_stack_size(THREAD_STACK);
    let result = match builder.build() {
        Ok(runtime) => {
            let result = runtime.block_on(run(settings, &command));
            // A thread that hangs in a file does not hold up the end.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Error::Signals(error)),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "hutch-sandboxd: {error}");
            match error {
                Error::First { status, .. } => ExitCode::from(status),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints CLOCK_MONOTONIC in nanoseconds, to measure from outside the time until the first instruction in
/// here.
fn clock() -> ExitCode {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    if writeln!(std::io::stdout(), "{nanos}").is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks that no program in here repeats random numbers after the memory was copied.
fn after_restore() -> ExitCode {
    let problem = match generators::others(Path::new("/proc")) {
        Ok(others) if others.is_empty() => return ExitCode::SUCCESS,
        Ok(others) => format!("random numbers of these processes would repeat: {}", others.join(", ")),
        Err(error) => format!("cannot read the processes in /proc: {error}"),
    };
    let _ = writeln!(std::io::stderr(), "{problem}");
    ExitCode::FAILURE
}

/// Waits for a signal. Process 1 inside reaps, so there is nothing else to do.
fn pause() -> ! {
    loop {
        std::thread::park();
    }
}

/// Runs the program and returns its exit status.
async fn run(settings: Settings, command: &[OsString]) -> Result<u8, Error> {
    let root = Arc::new(Root::open(&settings.root)?);
    let before = std::env::current_dir().ok();
    // Commands start here and then need no change of folder.
    let _ = std::env::set_current_dir(root.path());
    if settings.token.is_set() {
        // Other processes of the same user must not read the environment or the memory of this process.
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    }
    let open = async |port: Port| open(settings.host, port).await;
    let doors = [open(settings.http).await?, open(settings.rest).await?, open(settings.grpc).await?];
    let ports = doors.each_ref().map(|door| Some(door.as_ref()?.local_addr().ok()?.port()));
    if ports.iter().all(Option::is_none) && command.is_empty() {
        return Err(Error::NoPort);
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let told = async {
        tokio::select! {
            _ = terminate.recv() => Signal::TERM,
            _ = interrupt.recv() => Signal::INT,
        }
    };
    // Starts the one thread that always exists; see THREAD_IDLE.
    let _ = tokio::task::spawn_blocking(|| ()).await;

    let (requests, health) = (CancellationToken::new(), CancellationToken::new());
    let (held, token) = (Arc::default(), settings.token);
    let runner = Arc::new(Runner::new(Arc::clone(&held)));
    let processes = Processes::new(settings.chunk, held);
    let shown = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let shown = metadata(&settings.metadata_prefix, shown);
    let own_ports = ports.into_iter().flatten().collect();
    let legacy = Legacy::new(root.clone(), runner.clone(), settings.time_limit, token.clone());
    let activity = Arc::<Activity>::default();
    let rest = Rest::new(root.clone(), shown, token.clone(), activity.clone(), own_ports, health.clone());
    let rpc = Rpc::new(root.clone(), processes, runner, token);

    let [http_door, rest_door, rpc_door] = doors;
    let idle = settings.idle_limit;
    let serving = async {
        tokio::join!(
            serve(http_door, Counted::new(legacy, activity.clone()), idle, &requests),
            serve(rest_door, Counted::new(rest, activity.clone()), idle, &requests),
            serve(rpc_door, Counted::new(rpc, activity.clone()), idle, &requests),
        );
    };
    say(&root, ports);
    let signals = Signals::keep(command)?;
    let mut first = First::start(command, before.as_deref())?;
    tokio::select! {
        () = serving => {}
        result = reap::orphans() => result?,
        () = signals.pass_on() => {}
        () = end(&mut first, told, [&health, &requests], settings.shutdown_limit) => {}
    }
    Ok(first.status())
}

/// Waits for a signal or the end of the command; then ends the processes, and the requests after them.
async fn end(
    first: &mut First,
    told: impl Future<Output = Signal>,
    [health, requests]: [&CancellationToken; 2],
    limit: std::time::Duration,
) {
    let signal = tokio::select! {
        signal = told => signal,
        _ = first.ended() => Signal::TERM,
    };
    // All processes end first, so that clients that wait for them receive their exit; then no new request is
    // accepted.
    health.cancel();
    let ending = async {
        tokio::join!(reap::end_all(), first.end(signal));
        requests.cancel();
        std::future::pending::<()>().await;
    };
    let _ = tokio::time::timeout(limit, ending).await;
}

async fn serve(
    listener: Option<TcpListener>,
    door: impl server::Door,
    idle: std::time::Duration,
    stop: &CancellationToken,
) {
    match listener {
        Some(listener) => server::serve(listener, door, idle, stop.clone()).await,
        None => stop.cancelled().await,
    }
}

/// Opens a port; `None` if the API is disabled, or its default port is in use.
async fn open(host: Option<std::net::IpAddr>, port: Port) -> Result<Option<TcpListener>, Error> {
    let Some(number) = port.number else { return Ok(None) };
    match server::listen(host, number).await {
        Ok(listener) => Ok(Some(listener)),
        Err(Error::Listen { source, .. })
            if !port.asked && source.kind() == std::io::ErrorKind::AddrInUse =>
        {
            let _ =
                writeln!(std::io::stderr(), "hutch-sandboxd: port {number} is taken; its door stays closed");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn say(root: &Root, ports: [Option<u16>; 3]) {
    let mut line = format!("hutch-sandboxd: serving {}", root.path().display());
    for (name, port) in ["http", "rest", "grpc"].into_iter().zip(ports) {
        if let Some(port) = port {
            line.push_str(&format!(" {name}={port}"));
        }
    }
    line.push('\n');
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn tell(usage: &Usage) -> ExitCode {
    let (text, status) = match usage {
        Usage::Help => {
            let _ = write!(std::io::stdout(), "{}", hutch_sandboxd::HELP);
            return ExitCode::SUCCESS;
        }
        Usage::Version => {
            let _ = writeln!(std::io::stdout(), "hutch-sandboxd {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Usage::Wrong(text) => (text, 2),
        Usage::Invalid(text) => (text, 1),
    };
    let _ = writeln!(std::io::stderr(), "hutch-sandboxd: {text}; see --help");
    ExitCode::from(status)
}
