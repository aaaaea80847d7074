//! One egress rule.

use std::num::NonZeroU16;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::attach::SandboxTarget;
use crate::cidr::Cidr;
use crate::destination::{Decision, Destination};
use crate::expression::{Expression, Moment};
use crate::host::{Host, HostName};
use crate::http::{HttpRule, McpRule, decide_calls};
use crate::pattern::HostPattern;
use crate::ports::PortRange;
use crate::request::Request;

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

/// How TLS of a rule is treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tls {
    /// TLS ends at the proxy where a rule about requests needs it.
    #[default]
    Auto,
    /// TLS never ends at the proxy. If another rule needs that, the destination is denied.
    Passthrough,
}

impl Tls {
    /// Returns true for the default.
    pub fn is_auto(&self) -> bool {
        *self == Tls::Auto
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
    /// Ports; without any, 443, or 80 with `plaintext`; of a rule that denies, every port.
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
    /// How TLS is treated.
    #[serde(default, skip_serializing_if = "Tls::is_auto")]
    pub tls: Tls,
    /// Requests; with entries, only requests that one of them allows are made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http: Vec<HttpRule>,
    /// Calls of JSON-RPC in the bodies of requests; with entries, only calls that one of them allows are made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp: Vec<McpRule>,
    /// Credentials that requests allowed by the rule may use; without the field, all that are offered for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Vec<String>>,
    /// Condition. A rule whose condition has no value does not allow, but denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expression>,
    /// Decision for matching destinations.
    #[serde(default)]
    pub decision: Decision,
}

/// Value of the condition of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// It holds.
    Yes,
    /// It does not.
    No,
    /// It has no value, for example because a fact is missing.
    Unknown,
}

impl Holds {
    /// Returns true if a decision of the rule counts. Without a value, only a denial does.
    fn lets(self, decision: Decision) -> bool {
        self == Holds::Yes || (self == Holds::Unknown && decision == Decision::Deny)
    }
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
            [] if self.decision == Decision::Deny => true,
            [] => self.default_port() == Some(destination.port.get()),
            ports => ports.iter().any(|range| range.contains(destination.port.get())),
        };
        host && port
    }

    /// Returns the port of a rule that allows and names none.
    pub(crate) fn default_port(&self) -> Option<u16> {
        let port = if self.plaintext { HTTP } else { HTTPS };
        (self.ports.is_empty() && self.decision == Decision::Allow).then_some(port.get())
    }

    pub(crate) fn traffic(&self) -> Traffic {
        match self.protocol {
            Protocol::Tcp => Traffic::Any,
            Protocol::Auto if self.plaintext => Traffic::Web,
            Protocol::Auto => Traffic::Tls,
        }
    }

    /// Returns true if the rule decides about requests, so that they must be read.
    pub fn reads_requests(&self) -> bool {
        !self.http.is_empty()
            || !self.mcp.is_empty()
            || self.credentials.as_ref().is_some_and(|names| !names.is_empty())
            || self.when.as_ref().is_some_and(|when| when.uses("request"))
    }

    /// Returns true if the rule, or an entry of it, has this decision.
    pub(crate) fn can(&self, decision: Decision) -> bool {
        match self.http.is_empty() && self.mcp.is_empty() {
            true => self.decision == decision,
            false => {
                let http = self.http.iter().any(|entry| entry.decision == decision);
                http || self.mcp.iter().any(|entry| entry.decision == decision)
            }
        }
    }

    /// Returns true if the rule, or an entry of it, has this decision, and it counts.
    pub(crate) fn can_now(&self, holds: Holds, decision: Decision) -> bool {
        holds.lets(decision) && self.can(decision)
    }

    /// Returns whether the condition holds. Without a request, whether it could hold for some request.
    pub(crate) fn holds(&self, moment: &Moment<'_>, request: Option<&Request<'_>>) -> Holds {
        let Some(when) = &self.when else { return Holds::Yes };
        if request.is_none() && when.uses("request") {
            return Holds::Yes;
        }
        match when.evaluate(moment, request, None) {
            Some(true) => Holds::Yes,
            Some(false) => Holds::No,
            None => Holds::Unknown,
        }
    }

    /// Decides about a request to a destination that the rule covers; `None` if the rule has no opinion.
    pub(crate) fn decide_request(&self, request: &Request<'_>, moment: &Moment<'_>) -> Option<Decision> {
        let holds = self.holds(moment, Some(request));
        if holds == Holds::No {
            return None;
        }
        self.decide_if_it_held(request, moment).filter(|decision| holds.lets(*decision))
    }

    /// Decides as [`EgressRule::decide_request`] does while the condition holds.
    pub(crate) fn decide_if_it_held(&self, request: &Request<'_>, moment: &Moment<'_>) -> Option<Decision> {
        let http = match self.http.as_slice() {
            [] => self.decision,
            entries => {
                entries.iter().filter(|entry| entry.matches(request)).map(|entry| entry.decision).max()?
            }
        };
        let mcp = match (self.mcp.as_slice(), request.calls) {
            _ if http == Decision::Deny => Decision::Deny,
            ([], _) => Decision::Allow,
            // Its messages are not read, and could be calls that an entry denies.
            (entries, _)
                if request.websocket && entries.iter().any(|entry| entry.decision == Decision::Deny) =>
            {
                Decision::Deny
            }
            (entries, Some(calls)) => decide_calls(entries, calls, Some(request), moment)?,
            // A request without a body carries no call: it opens a stream of answers, or ends a session. The messages of a
            // WebSocket would not be read.
            (_, None) if request.may_have_body() || request.websocket => return None,
            (_, None) if !matches!(request.method, "GET" | "DELETE") => return None,
            (_, None) => Decision::Allow,
        };
        let decision = http.max(mcp);
        let fits = request.tls || self.traffic() >= Traffic::Web;
        (fits || decision == Decision::Deny).then_some(decision)
    }

    /// Returns the maximum length of the body of a request that the rule allows.
    pub(crate) fn max_body(&self, request: &Request<'_>) -> u64 {
        let matching = self.http.iter().filter(|entry| entry.matches(request));
        let allowing = matching.filter(|entry| entry.decision == Decision::Allow);
        allowing.map(HttpRule::max_body).max().unwrap_or(u64::MAX)
    }
}
