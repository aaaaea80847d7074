//! Messages with file descriptors over a socket pair: between the launcher and the process it forked, between
//! the warden and its caller, between a jail's init and its caller.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// Longest message in bytes. A jail's description and a process's arguments and environment must fit; the kernel's
/// default socket buffer (208 KiB) sets the ceiling.
pub(crate) const MAX_MESSAGE: usize = 160 * 1024;

/// Maximum file descriptors of one message: the kernel's own limit.
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// One end of a message channel. Message borders are kept, and the death of the other end is noticed.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// A received message.
pub(crate) struct Received {
    bytes: Vec<u8>,
    /// File descriptors that came with it.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Received {
    /// Decodes the message as the expected type.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.bytes).map_err(|e| Error::Message(e.to_string()))
    }

    /// A message of these bytes, without descriptors.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(bytes: &[u8]) -> Received {
        Received { bytes: bytes.to_owned(), descriptors: Vec::new() }
    }

    /// Returns `true` when the message has no content besides file descriptors.
    pub(crate) fn is_bare(&self) -> bool {
        self.bytes == BARE
    }
}

const BARE: &[u8] = b"0";

fn failed(step: &'static str, errno: Errno) -> Error {
    Error::Channel { step: step.into(), errno: errno.into() }
}

impl Channel {
    /// Creates two connected ends.
    pub(crate) fn pair() -> Result<(Self, Self), Error> {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| failed("socketpair", e))?;
        Ok((Self(one), Self(other)))
    }

    /// Creates an end from an inherited file descriptor.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Returns the file descriptor, to pass it on.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sends a message. `Ok(false)`: the buffer is full and `wait` is `false`.
    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        wait: bool,
    ) -> Result<bool, Error> {
        let bytes = serde_json::to_vec(message).map_err(|e| Error::Message(e.to_string()))?;
        if bytes.len() > MAX_MESSAGE {
            return Err(Error::Message(format!(
                "{} bytes of arguments, environment and mounts are more than {MAX_MESSAGE}",
                bytes.len()
            )));
        }
        self.send_bytes(&bytes, descriptors, wait)
    }

    /// Sends file descriptors alone.
    pub(crate) fn send_bare(&self, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.send_bytes(BARE, descriptors, true).map(|_| ())
    }

    fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], wait: bool) -> Result<bool, Error> {
        let mut space = vec![MaybeUninit::uninit(); ancillary_space(descriptors.len())];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::Message(format!("{} descriptors are too many", descriptors.len())));
        }
        let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !wait => return Ok(false),
                Err(errno) => return Err(failed("send", errno)),
            }
        }
    }

    /// Receives the next message. `Ok(None)`: the other end is closed.
    pub(crate) fn receive(&self) -> Result<Option<Received>, Error> {
        self.receive_with(RecvFlags::empty())
    }

    /// Receives a queued message. `Err` with `EAGAIN` inside: none is queued; see [`Channel::is_empty`].
    pub(crate) fn try_receive(&self) -> Result<Option<Received>, Error> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    /// Returns `true` when an error of [`Channel::try_receive`] means that no message is queued.
    pub(crate) fn is_empty(error: &Error) -> bool {
        matches!(error, Error::Channel { errno, .. } if errno.0 == libc::EAGAIN)
    }

    fn receive_with(&self, flags: RecvFlags) -> Result<Option<Received>, Error> {
        let length = loop {
            // The true length first, without taking it: most messages are short, so no large buffer is kept.
            let peek = flags | RecvFlags::PEEK | RecvFlags::TRUNC;
            match rustix::net::recv(&self.0, &mut [0_u8; 0][..], peek) {
                Ok((_, 0)) => return Ok(None),
                Ok((_, length)) => break length,
                // The other end was closed before it had read all of ours. Reported once; its messages are still here.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(errno) => return Err(failed("receive", errno)),
            }
        };
        if length > MAX_MESSAGE {
            return Err(Error::Message(format!("{length} bytes are more than {MAX_MESSAGE}")));
        }
        let mut bytes = vec![0; length];
        let mut space = vec![MaybeUninit::uninit(); ancillary_space(MAX_DESCRIPTORS)];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        loop {
            match rustix::net::recvmsg(&self.0, &mut parts, &mut ancillary, flags) {
                Ok(_) => break,
                // As above: it may have been closed meanwhile.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(errno) => return Err(failed("receive", errno)),
            }
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok(Some(Received { bytes, descriptors }))
    }

    /// Waits until a message is queued or the other end is closed; `false` when `timeout` passed first.
    pub(crate) fn wait_readable(&self, timeout: std::time::Duration) -> Result<bool, Error> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        loop {
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("poll", errno)),
            }
        }
    }

    /// Returns `true` when the other end is already closed.
    pub(crate) fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0)
    }
}

fn ancillary_space(descriptors: usize) -> usize {
    if descriptors == 0 { 0 } else { rustix::cmsg_space!(ScmRights(descriptors)) }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_its_borders_and_descriptors() {
        let (one, other) = Channel::pair().unwrap();
        assert!(Channel::is_empty(&other.try_receive().err().unwrap()));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        one.send(&"first", &[writer.as_fd()], true).unwrap();
        one.send(&"second", &[], true).unwrap();
        drop(writer);
        let first = other.receive().unwrap().unwrap();
        assert_eq!(first.decode::<String>().unwrap(), "first");
        rustix::io::write(&first.descriptors[0], b"x").unwrap();
        let mut byte = [0];
        rustix::io::read(&reader, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(other.receive().unwrap().unwrap().decode::<String>().unwrap(), "second");
        drop(one);
        // A program that another test starts has a copy until it has replaced this one.
        hutch_testkit::wait::until("closed", || other.is_closed());
        assert!(other.receive().unwrap().is_none());
    }

    /// The end came after the length was known, and before the message was taken.
    #[test]
    fn end_while_a_message_is_received_loses_nothing() {
        for _ in 0..500 {
            let (one, other) = Channel::pair().unwrap();
            other.send(&"not read", &[], true).unwrap();
            let sent = std::thread::spawn(move || one.send(&"last", &[], true).map(|_| drop(one)));
            assert_eq!(other.receive().unwrap().unwrap().decode::<String>().unwrap(), "last");
            sent.join().unwrap().unwrap();
        }
    }

    #[test]
    fn bytes_before_the_end_are_received_even_if_the_peer_did_not_read_all() {
        let (one, other) = Channel::pair().unwrap();
        other.send(&"not read", &[], true).unwrap();
        one.send(&"last", &[], true).unwrap();
        drop(one);
        assert_eq!(other.receive().unwrap().unwrap().decode::<String>().unwrap(), "last");
        assert!(other.receive().unwrap().is_none());
    }

    #[test]
    fn the_most_descriptors_pass_and_one_more_is_refused() {
        let (one, other) = Channel::pair().unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        one.send_bare(&vec![reader.as_fd(); MAX_DESCRIPTORS]).unwrap();
        let received = other.receive().unwrap().unwrap();
        assert!(received.is_bare());
        assert_eq!(received.descriptors.len(), MAX_DESCRIPTORS);
        assert!(one.send_bare(&vec![reader.as_fd(); MAX_DESCRIPTORS + 1]).is_err());
    }

    #[test]
    fn a_message_over_the_bound_is_refused_and_one_at_it_passes() {
        let (one, other) = Channel::pair().unwrap();
        let long = "x".repeat(MAX_MESSAGE - 2);
        one.send(&long, &[], true).unwrap();
        assert_eq!(other.receive().unwrap().unwrap().decode::<String>().unwrap(), long);
        assert!(matches!(one.send(&"x".repeat(MAX_MESSAGE), &[], true), Err(Error::Message(_))));
    }
}
