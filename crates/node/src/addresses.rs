//! Addresses of Pods.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;

use crate::Error;

/// Owners whose last address is known at most: those of Pods that come and go. The oldest are forgotten.
const OWNERS: usize = 16 << 10;

/// Assigns addresses of one range. A released address is assigned to another owner only after all others were.
#[derive(Debug)]
pub(crate) struct Addresses {
    first: u32,
    count: u32,
    next: u32,
    held: HashMap<String, u32>,
    taken: BTreeSet<u32>,
    /// The address that the last Pod of each owner had, and the owners in the order in which they came.
    last: HashMap<String, u32>,
    owners: VecDeque<String>,
}

impl Addresses {
    /// Reads a range such as `10.89.0.0/16`. `start` is where the handing out begins (any number), so that a new life
    /// of the node does not give its first Pods the addresses that the last ones of the old life had.
    pub(crate) fn new(range: &str, start: u32) -> Result<Addresses, Error> {
        let wrong = |reason| Error::AddressRange { range: range.into(), reason };
        let (base, bits) =
            range.split_once('/').ok_or_else(|| wrong("it is not of the form 10.89.0.0/16"))?;
        let base: Ipv4Addr = base.parse().map_err(|_| wrong("its address is not an IPv4 address"))?;
        let bits: u32 = bits.parse().map_err(|_| wrong("its length is not a number"))?;
        // More Pods than a /16 has addresses do not fit on a machine.
        if !(16..=28).contains(&bits) {
            return Err(wrong("its length must be /16 to /28"));
        }
        let size = 1u32 << (32 - bits);
        let first = u32::from(base);
        if !first.is_multiple_of(size) {
            return Err(wrong("its address has bits outside of the network"));
        }
        if base.is_loopback() || base.is_link_local() || base.is_multicast() || base.is_unspecified() {
            return Err(wrong("it must be an ordinary range: not loopback, link-local or multicast"));
        }
        // The first and the last address of a range belong to no Pod.
        let count = size - 2;
        Ok(Addresses {
            first: first + 1,
            count,
            next: start % count,
            held: HashMap::new(),
            taken: BTreeSet::new(),
            last: HashMap::new(),
            owners: VecDeque::new(),
        })
    }

    /// As [`Addresses::lease`], for a Pod of an owner (its namespace and uid) that has one Pod at a time: it wants what the
    /// last one had.
    pub(crate) fn lease_of(
        &mut self,
        uid: &str,
        wanted: Option<Ipv4Addr>,
        owner: Option<&str>,
    ) -> Option<Ipv4Addr> {
        let last = owner.and_then(|owner| self.last.get(owner)).map(|index| self.at(*index));
        let lease = self.lease(uid, wanted.or(last))?;
        if let Some(owner) = owner {
            let index = u32::from(lease) - self.first;
            if self.last.insert(owner.to_owned(), index).is_none() {
                self.owners.push_back(owner.to_owned());
            }
            while self.owners.len() > OWNERS {
                self.owners.pop_front().and_then(|oldest| self.last.remove(&oldest));
            }
        }
        Some(lease)
    }

    /// An address for the Pod with this uid: the one it holds, the `wanted` one when that is free and of the range, or
    /// the next free one. Nothing when all are taken.
    pub(crate) fn lease(&mut self, uid: &str, wanted: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
        if let Some(&index) = self.held.get(uid) {
            return Some(self.at(index));
        }
        let wanted = wanted.and_then(|address| u32::from(address).checked_sub(self.first));
        let wanted = wanted.filter(|index| *index < self.count && !self.taken.contains(index));
        let index = match wanted {
            Some(index) => index,
            None => {
                let free = |index: &u32| !self.taken.contains(index);
                let index = (self.next..self.count).chain(0..self.next).find(free)?;
                self.next = (index + 1) % self.count;
                index
            }
        };
        self.taken.insert(index);
        self.held.insert(uid.to_owned(), index);
        Some(self.at(index))
    }

    /// Gives back what a Pod held.
    pub(crate) fn release(&mut self, uid: &str) {
        if let Some(index) = self.held.remove(uid) {
            self.taken.remove(&index);
        }
    }

    fn at(&self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.first + index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pod_keeps_its_address_and_others_do_not_get_it_soon() {
        let mut range = Addresses::new("10.89.0.0/28", 0).unwrap();
        let a = range.lease("a", None).unwrap();
        assert_eq!(a, Ipv4Addr::new(10, 89, 0, 1));
        assert_eq!(range.lease("a", None), Some(a));
        range.release("a");
        assert_ne!(range.lease("b", None).unwrap(), a);
        assert_eq!(range.lease("c", Some(a)), Some(a), "a restarted Pod has its old one");
        assert_ne!(range.lease("d", Some(a)).unwrap(), a, "unless it is taken");
        assert!(range.lease("e", Some(Ipv4Addr::LOCALHOST)).unwrap().octets()[0] == 10);
        for n in 0..10 {
            range.lease(&format!("x{n}"), None).unwrap();
        }
        assert_eq!(range.lease("one too many", None), None);
    }

    #[test]
    fn the_next_pod_of_an_owner_has_the_address_of_the_last_one() {
        let mut range = Addresses::new("10.89.0.0/28", 0).unwrap();
        let first = range.lease_of("a1", None, Some("a")).unwrap();
        range.release("a1");
        let other = range.lease_of("b1", None, Some("b")).unwrap();
        assert_ne!(other, first);
        assert_eq!(range.lease_of("a2", None, Some("a")), Some(first));
        let second = range.lease_of("a3", None, Some("a")).unwrap();
        assert_ne!(second, first, "while the last one is there");
        range.release("a3");
        assert_eq!(range.lease_of("a4", None, Some("a")), Some(second));
        assert_eq!(range.lease_of("b2", Some(first), None).map(|lease| lease == first), Some(false));
        for n in 0..=OWNERS {
            range.release("x");
            range.lease_of("x", None, Some(&format!("owner-{n}"))).unwrap();
        }
        assert!(range.last.len() == OWNERS && range.owners.len() == OWNERS, "as many as are known at most");
    }

    #[test]
    fn bad_ranges_are_refused() {
        for range in [
            "",
            "10.89.0.0",
            "10.89.0.0/8",
            "10.89.0.0/30",
            "10.89.0.1/16",
            "127.0.0.0/16",
            "x/16",
            "fd00::/64",
        ] {
            assert!(Addresses::new(range, 0).is_err(), "{range}");
        }
    }

    proptest! {
        #[test]
        fn leases_never_overlap(steps in proptest::collection::vec((any::<bool>(), 0u8..40), 0..200), start: u32) {
            let mut range = Addresses::new("10.89.0.0/16", start).unwrap();
            let mut held: HashMap<u8, Ipv4Addr> = HashMap::new();
            for (take, pod) in steps {
                if take {
                    held.insert(pod, range.lease(&pod.to_string(), None).unwrap());
                } else {
                    range.release(&pod.to_string());
                    held.remove(&pod);
                }
                let addresses: BTreeSet<Ipv4Addr> = held.values().copied().collect();
                prop_assert_eq!(addresses.len(), held.len());
            }
        }
    }
}
