//! `hutch router`: the router of a cluster, as a program of its own.

mod flags;
mod options;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use hutch_router::LogSink;

use options::{Encoder, Options, Wanted};
pub(crate) use serve::{key, pod_key};

/// Maximum time to write the last lines of the access log.
const LOG_LIMIT: Duration = Duration::from_secs(2);

/// Runs the router until SIGTERM or SIGINT. Exit status 2 for an invalid configuration, 1 for a failed start.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let environment = |name: &str| std::env::var(name).ok();
    let file = |path: &std::path::Path| std::fs::read_to_string(path);
    match Options::read(arguments, environment, file) {
        Err(mistake) => {
            eprintln!("hutch router: {mistake}");
            ExitCode::from(2)
        }
        Ok(Wanted::Help(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Wanted::Version) => {
            println!("hutch {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Wanted::Run(options)) => run(*options),
    }
}

fn run(options: Options) -> ExitCode {
    let level = tracing_subscriber::EnvFilter::new(options.log_level.clone());
    let subscriber = tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr);
    match options.log_encoder {
        Encoder::Json => subscriber.with_ansi(false).init(),
        Encoder::Console => subscriber.init(),
    }
    for warning in &options.warnings {
        tracing::warn!("{warning}");
    }
    let started = LogSink::start(std::io::stderr()).map_err(anyhow::Error::from);
    let outcome = started.and_then(|log| {
        // This thread accepts connections. Requests have others.
        let outcome = crate::runtime::one_thread()?.block_on(serve::serve(options, log.clone()));
        log.flush(LOG_LIMIT);
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch router: {error:#}");
            ExitCode::FAILURE
        }
    }
}
