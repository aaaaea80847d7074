//! Runs the container's own command if this program is its entry point. The command starts once the ports are
//! open and receives the signals, and its end ends this program.

use std::ffi::OsString;
use std::future::pending;
use std::path::Path;

use rustix::process::{Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::process::pid;
use crate::{Error, reap, token};

/// Exit statuses as in a shell.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const SIGNALLED: u8 = 128;
const KILLED: u8 = SIGNALLED + 9;
/// Signals that are forwarded and end nothing by themselves.
const PASSED_ON: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::quit(), SignalKind::user_defined1(), SignalKind::user_defined2()];

/// The command, if any. Dropping it kills a running command.
pub struct First {
    child: Option<Child>,
    status: Option<u8>,
}

impl First {
    /// Starts `words` in `folder` with this program's streams and environment, without the token. Without
    /// words nothing starts and it never ends. Must be called on the program's only thread.
    ///
    /// # Errors
    /// The program is absent or cannot be executed.
    pub fn start(words: &[OsString], folder: Option<&Path>) -> Result<First, Error> {
        let Some((program, arguments)) = words.split_first() else {
            return Ok(First { child: None, status: None });
        };
        let mut command = Command::new(program);
        command.args(arguments).kill_on_drop(true);
        for name in token::VARIABLES {
            command.env_remove(name);
        }
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        let child = command.spawn().map_err(|error| Error::First {
            status: if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE },
            text: format!("cannot start {}: {error}", program.display()),
        })?;
        reap::leave_alone(pid(&child));
        Ok(First { child: Some(child), status: None })
    }

    /// Waits for its end and returns its exit status: 128 plus the number of a signal that ended it.
    pub async fn ended(&mut self) -> u8 {
        if let Some(status) = self.status {
            return status;
        }
        let Some(child) = &mut self.child else { return pending().await };
        let status = child.wait().await.map_or(KILLED, status_of);
        reap::leave_alone(None);
        *self.status.insert(status)
    }

    /// Sends this signal and waits for its end; returns at once without a command.
    pub async fn end(&mut self, told: Signal) {
        if self.child.is_some() {
            send(told);
            self.ended().await;
        }
    }

    /// Returns the exit status for this program: success without a command.
    pub fn status(&self) -> u8 {
        match (&self.child, self.status) {
            (None, _) => 0,
            (Some(_), status) => status.unwrap_or(KILLED),
        }
    }
}

/// Signals for the command. From their creation on they end nothing and none is lost.
pub struct Signals(Vec<(SignalKind, tokio::signal::unix::Signal)>);

impl Signals {
    /// Must be created before the command starts, which may receive one at once. Without a command they are
    /// unchanged.
    ///
    /// # Errors
    /// The signals cannot be handled.
    pub fn keep(words: &[OsString]) -> Result<Signals, Error> {
        let kinds = PASSED_ON.into_iter().filter(|_| !words.is_empty());
        let kept = kinds.map(|kind| Ok((kind, signal(kind).map_err(Error::Signals)?)));
        kept.collect::<Result<_, _>>().map(Signals)
    }

    /// Forwards the signals to the command while it is polled.
    pub async fn pass_on(self) {
        let each = self.0.into_iter().map(async |(kind, mut coming)| {
            while coming.recv().await.is_some() {
                Signal::from_named_raw(kind.as_raw_value()).into_iter().for_each(send);
            }
        });
        futures::future::join_all(each).await;
        pending().await
    }
}

/// Signals the command if it runs.
fn send(signal: Signal) {
    if let Some(pid) = reap::left_alone() {
        // It may have just ended.
        let _ = kill_process(pid, signal);
    }
}

fn status_of(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let signalled = || status.signal().map(|signal| i32::from(SIGNALLED) + signal);
    status.code().or_else(signalled).and_then(|code| u8::try_from(code).ok()).unwrap_or(KILLED)
}
