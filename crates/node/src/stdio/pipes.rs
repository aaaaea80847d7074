//! Standard streams of processes as pipes.

use std::io;
use std::os::fd::OwnedFd;

use hutch_jail::Stdio;
use rustix::fs::{Mode, OFlags};
use tokio::net::unix::pipe;

/// Our ends of a process's pipes; absent ones are `/dev/null` on the other side.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: Option<pipe::Receiver>,
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// Opens `/dev/null`, for a stream that the caller did not request.
pub(crate) fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Pipes for the streams that are wanted. Needs a tokio runtime.
pub(crate) fn pipes(stdin: bool, stdout: bool, stderr: bool) -> io::Result<(Ends, Stdio)> {
    let mut ends = Ends::default();
    let mut theirs_in = None;
    if stdin {
        let (sender, receiver) = pipe::pipe()?;
        ends.stdin = Some(sender);
        theirs_in = Some(receiver.into_blocking_fd()?);
    }
    let outgoing = |wanted: bool| -> io::Result<(Option<pipe::Receiver>, OwnedFd)> {
        if !wanted {
            return Ok((None, null()?));
        }
        let (sender, receiver) = pipe::pipe()?;
        Ok((Some(receiver), sender.into_blocking_fd()?))
    };
    let (stdout_end, stdout) = outgoing(stdout)?;
    let (stderr_end, stderr) = outgoing(stderr)?;
    ends.stdout = stdout_end;
    ends.stderr = stderr_end;
    let stdin = match theirs_in {
        Some(fd) => fd,
        None => null()?,
    };
    Ok((ends, Stdio { stdin, stdout, stderr }))
}
