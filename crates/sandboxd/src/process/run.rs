//! A command run to its end, its output captured up to a bound.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::capture::{Captured, capture};
use super::follow::Ending;
use super::start::{Program, pid};
use super::{Exit, Group, RunError};
use crate::reap::Ours;

/// Commands that run at once; more wait for their turn.
pub const TURNS: usize = 256;

/// A command to run.
pub struct Job {
    /// What to start.
    pub program: Program,
    /// How long it may run; for ever when it does not say.
    pub time_limit: Option<Duration>,
    /// Whether it is over only when nobody holds its output any more, be it something that it left behind. Otherwise
    /// its own end counts.
    pub to_last_writer: bool,
}

/// A command that has ended by itself.
#[derive(Debug)]
pub struct Finished {
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// How it ended.
    pub exit: Exit,
}

/// Runs commands, no more than [`TURNS`] at once.
#[derive(Debug)]
pub struct Runner {
    turns: Semaphore,
    held: Arc<AtomicUsize>,
}

impl Runner {
    /// `held` counts the memory of captured output, which others share.
    pub fn new(held: Arc<AtomicUsize>) -> Runner {
        Runner { turns: Semaphore::new(TURNS), held }
    }

    /// Runs a command to its end. Dropping the future kills its group.
    ///
    /// # Errors
    /// When it cannot be started or followed, or ran out of time.
    pub async fn run(&self, job: &Job) -> Result<Finished, RunError> {
        let _turn = self.turns.acquire().await;
        let mut child = job.program.start(Stdio::null())?;
        let leader = pid(&child);
        // The order of these matters on drop: the group is killed while its leader is not reaped yet, so that the
        // number cannot belong to anybody else.
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
                Ok(Finished { stdout, stderr, exit: Exit::of(status) })
            }
            Ok(Err(source)) => Err(RunError::Follow(source)),
            Err(_) => {
                drop(group);
                // SIGKILL cannot be refused; a leader that is stuck in the kernel is left to the reaper.
                let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
                Err(RunError::TimedOut(job.time_limit.unwrap_or_default()))
            }
        };
        drop(ours);
        result
    }
}
