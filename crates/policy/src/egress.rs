//! Egress rules of one level.

use std::num::NonZeroU16;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::attach::SandboxTarget;
use crate::cidr::Cidr;
use crate::destination::{Decision, Destination};
use crate::host::{Host, HostName};
use crate::pattern::HostPattern;
use crate::ports::PortRange;

/// Port of HTTPS: the default of a rule.
const HTTPS: NonZeroU16 = NonZeroU16::new(443).unwrap();
/// Port of HTTP: the default of a rule with `plaintext`.
const HTTP: NonZeroU16 = NonZeroU16::new(80).unwrap();

/// Protocol of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TLS, and HTTP with `plaintext`, for the name of the destination: a connection for another name on the same address is
    /// refused.
    #[default]
    Auto,
    /// Anything.
    #[serde(rename = "TCP")]
    Tcp,
}

impl Protocol {
    /// Returns true for the default.
    pub fn is_auto(&self) -> bool {
        *self == Protocol::Auto
    }
}

/// Traffic on a connection. The lesser one is stricter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// TLS for the name of the destination.
    #[default]
    Tls,
    /// TLS or HTTP for the name of the destination.
    Web,
    /// Anything.
    Any,
}

/// Egress rules of one level. Their order has no meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Egress {
    /// Rules. What none of them allows is denied.
    #[serde(default)]
    pub rules: Vec<EgressRule>,
}

/// Rule for destinations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressRule {
    /// Name for messages.
    pub name: String,
    /// Names of hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostPattern>,
    /// Every host name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    /// Addresses that the sandbox connects to without a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<Cidr>,
    /// Other Sandboxes. Such a rule is about them alone, and has ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandboxes: Vec<SandboxTarget>,
    /// Ports; without any, 443, or 80 with `plaintext`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
    /// Protocol.
    #[serde(default, skip_serializing_if = "Protocol::is_auto")]
    pub protocol: Protocol,
    /// Allows HTTP without TLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plaintext: bool,
    /// Addresses to which the hosts may lead although the internet does not route them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private: Vec<Cidr>,
    /// Time until which the rule counts.
    #[serde(default, deserialize_with = "crate::time::read", skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Decision for matching destinations.
    #[serde(default)]
    pub decision: Decision,
}

impl EgressRule {
    /// Returns true if the rule covers the name, at some port.
    pub fn matches_name(&self, name: &HostName) -> bool {
        self.any || self.hosts.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns true if the rule covers the destination.
    pub fn matches(&self, destination: &Destination) -> bool {
        let host = match &destination.host {
            Host::Name(name) => self.matches_name(name),
            Host::Address(address) => self.cidrs.iter().any(|cidr| cidr.contains(*address)),
        };
        let port = match self.ports.as_slice() {
            [] => PortRange::one(if self.plaintext { HTTP } else { HTTPS }).contains(destination.port.get()),
            ports => ports.iter().any(|range| range.contains(destination.port.get())),
        };
        host && port
    }

    fn traffic(&self) -> Traffic {
        match self.protocol {
            Protocol::Tcp => Traffic::Any,
            Protocol::Auto if self.plaintext => Traffic::Web,
            Protocol::Auto => Traffic::Tls,
        }
    }
}

impl Egress {
    /// Returns true if a rule allows some port of the name.
    pub fn allows_name(&self, name: &HostName) -> bool {
        self.rules.iter().any(|rule| rule.decision == Decision::Allow && rule.matches_name(name))
    }

    /// Returns what may be spoken to the destination, if it is allowed: what any rule that allows it says.
    pub fn traffic_to(&self, destination: &Destination) -> Traffic {
        self.allowing(destination).map(EgressRule::traffic).max().unwrap_or_default()
    }

    /// Returns the ranges that any rule that allows the destination opens for it.
    pub fn private_for(&self, destination: &Destination) -> Vec<Cidr> {
        self.allowing(destination).flat_map(|rule| rule.private.iter().copied()).collect()
    }

    fn allowing<'a>(&'a self, destination: &'a Destination) -> impl Iterator<Item = &'a EgressRule> {
        let allowing = self.rules.iter().filter(|rule| rule.decision == Decision::Allow);
        allowing.filter(|rule| rule.matches(destination))
    }

    /// Returns the strictest matching rule; `None` if no rule matches, which denies.
    pub fn rule_for(&self, destination: &Destination) -> Option<&EgressRule> {
        let matching = self.rules.iter().filter(|rule| rule.matches(destination));
        // Of equally strict rules the first by name, so that the order of the list does not show.
        matching.max_by(|a, b| a.decision.cmp(&b.decision).then_with(|| b.name.cmp(&a.name)))
    }
}
