//! Synthetic addresses, by which a connection says what name it is for.
//!
//! A program resolves a name and connects to the answer. If the answer were the real address, a connection would say nothing
//! about the name, and many names share an address. So each name gets an address of its own, which means
//! that name in this sandbox only.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hutch_policy::HostName;

/// First synthetic address. Those before it in 198.18.0.0/15 belong to the proxy and its DNS server.
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// Maximum number of names. A pattern allows any number, and code inside could fill the memory with them.
const LIMIT: usize = 4096;
/// Maximum number of new names in an hour for each pattern: labels of names could carry data to the server of a zone.
pub(crate) const HOURLY: usize = 512;
const HOUR: Duration = Duration::from_secs(3600);

/// Kind of rule that allows a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// A rule or a Service has this name.
    Exactly,
    /// By this pattern of a rule.
    By(String),
}

/// Reason why a name has no address though it is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Exhausted {
    /// The sandbox has too many.
    #[error("a sandbox can resolve {LIMIT} different names at most")]
    Names,
    /// A pattern has too many new ones.
    #[error("{0:?} allows {HOURLY} new names an hour at most")]
    Pattern(String),
}

/// New names in an hour.
#[derive(Debug)]
struct Hour {
    began: Instant,
    names: usize,
    /// That there were too many is reported once.
    reported: bool,
}

/// New names of the last hour, by pattern. A later Pod of the sandbox continues them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hours(Arc<Mutex<HashMap<Exhausted, Hour>>>);

/// Names of a sandbox and their addresses. An address is never given to a second name, because programs keep addresses.
#[derive(Debug, Default)]
pub struct Names {
    by_name: HashMap<HostName, Ipv4Addr>,
    /// By distance from [`FIRST`].
    by_address: Vec<HostName>,
    hours: Hours,
    exhausted: Option<(HostName, Exhausted)>,
}

impl Names {
    /// Returns no names, which continue these hours.
    pub(crate) fn continuing(hours: Hours) -> Names {
        Names { hours, ..Names::default() }
    }

    /// Returns the number of names.
    pub fn count(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the names that came after that many others.
    pub fn since(&self, count: usize) -> impl Iterator<Item = &HostName> {
        self.by_address.iter().skip(count)
    }

    /// Returns the address of a name, a new one if it has none; `None` if there are too many names.
    pub fn address_of(&mut self, name: &HostName, allowed: &Allowed) -> Option<Ipv4Addr> {
        self.address_at(name, allowed, Instant::now())
    }

    /// Takes the first name that has got no address for a reason, since it was taken.
    pub fn take_exhausted(&mut self) -> Option<(HostName, Exhausted)> {
        self.exhausted.take()
    }

    fn address_at(&mut self, name: &HostName, allowed: &Allowed, now: Instant) -> Option<Ipv4Addr> {
        if let Some(address) = self.by_name.get(name) {
            return Some(*address);
        }
        let hours = self.hours.clone();
        let mut hours = hours.0.lock().unwrap_or_else(PoisonError::into_inner);
        hours.retain(|_, hour| now.duration_since(hour.began) < HOUR);
        let (kind, limit) = match allowed {
            _ if self.by_address.len() >= LIMIT => (Exhausted::Names, 0),
            Allowed::Exactly => return Some(self.add(name)),
            Allowed::By(pattern) => (Exhausted::Pattern(pattern.clone()), HOURLY),
        };
        let hour = hours.entry(kind.clone()).or_insert(Hour { began: now, names: 0, reported: false });
        if hour.names < limit {
            hour.names += 1;
            return Some(self.add(name));
        }
        if !std::mem::replace(&mut hour.reported, true) {
            self.exhausted = Some((name.clone(), kind));
        }
        None
    }

    /// Gives a name, which was allowed before, the next address, unless it has one or there are too many.
    pub fn restore(&mut self, name: &HostName) {
        if self.by_address.len() < LIMIT && !self.by_name.contains_key(name) {
            self.add(name);
        }
    }

    fn add(&mut self, name: &HostName) -> Ipv4Addr {
        let number = self.by_address.len();
        let address = Ipv4Addr::from_bits(FIRST.to_bits() + number as u32);
        self.by_address.push(name.clone());
        self.by_name.insert(name.clone(), address);
        address
    }

    /// Returns the name that has an address.
    pub fn name_of(&self, address: Ipv4Addr) -> Option<&HostName> {
        let number = address.to_bits().checked_sub(FIRST.to_bits())?;
        self.by_address.get(number as usize)
    }
}

/// Returns true if an address means a name, in this sandbox or another one.
pub fn is_synthetic(address: Ipv4Addr) -> bool {
    matches!(address.octets(), [198, 18 | 19, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn each_name_keeps_an_address_of_its_own() {
        let mut names = Names::default();
        let [one, other] = ["a.example", "b.example"].map(name);
        let mut address = |name: &HostName| names.address_of(name, &Allowed::Exactly).unwrap();
        let (first, second) = (address(&one), address(&other));
        assert_ne!(first, second);
        assert_eq!(address(&name("A.example.")), first);
        assert_eq!((names.name_of(first), names.name_of(second)), (Some(&one), Some(&other)));
        assert!(is_synthetic(first));
        for unknown in ["198.18.0.1", "198.18.1.2", "198.19.255.255", "1.1.1.1"] {
            assert_eq!(names.name_of(unknown.parse().unwrap()), None, "{unknown}");
        }
    }

    #[test]
    fn number_of_names_is_bounded() {
        let mut names = Names::default();
        for number in 0..LIMIT {
            let address = names.address_of(&name(&format!("n{number}.example")), &Allowed::Exactly);
            assert!(address.is_some_and(is_synthetic), "{number}");
        }
        let more = name("one-more.example");
        assert_eq!(names.address_of(&more, &Allowed::Exactly), None);
        assert_eq!(names.take_exhausted(), Some((more.clone(), Exhausted::Names)));
        assert_eq!(names.address_of(&more, &Allowed::Exactly), None);
        assert_eq!(names.take_exhausted(), None, "once an hour");
        names.restore(&more);
        assert_eq!(names.count(), LIMIT);
        assert_eq!(names.address_of(&name("n0.example"), &Allowed::Exactly), Some(FIRST));
    }

    #[test]
    fn new_names_of_a_pattern_are_bounded_for_each_hour() {
        let mut names = Names::default();
        let (start, pattern) = (Instant::now(), |text: &str| Allowed::By(text.to_owned()));
        let all = pattern("**.example");
        for number in 0..HOURLY {
            names.address_at(&name(&format!("n{number}.example")), &all, start).unwrap();
        }
        let more = name("more.example");
        let late = start + HOUR - Duration::from_secs(1);
        assert_eq!(names.address_at(&more, &all, late), None);
        assert_eq!(names.take_exhausted(), Some((more.clone(), Exhausted::Pattern("**.example".into()))));
        // Known names, exact rules and other patterns are not concerned.
        names.address_at(&name("n7.example"), &all, late).unwrap();
        names.address_at(&name("named.example"), &Allowed::Exactly, late).unwrap();
        names.address_at(&name("a.other"), &pattern("*.other"), late).unwrap();
        names.address_at(&more, &all, start + HOUR).unwrap();
    }

    #[test]
    fn restored_names_have_the_addresses_that_they_had() {
        let (mut before, mut after) = (Names::default(), Names::default());
        for text in ["b.example", "a.example", "c.example"] {
            before.address_of(&name(text), &Allowed::By("*.example".into())).unwrap();
        }
        before.since(0).for_each(|name| after.restore(name));
        for text in ["a.example", "b.example", "c.example"] {
            let [then, now] =
                [&mut before, &mut after].map(|names| names.address_of(&name(text), &Allowed::Exactly));
            assert_eq!(then, now);
        }
    }
}
