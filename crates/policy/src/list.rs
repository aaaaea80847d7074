//! The rules of a level, and an index by which those for a host are found.
//!
//! A sandbox can have 8 levels of 256 rules each, and every connection and request is decided by all of them.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize, Serializer};

use crate::host::{Host, HostName};
use crate::pattern::HostPattern;
use crate::rule::EgressRule;

/// Egress rules. Their order has no meaning.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "Vec<EgressRule>")]
pub struct RuleList {
    rules: Vec<EgressRule>,
    /// Made with the list. After a change, it is made for the next decision.
    index: OnceLock<Index>,
}

impl Serialize for RuleList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rules.serialize(serializer)
    }
}

/// Places of rules in the list.
#[derive(Debug, Clone, Default)]
struct Index {
    /// Rules with `any`.
    every_name: Vec<u32>,
    /// Rules with names, by the hash of the part of each name that is not a pattern.
    by_suffix: Vec<(u32, u32)>,
    /// Rules with `cidrs`.
    addresses: Vec<u32>,
}

impl RuleList {
    /// Returns rules among which are all that cover the host at some port, some of them several times.
    pub(crate) fn about<'a>(&'a self, host: &Host) -> impl Iterator<Item = &'a EgressRule> {
        match host {
            Host::Name(name) => self.found(&self.index().every_name, suffixes(name)),
            Host::Address(_) => self.found(&self.index().addresses, Vec::new()),
        }
    }

    /// As [`RuleList::about`] of a name.
    pub(crate) fn about_name<'a>(&'a self, name: &HostName) -> impl Iterator<Item = &'a EgressRule> {
        self.found(&self.index().every_name, suffixes(name))
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(&self.rules))
    }

    /// Returns the rules at these places, and those with a name that has one of these hashes.
    fn found<'a>(
        &'a self,
        always: &'a [u32],
        suffixes: Vec<u32>,
    ) -> impl Iterator<Item = &'a EgressRule> + use<'a> {
        let index = self.index();
        let found = suffixes.into_iter().flat_map(|suffix| {
            let from = index.by_suffix.partition_point(|(hash, _)| *hash < suffix);
            index.by_suffix[from..]
                .iter()
                .take_while(move |(hash, _)| *hash == suffix)
                .map(|(_, place)| place)
        });
        always.iter().chain(found).filter_map(|place| self.rules.get(*place as usize))
    }
}

impl Index {
    fn new(rules: &[EgressRule]) -> Index {
        let mut index = Index::default();
        for (place, rule) in (0..).zip(rules) {
            if rule.any {
                index.every_name.push(place);
            }
            if !rule.cidrs.is_empty() {
                index.addresses.push(place);
            }
            for pattern in &rule.hosts {
                let (HostPattern::Exact(name)
                | HostPattern::Below(name)
                | HostPattern::Label { parent: name, .. }) = pattern;
                index.by_suffix.extend(suffixes(name).last().map(|hash| (*hash, place)));
            }
        }
        index.by_suffix.sort_unstable();
        index
    }
}

/// Returns a hash (FNV-1a) of each end of a name that starts with a label, the shortest first.
fn suffixes(name: &HostName) -> Vec<u32> {
    let (mut hash, mut all) = (0x811c_9dc5_u32, Vec::with_capacity(8));
    for byte in name.as_str().bytes().rev() {
        if byte == b'.' {
            all.push(hash);
        }
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    all.push(hash);
    all
}

impl Deref for RuleList {
    type Target = Vec<EgressRule>;

    fn deref(&self) -> &Vec<EgressRule> {
        &self.rules
    }
}

impl DerefMut for RuleList {
    fn deref_mut(&mut self) -> &mut Vec<EgressRule> {
        self.index.take();
        &mut self.rules
    }
}

impl PartialEq for RuleList {
    fn eq(&self, other: &RuleList) -> bool {
        self.rules == other.rules
    }
}

impl Eq for RuleList {}

impl From<Vec<EgressRule>> for RuleList {
    fn from(rules: Vec<EgressRule>) -> RuleList {
        let index = Index::new(&rules).into();
        RuleList { rules, index }
    }
}

impl FromIterator<EgressRule> for RuleList {
    fn from_iter<I: IntoIterator<Item = EgressRule>>(rules: I) -> RuleList {
        Vec::from_iter(rules).into()
    }
}

impl<'a> IntoIterator for &'a RuleList {
    type Item = &'a EgressRule;
    type IntoIter = std::slice::Iter<'a, EgressRule>;

    fn into_iter(self) -> Self::IntoIter {
        self.rules.iter()
    }
}

impl<'a> IntoIterator for &'a mut RuleList {
    type Item = &'a mut EgressRule;
    type IntoIter = std::slice::IterMut<'a, EgressRule>;

    fn into_iter(self) -> Self::IntoIter {
        self.deref_mut().iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(rules: &RuleList, host: &str) -> Vec<String> {
        let mut names: Vec<String> =
            rules.about(&host.parse().unwrap()).map(|rule| rule.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn changed_list_is_found_as_it_is() {
        let rule = |name: &str, hosts: &str| EgressRule {
            name: name.to_owned(),
            hosts: vec![hosts.parse().unwrap()],
            ..EgressRule::default()
        };
        let mut rules = RuleList::from(vec![rule("a", "a.example"), rule("b", "**.b.example")]);
        assert_eq!(named(&rules, "a.example"), ["a"]);
        assert_eq!(named(&rules, "x.y.b.example"), ["b"]);
        assert_eq!(named(&rules, "c.example"), [""; 0]);
        rules.push(rule("c", "api-*.c.example"));
        rules.remove(0);
        assert_eq!(named(&rules, "api-1.c.example"), ["c"]);
        assert_eq!(named(&rules, "a.example"), [""; 0]);
    }

    fn label() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["a", "b", "c", "ab"])
    }

    fn name() -> impl Strategy<Value = String> {
        prop::collection::vec(label(), 1..5).prop_map(|labels| labels.join("."))
    }

    fn rule() -> impl Strategy<Value = EgressRule> {
        let start = prop::sample::select(vec!["", "**.x.", "*.", "a*.", "*b.", "**."]);
        let hosts = prop::collection::vec((start, name()), 0..3);
        let cidrs = prop::sample::select(vec!["", "10.0.0.0/8", "::/0"]);
        (hosts, cidrs, any::<bool>()).prop_map(|(hosts, cidrs, any)| EgressRule {
            hosts: hosts.iter().filter_map(|(start, name)| format!("{start}{name}").parse().ok()).collect(),
            cidrs: cidrs.parse().into_iter().collect(),
            any,
            ..EgressRule::default()
        })
    }

    proptest! {
        /// A rule that the index does not find would neither allow nor deny.
        #[test]
        fn every_rule_that_covers_a_host_is_found(
            rules in prop::collection::vec(rule(), 0..6), name in name(), address: std::net::IpAddr
        ) {
            let rules: RuleList = rules.into_iter().enumerate()
                .map(|(number, rule)| EgressRule { name: number.to_string(), ports: vec!["1-65535".parse().unwrap()], ..rule })
                .collect();
            for host in [name.parse::<Host>().unwrap(), Host::from(address)] {
                let found = named(&rules, &host.to_string());
                let destination = crate::Destination { host, port: std::num::NonZeroU16::MIN };
                for rule in rules.iter().filter(|rule| rule.matches(&destination)) {
                    prop_assert!(found.contains(&rule.name), "{rule:?} for {destination:?}");
                }
            }
        }
    }
}
