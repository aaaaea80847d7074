//! Capabilities of user 0 inside, which apply in the user namespace of its jail only.

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

/// All that a jail may give, with their names without `CAP_`.
///
/// Each of them is about ids of the jail's own range: its files, its processes, its ports. None reaches an object of the
/// machine, whose ids are not mapped inside.
const GRANTABLE: [(&str, CapabilitySet); 8] = [
    ("CHOWN", CapabilitySet::CHOWN),
    ("DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
    ("FOWNER", CapabilitySet::FOWNER),
    ("FSETID", CapabilitySet::FSETID),
    ("KILL", CapabilitySet::KILL),
    ("NET_BIND_SERVICE", CapabilitySet::NET_BIND_SERVICE),
    ("SETGID", CapabilitySet::SETGID),
    ("SETUID", CapabilitySet::SETUID),
];

/// Capabilities that each process of user 0 in a jail has, in the user namespace of the jail. Processes of other users
/// have none. Two jails never share a user namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None.
    pub const NONE: Capabilities = Capabilities(0);
    /// All that a jail may give.
    pub const ALL: Capabilities = Capabilities({
        let (mut bits, mut at) = (0, 0);
        while at < GRANTABLE.len() {
            bits |= GRANTABLE[at].1.bits();
            at += 1;
        }
        bits
    });

    /// Returns the capability of this name, with or without `CAP_`; `None` if a jail cannot give it.
    pub fn named(name: &str) -> Option<Capabilities> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        GRANTABLE.iter().find(|(known, _)| *known == name).map(|(_, bit)| Capabilities(bit.bits()))
    }

    /// Returns these and the others.
    #[must_use]
    pub fn with(self, others: Capabilities) -> Capabilities {
        Capabilities(self.0 | others.0)
    }

    /// Returns these without the others.
    #[must_use]
    pub fn without(self, others: Capabilities) -> Capabilities {
        Capabilities(self.0 & !others.0)
    }

    /// Returns `true` for the empty set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the names without `CAP_`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        GRANTABLE.into_iter().filter(move |(_, bit)| self.0 & bit.bits() != 0).map(|(name, _)| name)
    }

    /// Returns `true` if a jail may give all of these. Another program may have sent others.
    pub(crate) fn are_grantable(self) -> bool {
        self.without(Capabilities::ALL).is_empty()
    }

    pub(crate) fn set(self) -> CapabilitySet {
        CapabilitySet::from_bits_retain(self.0)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_the_numbers_of_the_kernel() {
        // CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, FSETID 4, KILL 5, SETGID 6, SETUID 7, NET_BIND_SERVICE 10.
        assert_eq!(Capabilities::ALL.bits(), 0b100_1111_1011);
        for (name, number) in [("chown", 0), ("CAP_FOWNER", 3), ("NET_BIND_SERVICE", 10), ("SETUID", 7)] {
            assert_eq!(Capabilities::named(name).map(Capabilities::bits), Some(1 << number), "{name}");
        }
        for name in ["ALL", "SYS_ADMIN", "SETFCAP", "MKNOD", "NET_RAW", "SETPCAP", "", "CAP_"] {
            assert_eq!(Capabilities::named(name), None, "{name}");
        }
    }

    #[test]
    fn sets_are_combined_and_named() {
        let kill = Capabilities::named("KILL").unwrap();
        let left = Capabilities::ALL.without(kill);
        assert!(!left.names().any(|name| name == "KILL") && left.names().count() == 7);
        assert_eq!(left.with(kill), Capabilities::ALL);
        assert!(Capabilities::default().is_empty() && Capabilities::ALL.are_grantable());
        assert!(!Capabilities(1 << 21).are_grantable());
    }
}
