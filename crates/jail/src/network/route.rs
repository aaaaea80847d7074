//! Addresses and routes of a namespace, by routing netlink.

use std::net::IpAddr;

use super::netlink::{Batch, CREATE, attribute};
use super::{LocalRoute, NetworkPlan};
use crate::error::Error;

const LOOPBACK: u32 = 1; // lo is the first device of every namespace
const ADDRESS_WITHOUT_DETECTION: u8 = 0x02; // IFA_F_NODAD: no other host could have the address

/// Sets `lo` up.
pub(super) fn up() -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.up();
    batch.send(None)
}

/// Sets `lo` up, and adds the addresses and routes of a plan.
pub(super) fn apply(plan: &NetworkPlan) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.up();
    plan.addresses.iter().for_each(|address| batch.address(*address));
    plan.routes.iter().for_each(|route| batch.local_route(route));
    batch.send(None)
}

fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

impl Batch {
    fn up(&mut self) {
        let mut body = vec![libc::AF_UNSPEC as u8, 0, 0, 0];
        body.extend_from_slice(&LOOPBACK.to_ne_bytes());
        body.extend_from_slice(&(libc::IFF_UP as u32).to_ne_bytes()); // flags
        body.extend_from_slice(&(libc::IFF_UP as u32).to_ne_bytes()); // of which these change
        self.push("lo up", false, libc::RTM_NEWLINK, 0, &body);
    }

    fn address(&mut self, address: IpAddr) {
        let (family, bytes) = family_and_bytes(address);
        let prefix = bytes.len() as u8 * 8;
        let mut body = vec![family, prefix, ADDRESS_WITHOUT_DETECTION, 0];
        body.extend_from_slice(&LOOPBACK.to_ne_bytes());
        for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
            attribute(&mut body, kind, &bytes);
        }
        self.push("address", false, libc::RTM_NEWADDR, CREATE, &body);
    }

    /// `local DESTINATION dev lo`. A kernel without IPv6 refuses each connection to an IPv6 address itself.
    fn local_route(&mut self, route: &LocalRoute) {
        let (family, bytes) = family_and_bytes(route.destination);
        let scope = libc::RT_SCOPE_HOST;
        let mut body =
            vec![family, route.prefix, 0, 0, libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT, scope, libc::RTN_LOCAL];
        body.extend_from_slice(&0_u32.to_ne_bytes());
        attribute(&mut body, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        if route.prefix > 0 {
            attribute(&mut body, libc::RTA_DST, &bytes);
        }
        if let Some(source) = route.source {
            attribute(&mut body, libc::RTA_PREFSRC, &family_and_bytes(source).1);
        }
        self.push("local route", route.destination.is_ipv6(), libc::RTM_NEWROUTE, CREATE, &body);
    }
}
