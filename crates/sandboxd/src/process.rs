//! Commands: started without a shell in a process group of their own, their output captured up to a bound, ended as
//! a group when time is up or when nobody waits any more.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::reap::Ours;

/// Bytes kept of each of a command's two output streams; what comes after is read, counted and dropped.
/// An answer holds both in memory, and the programs of a sandbox share a few hundred megabytes.
pub const OUTPUT_LIMIT: usize = 4 << 20;

/// Commands that run at once; more wait for their turn. Each holds up to twice [`OUTPUT_LIMIT`].
pub const RUNNING_LIMIT: usize = 256;

const READ_SIZE: usize = 16 << 10;

/// A command to run.
#[derive(Debug, Clone)]
pub struct Job {
    /// Program (looked up in `PATH` unless it has a slash) and arguments.
    pub argv: Vec<String>,
    /// Folder in which it starts.
    pub folder: PathBuf,
    /// How long it may run.
    pub time_limit: Duration,
}

/// What one output stream of a command carried.
#[derive(Debug, Default)]
pub struct Captured {
    /// The first [`OUTPUT_LIMIT`] bytes.
    pub kept: Vec<u8>,
    /// How many bytes came after them.
    pub dropped: u64,
}

/// A command that has ended by itself.
#[derive(Debug)]
pub struct Finished {
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// Exit code, or the negative number of the signal that ended it.
    pub code: i32,
}

/// Why a command gave no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no program in `argv`.
    #[error("there is no command to run")]
    Empty,
    /// An argument holds a NUL byte, which no program can be given.
    #[error("an argument holds a NUL byte")]
    Nul,
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
    Start {
        /// As it was named.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It ran into its time limit and was killed with its group.
    #[error("the command ran longer than {0:?}")]
    TimedOut(Duration),
    /// Its output or its end could not be read.
    #[error("cannot follow the command: {0}")]
    Follow(std::io::Error),
}

/// Kills a process group when it is dropped, unless it was told that the group has ended.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0.take() {
            // It may have ended in this moment, which is what was wanted.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Runs commands, no more than [`RUNNING_LIMIT`] at once.
#[derive(Debug)]
pub struct Runner {
    turns: Semaphore,
}

impl Default for Runner {
    fn default() -> Runner {
        Runner { turns: Semaphore::new(RUNNING_LIMIT) }
    }
}

impl Runner {
    /// Runs a command until it has ended *and* closed its output. Dropping the future kills its group.
    ///
    /// # Errors
    /// When it cannot be started or followed, or ran out of time.
    pub async fn run(&self, job: &Job) -> Result<Finished, RunError> {
        let _turn = self.turns.acquire().await;
        let mut child = start(job)?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // The order of these matters on drop: the group is killed while its leader is not reaped yet, so that the
        // number cannot belong to anybody else.
        let ours = Ours::register(leader);
        let mut group = Group(leader);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let follow = async {
            let (stdout, stderr) = tokio::try_join!(capture(stdout), capture(stderr))?;
            let status = child.wait().await?;
            Ok((stdout, stderr, status))
        };
        let ended = tokio::time::timeout(job.time_limit, follow).await;
        let result = match ended {
            Ok(Ok((stdout, stderr, status))) => {
                group.0 = None;
                let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
                Ok(Finished { stdout, stderr, code })
            }
            Ok(Err(source)) => Err(RunError::Follow(source)),
            Err(_) => {
                drop(group);
                // SIGKILL cannot be refused; a leader that is stuck in the kernel is left to the reaper.
                let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
                Err(RunError::TimedOut(job.time_limit))
            }
        };
        drop(ours);
        result
    }
}

fn start(job: &Job) -> Result<tokio::process::Child, RunError> {
    let (program, arguments) = job.argv.split_first().ok_or(RunError::Empty)?;
    if job.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(RunError::Nul);
    }
    let refused = |source| RunError::Start { program: program.clone(), source };
    if program.is_empty() {
        return Err(refused(rustix::io::Errno::ACCESS.into()));
    }
    let mut command = Command::new(OsStr::new(program));
    command.args(arguments).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A program that needs no change of folder is started without copying this process.
    if std::env::current_dir().ok().as_deref() != Some(&job.folder) {
        enterable(&job.folder).map_err(|source| RunError::Folder { folder: job.folder.clone(), source })?;
        command.current_dir(&job.folder);
    }
    command.spawn().map_err(refused)
}

/// A missing folder and a missing program give the same number; they are told apart here.
fn enterable(folder: &Path) -> std::io::Result<()> {
    match std::fs::metadata(folder)?.is_dir() {
        true => Ok(()),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    }
}

async fn capture(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<Captured> {
    let mut captured = Captured::default();
    let Some(mut stream) = stream else { return Ok(captured) };
    loop {
        let room = OUTPUT_LIMIT - captured.kept.len();
        if room > 0 {
            captured.kept.reserve(READ_SIZE.min(room));
            if (&mut stream).take(room.min(READ_SIZE) as u64).read_buf(&mut captured.kept).await? == 0 {
                return Ok(captured);
            }
        } else {
            let mut discarded = [0; READ_SIZE];
            match stream.read(&mut discarded).await? {
                0 => return Ok(captured),
                count => captured.dropped += count as u64,
            }
        }
    }
}
