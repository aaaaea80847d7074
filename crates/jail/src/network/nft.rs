//! Captures of a plan as rules of nftables: table `inet hutch` with one chain before routing.
//!
//! Connections from inside leave through `lo` and come back there, which is where `tproxy` assigns them to a listener.
//! It assigns to transparent sockets alone, and only `CAP_NET_ADMIN` makes those: no program inside can take a captured
//! connection. Without a listener the connection is refused.

use std::net::IpAddr;

use rustix::net::netlink::NETFILTER;

use super::netlink::{Batch, CREATE, attribute};
use super::{Capture, NetworkPlan, Transport};
use crate::error::Error;

/// Type of an nftables message: this subsystem in the high byte, the request in the low one.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
/// Adds a rule after those that are there.
const APPEND: u16 = (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;

const INET: u8 = 1; // NFPROTO_INET
const IPV4: u8 = 2; // NFPROTO_IPV4
const IPV6: u8 = 10; // NFPROTO_IPV6
const PREROUTING: u32 = 0; // NF_INET_PRE_ROUTING
/// The priority of `mangle`, where the documentation of the kernel has `tproxy`.
const PRIORITY: i32 = -150;
const NESTED: u16 = 0x8000; // NLA_F_NESTED
const NAME: &[u8] = b"hutch\0";
const CHAIN: &[u8] = b"capture\0";

/// Registers of 16 bytes each.
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;
const VERDICT: u32 = 0;
const ACCEPT: i32 = 1;
const RETURN: i32 = -5;

/// Header that a `payload` expression reads from.
#[derive(Clone, Copy)]
enum Header {
    Network = 1,
    Transport = 2,
}

/// Key that a `meta` expression reads.
#[derive(Clone, Copy)]
enum Meta {
    /// IPv4 or IPv6.
    NetworkProtocol = 15,
    /// TCP or UDP.
    TransportProtocol = 16,
}

/// Installs the captures of a plan in the namespace of the calling process.
pub(super) fn apply(plan: &NetworkPlan) -> Result<(), Error> {
    let mut batch = Batch::default();
    let bound = [0, 0, 0, SUBSYSTEM as u8]; // struct nfgenmsg; the subsystem is in network byte order
    batch.push_silent(BATCH_BEGIN, &bound);
    batch.push("nftables table", false, NEW_TABLE, CREATE, &table());
    batch.push("nftables chain", false, NEW_CHAIN, CREATE, &chain());
    let loopback = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    for own in loopback.iter().chain(&plan.addresses) {
        batch.push("nftables rule", false, NEW_RULE, APPEND, &leave_alone(*own));
    }
    for capture in &plan.captures {
        batch.push("nftables tproxy rule", false, NEW_RULE, APPEND, &deliver(capture));
    }
    batch.push_silent(BATCH_END, &bound);
    batch.send(Some(NETFILTER))
}

/// A message body, which begins with a `struct nfgenmsg`.
fn body() -> Vec<u8> {
    vec![INET, 0, 0, 0]
}

fn table() -> Vec<u8> {
    let mut body = body();
    attribute(&mut body, 1, NAME);
    body
}

fn chain() -> Vec<u8> {
    let mut hook = Vec::new();
    number(&mut hook, 1, PREROUTING);
    number(&mut hook, 2, PRIORITY as u32);
    let mut body = body();
    attribute(&mut body, 1, NAME);
    attribute(&mut body, 3, CHAIN);
    attribute(&mut body, 4 | NESTED, &hook);
    number(&mut body, 5, ACCEPT as u32); // policy
    attribute(&mut body, 7, b"filter\0");
    body
}

fn rule(expressions: &Expressions) -> Vec<u8> {
    let mut body = body();
    attribute(&mut body, 1, NAME);
    attribute(&mut body, 2, CHAIN);
    attribute(&mut body, 4 | NESTED, &expressions.0);
    body
}

/// `ip daddr ADDRESS return`; for an IPv4 loopback address `127.0.0.0/8`.
fn leave_alone(address: IpAddr) -> Vec<u8> {
    let mut all = Expressions::default();
    let (protocol, offset, mut compared) = match address {
        IpAddr::V4(v4) => (IPV4, 16, v4.octets().to_vec()),
        IpAddr::V6(v6) => (IPV6, 24, v6.octets().to_vec()),
    };
    if address.is_ipv4() && address.is_loopback() {
        compared.truncate(1);
    }
    all.meta_is(Meta::NetworkProtocol, protocol);
    all.payload_is(Header::Network, offset, &compared);
    all.verdict(RETURN);
    rule(&all)
}

/// `meta l4proto PROTOCOL [th dport PORT] tproxy to ADDRESS accept`.
fn deliver(capture: &Capture) -> Vec<u8> {
    let mut all = Expressions::default();
    let (family, address) = match capture.to.ip() {
        IpAddr::V4(v4) => (IPV4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (IPV6, v6.octets().to_vec()),
    };
    let protocol = match capture.transport {
        Transport::Tcp => libc::IPPROTO_TCP,
        Transport::Udp => libc::IPPROTO_UDP,
    };
    all.meta_is(Meta::NetworkProtocol, family);
    all.meta_is(Meta::TransportProtocol, protocol as u8);
    if let Some(port) = capture.port {
        all.payload_is(Header::Transport, 2, &port.to_be_bytes());
    }
    all.load(REGISTER_1, &address);
    all.load(REGISTER_2, &capture.to.port().to_be_bytes());
    all.tproxy(family);
    all.verdict(ACCEPT);
    rule(&all)
}

/// Expressions of a rule, in order.
#[derive(Default)]
struct Expressions(Vec<u8>);

impl Expressions {
    fn push(&mut self, name: &str, data: &[u8]) {
        let mut element = Vec::new();
        attribute(&mut element, 1, &[name.as_bytes(), b"\0"].concat());
        attribute(&mut element, 2 | NESTED, data);
        attribute(&mut self.0, 1 | NESTED, &element);
    }

    /// Continues if this property of the packet is one byte of this value.
    fn meta_is(&mut self, what: Meta, value: u8) {
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER_1);
        number(&mut data, 2, what as u32);
        self.push("meta", &data);
        self.equals(&[value]);
    }

    /// Continues if the packet has these bytes at an offset of a header.
    fn payload_is(&mut self, header: Header, offset: u32, value: &[u8]) {
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER_1);
        number(&mut data, 2, header as u32);
        number(&mut data, 3, offset);
        number(&mut data, 4, value.len() as u32);
        self.push("payload", &data);
        self.equals(value);
    }

    /// Continues if register 1 has this value.
    fn equals(&mut self, value: &[u8]) {
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER_1);
        number(&mut data, 2, 0); // equal
        attribute(&mut data, 3 | NESTED, &bytes(value));
        self.push("cmp", &data);
    }

    fn load(&mut self, register: u32, value: &[u8]) {
        let mut data = Vec::new();
        number(&mut data, 1, register);
        attribute(&mut data, 2 | NESTED, &bytes(value));
        self.push("immediate", &data);
    }

    /// Assigns the packet to the socket at the address in register 1 and the port in register 2.
    fn tproxy(&mut self, family: u8) {
        let mut data = Vec::new();
        number(&mut data, 1, family.into());
        number(&mut data, 2, REGISTER_1);
        number(&mut data, 3, REGISTER_2);
        self.push("tproxy", &data);
    }

    fn verdict(&mut self, code: i32) {
        let mut verdict = Vec::new();
        number(&mut verdict, 1, code as u32);
        let mut value = Vec::new();
        attribute(&mut value, 2 | NESTED, &verdict);
        let mut data = Vec::new();
        number(&mut data, 1, VERDICT);
        attribute(&mut data, 2 | NESTED, &value);
        self.push("immediate", &data);
    }
}

fn bytes(value: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    attribute(&mut data, 1, value);
    data
}

/// Adds an attribute with a number in network byte order.
fn number(body: &mut Vec<u8>, kind: u16, value: u32) {
    attribute(body, kind, &value.to_be_bytes());
}
