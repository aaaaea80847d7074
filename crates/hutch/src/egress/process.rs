//! A process of this program, under another name.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Environment of the process. Nothing of the caller's is in it.
const ENVIRONMENT: [(&str, &str); 3] = [
    // The resolver: no search domains, and less time than by default, in which a thread waits for a server that is silent.
    ("LOCALDOMAIN", ""),
    ("RES_OPTIONS", "timeout:2 attempts:2"),
    // The allocator: memory of 128 KiB and more, such as that of bodies, goes back to the kernel when it is freed. By default
    // the allocator keeps what is as large as one that was freed before, up to 32 MiB.
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072"),
];

/// A process that ends when this is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn of(child: Child) -> Process {
        Process(child)
    }

    /// Starts this program under another name, in a folder, with a channel as its input and nothing of the environment but
    /// [`ENVIRONMENT`]. Returns the other end of the channel.
    pub(crate) fn start(name: &str, folder: &Path) -> io::Result<(Process, OwnedFd)> {
        Process::start_with(name, Some(folder), Stdio::null())
    }

    /// Starts this program as [`Process::start`] does. With a folder, the standard library copies the address space of this
    /// process to start another one, which takes longer.
    pub(super) fn start_with(
        name: &str,
        folder: Option<&Path>,
        output: Stdio,
    ) -> io::Result<(Process, OwnedFd)> {
        // Descriptors that the caller left open stay out of it.
        hutch_jail::close_inherited_on_exec()?;
        let (ours, theirs) = hutch_privsep::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(name).env_clear().envs(ENVIRONMENT).stdin(theirs).stdout(output);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        Ok((Process(command.spawn()?), ours))
    }

    /// Waits until it has ended.
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that may close their descriptor early; OwnedFd does not"
    )]
    pub(crate) async fn ended(&self) -> io::Result<()> {
        // With this flag it can be read without waiting.
        let ended = pidfd_open(Pid::from_child(&self.0), PidfdFlags::NONBLOCK)?;
        AsyncFd::with_interest(ended, Interest::READABLE)?.readable().await.map(drop)
    }

    /// Waits until it has ended, not longer than this.
    pub(super) fn wait(&self, most: Duration) {
        let Ok(ended) = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()) else { return };
        let most = Timespec::try_from(most).ok();
        // It is killed in any case.
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], most.as_ref());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
