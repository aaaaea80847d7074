//! Pseudo-terminals.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hutch_jail::Stdio;
use hutch_kubelet::TerminalSize;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use super::register;

/// Our side of a terminal. Clones share it; the last one hangs it up.
#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    fd: Arc<AsyncFd<OwnedFd>>,
}

impl Terminal {
    /// Takes both sides of a terminal, and gives the other one three times, for a process. Needs a tokio runtime.
    pub(crate) fn adopt(ours: OwnedFd, theirs: OwnedFd) -> io::Result<(Terminal, Stdio)> {
        rustix::fs::fcntl_setfl(&ours, OFlags::RDWR | OFlags::NONBLOCK)?;
        let stdio = Stdio { stdin: theirs.try_clone()?, stdout: theirs.try_clone()?, stderr: theirs };
        Ok((Terminal { fd: Arc::new(register(ours, Interest::READABLE | Interest::WRITABLE)?) }, stdio))
    }

    /// A new terminal of the machine, which has no path inside.
    pub(crate) fn open() -> io::Result<(Terminal, Stdio)> {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::grantpt(&ours)?;
        rustix::pty::unlockpt(&ours)?;
        let name = rustix::pty::ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name, flags, Mode::empty())?;
        Terminal::adopt(ours, theirs)
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        let size = Winsize { ws_col: size.columns, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(self.fd.get_ref(), size) {
            tracing::debug!(%error, "a terminal could not be resized");
        }
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(context))?;
            match rustix::io::read(self.fd.get_ref(), buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                // The kernel's way to say that the other side is closed.
                Err(Errno::IO) => return Poll::Ready(Ok(())),
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(context))?;
            match rustix::io::write(self.fd.get_ref(), bytes) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal has no half that could be closed; a client that wants to say "end" types it.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
