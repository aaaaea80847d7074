//! One running container: its streams, its log, and processes started beside its main process.

pub(crate) mod late_env;
mod log;
mod log_read;
mod output;
mod readiness;
mod start;
mod streams;
mod terminal;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use hutch_jail::{Limits, Mount, Process, ProcessExit, Root, User};
use hutch_kubelet::{ByteWriter, Exit, TerminalSize};
use tokio::sync::{Mutex, watch};

use crate::places::log_file;
use crate::runtime::{Container, Exec};

pub(crate) use log::keep as keep_logs;
pub(crate) use log_read::read as read_log;
pub(crate) use output::{Output, Stream};
pub(crate) use readiness::register;
pub(crate) use start::start;
pub(crate) use streams::{Ends, null, pipes};
pub(crate) use terminal::Terminal;

/// What a container is made of, with nothing left to look up.
#[derive(Debug, Clone)]
pub(crate) struct Blueprint {
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Variables,
    pub(crate) cwd: PathBuf,
    pub(crate) user: User,
    /// The main process gets a terminal.
    pub(crate) terminal: bool,
    /// The main process gets a standard input that clients can attach to.
    pub(crate) stdin: bool,
    /// The standard input ends with the first client that attached.
    pub(crate) stdin_once: bool,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) root: Root,
    pub(crate) limits: Limits,
    /// Folder on the machine where the runtime inside finds variables that come while it runs.
    pub(crate) late_env: Option<PathBuf>,
}

impl Blueprint {
    /// Returns the main process.
    pub(crate) fn main_process(&self) -> Process {
        Process {
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            terminal: self.terminal,
            user: self.user.clone(),
        }
    }
}

/// Names and values.
pub(crate) type Variables = Vec<(String, String)>;

/// A container that runs. Dropping the last reference kills it.
pub(crate) struct Running {
    pub(crate) blueprint: Arc<Blueprint>,
    /// Environment of what starts from now on.
    pub(crate) env: RwLock<Variables>,
    pub(crate) container: Arc<dyn Container>,
    pub(crate) output: Arc<Output>,
    pub(crate) stdin: Mutex<Option<ByteWriter>>,
    pub(crate) terminal: Option<Terminal>,
    /// Set when the main process has ended and its output is complete.
    pub(crate) ended: watch::Receiver<Option<MainExit>>,
}

/// How a main process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MainExit {
    pub(crate) exit: Exit,
    /// A process of the container was killed because memory ran out.
    pub(crate) out_of_memory: bool,
}

impl Running {
    /// Starts a further process with the container's environment, folder and user.
    pub(crate) async fn exec(
        &self,
        argv: Vec<String>,
        terminal: bool,
        stdio: hutch_jail::Stdio,
    ) -> Result<Exec, String> {
        let Blueprint { cwd, user, .. } = &*self.blueprint;
        let process = Process { argv, env: self.env(), cwd: cwd.clone(), terminal, user: user.clone() };
        self.container.exec(process, stdio).await
    }

    fn env(&self) -> Variables {
        self.env.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives this environment to every process that starts from now on. Blocks for a moment.
    pub(crate) fn set_env(&self, env: Variables) -> io::Result<()> {
        let added: Vec<_> = env.iter().filter(|variable| !self.blueprint.env.contains(variable)).collect();
        if let Some(folder) = &self.blueprint.late_env {
            late_env::write(folder, &added, &self.blueprint.user)?;
        }
        *self.env.write().unwrap_or_else(PoisonError::into_inner) = env;
        Ok(())
    }

    /// Tells the terminal of the main process its size.
    pub(crate) fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            terminal.resize(size);
        }
    }
}

/// The exit as the stream protocols carry it.
pub(crate) fn exit_of(exit: ProcessExit) -> Exit {
    match exit {
        ProcessExit::Code(code) => Exit::Code(code),
        ProcessExit::Signal(signal) => Exit::Signal(signal),
    }
}

/// The exit code that a shell would show.
pub(crate) fn code_of(exit: &Exit) -> i32 {
    match exit {
        Exit::Code(code) => *code,
        Exit::Signal(signal) => 128 + signal,
        Exit::Failed(_) => 128,
    }
}
