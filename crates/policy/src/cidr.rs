//! Ranges of addresses in rules.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::host::shown;

/// Reason why a text is not a range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCidr {
    /// Neither an address nor an address with the length of a prefix.
    #[error("{0:?} is not a range of addresses; write it like 10.20.0.0/16; names are written under `hosts`")]
    Text(String),
    /// Bits after the prefix.
    #[error("{0} has bits after its prefix; write {1}")]
    HostBits(IpNet, IpNet),
}

/// Range of addresses. An address without a prefix is a range of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl Cidr {
    /// Returns true if the address is in the range. An IPv4 address that is mapped into IPv6 is the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns the first address of the range.
    pub(crate) fn first(&self) -> IpAddr {
        self.0.network()
    }

    /// Returns true if the range is one address.
    pub(crate) fn is_one(&self) -> bool {
        self.0.prefix_len() == self.0.max_prefix_len()
    }

    /// Returns true if every address of another range is in this one.
    pub(crate) fn covers(&self, other: &Cidr) -> bool {
        self.0.contains(&other.0)
    }

    /// Returns true if every address of the range is in one of these ranges.
    pub(crate) fn is_within(&self, ranges: &[&str]) -> bool {
        let mut ranges = ranges.iter().filter_map(|range| range.parse::<IpNet>().ok());
        ranges.any(|range| range.contains(&self.0))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Cidr, InvalidCidr> {
        let net = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address.to_canonical()),
            Err(_) => text.parse().map_err(|_| InvalidCidr::Text(shown(text)))?,
        };
        match net.trunc() {
            trunc if trunc == net => Ok(Cidr(net)),
            trunc => Err(InvalidCidr::HostBits(net, trunc)),
        }
    }
}

impl TryFrom<String> for Cidr {
    type Error = InvalidCidr;

    fn try_from(text: String) -> Result<Cidr, InvalidCidr> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> String {
        cidr.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_their_addresses() {
        let contains =
            |cidr: &str, address: &str| cidr.parse::<Cidr>().unwrap().contains(address.parse().unwrap());
        assert!(contains("10.20.0.0/16", "10.20.255.255") && !contains("10.20.0.0/16", "10.21.0.0"));
        assert!(contains("10.20.0.1", "10.20.0.1") && !contains("10.20.0.1", "10.20.0.2"));
        assert!(contains("10.20.0.0/16", "::ffff:10.20.0.1"), "mapped");
        assert!(contains("::ffff:10.20.0.1", "10.20.0.1"), "mapped");
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "10.0.0.1"));
        for (text, expected) in [
            ("10.20.0.1/16", "write 10.20.0.0/16"),
            ("10.20/16", "like 10.20.0.0/16"),
            ("a/8", "like 10.20.0.0/16"),
            ("10.0.0.0/33", "like 10.20.0.0/16"),
            ("", "like 10.20.0.0/16"),
        ] {
            let error = text.parse::<Cidr>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
