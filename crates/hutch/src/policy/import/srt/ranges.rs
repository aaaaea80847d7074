//! Addresses to which allowed names may lead.

use std::net::{IpAddr, Ipv6Addr};

use hutch_policy::Cidr;

use super::super::Notes;

/// Private ranges, which are open in srt and closed here unless a rule opens them.
const PRIVATE: [&str; 5] = ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];
/// Ranges to which no name leads here in any case.
const CLOSED: [&str; 9] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/3",
    "::/127",
    "fe80::/10",
    "ff00::/8",
    "64:ff9b:1::/48",
];

/// Maximum private ranges of a rule, less those of addresses that are allowed by themselves.
const MAX_RANGES: usize = 60;

/// A range: its first address and the length of its prefix, of 128 bits. IPv4 is mapped into IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u128,
    length: u32,
    is_v4: bool,
}

impl Range {
    /// Parses an address or a range; bits after the prefix are dropped, as srt does.
    fn parse(text: &str) -> Option<Range> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let (bits, is_v4) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let all = if is_v4 { 32 } else { 128 };
        let length = length.unwrap_or(all);
        (length <= all).then(|| {
            let length = length + 128 - all;
            Range { first: bits & mask(length), length, is_v4 }
        })
    }

    fn contains(&self, other: &Range) -> bool {
        self.is_v4 == other.is_v4
            && self.length <= other.length
            && other.first & mask(self.length) == self.first
    }

    /// Returns what is left without `taken`, as few ranges.
    fn without(self, taken: &Range) -> Vec<Range> {
        if taken.contains(&self) {
            return Vec::new();
        }
        if !self.contains(taken) {
            return vec![self];
        }
        let length = self.length + 1;
        let second = self.first | (1 << (128 - length));
        let halves = [self.first, second].map(|first| Range { first, length, ..self });
        halves.into_iter().flat_map(|half| half.without(taken)).collect()
    }

    fn cidr(&self) -> Option<Cidr> {
        let address = Ipv6Addr::from_bits(self.first);
        let text = match address.to_ipv4_mapped().filter(|_| self.is_v4) {
            Some(address) => format!("{address}/{}", self.length - 96),
            None => format!("{address}/{}", self.length),
        };
        text.parse().ok()
    }
}

fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// Returns the private ranges without the denied ones.
pub(super) fn private(denied: &[String], notes: &mut Notes) -> Vec<Cidr> {
    let known = |texts: &[&str]| texts.iter().filter_map(|text| Range::parse(text)).collect::<Vec<Range>>();
    let (mut left, closed) = (known(&PRIVATE), known(&CLOSED));
    let private = left.clone();
    for (index, text) in denied.iter().enumerate() {
        let field = format!("network.deniedResolvedAddresses[{index}]");
        let Some(range) = Range::parse(text) else {
            notes.refuse(&field, format!("`{}` is not an address or a range", text.escape_debug()));
            continue;
        };
        left = left.into_iter().flat_map(|open| open.without(&range)).collect();
        let is_private = private.iter().chain(&closed).any(|known| known.contains(&range));
        if !is_private {
            notes.refuse(
                &field,
                format!("`{text}` has public addresses, which only a rule for hosts can deny"),
            );
        }
    }
    if left.len() > MAX_RANGES {
        let why =
            format!("{} private ranges are left, at most {MAX_RANGES} fit; deny larger ones", left.len());
        notes.refuse("network.deniedResolvedAddresses", why);
        left.clear();
    }
    left.iter().filter_map(Range::cidr).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(denied: &[&str]) -> (Vec<String>, Vec<String>) {
        let denied: Vec<String> = denied.iter().map(|text| (*text).to_owned()).collect();
        let mut notes = Notes::default();
        let left = private(&denied, &mut notes);
        (left.iter().map(Cidr::to_string).collect(), notes.refusals)
    }

    #[test]
    fn denied_ranges_are_taken_from_the_private_ones() {
        assert_eq!(left(&[]).0, PRIVATE);
        assert_eq!(left(&["10.0.0.0/8", "fc00::/7", "169.254.1.1"]), {
            let rest = ["100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"];
            (rest.map(str::to_owned).into(), Vec::new())
        });
        let (rest, _) =
            left(&["10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10", "fc00::/7", "192.168.64.9/18"]);
        assert_eq!(rest, ["192.168.0.0/18", "192.168.128.0/17"]);
        assert_eq!(left(&["fd00::/8"]).0.last().map(String::as_str), Some("fc00::/8"));
        let single = left(&["192.168.0.1"]).0;
        assert_eq!(single.len(), 4 + 16, "{single:?}");
        assert!(
            single.contains(&"192.168.0.0/32".to_owned()) && !single.contains(&"192.168.0.1/32".to_owned())
        );
    }

    #[test]
    fn public_range_cannot_be_denied_by_address() {
        for text in ["8.8.8.8", "0.0.0.0/0", "172.0.0.0/8", "::/0", "2001:db8::/32", "x", "10.0.0.0/33"] {
            assert_eq!(left(&[text]).1.len(), 1, "{text}");
        }
        assert_eq!(left(&["0.0.0.0/0"]).0, ["fc00::/7"]);
    }
}
