//! Addresses that a sandbox may be connected to, whatever name led to them.
//!
//! A name of the internet may resolve to any address, also to one of the machine or of the network that it stands in. So an
//! address is judged when it is dialed, after the name was resolved.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cidr::Cidr;

/// Reason why an address is not dialed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// Service of a cloud that gives out credentials, or another address of this link. No rule opens it.
    #[error("it is link-local or serves metadata of a cloud, which no rule opens")]
    Metadata,
    /// No single host has this address.
    #[error("it is not the address of a host")]
    NoHost,
    /// This machine.
    #[error("it is an address of this machine")]
    ThisMachine,
    /// A private network.
    #[error("it is an address of a private network")]
    Private,
    /// A range that no network routes, such as that for documentation.
    #[error("it is not an address of the internet")]
    NotPublic,
    /// A name leads to it, and the `networkPolicy` of the template does not allow it.
    #[error("the `networkPolicy` of the template does not allow it")]
    NetworkPolicy,
    /// A rule with `decision: Deny` has it in `cidrs`, or the IPv4 address for which it stands.
    #[error("rule {rule:?} of policy {level:?} denies it by its `cidrs`")]
    Denied {
        /// Name of the policy.
        level: String,
        /// Name of its rule.
        rule: String,
    },
}

/// Services of clouds that give out credentials, outside the link-local ranges.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// Ranges of which every address is one of the above, link-local or of no host.
const NEVER: [&str; 16] = [
    "169.254.0.0/16",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "0.0.0.0/8",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "fe80::/10",
    "fd00:ec2::/32",
    "fd20:ce::254/128",
    "fd00:c1::a9fe:a9fe/128",
    "fd00:42::42/128",
    "fd00:a9fe:a9fe::1/128",
    "fd00:100::100:200/128",
    "::/128",
    "ff00::/8",
];
/// IPv6 addresses that are judged as the IPv4 addresses that they stand for. `::1` is in the last range and stands for none.
const STAND_FOR_IPV4: [&str; 4] = ["::ffff:0:0/96", "64:ff9b::/96", "2002::/16", "::/96"];
/// Networks that the internet does not route.
pub(crate) const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];
/// Loopback, and ranges that no network routes.
const OF_ADMINISTRATORS: [&str; 13] = [
    "127.0.0.0/8",
    "::1/128",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "198.18.0.0/15",
    "192.0.0.0/24",
    "192.88.99.0/24",
    "240.0.0.0/4",
    "100::/8",
    "2001::/23",
    "2001:db8::/32",
    "3fff::/20",
];

/// Returns why a range opens no address; `None` if it may open one.
pub fn opens_nothing(range: &Cidr) -> Option<&'static str> {
    if range.is_within(&NEVER) {
        return Some(
            "no rule opens link-local addresses, metadata services of clouds and addresses of no host",
        );
    }
    let stands = range.is_within(&STAND_FOR_IPV4) && !range.contains(Ipv6Addr::LOCALHOST.into());
    stands.then_some("its addresses stand for IPv4 addresses; write the range of those")
}

/// Returns why no connection is made to an address of a range, whatever opens it; `None` if one may be.
pub fn is_never_dialed(range: &Cidr) -> Option<&'static str> {
    let never = range.is_within(&NEVER) || is_mapped(range);
    opens_nothing(range).filter(|_| never)
}

/// Returns true for a range of mapped IPv4 addresses, which no address is in: each is judged as the IPv4 address.
pub(crate) fn is_mapped(range: &Cidr) -> bool {
    range.is_within(&STAND_FOR_IPV4[..1])
}

/// Returns true if every address of a range is opened only by a range in `private`.
pub(crate) fn needs_private(range: &Cidr) -> bool {
    range.is_within(&PRIVATE) || is_of_administrators(range)
}

/// Returns true if every address of a range is opened by administrators only, such as loopback.
pub(crate) fn is_of_administrators(range: &Cidr) -> bool {
    range.is_within(&OF_ADMINISTRATORS)
}

/// Checks an address before it is dialed. `private` are ranges that rules open although the internet does not route them;
/// `own` are the addresses of this machine: but for loopback, only a range of one address opens them. An IPv6 address that stands
/// for an IPv4 address is judged as that one.
///
/// # Errors
/// The reason.
pub fn check_address(address: IpAddr, private: &[Cidr], own: &[IpAddr]) -> Result<(), Forbidden> {
    let address = judged_as(address);
    let reason = match address {
        IpAddr::V4(v4) => reason_v4(v4),
        IpAddr::V6(v6) => reason_v6(v6),
    };
    let is_own = own.iter().any(|own| judged_as(*own) == address);
    let reason = match reason {
        Some(never @ (Forbidden::Metadata | Forbidden::NoHost)) => return Err(never),
        // Also one of a private network: only administrators open this machine.
        _ if is_own => Some(Forbidden::ThisMachine),
        reason => reason,
    };
    let Some(reason) = reason else { return Ok(()) };
    // A wider range means a network in which this machine is too.
    let names_it = |range: &Cidr| !is_own || address.is_loopback() || range.is_one();
    match private.iter().any(|range| range.contains(address) && names_it(range)) {
        true => Ok(()),
        false => Err(reason),
    }
}

/// Returns the address as which an address is judged, and which a range must contain to open it.
pub fn judged_as(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Returns the IPv4 address that an IPv6 address stands for: mapped, compatible, NAT64 or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let words = address.segments();
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match words {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(of(high, low)),
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

fn reason_v4(address: Ipv4Addr) -> Option<Forbidden> {
    let [a, b, c, _] = address.octets();
    match () {
        () if address.is_link_local() || METADATA_V4.contains(&address) => Some(Forbidden::Metadata),
        () if a == 0 || address.is_multicast() || address.is_broadcast() => Some(Forbidden::NoHost),
        () if address.is_loopback() => Some(Forbidden::ThisMachine),
        // Also those shared by providers (RFC 6598).
        () if address.is_private() || (a == 100 && (64..128).contains(&b)) => Some(Forbidden::Private),
        () if address.is_documentation() => Some(Forbidden::NotPublic),
        // Benchmarks (RFC 2544), protocol assignments, 6to4 relays, reserved.
        () if a == 198 && (b == 18 || b == 19) => Some(Forbidden::NotPublic),
        () if (a, b, c) == (192, 0, 0) || (a, b, c) == (192, 88, 99) || a >= 240 => {
            Some(Forbidden::NotPublic)
        }
        () => None,
    }
}

fn reason_v6(address: Ipv6Addr) -> Option<Forbidden> {
    let words = address.segments();
    match words {
        // AWS, Google, Oracle, Scaleway, Akamai and Alibaba.
        [0xfd00, 0xec2, ..]
        | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]
        | [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]
        | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]
        | [0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]
        | [0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200] => Some(Forbidden::Metadata),
        _ if address.is_unicast_link_local() => Some(Forbidden::Metadata),
        _ if address.is_unspecified() || address.is_multicast() => Some(Forbidden::NoHost),
        _ if address.is_loopback() => Some(Forbidden::ThisMachine),
        _ if address.is_unique_local() => Some(Forbidden::Private),
        // Protocol assignments with Teredo, documentation.
        [0x2001, 0..0x200, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => Some(Forbidden::NotPublic),
        // What the internet routes is in 2000::/3.
        [first, ..] if first & 0xe000 != 0x2000 => Some(Forbidden::NotPublic),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, private: &[&str], own: &[&str]) -> Result<(), Forbidden> {
        let private: Vec<Cidr> = private.iter().map(|range| range.parse().unwrap()).collect();
        let own: Vec<IpAddr> = own.iter().map(|address| address.parse().unwrap()).collect();
        check_address(address.parse().unwrap(), &private, &own)
    }

    #[test]
    fn only_addresses_of_the_internet_are_dialed() {
        for address in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"]
        {
            assert_eq!(check(address, &[], &[]), Ok(()), "{address}");
        }
        let cases = [
            (
                Forbidden::ThisMachine,
                vec!["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"],
            ),
            (Forbidden::NoHost, vec!["0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "::", "ff02::1"]),
            (
                Forbidden::Metadata,
                vec![
                    "169.254.169.254",
                    "169.254.0.1",
                    "::ffff:169.254.169.254",
                    "64:ff9b::a9fe:a9fe",
                    "2002:a9fe:a9fe::",
                    "100.100.100.200",
                    "168.63.129.16",
                    "192.0.0.192",
                    "fd00:ec2::254",
                    "fd20:ce::254",
                    "fd00:c1::a9fe:a9fe",
                    "fd00:42::42",
                    "fe80::1",
                ],
            ),
            (
                Forbidden::Private,
                vec![
                    "10.0.0.1",
                    "172.16.0.1",
                    "172.31.255.255",
                    "192.168.1.1",
                    "100.64.0.1",
                    "100.127.255.255",
                    "fc00::1",
                    "fd12::1",
                    "::10.0.0.1",
                    "::ffff:10.0.0.1",
                    "2002:a00:1::",
                ],
            ),
            (
                Forbidden::NotPublic,
                vec![
                    "198.18.0.1",
                    "198.19.255.255",
                    "192.0.2.1",
                    "198.51.100.1",
                    "203.0.113.1",
                    "192.0.0.8",
                    "192.88.99.1",
                    "240.0.0.1",
                    "fec0::1",
                    "2001:db8::1",
                    "2001::1",
                    "3fff::1",
                    "64:ff9b:1::1",
                    "100::1",
                ],
            ),
        ];
        for (reason, addresses) in cases {
            for address in addresses {
                assert_eq!(check(address, &[], &[]), Err(reason.clone()), "{address}");
            }
        }
    }

    #[test]
    fn private_ranges_open_all_but_metadata() {
        let all = ["0.0.0.0/0", "::/0"];
        for address in ["127.0.0.1", "::1", "10.0.0.1", "192.0.2.1", "fc00::1", "::ffff:10.0.0.1"] {
            assert_eq!(check(address, &all, &[]), Ok(()), "{address}");
        }
        for address in
            ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fe80::1", "0.0.0.0", "224.0.0.1"]
        {
            assert!(check(address, &all, &[]).is_err(), "{address}");
        }
        assert_eq!(check("10.0.0.1", &["10.0.0.0/24"], &[]), Ok(()));
        assert_eq!(check("10.0.1.1", &["10.0.0.0/24"], &[]), Err(Forbidden::Private));
        assert_eq!(check("64:ff9b::a00:1", &["10.0.0.0/24"], &[]), Ok(()));
    }

    #[test]
    fn public_address_of_this_machine_is_closed_unless_a_range_names_it() {
        assert_eq!(check("93.184.216.34", &[], &["93.184.216.34"]), Err(Forbidden::ThisMachine));
        assert_eq!(check("::ffff:93.184.216.34", &[], &["93.184.216.34"]), Err(Forbidden::ThisMachine));
        assert_eq!(check("93.184.216.34", &["93.184.216.34"], &["93.184.216.34"]), Ok(()));
        assert_eq!(check("93.184.216.34", &["0.0.0.0/0"], &["93.184.216.34"]), Err(Forbidden::ThisMachine));
    }

    #[test]
    fn range_that_opens_no_address_is_found() {
        let range = |text: &str| text.parse::<Cidr>().unwrap();
        for text in [
            "169.254.169.254",
            "169.254.0.0/16",
            "100.100.100.200",
            "168.63.129.16/32",
            "192.0.0.192",
            "0.0.0.0",
            "224.0.0.0/8",
            "255.255.255.255",
            "fe80::/64",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::",
            "ff02::/16",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.0/104",
            "64:ff9b::a00:1",
            "2002:a00:1::/48",
            "::10.0.0.1",
        ] {
            assert!(opens_nothing(&range(text)).is_some(), "{text}");
        }
        for text in [
            "0.0.0.0/0",
            "::/0",
            "169.0.0.0/8",
            "100.64.0.0/10",
            "192.0.0.0/24",
            "240.0.0.0/4",
            "127.0.0.1",
            "::1",
            "::/96",
            "10.0.0.0/8",
            "fd00::/8",
            "::ffff:10.0.0.1",
            "8.8.8.8",
        ] {
            assert_eq!(opens_nothing(&range(text)), None, "{text}");
        }
        for text in ["127.0.0.1", "127.77.0.0/16", "::1", "192.0.2.1", "198.18.0.0/16", "2001:db8::/64"] {
            assert!(is_of_administrators(&range(text)), "{text}");
        }
        for text in ["0.0.0.0/0", "126.0.0.0/7", "10.0.0.0/8", "fd00::/8", "8.8.8.8", "::/0"] {
            assert!(!is_of_administrators(&range(text)), "{text}");
        }
    }

    proptest::proptest! {
        /// The lists of ranges and the decision about each address are the same.
        #[test]
        fn lists_of_ranges_agree_with_the_decision(
            bits in proptest::num::u128::ANY, v4 in proptest::num::u32::ANY, use_v4: bool
        ) {
            let address = if use_v4 { IpAddr::from(v4.to_be_bytes()) } else { IpAddr::from(bits.to_be_bytes()) };
            let range: Cidr = address.to_string().parse().unwrap();
            let opened = check_address(address, &[range], &[]).is_ok();
            proptest::prop_assert!(opened || opens_nothing(&range).is_some());
            if let Some(why) = is_never_dialed(&range) {
                proptest::prop_assert!(!opened, "{}: {}", range, why);
            }
            if needs_private(&range) {
                proptest::prop_assert!(check_address(address, &[], &[]).is_err(), "{}", range);
            }
            if is_of_administrators(&range) {
                let closed = check_address(address, &[], &[]);
                proptest::prop_assert!(!matches!(closed, Ok(()) | Err(Forbidden::Private)));
            }
        }

        #[test]
        fn more_ranges_never_close_and_never_open_metadata(
            bits in proptest::num::u128::ANY, v4 in proptest::num::u32::ANY, use_v4: bool
        ) {
            let address = if use_v4 { IpAddr::from(v4.to_be_bytes()) } else { IpAddr::from(bits.to_be_bytes()) };
            let all: Vec<Cidr> = ["0.0.0.0/0", "::/0"].iter().map(|range| range.parse().unwrap()).collect();
            let (closed, open) = (check_address(address, &[], &[]), check_address(address, &all, &[]));
            proptest::prop_assert!(closed.is_err() || open.is_ok());
            if matches!(closed, Err(Forbidden::Metadata | Forbidden::NoHost)) {
                proptest::prop_assert_eq!(closed, open);
            }
        }
    }
}
