//! Reads the settings, listens, serves until SIGTERM.

use std::io::Write;
use std::process::ExitCode;

use hutch_sandboxd::files::Root;
use hutch_sandboxd::legacy::Legacy;
use hutch_sandboxd::{Error, Settings, Usage, reap, server};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Threads for work on files; each ends when it was idle for a moment.
const FILE_THREADS: usize = 8;
const THREAD_IDLE: std::time::Duration = std::time::Duration::from_secs(2);
const THREAD_STACK: usize = 128 << 10;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("--clock") => return clock(),
        Some("--pause") => pause(),
        _ => {}
    }
    let settings = match Settings::read(std::env::args().skip(1), |name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(usage) => return tell(&usage),
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(FILE_THREADS);
    builder.thread_keep_alive(THREAD_IDLE).thread_stack_size(THREAD_STACK);
    let result = match builder.build() {
        Ok(runtime) => runtime.block_on(run(settings)),
        Err(error) => Err(Error::Signals(error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "hutch-sandboxd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints CLOCK_MONOTONIC in nanoseconds: from outside, it tells how long the way to a first instruction in here took.
fn clock() -> ExitCode {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    if writeln!(std::io::stdout(), "{nanos}").is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Waits to be ended. Process 1 inside reaps, so there is nothing else to do.
fn pause() -> ! {
    loop {
        std::thread::park();
    }
}

async fn run(settings: Settings) -> Result<(), Error> {
    let root = Root::open(&settings.base)?;
    // Commands start here, and need no change of folder then.
    let _ = std::env::set_current_dir(root.path());
    let listener = server::listen(settings.port).await?;
    let port = listener.local_addr().map_or(settings.port, |address| address.port());
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let _ = writeln!(std::io::stderr(), "hutch-sandboxd: serving {} on port {port}", root.path().display());
    let stop = CancellationToken::new();
    let legacy = Legacy::new(root, settings.time_limit);
    let stopped = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = server::serve(listener, legacy, stop.clone()) => Ok(()),
        result = reap::orphans() => result,
        () = stopped => Ok(()),
    }
}

fn tell(usage: &Usage) -> ExitCode {
    match usage {
        Usage::Help => {
            let _ = write!(std::io::stdout(), "{}", hutch_sandboxd::HELP);
            ExitCode::SUCCESS
        }
        Usage::Version => {
            let _ = writeln!(std::io::stdout(), "hutch-sandboxd {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Usage::Wrong(text) => {
            let _ = writeln!(std::io::stderr(), "hutch-sandboxd: {text}; see --help");
            ExitCode::from(2)
        }
    }
}
