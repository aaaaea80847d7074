//! Setup of every command that serves or calls an API: logs, threads, TLS.

use std::ffi::{CStr, OsStr};
use std::io::IsTerminal;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context, bail};
use hutch_privsep::receive_now;
use rustix::termios::isatty;
use serde::de::DeserializeOwned;

/// Logs to standard error, filtered by `HUTCH_LOG`, else by the default.
pub(crate) fn log(default: &str) {
    let wanted = tracing_subscriber::EnvFilter::try_from_env("HUTCH_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(wanted.unwrap_or_else(|_| default.into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

/// Returns true if Hutch has started this process as the program of this name.
pub(crate) fn is_program(name: &str) -> bool {
    std::env::args_os().next().is_some_and(|first| first == OsStr::new(name))
}

/// Runs a program that Hutch starts. Its error is one line of standard error.
pub(crate) fn program(name: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let ran = write_only_output().context("standard output and error").and_then(|()| run());
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Opens standard output and error anew where they are the terminal of the caller, which is open for reading too: what is typed
/// there is not for a program that parses what others send.
fn write_only_output() -> std::io::Result<()> {
    use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
    let reads = |output: BorrowedFd<'_>| {
        isatty(output) && fcntl_getfl(output).is_ok_and(|flags| flags & OFlags::RWMODE != OFlags::WRONLY)
    };
    let again = |path: &str| open(path, OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    // The terminal may be another user's, after `su` for example. It can be opened by the name that it has for its session.
    let opened = |path: &str| again(path).or_else(|_| again("/dev/tty")).or_else(|_| again("/dev/null"));
    if reads(rustix::stdio::stdout()) {
        rustix::stdio::dup2_stdout(opened("/proc/self/fd/1")?)?;
    }
    if reads(rustix::stdio::stderr()) {
        rustix::stdio::dup2_stderr(opened("/proc/self/fd/2")?)?;
    }
    Ok(())
}

/// Takes the first message to a program that another process of Hutch starts, and the descriptors that come with it. Then it
/// has its name and a session of its own.
pub(crate) fn first_message<T: DeserializeOwned>(name: &CStr) -> anyhow::Result<(T, Vec<OwnedFd>)> {
    let message = receive_now(rustix::stdio::stdin()).context("started by hutch alone")?;
    let message = message.context("started by hutch alone")?;
    let first = message.decode().context("the first message")?;
    rustix::thread::set_name(name).context("name")?;
    rustix::process::setsid().context("session")?;
    Ok((first, message.descriptors))
}

/// Fails without root, which jails need for id ranges, idmapped volumes and cgroups.
pub(crate) fn check_root(command: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to give each sandbox its own ids and limits: sudo hutch {command}");
    }
    Ok(())
}

/// Returns the runtime of all services, with the maximum of descriptors.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    hutch_serve::raise_descriptor_limit();
    choose_tls();
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")
}

/// Returns a runtime of this thread alone.
pub(crate) fn one_thread() -> anyhow::Result<tokio::runtime::Runtime> {
    choose_tls();
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

/// Returns a runtime of this thread alone, which calls `woken` when the thread wakes. It has no signals and child processes,
/// after which it would look each time.
pub(crate) fn one_thread_woken(
    woken: impl Fn() + Send + Sync + 'static,
) -> anyhow::Result<tokio::runtime::Runtime> {
    choose_tls();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().on_thread_unpark(woken).build().context("cannot start a runtime")
}

/// Selects the TLS provider. Must be called before TLS is used.
pub(crate) fn choose_tls() {
    // Two TLS providers could be compiled in; everything here uses this one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
