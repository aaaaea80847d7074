//! A terminal of its own for a jail, joined to the caller's. What runs inside never holds the caller's terminal, so
//! it can neither read from it, nor type into it, nor change it for good.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, OutputModes, Termios};

use crate::channel::Channel;
use crate::error::Error;
use crate::event::Report;

/// Bytes under way in each direction.
const BUFFER: usize = 16 * 1024;
/// Written to the caller's terminal at once, so that a slow one does not hold up everything else.
const PORTION: usize = 4096;
/// End of file, as typed.
const END_OF_FILE: u8 = 4;

/// How a pseudo-terminal of the jail is joined to the caller's terminal.
pub(crate) struct Terminal {
    /// From the inside, once the jail stands.
    master: Option<OwnedFd>,
    /// Size of the caller's terminal at the start.
    size: Option<rustix::termios::Winsize>,
    /// Which of the caller's descriptors 0 to 2 are a terminal.
    tty: [bool; 3],
    /// State of the caller's terminal, as it was and as the inner one begins.
    outer: Termios,
    inner: Termios,
    raw: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    input_open: bool,
    output_open: bool,
}

/// A direction that can make progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    TypedIn,
    IntoMaster,
    FromMaster,
    Shown,
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Terminal { step: step.into(), errno: errno.into() }
}

fn host(number: usize) -> BorrowedFd<'static> {
    match number {
        0 => rustix::stdio::stdin(),
        1 => rustix::stdio::stdout(),
        _ => rustix::stdio::stderr(),
    }
}

impl Terminal {
    /// A terminal for those of the caller's standard streams that are one; nothing when none is.
    pub(crate) fn of_caller() -> Result<Option<Self>, Error> {
        let tty = [0, 1, 2].map(|number| rustix::termios::isatty(host(number)));
        let Some(first) = tty.iter().position(|tty| *tty) else { return Ok(None) };
        let outer = rustix::termios::tcgetattr(host(first)).map_err(failed("read the terminal's state"))?;
        let mut inner = outer.clone();
        // Where the caller's terminal still processes lines (no raw mode), ours must not do it a second time.
        if !tty[0] {
            inner.output_modes.remove(OutputModes::OPOST);
        } else if !tty[1] {
            inner.local_modes.remove(LocalModes::ECHO);
        }
        Ok(Some(Self {
            master: None,
            size: rustix::termios::tcgetwinsize(host(first)).ok(),
            tty,
            outer,
            inner,
            raw: false,
            input: Vec::new(),
            output: Vec::new(),
            input_open: tty[0],
            output_open: true,
        }))
    }

    /// Which of the standard streams it stands for.
    pub(crate) fn streams(&self) -> [bool; 3] {
        self.tty
    }

    /// Makes the pair, inside the jail, and sends the outer end to the caller. Gives the inner end, which has a path
    /// inside and belongs to who runs there.
    pub(crate) fn make_inside(&self, caller: &Channel) -> Result<OwnedFd, Error> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master =
            rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty()).map_err(failed("open one inside"))?;
        let slave = other_end(&master)?;
        rustix::termios::tcsetattr(&slave, OptionalActions::Now, &self.inner)
            .map_err(failed("set its state"))?;
        // Before the command begins: the caller learns of the terminal while that may run.
        if let Some(size) = self.size {
            rustix::termios::tcsetwinsize(&slave, size).map_err(failed("set its size"))?;
        }
        caller.send_bare(&[master.as_fd()])?;
        Ok(slave)
    }

    /// Takes the outer end from the inside and joins it to the caller's terminal.
    pub(crate) fn join(&mut self, inside: &Channel) -> Result<(), Error> {
        let message = inside.receive()?.ok_or(Error::EndedEarly)?;
        if !message.is_bare() {
            return match message.decode()? {
                Report::Failed(error) => Err(error),
                _ => Err(Error::Message("no terminal came".into())),
            };
        }
        let master = message.descriptors.into_iter().next().ok_or(Error::EndedEarly)?;
        rustix::io::ioctl_fionbio(&master, true).map_err(failed("non-blocking mode"))?;
        self.master = Some(master);
        self.resize();
        if self.tty[0] && self.tty[1] {
            let mut raw = self.outer.clone();
            raw.make_raw();
            rustix::termios::tcsetattr(host(0), OptionalActions::Now, &raw).map_err(failed("raw mode"))?;
            self.raw = true;
        }
        Ok(())
    }

    /// Gives the caller's terminal its state back.
    pub(crate) fn restore(&mut self) {
        if std::mem::take(&mut self.raw) {
            // The error cannot be reported when the terminal is gone.
            let _ = rustix::termios::tcsetattr(host(0), OptionalActions::Drain, &self.outer);
        }
    }

    /// Takes over the size of the caller's terminal.
    pub(crate) fn resize(&self) {
        let Some(first) = self.tty.iter().position(|tty| *tty) else { return };
        if let (Ok(size), Some(master)) = (rustix::termios::tcgetwinsize(host(first)), &self.master) {
            let _ = rustix::termios::tcsetwinsize(master, size);
        }
    }

    /// Adds the file descriptors to poll.
    pub(crate) fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, flows: &mut Vec<Flow>) {
        let Some(master) = &self.master else { return };
        let mut add = |flow, fd: BorrowedFd<'a>, flags| {
            flows.push(flow);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if self.input_open && self.input.len() < BUFFER {
            add(Flow::TypedIn, host(0), PollFlags::IN);
        }
        if !self.input.is_empty() {
            add(Flow::IntoMaster, master.as_fd(), PollFlags::OUT);
        }
        if self.output_open && self.output.len() < BUFFER {
            add(Flow::FromMaster, master.as_fd(), PollFlags::IN);
        }
        if !self.output.is_empty() {
            add(Flow::Shown, self.screen(), PollFlags::OUT);
        }
    }

    fn screen(&self) -> BorrowedFd<'static> {
        let order = [1, 2, 0];
        host(order.into_iter().find(|number| self.tty[*number]).unwrap_or(1))
    }

    /// Moves what can be moved in one direction.
    pub(crate) fn relay(&mut self, flow: Flow) -> Result<(), Error> {
        let Some(master) = &self.master else { return Ok(()) };
        let mut buffer = [0_u8; PORTION];
        match flow {
            Flow::TypedIn => match rustix::io::read(host(0), &mut buffer) {
                // End of file as typed at a terminal that still processes lines: type it again inside.
                Ok(0) => self.input.push(END_OF_FILE),
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => self.input_open = false,
            },
            Flow::IntoMaster => match rustix::io::write(master, &self.input) {
                Ok(n) => drop(self.input.drain(..n)),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => self.input.clear(),
            },
            Flow::FromMaster => match rustix::io::read(master, &mut buffer) {
                Ok(0) => self.output_open = false,
                Ok(n) => self.output.extend_from_slice(&buffer[..n]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // The other end has no open file descriptor.
                Err(_) => self.output_open = false,
            },
            Flow::Shown => {
                let portion = self.output.len().min(PORTION);
                match rustix::io::write(self.screen(), &self.output[..portion]) {
                    Ok(n) => drop(self.output.drain(..n)),
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(e) => return Err(failed("write to the terminal")(e)),
                }
            }
        }
        Ok(())
    }

    /// Shows what is left, when all inside has ended.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        loop {
            while !self.output.is_empty() {
                self.relay(Flow::Shown)?;
            }
            let before = self.output.len();
            if self.output_open {
                self.relay(Flow::FromMaster)?;
            }
            if self.output.len() == before {
                return Ok(());
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.restore();
    }
}

/// The other end of a new pseudo-terminal, without a path that would have to be looked up.
pub(crate) fn other_end(master: &OwnedFd) -> Result<OwnedFd, Error> {
    rustix::pty::unlockpt(master).map_err(failed("unlock it"))?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the argument is an integer.
    let fd = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if fd < 0 {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        return Err(failed("open its other end")(errno));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
