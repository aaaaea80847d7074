//! Messages with descriptors over a pair of connected sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Maximum bytes of a message. A command and its arguments must fit; the kernel's default socket buffer (208 KiB) sets the
/// ceiling.
pub const MAX_MESSAGE: usize = 160 << 10;
/// Maximum descriptors of a message: a control socket and three streams, or the sockets of a start.
const MAX_DESCRIPTORS: usize = 8;

/// One end of a message channel. Needs a tokio runtime. Messages keep their borders.
#[derive(Debug)]
pub struct Channel(AsyncFd<OwnedFd>);

/// A received message.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Decodes the message.
    ///
    /// # Errors
    /// When it is not JSON of this type.
    pub fn decode<T: DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.bytes).map_err(io::Error::other)
    }
}

/// Policy of a receiver for file descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Descriptors {
    Accepted,
    /// The kernel drops those that were sent.
    Refused,
}

/// Creates two connected sockets, each for a [`Channel`].
///
/// # Errors
/// When the system has no descriptors left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message without a runtime.
///
/// # Errors
/// As [`Channel::send`]; `WouldBlock` when the buffer of the other end is full.
pub fn send_now(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send(socket, &encode(message)?, descriptors)
}

/// Waits for the next message without a runtime.
///
/// # Errors
/// As [`Channel::receive`].
pub fn receive_now(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    loop {
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], None) {
            Ok(_) => return receive(socket, Descriptors::Accepted),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl Channel {
    /// Makes a channel from one end of [`pair`].
    ///
    /// # Errors
    /// When the descriptor cannot be registered with the runtime.
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that may close their descriptor early; OwnedFd does not"
    )]
    pub fn new(socket: OwnedFd) -> io::Result<Channel> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Channel(AsyncFd::with_interest(socket, Interest::READABLE | Interest::WRITABLE)?))
    }

    /// Sends a message. Waits while the buffer of the other end is full.
    ///
    /// # Errors
    /// `InvalidInput` when the message is too large; `BrokenPipe` when the other end is closed.
    pub async fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = encode(message)?;
        loop {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|socket| send(socket.as_fd(), &bytes, descriptors)) {
                Ok(sent) => return sent,
                Err(_would_block) => {}
            }
        }
    }

    /// Sends a message now. Returns `false` when the buffer of the other end is full.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn try_send(&self, message: &impl Serialize) -> io::Result<bool> {
        match send(self.0.as_fd(), &encode(message)?, &[]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Receives the next message and its descriptors; `None` when the other end is closed.
    ///
    /// # Errors
    /// When the message is too large, or the kernel refuses.
    pub async fn receive(&self) -> io::Result<Option<Message>> {
        self.receive_with(Descriptors::Accepted).await
    }

    /// Receives the next message; the kernel drops descriptors that come with it.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub async fn receive_bare(&self) -> io::Result<Option<Message>> {
        self.receive_with(Descriptors::Refused).await
    }

    /// Receives the next message of a process that must not end, as [`Channel::receive_bare`].
    ///
    /// # Errors
    /// As [`Channel::receive`], and the end of the other process.
    pub async fn receive_next<T: DeserializeOwned>(&self) -> io::Result<T> {
        match self.receive_bare().await? {
            Some(message) => message.decode(),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    async fn receive_with(&self, descriptors: Descriptors) -> io::Result<Option<Message>> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|socket| receive(socket.as_fd(), descriptors)) {
                Ok(received) => return received,
                Err(_would_block) => {}
            }
        }
    }
}

fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    if bytes.len() > MAX_MESSAGE {
        let text = format!("a message of {} bytes is larger than {MAX_MESSAGE}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(bytes)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn receive(socket: BorrowedFd<'_>, descriptors: Descriptors) -> io::Result<Option<Message>> {
    let length = loop {
        // The length first, without taking the message: most messages are short, so no large buffer is kept.
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut [0_u8; 0][..], flags) {
            Ok((_, 0)) => return Ok(None),
            Ok((_, length)) => break length,
            // The other end was closed before it had read all of ours. Reported once; what it sent is still here.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let room = if descriptors == Descriptors::Accepted { &mut space[..] } else { &mut space[..0] };
    let mut ancillary = RecvAncillaryBuffer::new(room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(message) => break message.bytes,
            // As above: it may have been closed meanwhile.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    bytes.truncate(count);
    let received = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    Ok(Some(Message { bytes, descriptors: received.collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels() -> (Channel, Channel) {
        let (one, other) = pair().unwrap();
        (Channel::new(one).unwrap(), Channel::new(other).unwrap())
    }

    #[tokio::test]
    async fn message_arrives_with_its_descriptors() {
        let (one, other) = channels();
        let file = std::fs::File::open("/dev/null").unwrap();
        one.send(&"text", &[file.as_fd(), file.as_fd()]).await.unwrap();
        let message = other.receive().await.unwrap().unwrap();
        assert_eq!((message.decode::<String>().unwrap().as_str(), message.descriptors.len()), ("text", 2));
        drop(one);
        assert!(other.receive().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn descriptor_is_dropped_where_none_is_accepted() {
        let (one, other) = channels();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        one.send(&1, &[writer.as_fd()]).await.unwrap();
        drop(writer);
        let message = other.receive_bare().await.unwrap().unwrap();
        assert!(message.descriptors.is_empty());
        // The write end is closed everywhere, so the pipe is at its end.
        assert_eq!(rustix::io::read(&reader, &mut [0_u8; 1]).unwrap(), 0);
    }

    #[tokio::test]
    async fn message_over_the_bound_is_refused_by_sender_and_receiver() {
        let (one, other) = channels();
        let error = one.send(&"x".repeat(MAX_MESSAGE), &[]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        rustix::net::send(one.0.get_ref(), &vec![b'x'; MAX_MESSAGE + 1], SendFlags::empty()).unwrap();
        assert_eq!(other.receive().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn full_buffer_is_reported_and_waited_for() {
        let (one, other) = channels();
        while one.try_send(&"x".repeat(1000)).unwrap() {}
        let waiting = one.send(&"last", &[]);
        let reading = async {
            loop {
                let message = other.receive().await.unwrap().unwrap();
                if message.decode::<String>().unwrap() == "last" {
                    return;
                }
            }
        };
        tokio::join!(async { waiting.await.unwrap() }, reading);
    }
}
