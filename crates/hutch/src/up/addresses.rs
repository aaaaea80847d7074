//! Addresses of this machine: for the certificate of a server that listens on all of them, and to close them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of addresses in a certificate.
const MAX_ADDRESSES: usize = 256;

/// Returns the addresses by which clients may reach a server that listens on `address`.
pub(super) fn reaching(address: IpAddr) -> Vec<String> {
    let mut all = vec![address.to_string()];
    if address.is_unspecified() {
        all.extend(own().iter().take(MAX_ADDRESSES).map(IpAddr::to_string));
    }
    all
}

/// Returns the addresses of this machine.
pub(crate) fn own() -> BTreeSet<IpAddr> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut own = of_routes(&read("/proc/net/fib_trie"));
    own.extend(of_interfaces(&read("/proc/net/if_inet6")));
    own
}

/// Returns the local addresses of the kernel's table of IPv4 routes.
fn of_routes(table: &str) -> BTreeSet<IpAddr> {
    let mut own = BTreeSet::new();
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            own.extend(last.map(IpAddr::V4));
        }
    }
    own
}

/// Returns the IPv6 addresses of the interfaces, without those that are valid on one link only.
fn of_interfaces(table: &str) -> BTreeSet<IpAddr> {
    let first = table.lines().filter_map(|line| u128::from_str_radix(line.split(' ').next()?, 16).ok());
    let global = first.map(Ipv6Addr::from_bits).filter(|address| !address.is_unicast_link_local());
    global.map(IpAddr::V6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine_are_those_that_the_kernel_lists() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                      Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.2\n        /32 host LOCAL\n\
                      \x20    |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let shown = |own: BTreeSet<IpAddr>| own.iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(shown(of_routes(routes)), ["127.0.0.1", "192.0.2.2"]);
        let interfaces = "00000000000000000000000000000001 01 80 10 80       lo\n\
                          fe800000000000000000000000000001 02 40 20 80     eth0\n\
                          20010db8000000000000000000000007 02 40 00 80     eth0\nx\n";
        assert_eq!(shown(of_interfaces(interfaces)), ["::1", "2001:db8::7"]);
    }

    #[test]
    fn server_on_all_addresses_is_reached_by_loopback_too() {
        let all = reaching(IpAddr::from([0, 0, 0, 0]));
        assert_eq!(all[0], "0.0.0.0");
        assert!(all.iter().any(|address| address == "127.0.0.1" || address == "::1"), "{all:?}");
        assert_eq!(reaching(IpAddr::from([192, 0, 2, 2])), ["192.0.2.2"]);
    }
}
