//! Converts streams to file descriptors, and file descriptors to streams.

use std::io;
use std::os::fd::OwnedFd;

use hutch_kubelet::{ByteReader, ByteWriter};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

/// Copies a stream to a file descriptor of another process, until either ends.
pub(crate) fn outgoing(mut from: ByteReader) -> io::Result<OwnedFd> {
    let (mut sender, receiver) = pipe::pipe()?;
    tokio::spawn(async move {
        // The other process may close its end at any time.
        let _ = tokio::io::copy(&mut from, &mut sender).await;
    });
    receiver.into_nonblocking_fd()
}

/// Copies what another process writes to a descriptor into a stream. The end of the descriptor is the end of the stream.
pub(crate) fn incoming(mut to: ByteWriter) -> io::Result<OwnedFd> {
    let (sender, mut receiver) = pipe::pipe()?;
    tokio::spawn(async move {
        // The process that reads the stream may end at any time.
        let _ = tokio::io::copy(&mut receiver, &mut to).await;
        let _ = to.shutdown().await;
    });
    sender.into_nonblocking_fd()
}

/// Reads from a pipe.
pub(crate) fn reader(fd: OwnedFd) -> io::Result<ByteReader> {
    Ok(Box::pin(pipe::Receiver::from_owned_fd(fd)?))
}

/// Writes to a pipe.
pub(crate) fn writer(fd: OwnedFd) -> io::Result<ByteWriter> {
    Ok(Box::pin(pipe::Sender::from_owned_fd(fd)?))
}
