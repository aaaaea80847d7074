//! Removes a run's cgroups: a process outside the jail that waits for the runner to end, however it ends.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::cgroup::Group;
use crate::error::Error;
use crate::sys;

/// The watcher. When this is dropped, or the process that holds it dies, the cgroups are killed and removed.
pub(crate) struct Watcher {
    pid: i32,
    line: Option<OwnedFd>,
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Channel { step: step.into(), errno: errno.into() }
}

impl Watcher {
    /// Forks the watcher of a group. The caller is single-threaded.
    pub(crate) fn start(group: &Group) -> Result<Self, Error> {
        let (end, line) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe for the watcher"))?;
        // SAFETY: the only caller has just made sure that there is one thread.
        match unsafe { sys::fork_into(0, None) }.map_err(failed("fork the watcher"))? {
            sys::Forked::Parent { pid, .. } => Ok(Self { pid, line: Some(line) }),
            sys::Forked::Child => {
                watch(group, &end);
                // SAFETY: it does not return; nothing of the runner's may run here.
                unsafe { libc::_exit(0) }
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.line.take());
        let _ = sys::wait(self.pid, true);
    }
}

fn watch(group: &Group, end: &OwnedFd) {
    // Signals to the runner's process group, such as of a key in its terminal, are not for this one.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"hutch-watcher");
    // Its open streams must not keep the runner's callers waiting.
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    // SAFETY: whatever owned the rest is not used here, and no destructor runs.
    let _ = unsafe { sys::close_all_but(&mut [end.as_raw_fd()]) };
    // Nothing is ever written: it ends when the last holder of the other end is gone.
    while matches!(rustix::io::read(end, &mut [0_u8; 1]), Err(Errno::INTR)) {}
    // What cannot be removed now is left to the sweep of a later start.
    let _ = group.kill_and_remove();
}
