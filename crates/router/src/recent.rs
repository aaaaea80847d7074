//! Addresses that Sandboxes had when they were last reached.
//!
//! A client keeps the address that it read from the Sandbox's status, and forgets it when it gets a 5xx, not a 4xx. So
//! an address that *was* this Sandbox's answers like a Pod that cannot be reached any more, which is what it is; only
//! an address that never was is a bad request.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Sandboxes that are remembered; the one that came first is forgotten first.
const SANDBOXES: usize = 4096;
/// Addresses that are remembered for each.
const ADDRESSES: usize = 8;

#[derive(Default)]
struct Memory {
    addresses: HashMap<String, VecDeque<IpAddr>>,
    order: VecDeque<String>,
}

#[derive(Default)]
pub(crate) struct Recent(Mutex<Memory>);

impl Recent {
    pub(crate) fn had(&self, sandbox: &str, address: IpAddr) -> bool {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.addresses.get(sandbox).is_some_and(|known| known.contains(&address))
    }

    pub(crate) fn note(&self, sandbox: &str, addresses: &[IpAddr]) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !memory.addresses.contains_key(sandbox) {
            if memory.order.len() == SANDBOXES
                && let Some(oldest) = memory.order.pop_front()
            {
                memory.addresses.remove(&oldest);
            }
            memory.order.push_back(sandbox.to_owned());
        }
        let known = memory.addresses.entry(sandbox.to_owned()).or_default();
        for address in addresses {
            if !known.contains(address) {
                if known.len() == ADDRESSES {
                    known.pop_front();
                }
                known.push_back(*address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_a_bounded_number() {
        let recent = Recent::default();
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        for number in 0..5000 {
            recent.note(&number.to_string(), &[address(number)]);
        }
        assert!(!recent.had("0", address(0)) && recent.had("4999", address(4999)));
        assert!(!recent.had("4999", address(4998)));
        for number in 0..20 {
            recent.note("one", &[address(number)]);
        }
        assert!(!recent.had("one", address(11)) && recent.had("one", address(12)));
        assert_eq!(recent.0.lock().unwrap().addresses.len(), SANDBOXES);
    }
}
