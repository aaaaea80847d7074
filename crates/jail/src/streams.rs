//! The standard streams of `hutch run`: relayed, kept, or joined to a terminal.
//!
//! A file or a socket of the caller is never open inside, where its mode, times, attributes, length or flags could be changed
//! through the descriptor: its bytes are relayed. So are those of a pipe, which could be opened anew there for its other
//! direction, unless the command has another user id outside: then it can open the pipe for its own direction only. A device
//! becomes the jail's device of the same number. A folder is refused: it leads to the folders above it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};

use crate::channel::Channel;
use crate::error::Error;
use crate::relay::{Captured, Inlet, Outlet, WaitForRoom, failed};
use crate::terminal::{Flow, Terminal};

/// `f_type` of the file system of anonymous pipes.
const PIPEFS: i64 = 0x5049_5045;

/// Devices that a jail has, by their minor number; the major one is 1.
const DEVICES: [(u32, &str); 5] =
    [(3, "/dev/null"), (5, "/dev/zero"), (7, "/dev/full"), (8, "/dev/random"), (9, "/dev/urandom")];

const NAMES: [&str; 3] = ["standard input", "standard output", "standard error"];

/// The streams of one run.
pub(crate) struct Streams {
    terminal: Option<Terminal>,
    inside: [Inside; 3],
    inlet: Option<Inlet>,
    outlets: Vec<Outlet>,
}

/// Form of a standard stream inside.
enum Inside {
    /// The jail's device of this name.
    Device(&'static str),
    /// An end of a pipe.
    Pipe(OwnedFd),
    /// The same as the stream of this number.
    Same(usize),
    /// The end of a pipe, which has been handed over.
    Launched,
}

/// Something to relay.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Relay {
    Terminal(Flow),
    In,
    Out(usize),
}

fn host(number: usize) -> BorrowedFd<'static> {
    match number {
        0 => rustix::stdio::stdin(),
        1 => rustix::stdio::stdout(),
        _ => rustix::stdio::stderr(),
    }
}

impl Streams {
    /// Opens what is needed. `owner` is who will run inside, in ids outside, where they are not the caller's.
    pub(crate) fn open(capture: Option<usize>, owner: Option<(u32, u32)>) -> Result<Self, Error> {
        let mut streams = Self {
            terminal: None,
            inside: [const { Inside::Device("/dev/null") }; 3],
            inlet: None,
            outlets: Vec::new(),
        };
        if let Some(bound) = capture {
            for number in [1, 2] {
                let (reader, writer) = pipe(owner)?;
                streams.inside[number] = Inside::Pipe(writer);
                streams.outlets.push(Outlet::keeping(reader, bound)?);
            }
            return Ok(streams);
        }
        streams.terminal = Terminal::of_caller()?;
        let tty = streams.terminal.as_ref().map_or([false; 3], Terminal::streams);
        for number in (0..3).filter(|number| !tty[*number]) {
            streams.inside[number] = streams.one(number, owner)?;
        }
        Ok(streams)
    }

    /// Decides what a stream that is no terminal becomes.
    fn one(&mut self, number: usize, owner: Option<(u32, u32)>) -> Result<Inside, Error> {
        let name = NAMES[number];
        let status = match rustix::fs::fstat(host(number)) {
            Ok(status) => status,
            Err(Errno::BADF) => return Ok(Inside::Device("/dev/null")),
            Err(errno) => return Err(Error::Stream { name: name.into(), errno: errno.into() }),
        };
        let device = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => return Err(Error::StreamIsFolder { name: name.into() }),
            FileType::CharacterDevice if device.0 == 1 => {
                if let Some((_, path)) = DEVICES.iter().find(|(minor, _)| *minor == device.1) {
                    return Ok(Inside::Device(path));
                }
            }
            _ => {}
        }
        if let Some(pipe) = owner.and_then(|owner| one_way(host(number), number == 0, owner.0)) {
            return Ok(Inside::Pipe(pipe));
        }
        if number == 0 {
            let (reader, writer) = pipe(owner)?;
            let unread = reader.try_clone().map_err(|_| failed("pipe")(Errno::MFILE))?;
            let lends = FileType::from_raw_mode(status.st_mode) == FileType::Fifo;
            self.inlet = Some(Inlet::new(host(0), writer, unread, lends)?);
            return Ok(Inside::Pipe(reader));
        }
        // One file for both keeps the order of what is written to them.
        if number == 2
            && !self.outlets.is_empty()
            && rustix::fs::fstat(host(1))
                .is_ok_and(|one| (one.st_dev, one.st_ino) == (status.st_dev, status.st_ino))
        {
            return Ok(Inside::Same(1));
        }
        let (reader, writer) = pipe(owner)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        self.outlets.push(Outlet::forwarding(reader, host(number), kind, name)?);
        Ok(Inside::Pipe(writer))
    }

    /// The descriptors of this process that the inside needs beside 0 to 2. Valid until [`Streams::launched`].
    pub(crate) fn handed_over(&self) -> Vec<RawFd> {
        self.inside
            .iter()
            .filter_map(|stream| match stream {
                Inside::Pipe(fd) => Some(fd.as_raw_fd()),
                _ => None,
            })
            .collect()
    }

    /// Called in the jail's init: opens the devices, and makes the terminal where one is needed. Returns the three
    /// descriptors for the command, and the terminal to keep open.
    pub(crate) fn make_inside(&self, caller: &Channel) -> Result<([RawFd; 3], Option<OwnedFd>), Error> {
        let mut fds = [0, 1, 2];
        for number in 0..3 {
            fds[number] = match &self.inside[number] {
                Inside::Launched => number as RawFd,
                Inside::Pipe(fd) => fd.as_raw_fd(),
                Inside::Same(other) => fds[*other],
                Inside::Device(path) => {
                    let access = if number == 0 { OFlags::RDONLY } else { OFlags::WRONLY };
                    let device = rustix::fs::open(*path, access | OFlags::CLOEXEC, Mode::empty());
                    // Open to the end of init, as the other streams are.
                    device.map_err(failed("open a device"))?.into_raw_fd()
                }
            };
        }
        let Some(terminal) = &self.terminal else { return Ok((fds, None)) };
        let slave = terminal.make_inside(caller)?;
        for (fd, tty) in fds.iter_mut().zip(terminal.streams()) {
            if tty {
                *fd = slave.as_raw_fd();
            }
        }
        Ok((fds, Some(slave)))
    }

    /// Returns `true` when standard input inside is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.streams()[0])
    }

    /// The inside has its ends: ours are closed. Its terminal comes from there.
    pub(crate) fn launched(&mut self, inside: &Channel) -> Result<(), Error> {
        for stream in &mut self.inside {
            if matches!(stream, Inside::Pipe(_)) {
                *stream = Inside::Launched;
            }
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
        if let Some(fd) = self.inlet.as_ref().and_then(Inlet::interest) {
            fds.push(fd);
            relays.push(Relay::In);
        }
        for (index, outlet) in self.outlets.iter().enumerate() {
            if let Some(fd) = outlet.interest() {
                fds.push(fd);
                relays.push(Relay::Out(index));
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
                Relay::In => {
                    self.inlet.iter_mut().for_each(Inlet::relay);
                }
                Relay::Out(index) => self.outlets[index].relay(),
            }
        }
        Ok(())
    }

    /// Reads the rest after all processes inside have ended. Input not consumed is left for the file's next reader.
    pub(crate) fn drain(&mut self, wait: &mut WaitForRoom<'_>) -> Result<(), Error> {
        if let Some(inlet) = self.inlet.take() {
            inlet.give_back();
        }
        self.outlets.iter_mut().try_for_each(|outlet| outlet.drain(wait))?;
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

    /// Returns the captured standard output and standard error.
    pub(crate) fn captured(&mut self) -> (Option<Captured>, Option<Captured>) {
        let mut kept = self.outlets.iter_mut().filter_map(Outlet::kept);
        (kept.next(), kept.next())
    }
}

/// A pipe whose ends are closed on exec, owned by who runs inside.
fn pipe(owner: Option<(u32, u32)>) -> Result<(OwnedFd, OwnedFd), Error> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))?;
    owner.into_iter().for_each(|owner| give_pipe(writer.as_fd(), owner));
    Ok((reader, writer))
}

/// Returns a pipe of the caller, open for one direction, that others can open for no other direction. `None` if it is no pipe,
/// belongs to who runs inside, or may already be opened by others for the other direction: such as by the command of another
/// run, of which it is the output.
fn one_way(pipe: BorrowedFd<'_>, reads: bool, inside: u32) -> Option<OwnedFd> {
    let found = rustix::fs::fstat(pipe).ok().filter(|found| found.st_uid != inside)?;
    let (own, other, flags) = match reads {
        true => (0o444, 0o022, OFlags::RDONLY),
        false => (0o222, 0o044, OFlags::WRONLY),
    };
    let mode = found.st_mode & 0o777;
    if !is_anonymous_pipe(pipe) || mode & other != 0 {
        return None;
    }
    rustix::fs::fchmod(pipe, Mode::from_raw_mode(mode | own)).ok()?;
    // With flags of its own, such as O_NONBLOCK, which the command can set.
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn is_anonymous_pipe(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|status| status.f_type == PIPEFS)
}

/// Gives an anonymous pipe to who runs inside, so that it can be opened anew there by `/dev/stdout` and its like.
/// Nothing else is given away: a file keeps its owner. Failing only means that such an opening fails.
pub(crate) fn give_pipe(fd: BorrowedFd<'_>, (uid, gid): (u32, u32)) {
    if is_anonymous_pipe(fd) {
        let _ = rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
}
