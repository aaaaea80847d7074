//! Reaps orphans: this program adopts the orphaned descendants of its children, whether or not it is the
//! first process of its pid namespace.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, waitpid};
use tokio::signal::unix::{SignalKind, signal};

thread_local! {
    // The program has one thread; its own children are waited for where they were started.
    static STARTED: RefCell<HashSet<i32>> = RefCell::new(HashSet::new());
    // Waited for and killed elsewhere; 0 if absent.
    static APART: Cell<i32> = const { Cell::new(0) };
}

/// Excludes one child, which is waited for and killed by other code.
pub(crate) fn leave_alone(pid: Option<Pid>) {
    APART.set(pid.map_or(0, |pid| pid.as_raw_nonzero().get()));
}

/// Returns that child until it has been waited for.
pub(crate) fn left_alone() -> Option<Pid> {
    Pid::from_raw(APART.get())
}

/// Minimum interval between searches for dead children: each reads one small file per child.
const PAUSE: Duration = Duration::from_millis(100);

/// Child that this program waits for itself. Dropping it releases its number.
pub(crate) struct Ours(Option<Pid>);

impl Ours {
    /// Must be called before the task yields after starting the process.
    pub(crate) fn register(pid: Option<Pid>) -> Ours {
        if let Some(pid) = pid {
            STARTED.with_borrow_mut(|started| started.insert(pid.as_raw_nonzero().get()));
        }
        Ours(pid)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            STARTED.with_borrow_mut(|started| started.remove(&pid.as_raw_nonzero().get()));
        }
    }
}

/// Time that processes have to end after SIGTERM.
pub const END_LIMIT: Duration = Duration::from_secs(2);
const END_STEP: Duration = Duration::from_millis(10);

/// Ends every running process that was started here: SIGTERM, and SIGKILL after [`END_LIMIT`].
pub async fn end_all() {
    signal_all(Signal::TERM);
    let end = tokio::time::Instant::now() + END_LIMIT;
    while STARTED.with_borrow(|started| !started.is_empty()) && tokio::time::Instant::now() < end {
        tokio::time::sleep(END_STEP).await;
    }
    signal_all(Signal::KILL);
}

fn signal_all(signal: Signal) {
    let leaders: Vec<i32> = STARTED.with_borrow(|started| started.iter().copied().collect());
    for leader in leaders.into_iter().filter_map(Pid::from_raw) {
        // A child that is about to lead its own group is not in the list yet, and receives the signal alone.
        if kill_process_group(leader, signal).is_err() {
            let _ = rustix::process::kill_process(leader, signal);
        }
    }
}

/// Reaps orphans while the program runs.
///
/// # Errors
/// SIGCHLD cannot be handled.
pub async fn orphans() -> Result<(), crate::Error> {
    // If the kernel refuses, orphans belong to the first process, as without this call.
    let _ = set_child_subreaper(Some(getpid()));
    let mut died = signal(SignalKind::child()).map_err(crate::Error::Signals)?;
    loop {
        bury();
        let _ = died.recv().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reaps every dead child that no other code waits for.
fn bury() {
    for pid in dead_children() {
        let number = pid.as_raw_nonzero().get();
        if number != APART.get() && !STARTED.with_borrow(|started| started.contains(&number)) {
            // The runtime may have reaped it in between.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn dead_children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    let dead = children().unwrap_or_else(processes).into_iter().filter(|number| {
        let line = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        is_dead_child(&line, own)
    });
    dead.filter_map(Pid::from_raw).collect()
}

/// Lists the children of this program, if the kernel provides that list.
fn children() -> Option<Vec<i32>> {
    let mut all = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let listed = std::fs::read_to_string(thread.path().join("children")).ok()?;
        all.extend(listed.split_ascii_whitespace().filter_map(|number| number.parse::<i32>().ok()));
    }
    Some(all)
}

/// Lists every visible process.
fn processes() -> Vec<i32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns true if a line of `/proc/<pid>/stat` is that of a dead child of `parent`. The name in parentheses
/// may contain any characters.
fn is_dead_child(line: &str, parent: i32) -> bool {
    let mut fields = line.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.next() == Some("Z") && fields.next().and_then(|field| field.parse().ok()) == Some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_children_are_reaped() {
        assert!(is_dead_child("7 (sh) Z 1 7 7 0 -1", 1));
        assert!(is_dead_child("7 (a) Z 2 (b) Z 1 7", 1));
        assert!(!is_dead_child("7 (sh) S 1 7 7", 1));
        assert!(!is_dead_child("7 (sh) Z 2 7 7", 1));
        assert!(!is_dead_child("", 1));
    }
}
