//! Runs a command to its end and captures its output up to a limit.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::capture::{Captured, capture};
use super::follow::Ending;
use super::memory::Kills;
use super::start::{Program, pid};
use super::{Exit, Group, RunError};
use crate::reap::Ours;

/// Maximum number of concurrent commands; further ones wait.
pub const TURNS: usize = 256;

/// Command to run.
pub struct Job {
    /// Program to start.
    pub program: Program,
    /// Time limit; unlimited if absent.
    pub time_limit: Option<Duration>,
    /// Waits until every holder of the outputs has closed them, including processes that the command left
    /// behind. Otherwise until the command ends.
    pub to_last_writer: bool,
}

/// Command that has ended by itself.
#[derive(Debug)]
pub struct Finished {
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// End of the command.
    pub exit: Exit,
    /// True if it was killed because memory ran out.
    pub out_of_memory: bool,
}

/// Runs at most [`TURNS`] concurrent commands.
#[derive(Debug)]
pub struct Runner {
    turns: Semaphore,
    held: Arc<AtomicUsize>,
}

impl Runner {
    /// `held` counts the memory of captured output, which is shared.
    pub fn new(held: Arc<AtomicUsize>) -> Runner {
        Runner { turns: Semaphore::new(TURNS), held }
    }

    /// Runs a command to its end. Dropping the future kills its group.
    ///
    /// # Errors
    /// The command cannot be started or followed, or timed out.
    pub async fn run(&self, job: &Job) -> Result<Finished, RunError> {
        let _turn = self.turns.acquire().await;
        let kills = Kills::now();
        let mut child = job.program.start(Stdio::null())?;
        let leader = pid(&child);
        // The drop order matters: the group is killed before its leader is reaped, so that the number cannot
        // belong to another process.
        let ours = Ours::register(leader);
        let mut group = Group(leader);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (ending, ended) = Ending::pair();
        let follow = async {
            let wait = async {
                if job.to_last_writer {
                    return Ok(None);
                }
                let status = child.wait().await?;
                ending.tell();
                Ok(Some(status))
            };
            let (stdout, stderr, status) = tokio::try_join!(
                capture(stdout, &self.held, &ended),
                capture(stderr, &self.held, &ended),
                wait
            )?;
            let status = match status {
                Some(status) => status,
                None => child.wait().await?,
            };
            Ok((stdout, stderr, status))
        };
        let ended = tokio::time::timeout(job.time_limit.unwrap_or(Duration::MAX), follow).await;
        let result = match ended {
            Ok(Ok((stdout, stderr, status))) => {
                group.0 = None;
                let exit = Exit::of(status);
                Ok(Finished { stdout, stderr, exit, out_of_memory: kills.explain(exit) })
            }
            Ok(Err(source)) => Err(RunError::Follow(source)),
            Err(_) => {
                drop(group);
                // SIGKILL cannot be refused; a leader that hangs in the kernel is left to the reaper.
                let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
                Err(RunError::TimedOut(job.time_limit.unwrap_or_default()))
            }
        };
        drop(ours);
        result
    }
}
