//! Datagrams that a capture has delivered: their original destination, and answers that come from there.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes for one control message of either direction, aligned as the kernel's header demands.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Ends of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes that were received.
    pub length: usize,
    /// Sender.
    pub from: SocketAddr,
    /// Destination that the sender named.
    pub to: SocketAddr,
}

/// Receives a datagram on a transparent UDP socket of a plan, without waiting. What does not fit is cut off.
///
/// # Errors
/// `WouldBlock` when no datagram has arrived; `InvalidData` when the kernel names no sender or no destination.
pub fn receive_datagram(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut from = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all fields of the structure may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = from.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: each pointer is to memory of the given length, which outlives the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: zeroes are a valid value, and the kernel writes no more than the length. Every address of a family is not
    // longer than the storage, which is aligned for it.
    let from = unsafe { address(from.as_ptr().cast()) };
    // SAFETY: the kernel has set the length of the control messages in the buffer, which is still there.
    let to = unsafe { original_destination(&message) };
    let unnamed =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("a datagram without a {what}"));
    Ok(Datagram {
        length,
        from: from.ok_or_else(|| unnamed("sender"))?,
        to: to.ok_or_else(|| unnamed("destination"))?,
    })
}

/// Sends a datagram on a transparent UDP socket, without waiting, from this address, with the port of the socket.
///
/// # Errors
/// As the system call; `WouldBlock` when the buffer of the socket is full; `InvalidInput` when the addresses are of two
/// families.
pub fn send_datagram(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<()> {
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            let information = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.ip().octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            send(socket, bytes, name, (libc::IPPROTO_IP, libc::IP_PKTINFO), information)
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            // Without a device, the kernel takes no link-local source.
            let information = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: from.ip().octets() },
                ipi6_ifindex: from.scope_id(),
            };
            send(socket, bytes, name, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), information)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Sends to an address, with one control message. Both are of types of the kernel.
fn send<Name, Information>(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    mut name: Name,
    (level, kind): (libc::c_int, libc::c_int),
    information: Information,
) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all fields of the structure may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<Name>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    const { assert!(size_of::<Information>() <= 48, "with its header it fits into the buffer") };
    let size = size_of::<Information>() as libc::c_uint;
    // SAFETY: the functions compute sizes only. The header and the data fit into the 64 bytes of the buffer, which is
    // aligned for the header; the data is written without an assumption about its alignment.
    let count = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<Information>().write_unaligned(information);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, flags)
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an address of either family.
///
/// # Safety
/// The pointer must be to a whole address of the family that is at its beginning.
unsafe fn address(pointer: *const u8) -> Option<SocketAddr> {
    // SAFETY: by the contract of this function.
    unsafe {
        match i32::from(pointer.cast::<libc::sa_family_t>().read_unaligned()) {
            libc::AF_INET => {
                let found = pointer.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = found.sin_addr.s_addr.to_ne_bytes().into();
                Some(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
            }
            libc::AF_INET6 => {
                let found = pointer.cast::<libc::sockaddr_in6>().read_unaligned();
                let (ip, port) = (found.sin6_addr.s6_addr.into(), u16::from_be(found.sin6_port));
                Some(SocketAddrV6::new(ip, port, 0, found.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Returns the destination in the control messages that were received.
///
/// # Safety
/// The control messages must be those that the kernel has written, and their memory must be valid.
unsafe fn original_destination(message: &libc::msghdr) -> Option<SocketAddr> {
    // SAFETY: by the contract of this function; the loop ends at the length that the kernel has set. An address is read
    // only if the message has room for one of its family.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            let size = match (found.cmsg_level, found.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) => Some(size_of::<libc::sockaddr_in>()),
                (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => Some(size_of::<libc::sockaddr_in6>()),
                _ => None,
            };
            if let Some(size) = size
                && found.cmsg_len >= libc::CMSG_LEN(size as libc::c_uint) as usize
            {
                return address(libc::CMSG_DATA(header));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::set_socket_option;

    #[test]
    fn answer_comes_from_the_address_that_the_sender_named() {
        for (server, level, name) in [
            ("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
            ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR),
        ] {
            let server = UdpSocket::bind(server).unwrap();
            set_socket_option(server.as_fd(), level, name, 1).unwrap();
            let at = server.local_addr().unwrap();
            let client = UdpSocket::bind((at.ip(), 0)).unwrap();
            client.send_to(b"query", at).unwrap();
            let mut buffer = [0; 3];
            let received = loop {
                match receive_datagram(server.as_fd(), &mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                    received => break received.unwrap(),
                }
            };
            assert_eq!(received, Datagram { length: 3, from: client.local_addr().unwrap(), to: at });
            send_datagram(server.as_fd(), b"answer", received.to, received.from).unwrap();
            let mut answer = [0; 16];
            assert_eq!(client.recv_from(&mut answer).unwrap(), (6, at));
            assert_eq!(&answer[..6], b"answer");
            let other = if at.is_ipv4() { "[::1]:1" } else { "127.0.0.1:1" }.parse().unwrap();
            assert!(send_datagram(server.as_fd(), b"", other, received.from).is_err());
        }
    }
}
