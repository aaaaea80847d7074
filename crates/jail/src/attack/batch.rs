//! Many attempts by one program, each in a process of its own: an attempt may end its process.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest that one attempt may take.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of one answer.
const ANSWER_BYTES: u64 = 16 * 1024;

/// Tries each attempt and writes one line for it: the attempt, a tab, what it found (`Signaled(31)`, `Exited(1)` or
/// `timeout` when it wrote nothing). Line breaks in an answer become ` | `.
///
/// The calling program must have one thread.
///
/// # Errors
///
/// When no process can be made, or the output cannot be written.
pub fn try_all(attempts: &[String], output: &mut impl Write) -> io::Result<()> {
    for attempt in attempts {
        let found = try_one(attempt)?;
        writeln!(output, "{attempt}\t{}", found.trim().replace('\n', " | "))?;
        output.flush()?;
    }
    Ok(())
}

fn try_one(attempt: &str) -> io::Result<String> {
    let (from, to) = pipe()?;
    // SAFETY: this program has one thread, so its child may do what any program may.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        drop(from);
        let words: Vec<&str> = attempt.split_whitespace().collect();
        let (name, arguments) = words.split_first().unwrap_or((&"", &[]));
        let found = super::attempt(name, arguments).unwrap_or_else(|error| error);
        let written = std::fs::File::from(to).write_all(found.as_bytes());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(written.is_err())) }
    }
    drop(to);
    let found = answer(from);
    if found.is_none() {
        // SAFETY: our own child, not yet waited for, so the pid is not reused; it may have exited.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: the status outlives the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    Ok(match found {
        Some(found) if !found.is_empty() => found,
        None => "timeout".to_owned(),
        _ if libc::WIFSIGNALED(status) => format!("Signaled({})", libc::WTERMSIG(status)),
        _ => format!("Exited({})", libc::WEXITSTATUS(status)),
    })
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both; what comes back is ours alone.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Reads until the other side closes; `None` on timeout.
fn answer(from: OwnedFd) -> Option<String> {
    let until = Instant::now() + WAIT_LIMIT;
    let mut file = std::fs::File::from(from);
    let mut bytes = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok()?;
        let mut polled = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return None,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let mut chunk = [0; 4096];
        let length = file.read(&mut chunk).ok()?;
        bytes.extend_from_slice(&chunk[..length]);
        if length == 0 || bytes.len() as u64 > ANSWER_BYTES {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
