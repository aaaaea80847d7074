//! Addresses to which allowed names may lead: private ones without those that are denied, and no denied public ones.

use std::net::{IpAddr, Ipv6Addr};

use hutch_policy::{Cidr, Decision, EgressRule, PortRange};

use super::super::Notes;
use super::domains::PER_RULE;

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
        // Mapped addresses are IPv4 addresses.
        let is_mapped = |length: &u32| !is_v4 && *length >= 96 && bits >> 32 == 0xffff;
        if let Some(length) = length.or((!is_v4).then_some(128)).filter(is_mapped) {
            return (length <= 128).then(|| Range { first: bits & mask(length), length, is_v4: true });
        }
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

/// Returns the private ranges without the denied ones, and the denied ranges with other addresses.
pub(super) fn private(denied: &[String], notes: &mut Notes) -> (Vec<Cidr>, Vec<Cidr>) {
    let known = |texts: &[&str]| texts.iter().filter_map(|text| Range::parse(text)).collect::<Vec<Range>>();
    let (mut left, closed) = (known(&PRIVATE), known(&CLOSED));
    let private = left.clone();
    let mut public = Vec::new();
    for (index, text) in denied.iter().enumerate() {
        let field = format!("network.deniedResolvedAddresses[{index}]");
        let Some(range) = Range::parse(text) else {
            notes.refuse(&field, format!("`{}` is not an address or a range", text.escape_debug()));
            continue;
        };
        left = left.into_iter().flat_map(|open| open.without(&range)).collect();
        let is_known = private.iter().chain(&closed).any(|known| known.contains(&range));
        match range.cidr() {
            _ if is_known => {}
            Some(cidr) => public.push(cidr),
            None => notes.refuse(&field, format!("`{}` is not a range", text.escape_debug())),
        }
    }
    if left.len() > MAX_RANGES {
        let why =
            format!("{} private ranges are left, at most {MAX_RANGES} fit; deny larger ones", left.len());
        notes.refuse("network.deniedResolvedAddresses", why);
        left.clear();
    }
    (left.iter().filter_map(Range::cidr).collect(), public)
}

/// Returns the rules that deny these ranges.
pub(super) fn rules(denied: &[Cidr]) -> impl Iterator<Item = EgressRule> {
    denied.chunks(PER_RULE).enumerate().map(|(number, cidrs)| EgressRule {
        name: format!("denied addresses {}", number + 1),
        cidrs: cidrs.to_vec(),
        ports: vec![PortRange::ALL],
        decision: Decision::Deny,
        ..EgressRule::default()
    })
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Egress, Forbidden, Level, Moment, may_dial};

    use super::*;

    fn left(denied: &[&str]) -> (Vec<String>, Vec<String>) {
        let denied: Vec<String> = denied.iter().map(|text| (*text).to_owned()).collect();
        let mut notes = Notes::default();
        let (left, _) = private(&denied, &mut notes);
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
    fn public_ranges_are_denied_by_rules() {
        let denied = |text: &str| {
            let (_, denied) = private(&[text.to_owned()], &mut Notes::default());
            denied.iter().map(Cidr::to_string).collect::<Vec<_>>()
        };
        for (text, expected) in [
            ("8.8.8.8", "8.8.8.8/32"),
            ("8.8.8.8/24", "8.8.8.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("172.0.0.0/8", "172.0.0.0/8"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::ffff:8.8.8.8", "8.8.8.8/32"),
            ("::ffff:8.8.0.0/112", "8.8.0.0/16"),
        ] {
            assert_eq!(denied(text), [expected], "{text}");
            assert_eq!(left(&[text]).1, [""; 0], "{text}");
        }
        for closed in ["10.1.0.0/16", "127.0.0.1", "169.254.0.0/16", "::1"] {
            assert_eq!(denied(closed), [""; 0], "{closed}");
        }
        for wrong in ["x", "10.0.0.0/33", "::/129", "::ffff:1.2.3.4/129", "1.2.3.4/-1", ""] {
            assert_eq!(left(&[wrong]).1.len(), 1, "{wrong}");
        }
        assert_eq!(left(&["0.0.0.0/0"]).0, ["fc00::/7"]);
        let many: Vec<Cidr> = (0..130).map(|number| format!("8.8.{number}.0/24").parse().unwrap()).collect();
        let rules: Vec<EgressRule> = rules(&many).collect();
        let sizes: Vec<usize> = rules.iter().map(|rule| rule.cidrs.len()).collect();
        assert_eq!(sizes, [64, 64, 2]);
        let any = EgressRule {
            name: "any".into(),
            any: true,
            ports: vec![PortRange::ALL],
            ..EgressRule::default()
        };
        let egress = Egress { rules: [vec![any], rules].concat().into(), ..Egress::default() };
        let levels = [Level::new(Authority::Invocation, "srt", Some(egress))];
        for port in [1, 80, 443, 5432, 65535] {
            let destination = format!("a.example:{port}").parse().unwrap();
            let dials = |address: &str| {
                may_dial(&levels, &destination, address.parse().unwrap(), &[], &Moment::default())
            };
            assert!(matches!(dials("8.8.129.1"), Err(Forbidden::Denied { .. })), "{port}");
            assert_eq!(dials("8.8.130.1"), Ok(()), "{port}");
        }
    }
}
