//! One running container: its streams, its log, and processes started beside its main process.

mod kills;
pub(crate) mod late_env;
mod log;
mod log_read;
pub(crate) mod message;
mod output;
mod screened;
mod start;

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use hutch_jail::{Process, ProcessExit};
use hutch_kubelet::{ByteWriter, Exit, TerminalSize};
use tokio::sync::{Mutex, watch};

use self::kills::Reported;
use crate::blueprint::{Blueprint, Variables};
use crate::runtime::{Container, Exec};
use crate::stdio::Terminal;

pub(crate) use log::keep as keep_logs;
pub(crate) use log_read::{read as read_log, tail as log_tail};
pub(crate) use output::{Output, Stream};
pub(crate) use screened::{LogScreen, Screened};
pub(crate) use start::start;

/// A container that runs. Dropping the last reference kills it.
pub(crate) struct Running {
    pub(crate) blueprint: Arc<Blueprint>,
    /// Environment of what starts from now on.
    pub(crate) env: RwLock<Variables>,
    pub(crate) container: Arc<dyn Container>,
    pub(crate) output: Arc<Output>,
    pub(crate) stdin: Mutex<Option<ByteWriter>>,
    pub(crate) terminal: Option<Terminal>,
    /// Kills for want of memory that were reported.
    pub(crate) out_of_memory: Reported,
    /// Set when the main process has ended and its output is complete.
    pub(crate) ended: watch::Receiver<Option<MainExit>>,
}

/// How a main process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MainExit {
    pub(crate) exit: Exit,
    /// A process of the container was killed because memory ran out.
    pub(crate) out_of_memory: bool,
    /// Its termination message.
    pub(crate) message: Option<String>,
    /// End of its output, if it failed.
    pub(crate) output: Option<String>,
}

impl Running {
    /// Starts a further process with the container's environment, folder and user.
    pub(crate) async fn exec(
        &self,
        argv: Vec<String>,
        terminal: bool,
        stdio: hutch_jail::Stdio,
    ) -> Result<Exec, String> {
        self.exec_with(argv, Variables::new(), terminal, stdio).await
    }

    /// Starts a further process with these variables in addition.
    pub(crate) async fn exec_with(
        &self,
        argv: Vec<String>,
        more: Variables,
        terminal: bool,
        stdio: hutch_jail::Stdio,
    ) -> Result<Exec, String> {
        let Blueprint { cwd, user, .. } = &*self.blueprint;
        let mut env = self.env();
        env.retain(|(name, _)| !more.iter().any(|(new, _)| new == name));
        env.extend(more);
        let process = Process { argv, env, cwd: cwd.clone(), terminal, user: user.clone() };
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

    /// Sets the size of the terminal of the main process.
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

/// Exit code of a process that was killed.
pub(crate) const KILLED: i32 = 137;

/// The exit code that a shell would show.
pub(crate) fn code_of(exit: &Exit) -> i32 {
    match exit {
        Exit::Code(code) => *code,
        Exit::Signal(signal) => 128 + signal,
        Exit::OutOfMemory => KILLED,
        Exit::Failed(_) => 128,
    }
}
