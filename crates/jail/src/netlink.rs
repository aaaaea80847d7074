//! The network inside: `lo` up, its addresses, and all of the address space local.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::Error;

const LOOPBACK: u32 = 1; // lo is the first device of every namespace
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
const ADDRESS_WITHOUT_DETECTION: u8 = 0x02; // IFA_F_NODAD: nobody else could have it
const HEADER: usize = 16;
/// Enough for a few system calls and their buffers.
const THREAD_STACK: usize = 64 * 1024;

/// Several requests that are sent at once, numbered from 0.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    names: Vec<&'static str>,
    optional: Vec<bool>,
}

impl Batch {
    fn push(&mut self, name: &'static str, optional: bool, kind: u16, flags: u16, body: &[u8]) {
        let length = HEADER + body.len();
        self.bytes.extend_from_slice(&(length as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(REQUEST | ACKNOWLEDGE | flags).to_ne_bytes());
        self.bytes.extend_from_slice(&(self.names.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&0_u32.to_ne_bytes());
        self.bytes.extend_from_slice(body);
        // Bodies are made of words, so nothing has to be padded.
        debug_assert_eq!(length % 4, 0);
        self.names.push(name);
        self.optional.push(optional);
    }

    fn up(&mut self) {
        let mut body = vec![libc::AF_UNSPEC as u8, 0, 0, 0];
        body.extend_from_slice(&LOOPBACK.to_ne_bytes());
        body.extend_from_slice(&(libc::IFF_UP as u32).to_ne_bytes()); // flags
        body.extend_from_slice(&(libc::IFF_UP as u32).to_ne_bytes()); // of which these change
        self.push("lo up", false, libc::RTM_NEWLINK, 0, &body);
    }

    fn address(&mut self, address: IpAddr) {
        let (family, octets) = match address {
            IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
        };
        let prefix = octets.len() as u8 * 8;
        let mut body = vec![family as u8, prefix, ADDRESS_WITHOUT_DETECTION, 0];
        body.extend_from_slice(&LOOPBACK.to_ne_bytes());
        for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
            attribute(&mut body, kind, &octets);
        }
        self.push("address", false, libc::RTM_NEWADDR, CREATE, &body);
    }

    /// `local 0.0.0.0/0 dev lo`, or the same of IPv6: every address is one of this host.
    fn everything_local(&mut self, family: libc::c_int, optional: bool) {
        let mut body = vec![
            family as u8,
            0, // destination prefix: all
            0,
            0,
            libc::RT_TABLE_LOCAL,
            libc::RTPROT_BOOT,
            libc::RT_SCOPE_HOST,
            libc::RTN_LOCAL,
        ];
        body.extend_from_slice(&0_u32.to_ne_bytes());
        attribute(&mut body, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        self.push("local route", optional, libc::RTM_NEWROUTE, CREATE, &body);
    }
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
}

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Network { step: step.into(), errno: errno.into() }
}

/// A new network namespace with these addresses on `lo`, made by a thread of its own while the caller goes on: it is
/// the costliest of all namespaces, and nothing else waits for it.
pub(crate) struct Making(JoinHandle<Result<OwnedFd, Error>>);

impl Making {
    /// Starts. The thread takes no path from the root, so the caller may change that meanwhile.
    pub(crate) fn start(addresses: &[IpAddr]) -> Result<Self, Error> {
        let settings = rustix::fs::open("/proc/sys", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let addresses = addresses.to_vec();
        let make = move || {
            // SAFETY: no descriptor table or memory is unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| Error::Namespaces { errno: errno.into() })?;
            if let Some(settings) = settings {
                allow_all_ports(&settings);
            }
            let socket = set_up(&addresses)?;
            namespace_of(&socket).map_err(failed("find the namespace"))
        };
        crate::sys::share_heap();
        let thread = std::thread::Builder::new().stack_size(THREAD_STACK).spawn(make);
        thread.map(Self).map_err(|error| Error::Network { step: "make a thread".into(), errno: error.into() })
    }

    /// Waits until it is made, and enters it with the calling thread.
    pub(crate) fn enter(self) -> Result<(), Error> {
        let made = self.0.join().map_err(|_| failed("the thread panicked")(Errno::IO))?;
        move_into_link_name_space(made?.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(failed("enter the namespace"))
    }
}

/// The network namespace that a socket belongs to.
fn namespace_of(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    const SIOCGSKNS: libc::c_ulong = 0x894c;
    // SAFETY: the request takes no argument and gives a new descriptor.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made this descriptor for us. It is closed with all others before any exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets up the network namespace of the calling thread, which must be new. Gives the socket that it used.
fn set_up(addresses: &[IpAddr]) -> Result<OwnedFd, Error> {
    let mut batch = Batch::default();
    batch.up();
    for &address in addresses {
        batch.address(address);
    }
    batch.everything_local(libc::AF_INET, false);
    // A kernel without IPv6 has no address space there to make local, and refuses every such connection itself.
    batch.everything_local(libc::AF_INET6, true);

    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // protocol 0 is routing
    )
    .map_err(failed("netlink socket"))?;
    rustix::net::send(&socket, &batch.bytes, SendFlags::empty()).map_err(failed("netlink send"))?;
    let mut answered = 0;
    let mut buffer = [0_u8; 4096];
    while answered < batch.names.len() {
        let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())
            .map_err(failed("netlink receive"))?;
        for (number, code) in acknowledgements(&buffer[..length.min(4096)]) {
            answered += 1;
            let number = number as usize;
            if code != 0 && !batch.optional.get(number).copied().unwrap_or(false) {
                let name = batch.names.get(number).copied().unwrap_or("netlink");
                return Err(failed(name)(Errno::from_raw_os_error(-code)));
            }
        }
    }
    Ok(socket)
}

/// Lets programs without privileges listen on ports below 1024: the namespace is theirs alone, so nobody's trust in
/// those ports is at stake. Where the setting is out of reach they keep to the higher ports.
fn allow_all_ports(settings: &OwnedFd) {
    let path = c"net/ipv4/ip_unprivileged_port_start";
    if let Ok(file) = rustix::fs::openat(settings, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(&file, b"0");
    }
}

/// Sequence numbers and error codes of the acknowledgements in a datagram.
fn acknowledgements(mut bytes: &[u8]) -> Vec<(u32, i32)> {
    let mut found = Vec::new();
    let word = |bytes: &[u8], at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    while let (Some(length), Some(sequence)) = (word(bytes, 0), word(bytes, 8)) {
        let length = u32::from_ne_bytes(length) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if let (true, Some(code)) = (kind == libc::NLMSG_ERROR as u16, word(bytes, HEADER)) {
            found.push((u32::from_ne_bytes(sequence), i32::from_ne_bytes(code)));
        }
        let step = length.next_multiple_of(4);
        if length < HEADER || step >= bytes.len() {
            break;
        }
        bytes = &bytes[step..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledgement(sequence: u32, code: i32) -> Vec<u8> {
        let mut bytes = 36_u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&code.to_ne_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes
    }

    #[test]
    fn acknowledgements_are_found_one_or_many_whole_or_cut() {
        let mut bytes = acknowledgement(3, 0);
        bytes.extend(acknowledgement(4, -17));
        assert_eq!(acknowledgements(&bytes), [(3, 0), (4, -17)]);
        assert_eq!(acknowledgements(&bytes[..18]), []);
        assert_eq!(acknowledgements(&[]), []);
    }

    #[test]
    fn requests_are_as_long_as_they_say() {
        let mut batch = Batch::default();
        batch.up();
        batch.address("10.89.0.7".parse().unwrap());
        batch.address("fd00::7".parse().unwrap());
        batch.everything_local(libc::AF_INET, false);
        let mut rest = &batch.bytes[..];
        for number in 0..4_u32 {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], number.to_ne_bytes());
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
    }
}
