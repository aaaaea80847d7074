//! Commands of `runsc` for one container, run in the jail around it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hutch_image::PathSegment;
use hutch_jail::{Process, ProcessExit, Stdio, User};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;

use super::gvisor::STATE;
use super::jail::JailHandle;
use crate::oci::Runsc;
use crate::stdio::{null, pipes};

/// Maximum time of a command of runsc that is waited for. A checkpoint writes a GiB in a second on a fast disk.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of its output that are shown.
const COMMAND_OUTPUT: u64 = 2 << 10;

/// Commands of runsc for one container.
pub(super) struct RunscContainer {
    pub(super) runsc: Runsc,
    pub(super) jail: Arc<JailHandle>,
    /// Its bundle, its state and its root file system.
    pub(super) folder: PathBuf,
    pub(super) id: String,
}

/// Files of a process that outlives its runsc client. They are removed with this.
#[derive(Debug)]
pub(super) struct ExecFiles {
    pub(super) process: PathBuf,
    pub(super) pid: PathBuf,
    /// The last reference is dropped with this.
    pub(super) exists: Arc<()>,
}

impl Drop for ExecFiles {
    fn drop(&mut self) {
        let files = [std::mem::take(&mut self.process), std::mem::take(&mut self.pid)];
        // Without a runtime the program ends; the container's folder, which holds them, is removed in any case.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || files.iter().for_each(|file| drop(std::fs::remove_file(file))));
        }
    }
}

/// Why a command of runsc failed.
#[derive(Debug)]
pub(super) enum CommandError {
    /// It did not start, or ended with this error.
    Failed(String),
    /// It was killed, or did not end in time: its effect is unknown.
    CutShort(String),
}

impl From<CommandError> for String {
    fn from(error: CommandError) -> String {
        match error {
            CommandError::Failed(why) | CommandError::CutShort(why) => why,
        }
    }
}

impl RunscContainer {
    /// Returns the status of the container in the state file of runsc, if it has one yet.
    pub(super) async fn status(&self) -> Option<String> {
        let name = PathSegment::new(format!("{0}_sandbox:{0}.state", self.id))?;
        let file = tokio::fs::read(name.below(&STATE.below(&self.folder))).await.ok()?;
        // A file that is being written is read again.
        let state: Value = serde_json::from_slice(&file).ok()?;
        Some(state["status"].as_str()?.to_owned())
    }

    pub(super) fn argv(&self, rest: &[&str]) -> Vec<String> {
        self.runsc.argv(&STATE.below(&self.folder), rest)
    }

    /// Kills a process whose client was killed.
    pub(super) fn kill_inside(&self, files: &ExecFiles) {
        let pid = std::fs::read_to_string(&files.pid).unwrap_or_default();
        if let Ok(pid @ 2..) = pid.trim().parse::<u32>() {
            self.fire(self.argv(&["kill", "--pid", &pid.to_string(), &self.id, "KILL"]));
        }
    }

    /// Runs a command beside runsc. One that does not end in time is killed.
    pub(super) async fn command(&self, argv: &[&str]) -> Result<(), CommandError> {
        let name = argv.first().copied().unwrap_or_default();
        let failed = CommandError::Failed;
        let (ends, stdio) = pipes(false, false, true).map_err(|error| failed(error.to_string()))?;
        let spawned = self.jail.spawn(&process(self.argv(argv), false), stdio).await;
        let mut spawned = spawned.map_err(|error| failed(error.to_string()))?;
        spawned.started().await.map_err(|not| failed(not.reason))?;
        let number = spawned.number;
        let mut said = Vec::new();
        let done = async {
            if let Some(stderr) = ends.stderr {
                // What comes after these bytes is not read; an error shows in the exit code.
                let _ = stderr.take(COMMAND_OUTPUT).read_to_end(&mut said).await;
            }
            spawned.exited().await
        };
        let exit = tokio::time::timeout(COMMAND_TIMEOUT, done).await;
        match exit {
            Ok(ProcessExit::Code(0)) => Ok(()),
            Ok(exit) => {
                let said = String::from_utf8_lossy(&said);
                let why = format!("runsc {name}: {} ({exit:?})", said.trim().replace('\n', "; "));
                Err(if matches!(exit, ProcessExit::Code(_)) {
                    failed(why)
                } else {
                    CommandError::CutShort(why)
                })
            }
            Err(_) => {
                self.jail.signal(number, Signal::KILL.as_raw());
                Err(CommandError::CutShort(format!("runsc {name} did not end in time")))
            }
        }
    }

    /// Runs a command beside runsc without waiting for it.
    pub(super) fn fire(&self, argv: Vec<String>) {
        let (jail, id) = (self.jail.clone(), self.id.clone());
        tokio::spawn(async move {
            let stdio = null()
                .and_then(|fd| Ok(Stdio { stdin: fd.try_clone()?, stdout: fd.try_clone()?, stderr: fd }));
            let spawned = match stdio {
                Ok(stdio) => jail.spawn(&process(argv, false), stdio).await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = spawned {
                tracing::warn!(container = id, error, "failed to start runsc to send a signal");
            }
        });
    }
}

pub(super) fn process(argv: Vec<String>, terminal: bool) -> Process {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let env = vec![("PATH".to_owned(), path.to_owned()), ("HOME".to_owned(), "/".to_owned())];
    Process { argv, env, cwd: PathBuf::from("/"), terminal, user: User::default() }
}
