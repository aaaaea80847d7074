//! Synthetic addresses, by which a connection says what name it is for.
//!
//! A program resolves a name and connects to the answer. If the answer were the real address, a connection would say nothing
//! about the name, and many names share an address. So each name gets an address of its own, which means
//! that name in this sandbox only.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use hutch_policy::HostName;

/// First synthetic address. Those before it in 198.18.0.0/15 belong to the proxy and its DNS server.
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// Maximum number of names. A pattern allows any number, and code inside could fill the memory with them.
const LIMIT: usize = 4096;

/// Names of a sandbox and their addresses. An address is never given to a second name, because programs keep addresses.
#[derive(Debug, Default)]
pub struct Names {
    by_name: HashMap<HostName, Ipv4Addr>,
    /// By distance from [`FIRST`].
    by_address: Vec<HostName>,
}

impl Names {
    /// Returns the number of names.
    pub fn count(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the names that came after that many others.
    pub fn since(&self, count: usize) -> impl Iterator<Item = &HostName> {
        self.by_address.iter().skip(count)
    }

    /// Returns the address of a name, a new one if it has none; `None` if there are too many names.
    pub fn address_of(&mut self, name: &HostName) -> Option<Ipv4Addr> {
        if let Some(address) = self.by_name.get(name) {
            return Some(*address);
        }
        let number = self.by_address.len();
        if number >= LIMIT {
            return None;
        }
        let address = Ipv4Addr::from_bits(FIRST.to_bits() + number as u32);
        self.by_address.push(name.clone());
        self.by_name.insert(name.clone(), address);
        Some(address)
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

    #[test]
    fn each_name_keeps_an_address_of_its_own() {
        let mut names = Names::default();
        let [one, other]: [HostName; 2] = ["a.example", "b.example"].map(|name| name.parse().unwrap());
        let (first, second) = (names.address_of(&one).unwrap(), names.address_of(&other).unwrap());
        assert_ne!(first, second);
        assert_eq!(names.address_of(&"A.example.".parse().unwrap()), Some(first));
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
            let address = names.address_of(&format!("n{number}.example").parse().unwrap());
            assert!(address.is_some_and(is_synthetic), "{number}");
        }
        assert_eq!(names.address_of(&"one-more.example".parse().unwrap()), None);
        assert_eq!(names.address_of(&"n0.example".parse().unwrap()), Some(FIRST));
    }
}
