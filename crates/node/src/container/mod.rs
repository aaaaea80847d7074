//! One running container: its jail, its main process, what that prints, and processes started beside it.

mod cell;
mod gvisor;
pub(crate) mod late_env;
mod log;
mod log_read;
mod native;
mod output;
mod readiness;
mod streams;
mod terminal;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use hutch_jail::{Limits, Mount, ProcessExit, Root, User};
use hutch_remote::{ByteWriter, Exit, TerminalSize};
use tokio::sync::{Mutex, watch};

pub(crate) use cell::{Cell, Spawned};
pub(crate) use gvisor::{GvisorContainer, InsideProcess};
pub(crate) use log::keep as keep_logs;
pub(crate) use log_read::read as read_log;
pub(crate) use native::{Launch, start};
pub(crate) use output::{Output, Stream};
pub(crate) use readiness::register;
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

/// Names and values.
pub(crate) type Variables = Vec<(String, String)>;

/// A container that runs. Dropping the last reference kills it.
pub(crate) struct Running {
    pub(crate) blueprint: Blueprint,
    /// Environment of what starts from now on.
    pub(crate) env: RwLock<Variables>,
    pub(crate) cell: Arc<Cell>,
    pub(crate) gvisor: Option<GvisorContainer>,
    pub(crate) output: Arc<Output>,
    /// Number of the main process in the jail.
    pub(crate) main: u64,
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

/// A further process in a container.
pub(crate) struct Extra {
    pub(crate) spawned: Spawned,
    /// What a killed runsc client leaves running inside, to be ended separately.
    pub(crate) inside: Option<InsideProcess>,
}

impl Running {
    /// Starts a further process with the container's environment, folder and user.
    pub(crate) async fn spawn(
        &self,
        argv: Vec<String>,
        terminal: bool,
        stdio: hutch_jail::Stdio,
    ) -> Result<Extra, String> {
        let Blueprint { cwd, user, .. } = &self.blueprint;
        let (cwd, user) = (cwd.clone(), user.clone());
        let process = hutch_jail::Process { argv, env: self.env(), cwd, terminal, user };
        match &self.gvisor {
            None => {
                let spawned = self.cell.spawn(&process, stdio).await.map_err(|e| e.to_string())?;
                Ok(Extra { spawned, inside: None })
            }
            Some(gvisor) => gvisor.spawn(&self.cell, &self.blueprint, &process, stdio).await,
        }
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

    /// A terminal for a further process.
    pub(crate) fn terminal(&self) -> Result<(Terminal, hutch_jail::Stdio), String> {
        native::open_terminal(&self.cell, &self.blueprint, self.gvisor.is_some()).map_err(|e| e.message)
    }

    /// Kills a process that [`Running::spawn`] started, and its group.
    pub(crate) fn kill_extra(&self, number: u64, inside: Option<InsideProcess>) {
        // One that has ended already is what was wanted.
        self.cell.signal(number, rustix::process::Signal::KILL.as_raw());
        if let (Some(gvisor), Some(inside)) = (&self.gvisor, inside) {
            gvisor.kill_inside(&self.cell, &inside);
        }
    }

    /// Sends a signal to the main process and its group.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        match &self.gvisor {
            // A process that has ended already needs no signal.
            None => self.cell.signal(self.main, signal.as_raw()),
            Some(gvisor) => gvisor.signal(&self.cell, signal),
        }
    }

    /// Kills everything inside.
    pub(crate) fn kill(&self) {
        self.cell.kill();
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
