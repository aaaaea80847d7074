//! Buries the processes that others have left behind. Only the first process of a pid namespace inherits orphans;
//! elsewhere nothing is done.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use tokio::signal::unix::{SignalKind, signal};

thread_local! {
    // The program has one thread; what it started itself is waited for where it was started.
    static STARTED: RefCell<HashSet<i32>> = RefCell::new(HashSet::new());
}

/// The dead are looked for at most this often: each look reads one small file per process of the sandbox.
const PAUSE: Duration = Duration::from_millis(100);

/// A process that this program started and waits for itself. Dropping it gives the number free.
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

/// Reaps orphans for as long as the program runs, when it is the first process of its pid namespace.
///
/// # Errors
/// When SIGCHLD cannot be handled.
pub async fn orphans() -> Result<(), crate::Error> {
    if !getpid().is_init() {
        return std::future::pending().await;
    }
    let mut died = signal(SignalKind::child()).map_err(crate::Error::Signals)?;
    loop {
        bury();
        let _ = died.recv().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Buries every dead child that nobody here waits for.
fn bury() {
    for pid in dead_children() {
        if !STARTED.with_borrow(|started| started.contains(&pid.as_raw_nonzero().get())) {
            // It may have been buried by the runtime in between.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn dead_children() -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let own = getpid().as_raw_nonzero().get();
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let dead = numbers.filter(|number| {
        let line = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        is_dead_child(&line, own)
    });
    dead.filter_map(Pid::from_raw).collect()
}

/// Whether a line of `/proc/<pid>/stat` is that of a dead child of `parent`. The name in parentheses may hold anything.
fn is_dead_child(line: &str, parent: i32) -> bool {
    let mut fields = line.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.next() == Some("Z") && fields.next().and_then(|field| field.parse().ok()) == Some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_children_are_buried() {
        assert!(is_dead_child("7 (sh) Z 1 7 7 0 -1", 1));
        assert!(is_dead_child("7 (a) Z 2 (b) Z 1 7", 1));
        assert!(!is_dead_child("7 (sh) S 1 7 7", 1));
        assert!(!is_dead_child("7 (sh) Z 2 7 7", 1));
        assert!(!is_dead_child("", 1));
    }
}
