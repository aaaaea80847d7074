//! The standard streams of `hutch run`: handed over as they are, kept, or joined to a terminal.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};

use crate::channel::Channel;
use crate::error::Error;
use crate::run::Captured;
use crate::terminal::{Flow, Terminal};

/// Taken from a pipe at once.
const PORTION: usize = 64 * 1024;
/// `f_type` of the file system of anonymous pipes.
const PIPEFS: i64 = 0x5049_5045;

/// The streams of one run.
pub(crate) struct Streams {
    terminal: Option<Terminal>,
    null: Option<OwnedFd>,
    captures: Vec<Capture>,
}

/// An output stream that is kept.
struct Capture {
    reader: Option<OwnedFd>,
    writer: Option<OwnedFd>,
    bound: usize,
    kept: Captured,
}

/// Something to relay.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Relay {
    Terminal(Flow),
    Capture(usize),
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Channel { step: step.into(), errno: errno.into() }
}

impl Streams {
    /// Opens what is needed. `owner` is who will run inside, in ids outside, where they are not the caller's.
    pub(crate) fn open(capture: Option<usize>, owner: Option<(u32, u32)>) -> Result<Self, Error> {
        if let Some(bound) = capture {
            let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            let null = Some(null.map_err(failed("open /dev/null"))?);
            let captures = vec![Capture::open(bound, owner)?, Capture::open(bound, owner)?];
            return Ok(Self { terminal: None, null, captures });
        }
        if let Some(owner) = owner {
            for fd in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
                give_pipe(fd, owner);
            }
        }
        Ok(Self { terminal: Terminal::of_caller()?, null: None, captures: Vec::new() })
    }

    /// The descriptors of this process for the inside, where there is no terminal. Valid until
    /// [`Streams::launched`].
    pub(crate) fn inside(&self) -> [RawFd; 3] {
        let mut fds = [0, 1, 2];
        if let Some(null) = &self.null {
            fds[0] = null.as_raw_fd();
        }
        for (fd, capture) in fds[1..].iter_mut().zip(&self.captures) {
            *fd = capture.writer.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        }
        fds
    }

    /// Called in the jail's init: makes the terminal where one is needed. Gives what [`Streams::inside`] gives, with
    /// the terminal in its places, and the terminal to keep open.
    pub(crate) fn make_inside(&self, caller: &Channel) -> Result<([RawFd; 3], Option<OwnedFd>), Error> {
        let mut fds = self.inside();
        let Some(terminal) = &self.terminal else { return Ok((fds, None)) };
        let slave = terminal.make_inside(caller)?;
        for (fd, tty) in fds.iter_mut().zip(terminal.streams()) {
            if tty {
                *fd = slave.as_raw_fd();
            }
        }
        Ok((fds, Some(slave)))
    }

    /// Whether standard input inside is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.streams()[0])
    }

    /// The inside has its ends: ours are closed. Its terminal comes from there.
    pub(crate) fn launched(&mut self, inside: &Channel) -> Result<(), Error> {
        self.null = None;
        for capture in &mut self.captures {
            capture.writer = None;
        }
        self.terminal.as_mut().map_or(Ok(()), |terminal| terminal.join(inside))
    }

    /// Adds what to wait for; gives what each is.
    pub(crate) fn interest<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Vec<Relay> {
        let mut relays = Vec::new();
        if let Some(terminal) = &self.terminal {
            let mut flows = Vec::new();
            terminal.interest(fds, &mut flows);
            relays.extend(flows.into_iter().map(Relay::Terminal));
        }
        for (index, capture) in self.captures.iter().enumerate() {
            if let Some(reader) = &capture.reader {
                fds.push(PollFd::new(reader, PollFlags::IN));
                relays.push(Relay::Capture(index));
            }
        }
        relays
    }

    /// Relays where something is ready.
    pub(crate) fn relay(&mut self, relays: &[Relay], ready: &[PollFlags]) -> Result<(), Error> {
        for (relay, _) in relays.iter().zip(ready).filter(|(_, ready)| !ready.is_empty()) {
            match *relay {
                Relay::Terminal(flow) => {
                    if let Some(terminal) = &mut self.terminal {
                        terminal.relay(flow)?;
                    }
                }
                Relay::Capture(index) => {
                    self.captures[index].take();
                }
            }
        }
        Ok(())
    }

    /// Takes what is left, when all inside has ended.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        for capture in &mut self.captures {
            while capture.take() {}
        }
        self.terminal.as_mut().map_or(Ok(()), Terminal::drain)
    }

    /// The caller's terminal has changed its size.
    pub(crate) fn resize(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.resize();
        }
    }

    /// Gives the caller's terminal its state back.
    pub(crate) fn restore(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.restore();
        }
    }

    /// What was kept of standard output and standard error.
    pub(crate) fn captured(&mut self) -> (Option<Captured>, Option<Captured>) {
        let mut kept = self.captures.iter_mut().map(|capture| std::mem::take(&mut capture.kept));
        (kept.next(), kept.next())
    }
}

impl Capture {
    fn open(bound: usize, owner: Option<(u32, u32)>) -> Result<Self, Error> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))?;
        rustix::io::ioctl_fionbio(&reader, true).map_err(failed("pipe"))?;
        if let Some(owner) = owner {
            use std::os::fd::AsFd;
            give_pipe(writer.as_fd(), owner);
        }
        Ok(Self { reader: Some(reader), writer: Some(writer), bound, kept: Captured::default() })
    }

    /// Takes a portion. `false` when there is nothing more for now.
    fn take(&mut self) -> bool {
        let Some(reader) = &self.reader else { return false };
        let mut buffer = vec![0_u8; PORTION];
        match rustix::io::read(reader, &mut buffer) {
            Ok(0) => {
                self.reader = None;
                false
            }
            Ok(n) => {
                let room = self.bound.saturating_sub(self.kept.bytes.len()).min(n);
                self.kept.bytes.extend_from_slice(&buffer[..room]);
                self.kept.dropped += (n - room) as u64;
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Err(_) => {
                self.reader = None;
                false
            }
        }
    }
}

/// Gives an anonymous pipe to who runs inside, so that it can be opened anew there by `/dev/stdout` and its like.
/// Nothing else is given away: a file keeps its owner. Failing only means that such an opening fails.
pub(crate) fn give_pipe(fd: BorrowedFd<'_>, (uid, gid): (u32, u32)) {
    if rustix::fs::fstatfs(fd).is_ok_and(|status| status.f_type == PIPEFS) {
        let _ = rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
}
