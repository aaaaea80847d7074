//! Sockets in the network namespace of a sandbox, for callers outside.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::Error;

/// Opens a TCP socket in a network namespace (see [`crate::Warden::network`]): non-blocking, closed on exec. Connecting
/// it dials inside; binding it listens inside.
///
/// A new thread enters the namespace and opens the socket, so the caller's threads stay in theirs.
pub fn socket_in(namespace: BorrowedFd<'_>, v6: bool) -> Result<OwnedFd, Error> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let make = || {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
            .map_err(|e| Error::Network { step: "enter the namespace".into(), errno: e.into() })?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|e| Error::Network { step: "socket".into(), errno: e.into() })
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("jail-socket".into()).spawn_scoped(scope, make);
        let thread = thread.map_err(|e| Error::Network { step: "make a thread".into(), errno: e.into() })?;
        thread.join().unwrap_or(Err(Error::Network {
            step: "the thread panicked".into(),
            errno: rustix::io::Errno::IO.into(),
        }))
    })
}
