//! Commands: started without a shell in a process group of their own, their output captured up to a bound, ended as
//! a group when time is up or when nobody waits any more.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::reap::Ours;

/// Bytes kept of each of a command's two output streams; what comes after is read, counted and dropped.
/// An answer holds both in memory, and the programs of a sandbox share a few hundred megabytes.
pub const OUTPUT_LIMIT: usize = 4 << 20;

/// Bytes kept of all commands' output together. When they are used up, what comes is dropped as if [`OUTPUT_LIMIT`]
/// was reached: one greedy command must not be the end of the program that serves all.
pub const TOTAL_LIMIT: usize = 64 << 20;

/// Commands that run at once; more wait for their turn.
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
    /// The first bytes, [`OUTPUT_LIMIT`] at most.
    pub kept: Vec<u8>,
    /// How many bytes came after them.
    pub dropped: u64,
    held: Held,
}

#[cfg(test)]
impl Captured {
    pub(crate) fn cut(kept: &[u8], dropped: u64) -> Captured {
        Captured { kept: kept.to_vec(), dropped, held: Held::default() }
    }
}

/// A part of [`TOTAL_LIMIT`], given back when it is dropped.
#[derive(Debug, Default)]
struct Held {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    fn grow(&mut self, bytes: usize) -> bool {
        let grown = self.of.fetch_add(bytes, Ordering::Relaxed) + bytes <= TOTAL_LIMIT;
        if grown {
            self.bytes += bytes;
        } else {
            self.of.fetch_sub(bytes, Ordering::Relaxed);
        }
        grown
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
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
    held: Arc<AtomicUsize>,
}

impl Default for Runner {
    fn default() -> Runner {
        Runner { turns: Semaphore::new(RUNNING_LIMIT), held: Arc::default() }
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
            let (stdout, stderr) =
                tokio::try_join!(capture(stdout, &self.held), capture(stderr, &self.held))?;
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

async fn capture(
    stream: Option<impl AsyncRead + Unpin>,
    held: &Arc<AtomicUsize>,
) -> std::io::Result<Captured> {
    let held = Held { of: held.clone(), bytes: 0 };
    let mut captured = Captured { held, ..Captured::default() };
    let Some(mut stream) = stream else { return Ok(captured) };
    let mut read = [0; READ_SIZE];
    loop {
        let count = stream.read(&mut read).await?;
        if count == 0 {
            return Ok(captured);
        }
        // Nothing is kept again after something was dropped: what is kept is the start of it all.
        let room = if captured.dropped == 0 { count.min(OUTPUT_LIMIT - captured.kept.len()) } else { 0 };
        let keep = if captured.held.grow(room) { room } else { 0 };
        captured.kept.extend_from_slice(&read[..keep]);
        captured.dropped += (count - keep) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_output_together_is_bounded_and_given_back() {
        let held = Arc::new(AtomicUsize::new(TOTAL_LIMIT - 100_000));
        let first = capture(Some(&[1; 90_000][..]), &held).await.unwrap();
        let second = capture(Some(&[2; 90_000][..]), &held).await.unwrap();
        assert_eq!((first.kept.len(), first.dropped), (90_000, 0));
        assert!(second.kept.len() <= 10_000 && second.kept.len() as u64 + second.dropped == 90_000);
        drop((first, second));
        assert_eq!(held.load(Ordering::Relaxed), TOTAL_LIMIT - 100_000);
    }

    #[tokio::test]
    async fn one_stream_is_bounded() {
        let long = vec![3; OUTPUT_LIMIT + 5];
        let captured = capture(Some(&long[..]), &Arc::default()).await.unwrap();
        assert_eq!((captured.kept.len(), captured.dropped), (OUTPUT_LIMIT, 5));
    }
}
