//! The command that a container is there for, when this program is put in front of it: started once the doors are open,
//! given the signals that come, and its end is the end of both.

use std::ffi::OsString;
use std::future::pending;
use std::path::Path;

use rustix::process::{Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::process::pid;
use crate::{Error, reap, token};

/// Exit statuses as a shell gives them.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const SIGNALLED: u8 = 128;
const KILLED: u8 = SIGNALLED + 9;
/// Signals that are passed on and end nothing by themselves.
const PASSED_ON: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::quit(), SignalKind::user_defined1(), SignalKind::user_defined2()];

/// The command, or none. Dropping it kills one that still runs.
pub struct First {
    child: Option<Child>,
    status: Option<u8>,
}

impl First {
    /// Starts `words` in `folder` with this program's streams and its environment, less the token. No words: nothing is
    /// started, and it never ends. To be called on the program's one thread.
    ///
    /// # Errors
    /// There is no such program, or it cannot be run.
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

    /// Its exit status, once it has ended: 128 and the number of the signal that ended it.
    pub async fn ended(&mut self) -> u8 {
        if let Some(status) = self.status {
            return status;
        }
        let Some(child) = &mut self.child else { return pending().await };
        let status = child.wait().await.map_or(KILLED, status_of);
        reap::leave_alone(None);
        *self.status.insert(status)
    }

    /// Returns when it has ended, after this signal; at once when there is none.
    pub async fn end(&mut self, told: Signal) {
        if self.child.is_some() {
            send(told);
            self.ended().await;
        }
    }

    /// What this program's own exit status is to be: success without a command.
    pub fn status(&self) -> u8 {
        match (&self.child, self.status) {
            (None, _) => 0,
            (Some(_), status) => status.unwrap_or(KILLED),
        }
    }
}

/// Signals that are the command's. From the moment this is made they end nothing and none is lost.
pub struct Signals(Vec<(SignalKind, tokio::signal::unix::Signal)>);

impl Signals {
    /// To be made before the command starts, which may be sent one at once. Without a command they are left as they are.
    ///
    /// # Errors
    /// When they cannot be handled.
    pub fn keep(words: &[OsString]) -> Result<Signals, Error> {
        let kinds = PASSED_ON.into_iter().filter(|_| !words.is_empty());
        let kept = kinds.map(|kind| Ok((kind, signal(kind).map_err(Error::Signals)?)));
        kept.collect::<Result<_, _>>().map(Signals)
    }

    /// Passes them on to the command for as long as it is polled.
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

/// To the command, if it runs.
fn send(signal: Signal) {
    if let Some(pid) = reap::left_alone() {
        // It may have ended just now.
        let _ = kill_process(pid, signal);
    }
}

fn status_of(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let signalled = || status.signal().map(|signal| i32::from(SIGNALLED) + signal);
    status.code().or_else(signalled).and_then(|code| u8::try_from(code).ok()).unwrap_or(KILLED)
}
