//! The network inside: `lo` up, its addresses, and all of the address space local.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::error::Error;

const LOOPBACK: u32 = 1; // lo is the first device of every namespace
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
const ADDRESS_WITHOUT_DETECTION: u8 = 0x02; // IFA_F_NODAD: nobody else could have it
const HEADER: usize = 16;

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

/// Makes a new network namespace with these addresses on `lo`, and enters it with the calling process, whose user namespace
/// owns it. A third of what a jail costs; a thread for it beside the rest was no faster, since to make the thread and to
/// wake a second processor takes as long.
pub(crate) fn enter_new(addresses: &[IpAddr]) -> Result<(), Error> {
    // SAFETY: no descriptor table or memory is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| Error::Namespaces { errno: errno.into() })?;
    allow_all_ports();
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
    Ok(())
}

/// Lets programs without privileges listen on ports below 1024: the namespace is theirs alone, so nobody's trust in
/// those ports is at stake. Where the setting is out of reach they keep to the higher ports.
fn allow_all_ports() {
    let path = c"/proc/sys/net/ipv4/ip_unprivileged_port_start";
    if let Ok(file) = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
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
