//! Datagrams that a capture has delivered: their original destination, and answers that come from there.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, SocketAddrV4};
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
    pub from: SocketAddrV4,
    /// Destination that the sender named.
    pub to: SocketAddrV4,
}

/// Receives a datagram on a transparent UDP socket of a plan (IPv4), without waiting. What does not fit is cut off.
///
/// # Errors
/// `WouldBlock` when no datagram has arrived; `InvalidData` when the kernel names no destination.
pub fn receive_datagram(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut from = MaybeUninit::<libc::sockaddr_in>::zeroed();
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all fields of the structure may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = from.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: each pointer is to memory of the given length, which outlives the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: zeroes are a valid address, and the kernel writes no more than the length.
    let from = unsafe { from.assume_init() };
    // SAFETY: the kernel has set the length of the control messages in the buffer, which is still there.
    let to = unsafe { original_destination(&message) };
    let to =
        to.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a datagram without a destination"))?;
    Ok(Datagram { length, from: address(&from), to })
}

/// Sends a datagram on a transparent UDP socket, without waiting, from this address and the port of the socket.
///
/// # Errors
/// As the system call; `WouldBlock` when the buffer of the socket is full.
pub fn send_datagram(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    from: Ipv4Addr,
    to: SocketAddrV4,
) -> io::Result<()> {
    let mut name = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    };
    let information = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all fields of the structure may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    let size = size_of::<libc::in_pktinfo>() as libc::c_uint;
    // SAFETY: the functions compute sizes only. The header and the data fit into the 64 bytes of the buffer, which is
    // aligned for the header; the data is written without an assumption about its alignment.
    let count = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::IPPROTO_IP;
        (*header).cmsg_type = libc::IP_PKTINFO;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().write_unaligned(information);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, flags)
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn address(address: &libc::sockaddr_in) -> SocketAddrV4 {
    let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
    SocketAddrV4::new(ip, u16::from_be(address.sin_port))
}

/// Returns the destination in the control messages that were received.
///
/// # Safety
/// The control messages must be those that the kernel has written, and their memory must be valid.
unsafe fn original_destination(message: &libc::msghdr) -> Option<SocketAddrV4> {
    // SAFETY: by the contract of this function; the loop ends at the length that the kernel has set.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            let needed = libc::CMSG_LEN(size_of::<libc::sockaddr_in>() as libc::c_uint) as usize;
            let is_it = found.cmsg_level == libc::IPPROTO_IP && found.cmsg_type == libc::IP_ORIGDSTADDR;
            if is_it && found.cmsg_len >= needed {
                let data = libc::CMSG_DATA(header).cast::<libc::sockaddr_in>().read_unaligned();
                return Some(address(&data));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
