//! Starts a program.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Pid;
use tokio::process::{Child, Command};

use super::late_env;
use crate::token;

/// Program to start. Not `Debug`: its environment may hold secrets.
#[derive(Default)]
pub struct Program {
    /// Program (looked up in `PATH` unless it contains a slash) and arguments.
    pub argv: Vec<String>,
    /// Added to the environment of this program, without [`token::VARIABLES`], and to late
    /// env.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub folder: PathBuf,
    /// The working directory, opened: if present it is used, and `folder` is for messages.
    pub opened: Option<OwnedFd>,
}

/// Reason why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `argv` contains no program.
    #[error("there is no command to run")]
    Empty,
    /// An argument or a variable contains a NUL byte, which the kernel does not accept.
    #[error("an argument or a variable holds a NUL byte")]
    Nul,
    /// The name of a variable is empty or contains `=`.
    #[error("the name of a variable, {0:?}, must not be empty or hold '='")]
    Variable(String),
    /// The working directory is absent or cannot be entered.
    #[error("cannot start in {}: {source}", folder.display())]
    Folder {
        /// Working directory.
        folder: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The program could not be started.
    #[error("cannot start {program:?}: {source}")]
    Program {
        /// Program as requested.
        program: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Late env cannot be read.
    #[error("cannot read the variables of this sandbox: {0}")]
    Variables(std::io::Error),
    /// No terminal can be opened.
    #[error("cannot open a terminal: {0}")]
    Terminal(std::io::Error),
}

impl Program {
    /// Returns the program as requested, for messages.
    pub(super) fn name(&self) -> String {
        self.argv.first().cloned().unwrap_or_default()
    }

    pub(super) fn refused(&self, source: std::io::Error) -> StartError {
        StartError::Program { program: self.name(), source }
    }

    /// Builds the command that starts `words` in this program's folder and environment.
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
            // The new process has the descriptor until its program begins; a later entry of that name does
            // not matter.
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

    /// Rejects arguments and variables that the kernel does not accept.
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

/// Returns the number of a process that was started and not waited for.
pub(crate) fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Distinguishes a missing folder from a missing program, which have the same error number.
fn enterable(folder: &Path) -> std::io::Result<()> {
    match std::fs::metadata(folder)?.is_dir() {
        true => Ok(()),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    }
}
