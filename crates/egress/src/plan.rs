//! The network plan of a sandbox with a proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hutch_jail::{Capture, Listener, NetworkPlan, Transport};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

/// Port of DNS.
pub(crate) const DNS: u16 = 53;
/// Address of the proxy and of its DNS server inside.
pub(crate) const PROXY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PROXY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x6875, 0, 0, 0, 0, 0, 1);
/// Ports at the addresses of the proxy where clients name their destinations themselves, by HTTP and by SOCKS. Both are
/// understood at both.
const EXPLICIT: [u16; 2] = [3128, 1080];
/// Port of the listener. Programs inside may use any port of other addresses.
const PORT: u16 = 61_853;

/// Returns true for a place at which clients name their destinations themselves.
pub(crate) fn is_explicit(address: SocketAddr) -> bool {
    let own = [IpAddr::V4(PROXY), IpAddr::V6(PROXY_V6)];
    own.contains(&address.ip().to_canonical()) && EXPLICIT.contains(&address.port())
}

/// Returns the plan of a network namespace with these addresses, of which a proxy serves the listeners: all TCP, and UDP to
/// port 53. Other UDP is refused by the kernel. Where the kernel has no IPv6, programs inside have none either.
pub fn plan(addresses: Vec<IpAddr>) -> NetworkPlan {
    let without = rustix::net::socket(AddressFamily::INET6, SocketType::DGRAM, None);
    plan_of(addresses, without.err() != Some(Errno::AFNOSUPPORT))
}

fn plan_of(addresses: Vec<IpAddr>, has_ipv6: bool) -> NetworkPlan {
    let mut plan = NetworkPlan::closed(addresses);
    for (transport, port, to) in [
        (Transport::Udp, Some(DNS), SocketAddr::from((PROXY, DNS))),
        (Transport::Udp, Some(DNS), SocketAddr::from((PROXY_V6, DNS))),
        (Transport::Tcp, None, SocketAddr::from((PROXY, PORT))),
        (Transport::Tcp, None, SocketAddr::from((PROXY_V6, PORT))),
    ] {
        if to.is_ipv6() && !has_ipv6 {
            continue;
        }
        plan.listeners.push(Listener { transport, address: to, transparent: true });
        plan.captures.push(Capture { transport, port, to });
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listeners could not be opened, and every policy was refused.
    #[test]
    fn kernel_without_ipv6_has_listeners_of_ipv4() {
        let count = |has_ipv6| {
            let plan = plan_of(Vec::new(), has_ipv6);
            (plan.listeners.len(), plan.captures.len())
        };
        assert_eq!((count(true), count(false)), ((4, 4), (2, 2)));
        assert!(plan_of(Vec::new(), false).captures.iter().all(|capture| capture.to.is_ipv4()));
    }
}
