//! Bytes between a stream of the caller and a pipe of a jail.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, splice, tee};

use crate::error::Error;
use crate::sys;

pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Channel { step: step.into(), errno: errno.into() }
}

/// Captured part of an output stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Its beginning, up to the bound.
    pub bytes: Vec<u8>,
    /// How many bytes more there were.
    pub dropped: u64,
}

/// Taken at once.
const PORTION: usize = 64 * 1024;
/// Written at once to a pipe or a socket of the caller: what a pipe that is ready takes without blocking.
const ATOMIC: usize = 4096;

/// From the caller to the inside.
pub(crate) struct Inlet {
    from: BorrowedFd<'static>,
    /// Closed at the end of the caller's stream, so that the command sees it.
    into: Option<OwnedFd>,
    /// The command's read end; used to query the bytes that the command has not read.
    unread: OwnedFd,
    waiting: Vec<u8>,
    /// Bytes written to the command's pipe. It can also write there itself.
    written: u64,
    lent: Option<Lent>,
}

/// Bytes of a pipe of the caller that are also in the pipe inside. They leave the caller's when the command has read them, so
/// that what it does not read stays for the next reader.
struct Lent {
    count: usize,
    /// There is no room inside: the command can write there too.
    is_full: bool,
    /// `/dev/null`, into which they leave.
    sink: OwnedFd,
}

impl Lent {
    /// Removes bytes from the caller's pipe.
    fn read(&mut self, from: BorrowedFd<'_>, count: usize) {
        let mut rest = count.min(self.count);
        while rest > 0 {
            match splice(from, None, &self.sink, None, rest, SpliceFlags::NONBLOCK) {
                Ok(moved) if moved > 0 => rest -= moved,
                Err(Errno::INTR) => {}
                // Another reader of the same pipe was faster.
                _ => break,
            }
        }
        self.count -= count.min(self.count);
    }
}

impl Inlet {
    /// Between a stream of the caller and both ends of the pipe inside. `lends`: the stream is a pipe.
    pub(crate) fn new(
        from: BorrowedFd<'static>,
        into: OwnedFd,
        unread: OwnedFd,
        lends: bool,
    ) -> Result<Self, Error> {
        rustix::io::ioctl_fionbio(&into, true).map_err(failed("pipe"))?;
        let lent = lends.then(|| {
            // With one buffer it can be written to when all of it was read.
            fcntl_setpipe_size(&into, 1)?;
            let sink = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(Lent { count: 0, is_full: false, sink })
        });
        let lent = lent.transpose().map_err(failed("pipe"))?;
        Ok(Self { from, into: Some(into), unread, waiting: Vec::new(), written: 0, lent })
    }

    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        let into = self.into.as_ref()?;
        let lends = self.lent.as_ref().is_some_and(|lent| lent.count > 0 || lent.is_full);
        Some(match self.waiting.is_empty() && !lends {
            true => PollFd::from_borrowed_fd(self.from, PollFlags::IN),
            false => PollFd::new(into, PollFlags::OUT),
        })
    }

    /// Moves a portion.
    pub(crate) fn relay(&mut self) {
        let Some(into) = &self.into else { return };
        if let Some(lent) = &mut self.lent {
            if lent.count > 0 || lent.is_full {
                lent.read(self.from, lent.count);
                lent.is_full = false;
                return;
            }
            match tee(self.from, into, PORTION, SpliceFlags::NONBLOCK) {
                Ok(count) if count > 0 => lent.count = count,
                // Another reader was faster, or it is the end.
                Ok(_) if !has_ended(self.from) => {}
                Err(Errno::AGAIN) => lent.is_full = true,
                Err(Errno::INTR) => {}
                _ => self.into = None,
            }
            return;
        }
        if self.waiting.is_empty() {
            let mut portion = vec![0; PORTION];
            match rustix::io::read(self.from, &mut portion) {
                Ok(count) if count > 0 => {
                    portion.truncate(count);
                    self.waiting = portion;
                }
                Err(Errno::INTR | Errno::AGAIN) => return,
                // What cannot be read ends there, as for a command that reads it itself.
                _ => return self.into = None,
            }
        }
        match rustix::io::write(into, &self.waiting) {
            Ok(count) => {
                self.waiting.drain(..count);
                self.written += count as u64;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.into = None,
        }
    }

    /// Puts the offset of a file back to what was read inside, as if the command had read from the file itself, and removes from
    /// a pipe what was read.
    pub(crate) fn give_back(mut self) {
        let unread = rustix::io::ioctl_fionread(&self.unread).unwrap_or(0);
        if let Some(lent) = &mut self.lent {
            let unread = usize::try_from(unread).unwrap_or(usize::MAX);
            return lent.read(self.from, lent.count.saturating_sub(unread));
        }
        let is_file = rustix::fs::fstat(self.from)
            .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile);
        let unread = unread.min(self.written) + self.waiting.len() as u64;
        if is_file && unread > 0 {
            let back = i64::try_from(unread).unwrap_or(0);
            // A file that cannot be read anew only means that the next reader misses what this one did not use.
            let _ = rustix::fs::seek(self.from, SeekFrom::Current(-back));
        }
    }
}

/// Returns true if a pipe is empty and has no writer.
fn has_ended(pipe: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
    polled.is_err()
        || (fds[0].revents().contains(PollFlags::HUP) && !fds[0].revents().contains(PollFlags::IN))
}

/// From the inside to the caller.
pub(crate) struct Outlet {
    from: Option<OwnedFd>,
    into: Sink,
}

enum Sink {
    /// Kept, up to a bound.
    Kept { bound: usize, kept: Captured },
    /// Moved to a pipe of the caller, which other programs may fill at the same time: never waiting in a call.
    Pipe { to: Stream, is_full: bool },
    /// Written to another stream of the caller.
    Caller { to: Stream, is_socket: bool, waiting: Vec<u8> },
}

/// Stream of the caller.
struct Stream {
    fd: BorrowedFd<'static>,
    name: &'static str,
    failed: Option<Errno>,
}

/// When to wait for the reader of what is left after the end of all that was inside.
pub(crate) struct WaitForRoom<'a> {
    /// Signals for this program.
    pub(crate) signals: BorrowedFd<'a>,
    pub(crate) deadline: Option<Instant>,
    /// The command was ended: what is not read for [`STALLED`] is dropped.
    pub(crate) is_over: bool,
}

/// Time without a reader after which the rest of the output of a command that was ended is dropped.
const STALLED: Duration = Duration::from_secs(1);

impl WaitForRoom<'_> {
    /// Waits until there is room. Returns false if what is left is to be dropped.
    fn in_stream(&mut self, to: BorrowedFd<'_>) -> bool {
        loop {
            let left = match self.deadline.filter(|_| !self.is_over) {
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => self.is_over.then_some(STALLED),
            };
            let left = left
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut fds = [
                PollFd::from_borrowed_fd(to, PollFlags::OUT),
                PollFd::from_borrowed_fd(self.signals, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, left.as_ref()) {
                Err(Errno::INTR) => continue,
                // One that cannot be waited for is simply written to.
                Err(_) => return !self.is_over,
                Ok(0) if self.is_over => return false,
                Ok(0) => self.is_over = true,
                Ok(_) if !fds[0].revents().is_empty() => return true,
                Ok(_) => {
                    while let Some(signal) = sys::next_signal(self.signals) {
                        self.is_over |= signal != libc::SIGWINCH;
                    }
                }
            }
        }
    }
}

impl Outlet {
    pub(crate) fn keeping(from: OwnedFd, bound: usize) -> Result<Self, Error> {
        Self::new(from, Sink::Kept { bound, kept: Captured::default() })
    }

    pub(crate) fn forwarding(
        from: OwnedFd,
        to: BorrowedFd<'static>,
        kind: FileType,
        name: &'static str,
    ) -> Result<Self, Error> {
        let to = Stream { fd: to, name, failed: None };
        let sink = match kind {
            FileType::Fifo => Sink::Pipe { to, is_full: false },
            kind => Sink::Caller { to, is_socket: kind == FileType::Socket, waiting: Vec::new() },
        };
        Self::new(from, sink)
    }

    fn new(from: OwnedFd, into: Sink) -> Result<Self, Error> {
        rustix::io::ioctl_fionbio(&from, true).map_err(failed("pipe"))?;
        Ok(Self { from: Some(from), into })
    }

    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        match (&self.into, &self.from) {
            (Sink::Caller { to, waiting, .. }, _) if !waiting.is_empty() => {
                Some(PollFd::from_borrowed_fd(to.fd, PollFlags::OUT))
            }
            (Sink::Pipe { to, is_full: true }, Some(_)) => {
                Some(PollFd::from_borrowed_fd(to.fd, PollFlags::OUT))
            }
            (_, Some(from)) => Some(PollFd::new(from, PollFlags::IN)),
            (_, None) => None,
        }
    }

    /// Moves a portion.
    pub(crate) fn relay(&mut self) {
        match &mut self.into {
            Sink::Caller { waiting, .. } if !waiting.is_empty() => self.write(ATOMIC),
            // Not at once: it may be empty inside.
            Sink::Pipe { is_full, .. } if *is_full => *is_full = false,
            Sink::Pipe { .. } => drop(self.splice()),
            _ => drop(self.take()),
        }
    }

    /// Moves a portion to a pipe of the caller. `false` when there is nothing more inside for now, or no room.
    fn splice(&mut self) -> bool {
        let (Some(from), Sink::Pipe { to, is_full }) = (&self.from, &mut self.into) else { return false };
        match splice(from, None, to.fd, None, PORTION, SpliceFlags::NONBLOCK) {
            Ok(count) if count > 0 => return true,
            Err(Errno::INTR) => return true,
            Err(Errno::AGAIN) => *is_full = true,
            Ok(_) => self.from = None,
            Err(errno) => {
                to.failed = Some(errno);
                self.from = None;
            }
        }
        false
    }

    /// Takes a portion from the inside. `false` when there is nothing more for now.
    fn take(&mut self) -> bool {
        let Some(from) = &self.from else { return false };
        let mut portion = vec![0; PORTION];
        match rustix::io::read(from, &mut portion) {
            Ok(0) => {
                self.from = None;
                false
            }
            Ok(count) => {
                portion.truncate(count);
                match &mut self.into {
                    Sink::Kept { bound, kept } => {
                        let room = bound.saturating_sub(kept.bytes.len()).min(count);
                        kept.bytes.extend_from_slice(&portion[..room]);
                        kept.dropped += (count - room) as u64;
                    }
                    Sink::Caller { waiting, .. } => waiting.append(&mut portion),
                    Sink::Pipe { .. } => {}
                }
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Err(_) => {
                self.from = None;
                false
            }
        }
    }

    /// Writes at most so many bytes of what waits. When the caller's stream fails, the pipe is closed, so that the
    /// command learns of it.
    fn write(&mut self, most: usize) {
        let Sink::Caller { to, is_socket, waiting } = &mut self.into else { return };
        let portion = &waiting[..waiting.len().min(most)];
        let written = match is_socket {
            true => rustix::net::send(to.fd, portion, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            false => rustix::io::write(to.fd, portion),
        };
        match written {
            Ok(count) => drop(waiting.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => {
                to.failed = Some(errno);
                waiting.clear();
                self.from = None;
            }
        }
    }

    /// Takes and writes what is left, when all inside has ended.
    pub(crate) fn drain(&mut self, wait: &mut WaitForRoom<'_>) -> Result<(), Error> {
        loop {
            while let Sink::Caller { to, waiting, .. } = &self.into
                && !waiting.is_empty()
            {
                if !wait.in_stream(to.fd) {
                    return Ok(());
                }
                self.write(ATOMIC);
            }
            let is_pipe = matches!(self.into, Sink::Pipe { .. });
            if if is_pipe { self.splice() } else { self.take() } {
                continue;
            }
            let is_empty = |from: &OwnedFd| rustix::io::ioctl_fionread(from).unwrap_or(0) == 0;
            match (&self.into, &self.from) {
                (Sink::Pipe { to, .. }, Some(from)) if !is_empty(from) => {
                    if !wait.in_stream(to.fd) {
                        return Ok(());
                    }
                }
                _ => break,
            }
        }
        match &self.into {
            // The other side of a pipe or a socket that is gone is no failure of the command.
            Sink::Caller { to, .. } | Sink::Pipe { to, .. } => match to.failed {
                Some(errno) if errno != Errno::PIPE => {
                    Err(Error::Stream { name: to.name.into(), errno: errno.into() })
                }
                _ => Ok(()),
            },
            Sink::Kept { .. } => Ok(()),
        }
    }

    /// Returns the captured output.
    pub(crate) fn kept(&mut self) -> Option<Captured> {
        match &mut self.into {
            Sink::Kept { kept, .. } => Some(std::mem::take(kept)),
            Sink::Pipe { .. } | Sink::Caller { .. } => None,
        }
    }
}
