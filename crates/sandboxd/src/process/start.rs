//! The start of a program.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Pid;
use tokio::process::{Child, Command};

use super::late_env;
use crate::token;

/// A program to start. Not `Debug`: its environment may hold secrets.
#[derive(Default)]
pub struct Program {
    /// The program (looked up in `PATH` unless it has a slash) and its arguments.
    pub argv: Vec<String>,
    /// Added to the environment of this program, less what [`token::VARIABLES`] names, and to what the machine has
    /// given since.
    pub env: Vec<(String, String)>,
    /// Folder in which it starts.
    pub folder: PathBuf,
    /// The same folder, opened: when it is given, it counts, and `folder` is for messages.
    pub opened: Option<OwnedFd>,
}

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no program in `argv`.
    #[error("there is no command to run")]
    Empty,
    /// An argument or a variable holds a NUL byte, which no program can be given.
    #[error("an argument or a variable holds a NUL byte")]
    Nul,
    /// The name of a variable is empty or holds `=`.
    #[error("the name of a variable, {0:?}, must not be empty or hold '='")]
    Variable(String),
    /// The folder to start in is not there or cannot be entered.
    #[error("cannot start in {}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program could not be started.
    #[error("cannot start {program:?}: {source}")]
    Program {
        /// As it was named.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Variables that the machine has for every process cannot be read.
    #[error("cannot read the variables of this sandbox: {0}")]
    Variables(std::io::Error),
    /// There is no terminal for it.
    #[error("cannot open a terminal: {0}")]
    Terminal(std::io::Error),
}

impl Program {
    /// As it was named, for messages.
    pub(super) fn name(&self) -> String {
        self.argv.first().cloned().unwrap_or_default()
    }

    pub(super) fn refused(&self, source: std::io::Error) -> StartError {
        StartError::Program { program: self.name(), source }
    }

    /// The command that starts `words` in this program's folder and environment.
    pub(super) fn command<'a>(
        &self,
        mut words: impl Iterator<Item = &'a str>,
    ) -> Result<Command, StartError> {
        let mut command = Command::new(OsStr::new(words.next().unwrap_or_default()));
        command.args(words);
        for name in token::VARIABLES {
            if std::env::var_os(name).is_some() {
                command.env_remove(name);
            }
        }
        let late = late_env::read(Path::new(late_env::FILE)).map_err(StartError::Variables)?;
        command.envs(late.into_iter().filter(|(name, _)| !token::VARIABLES.contains(&name.as_str())));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        match &self.opened {
            // The new process has the descriptor until its program begins; what has the name by then does not count.
            Some(folder) => {
                command.current_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()));
            }
            // A program that needs no change of folder is started without copying this process.
            None if std::env::current_dir().ok().as_ref() == Some(&self.folder) => {}
            None => {
                let folder = self.folder.clone();
                enterable(&folder).map_err(|source| StartError::Folder { folder, source })?;
                command.current_dir(&self.folder);
            }
        }
        Ok(command)
    }

    /// Refuses what no program can be given.
    pub(super) fn check(&self) -> Result<(), StartError> {
        let program = self.argv.first().ok_or(StartError::Empty)?;
        let texts = self.argv.iter().chain(self.env.iter().flat_map(|(name, value)| [name, value]));
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(StartError::Nul);
        }
        if let Some((name, _)) = self.env.iter().find(|(name, _)| name.is_empty() || name.contains('=')) {
            return Err(StartError::Variable(name.clone()));
        }
        match program.is_empty() {
            true => Err(self.refused(rustix::io::Errno::ACCESS.into())),
            false => Ok(()),
        }
    }

    /// Starts it as the leader of a process group, with pipes for its output.
    pub(super) fn start(&self, stdin: Stdio) -> Result<Child, StartError> {
        self.check()?;
        let mut command = self.command(self.argv.iter().map(String::as_str))?;
        command.process_group(0).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|source| self.refused(source))
    }
}

/// The number of a process that was started and not waited for.
pub(crate) fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// A missing folder and a missing program give the same number; they are told apart here.
fn enterable(folder: &Path) -> std::io::Result<()> {
    match std::fs::metadata(folder)?.is_dir() {
        true => Ok(()),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    }
}
