//! Opens the listeners of a plan.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{Listener, Transport, failed};
use crate::error::Error;
use crate::sys;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Opens a listener in the network namespace of the calling process. A transparent one needs `CAP_NET_ADMIN` there.
pub(super) fn open(listener: &Listener) -> Result<OwnedFd, Error> {
    let Listener { transport, address, .. } = listener;
    let (family, kind) = match (address, transport) {
        (SocketAddr::V4(_), Transport::Tcp) => (AddressFamily::INET, SocketType::STREAM),
        (SocketAddr::V4(_), Transport::Udp) => (AddressFamily::INET, SocketType::DGRAM),
        (SocketAddr::V6(_), Transport::Tcp) => (AddressFamily::INET6, SocketType::STREAM),
        (SocketAddr::V6(_), Transport::Udp) => (AddressFamily::INET6, SocketType::DGRAM),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None).map_err(failed("open a listener"))?;
    options(&socket, listener).map_err(failed("set options of a listener"))?;
    rustix::net::bind(&socket, address).map_err(failed("bind a listener"))?;
    if *transport == Transport::Tcp {
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen"))?;
    }
    Ok(socket)
}

fn options(socket: &OwnedFd, listener: &Listener) -> Result<(), Errno> {
    let set = |level, name| sys::set_socket_option(socket.as_fd(), level, name, 1);
    let v6 = listener.address.is_ipv6();
    if v6 {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)?;
    }
    // Captured connections use the ports of their destinations, on which programs inside listen too. A UDP socket must
    // not share its address: a program inside could bind the same one.
    if listener.transport == Transport::Tcp {
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    }
    if listener.transparent {
        match v6 {
            false => set(libc::IPPROTO_IP, libc::IP_TRANSPARENT)?,
            true => set(libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)?,
        }
        if listener.transport == Transport::Udp {
            match v6 {
                false => set(libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR)?,
                true => set(libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR)?,
            }
        }
    }
    Ok(())
}
