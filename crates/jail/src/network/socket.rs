//! Connections to sockets in the network namespace of a sandbox, for callers outside.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{current, failed};
use crate::error::Error;

/// A TCP connection: non-blocking, closed on exec.
#[derive(Debug)]
pub struct Connecting {
    /// The socket.
    pub socket: OwnedFd,
    /// `true` when already connected. Otherwise it becomes writable when it is connected, or has failed.
    pub connected: bool,
}

/// Opens a TCP connection in a network namespace (see [`crate::Warden::network`]): to the first of the addresses that does
/// not refuse it. Does not wait: on `lo` a connection is accepted or refused at once, unless the backlog is full.
///
/// The calling thread enters the namespace and returns. It must be able to, so the caller is root and stays in the
/// namespace in which it called first.
///
/// # Errors
/// The refusal of the last address; [`Error::Network`] for any other failure.
pub fn connect_in(namespace: BorrowedFd<'_>, addresses: &[SocketAddr]) -> Result<Connecting, Error> {
    let home = home()?;
    enter(namespace)?;
    let mut result = Err(failed("connect")(Errno::CONNREFUSED));
    for address in addresses {
        result = connect(address);
        if !matches!(&result, Err(Error::Network { errno, .. }) if errno.0 == libc::ECONNREFUSED) {
            break;
        }
    }
    if let Err(error) = enter(home) {
        // A thread that stayed in a sandbox's namespace would do the next work there.
        eprintln!("hutch: failed to return from the network namespace of a sandbox: {error}");
        std::process::abort();
    }
    result
}

/// Returns the namespace of this process.
fn home() -> Result<BorrowedFd<'static>, Error> {
    static HOME: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(home) = HOME.get() {
        return Ok(home.as_fd());
    }
    let own = current()?;
    Ok(HOME.get_or_init(|| own).as_fd())
}

fn enter(namespace: BorrowedFd<'_>) -> Result<(), Error> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
        .map_err(failed("enter the namespace"))
}

fn connect(address: &SocketAddr) -> Result<Connecting, Error> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed("socket"))?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(Connecting { socket, connected: true }),
        Err(Errno::INPROGRESS) => outcome(socket),
        Err(errno) => Err(failed("connect")(errno)),
    }
}

/// Returns the outcome so far of a connection that was started. On `lo` it is known by then, yet `connect` does not
/// say so: the answer is processed when `connect` releases the socket.
fn outcome(socket: OwnedFd) -> Result<Connecting, Error> {
    let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
    let ready = poll(&mut polled, Some(&Timespec::default())).map_err(failed("poll"))? > 0;
    if ready {
        rustix::net::sockopt::socket_error(&socket)
            .map_err(failed("read the outcome of connect"))?
            .map_err(failed("connect"))?;
    }
    Ok(Connecting { socket, connected: ready })
}
