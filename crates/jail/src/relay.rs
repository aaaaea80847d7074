//! Bytes between a stream of the caller and a pipe of a jail.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, splice, tee};

use crate::error::Error;

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
            Ok(Lent { count: 0, sink })
        });
        let lent = lent.transpose().map_err(failed("pipe"))?;
        Ok(Self { from, into: Some(into), unread, waiting: Vec::new(), written: 0, lent })
    }

    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        let into = self.into.as_ref()?;
        let lends = self.lent.as_ref().is_some_and(|lent| lent.count > 0);
        Some(match self.waiting.is_empty() && !lends {
            true => PollFd::from_borrowed_fd(self.from, PollFlags::IN),
            false => PollFd::new(into, PollFlags::OUT),
        })
    }

    /// Moves a portion.
    pub(crate) fn relay(&mut self) {
        let Some(into) = &self.into else { return };
        if let Some(lent) = &mut self.lent {
            lent.read(self.from, lent.count);
            match tee(self.from, into, PORTION, SpliceFlags::NONBLOCK) {
                Ok(count) if count > 0 => lent.count = count,
                Err(Errno::INTR | Errno::AGAIN) => {}
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

/// From the inside to the caller.
pub(crate) struct Outlet {
    from: Option<OwnedFd>,
    into: Sink,
}

enum Sink {
    /// Kept, up to a bound.
    Kept { bound: usize, kept: Captured },
    /// Written to a stream of the caller.
    Caller { to: BorrowedFd<'static>, name: &'static str, waiting: Vec<u8>, failed: Option<Errno> },
}

impl Outlet {
    pub(crate) fn keeping(from: OwnedFd, bound: usize) -> Result<Self, Error> {
        Self::new(from, Sink::Kept { bound, kept: Captured::default() })
    }

    pub(crate) fn forwarding(
        from: OwnedFd,
        to: BorrowedFd<'static>,
        name: &'static str,
    ) -> Result<Self, Error> {
        Self::new(from, Sink::Caller { to, name, waiting: Vec::new(), failed: None })
    }

    fn new(from: OwnedFd, into: Sink) -> Result<Self, Error> {
        rustix::io::ioctl_fionbio(&from, true).map_err(failed("pipe"))?;
        Ok(Self { from: Some(from), into })
    }

    pub(crate) fn interest(&self) -> Option<PollFd<'_>> {
        match (&self.into, &self.from) {
            (Sink::Caller { to, waiting, .. }, _) if !waiting.is_empty() => {
                Some(PollFd::from_borrowed_fd(*to, PollFlags::OUT))
            }
            (_, Some(from)) => Some(PollFd::new(from, PollFlags::IN)),
            (_, None) => None,
        }
    }

    /// Moves a portion.
    pub(crate) fn relay(&mut self) {
        match &mut self.into {
            Sink::Caller { waiting, .. } if !waiting.is_empty() => self.write(ATOMIC),
            _ => drop(self.take()),
        }
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
        let Sink::Caller { to, waiting, failed, .. } = &mut self.into else { return };
        let portion = waiting.len().min(most);
        match rustix::io::write(*to, &waiting[..portion]) {
            Ok(count) => drop(waiting.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => {
                *failed = Some(errno);
                waiting.clear();
                self.from = None;
            }
        }
    }

    /// Takes and writes what is left, when all inside has ended.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        loop {
            while matches!(&self.into, Sink::Caller { waiting, .. } if !waiting.is_empty()) {
                self.wait_for_room();
                self.write(ATOMIC);
            }
            if !self.take() {
                break;
            }
        }
        match self.into {
            // The other side of a pipe or a socket that is gone is no failure of the command.
            Sink::Caller { failed: Some(errno), name, .. } if errno != Errno::PIPE => {
                Err(Error::Stream { name: name.into(), errno: errno.into() })
            }
            _ => Ok(()),
        }
    }

    fn wait_for_room(&self) {
        if let Sink::Caller { to, .. } = &self.into {
            let mut fds = [PollFd::from_borrowed_fd(*to, PollFlags::OUT)];
            // One that cannot be waited for is simply written to.
            let _ = rustix::event::poll(&mut fds, None);
        }
    }

    /// Returns the captured output.
    pub(crate) fn kept(&mut self) -> Option<Captured> {
        match &mut self.into {
            Sink::Kept { kept, .. } => Some(std::mem::take(kept)),
            Sink::Caller { .. } => None,
        }
    }
}
