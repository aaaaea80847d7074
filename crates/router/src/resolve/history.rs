//! Remembers the addresses that Sandboxes had.
//!
//! A client keeps the address from the Sandbox's status across a suspend and a resume. An address that *was*
//! this Sandbox's only means that the client is late; one that only another Sandbox had is an error.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use crate::Past;

/// Maximum number of remembered Sandboxes; the first one is evicted first.
const SANDBOXES: usize = 16_384;
/// Maximum number of remembered addresses of a Sandbox; the oldest is evicted first.
const ADDRESSES: usize = 8;

#[derive(Default)]
struct Memory {
    addresses: HashMap<String, VecDeque<IpAddr>>,
    order: VecDeque<String>,
    /// Number of remembered Sandboxes of each address.
    holders: HashMap<IpAddr, usize>,
}

/// Addresses by Sandbox.
#[derive(Default)]
pub(crate) struct History(Mutex<Memory>);

impl History {
    pub(crate) fn past(&self, sandbox: &str, address: IpAddr) -> Past {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.addresses.get(sandbox).is_some_and(|known| known.contains(&address)) {
            return Past::Its;
        }
        if memory.holders.contains_key(&address) { Past::Another } else { Past::Unknown }
    }

    pub(crate) fn note(&self, sandbox: &str, addresses: &[IpAddr]) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = &mut *memory;
        if !memory.addresses.contains_key(sandbox) {
            if memory.order.len() == SANDBOXES
                && let Some(oldest) = memory.order.pop_front()
            {
                for address in memory.addresses.remove(&oldest).unwrap_or_default() {
                    release(&mut memory.holders, address);
                }
            }
            memory.order.push_back(sandbox.to_owned());
        }
        let known = memory.addresses.entry(sandbox.to_owned()).or_default();
        for address in addresses {
            if known.contains(address) {
                continue;
            }
            if known.len() == ADDRESSES
                && let Some(oldest) = known.pop_front()
            {
                release(&mut memory.holders, oldest);
            }
            known.push_back(*address);
            *memory.holders.entry(*address).or_default() += 1;
        }
    }
}

fn release(holders: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    if let Some(count) = holders.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            holders.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from_bits(u32::try_from(number).unwrap()))
    }

    #[test]
    fn past_reports_the_owner_of_an_address() {
        let history = History::default();
        history.note("a", &[address(1)]);
        history.note("b", &[address(2)]);
        history.note("a", &[address(2)]);
        assert_eq!(history.past("a", address(1)), Past::Its);
        assert_eq!(history.past("a", address(2)), Past::Its, "handed on from b");
        assert_eq!(history.past("b", address(1)), Past::Another);
        assert_eq!(history.past("b", address(3)), Past::Unknown);
        assert_eq!(history.past("c", address(1)), Past::Another);
    }

    #[test]
    fn the_history_is_bounded() {
        let history = History::default();
        for number in 0..SANDBOXES + 1000 {
            history.note(&number.to_string(), &[address(number)]);
        }
        assert_eq!(history.past("0", address(0)), Past::Unknown);
        let last = SANDBOXES + 999;
        assert_eq!(history.past(&last.to_string(), address(last)), Past::Its);
        for number in 0..20 {
            history.note("one", &[address(1_000_000 + number)]);
        }
        assert_eq!(history.past("one", address(1_000_011)), Past::Unknown);
        assert_eq!(history.past("one", address(1_000_012)), Past::Its);
        let memory = history.0.lock().unwrap();
        assert_eq!((memory.addresses.len(), memory.holders.len()), (SANDBOXES, SANDBOXES - 1 + ADDRESSES));
    }
}
