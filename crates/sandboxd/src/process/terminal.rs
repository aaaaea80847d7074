//! Processes with their own terminal.
//!
//! A process must acquire its controlling terminal itself, so a few instructions of this program ([`enter`])
//! run in it first. An error of the actual program's start returns through its standard error, which becomes
//! the terminal only at the last moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, Interest, ReadBuf};
use tokio::process::Child;

use super::start::{Program, StartError};
use crate::readiness::register;

/// First argument that makes this program become another one at a terminal.
pub const WORD: &str = "--enter-terminal";

/// Maximum bytes of one read; the kernel returns no more.
const READ_SIZE: usize = 4096;

/// Default columns and rows.
const USUAL: Size = Size { cols: 80, rows: 24 };

/// Columns and rows of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Columns; 0 means 80.
    pub cols: u16,
    /// Rows; 0 means 24.
    pub rows: u16,
}

/// Master side of a terminal.
#[derive(Debug)]
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    pub(super) fn readiness(&self) -> &AsyncFd<OwnedFd> {
        &self.0
    }

    pub(super) fn resize(&self, size: Size) -> std::io::Result<()> {
        let usual = |given: u16, usual| if given == 0 { usual } else { given };
        let (ws_col, ws_row) = (usual(size.cols, USUAL.cols), usual(size.rows, USUAL.rows));
        Ok(tcsetwinsize(self.descriptor(), Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
    }

    /// Sends a signal to the foreground job, unless that is the leader's own group.
    pub(super) fn signal_foreground(&self, leader: Pid, signal: Signal) {
        if let Ok(foreground) = tcgetpgrp(self.descriptor())
            && foreground != leader
        {
            let _ = kill_process_group(foreground, signal);
        }
    }
}

/// Reads the output of the processes at a terminal. It ends when no process has the terminal open.
#[derive(Debug)]
pub(super) struct Screen(pub(super) Arc<Terminal>);

impl AsyncRead for Screen {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.0.poll_read_ready(cx))?;
            let room = into.remaining().min(READ_SIZE);
            let unfilled = into.initialize_unfilled_to(room);
            let read = guard.try_io(|descriptor| Ok(rustix::io::read(descriptor.get_ref(), &mut *unfilled)?));
            match read {
                Ok(Ok(count)) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

/// Starts a program as the leader of a session at a new terminal.
pub(super) fn start(program: &Program, size: Size) -> Result<(Child, Arc<Terminal>), StartError> {
    program.check()?;
    let (terminal, inside) = open(size).map_err(StartError::Terminal)?;
    let words = ["/proc/self/exe", WORD].into_iter().chain(program.argv.iter().map(String::as_str));
    let mut command = program.command(words)?;
    let other = inside.try_clone().map_err(StartError::Terminal)?;
    command.stdin(Stdio::from(inside)).stdout(Stdio::from(other)).stderr(Stdio::piped());
    let child = command.spawn().map_err(|source| program.refused(source))?;
    Ok((child, terminal))
}

/// Waits until the actual program runs, or returns its start error.
pub(super) async fn begun(child: &mut Child, program: &Program) -> Result<(), StartError> {
    let mut said = String::new();
    if let Some(told) = &mut child.stderr.take() {
        told.take(32).read_to_string(&mut said).await.map_err(|source| program.refused(source))?;
    }
    match said.parse::<i32>() {
        Ok(number) => Err(program.refused(std::io::Error::from_raw_os_error(number))),
        Err(_) => Ok(()),
    }
}

fn open(size: Size) -> std::io::Result<(Arc<Terminal>, OwnedFd)> {
    let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&outside)?;
    unlockpt(&outside)?;
    let inside = ioctl_tiocgptpeer(&outside, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&outside, OFlags::NONBLOCK)?;
    let terminal = Terminal(register(outside, Interest::READABLE | Interest::WRITABLE)?);
    terminal.resize(size)?;
    Ok((Arc::new(terminal), inside))
}

/// Becomes `words` at the terminal that is standard input; returns only on an error. The number of that error
/// is also written to standard error.
pub fn enter(words: &[std::ffi::OsString]) -> std::io::Error {
    let error = match become_program(words) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    let _ = rustix::io::write(rustix::stdio::stderr(), number.to_string().as_bytes());
    error
}

fn become_program(words: &[std::ffi::OsString]) -> std::io::Result<std::convert::Infallible> {
    let (program, arguments) = words.split_first().ok_or(Errno::INVAL)?;
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    // A copy of standard error for the error number; closed on success.
    let report = fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    rustix::stdio::dup2_stderr(rustix::stdio::stdin())?;
    let flags = fcntl_getfd(rustix::stdio::stderr())?;
    fcntl_setfd(rustix::stdio::stderr(), flags - FdFlags::CLOEXEC)?;
    let error = std::process::Command::new(program).args(arguments).exec();
    rustix::stdio::dup2_stderr(&report)?;
    Err(error)
}
