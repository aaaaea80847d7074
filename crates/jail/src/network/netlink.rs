//! Messages to the kernel by netlink: several requests that are sent at once, each of which is acknowledged.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::failed;
use crate::error::Error;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
/// Flags of a request that creates something, and fails if it is there.
pub(super) const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const HEADER: usize = 16;

/// Requests of one message, numbered from 0.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    requests: Vec<Request>,
}

struct Request {
    step: &'static str,
    /// `true` when a failure is ignored.
    optional: bool,
}

impl Batch {
    /// Adds a request of which an error names `step`.
    pub(super) fn push(&mut self, step: &'static str, optional: bool, kind: u16, flags: u16, body: &[u8]) {
        let number = self.requests.len() as u32;
        self.append(number, kind, REQUEST | ACKNOWLEDGE | flags, body);
        self.requests.push(Request { step, optional });
    }

    /// Adds a request that is not acknowledged.
    pub(super) fn push_silent(&mut self, kind: u16, body: &[u8]) {
        self.append(0, kind, REQUEST, body);
    }

    fn append(&mut self, number: u32, kind: u16, flags: u16, body: &[u8]) {
        let length = HEADER + body.len();
        self.bytes.extend_from_slice(&(length as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&number.to_ne_bytes());
        self.bytes.extend_from_slice(&0_u32.to_ne_bytes());
        self.bytes.extend_from_slice(body);
        pad(&mut self.bytes);
    }

    /// Sends all requests and waits until the kernel has acknowledged each.
    pub(super) fn send(&self, protocol: Option<Protocol>) -> Result<(), Error> {
        let socket: OwnedFd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
                .map_err(failed("netlink socket"))?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty()).map_err(failed("netlink send"))?;
        let mut answered = 0;
        let mut buffer = [0_u8; 4096];
        while answered < self.requests.len() {
            let (_, length) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())
                .map_err(failed("netlink receive"))?;
            for (number, code) in acknowledgements(&buffer[..length.min(4096)]) {
                answered += 1;
                let request = self.requests.get(number as usize);
                if code != 0 && request.is_none_or(|request| !request.optional) {
                    let step = request.map_or("netlink", |request| request.step);
                    return Err(failed(step)(Errno::from_raw_os_error(-code)));
                }
            }
        }
        Ok(())
    }
}

/// Adds an attribute.
pub(super) fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    pad(body);
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Returns sequence numbers and error codes of the acknowledgements in a datagram.
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
    fn request_states_its_length_and_ends_at_a_word() {
        let mut batch = Batch::default();
        let mut body = Vec::new();
        attribute(&mut body, 1, b"odd");
        batch.push("first", false, 1, 0, &body);
        batch.push_silent(2, &[]);
        batch.push("second", false, 3, 0, b"x");
        let mut rest = &batch.bytes[..];
        for (number, kind) in [(0_u32, 1_u16), (0, 2), (1, 3)] {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            assert_eq!((&rest[4..6], &rest[8..12]), (&kind.to_ne_bytes()[..], &number.to_ne_bytes()[..]));
            rest = &rest[length.next_multiple_of(4)..];
        }
        assert!(rest.is_empty());
    }
}
