//! Fields of valid policies that have no effect.

use std::num::NonZeroU16;

use jiff::Timestamp;

use super::{InvalidPolicy, Kind, PolicyObject, invalid};
use crate::address::{is_of_administrators, needs_private};
use crate::cidr::Cidr;
use crate::destination::{Decision, Destination};
use crate::egress::Egress;
use crate::expression::Moment;
use crate::host::Host;
use crate::ports::PortRange;
use crate::rule::EgressRule;

impl PolicyObject {
    /// Returns fields that have no effect on a server although they are valid. In a file for a command they have one.
    pub fn without_effect(&self) -> Vec<InvalidPolicy> {
        let mut found = Vec::new();
        if self.kind == Kind::ClusterSandboxPolicy && self.spec.applies_to.is_none() {
            let reason = "without it the policy applies to no sandbox; `appliesTo: {}` is every sandbox";
            found.push(invalid("spec.appliesTo".to_owned(), reason));
        }
        found.extend(closed_ranges(self.rules()));
        found.extend(self.spec.egress.iter().flat_map(useless_requests));
        if self.kind == Kind::ClusterSandboxPolicy {
            return found;
        }
        for (index, rule) in self.rules().iter().enumerate() {
            let private = rule.private.iter().enumerate().filter(|(_, range)| is_of_administrators(range));
            found.extend(private.map(|(place, range)| {
                let field = format!("spec.egress.rules[{index}].private[{place}]");
                let reason = "only a ClusterSandboxPolicy opens addresses of the machine, and ranges that no network routes";
                invalid(field, format!("{range} opens nothing: {reason}"))
            }));
        }
        found
    }

    /// Returns fields that have no effect because their time has passed.
    pub fn ended(&self, now: Timestamp) -> Vec<InvalidPolicy> {
        let passed = |time: Option<Timestamp>| time.filter(|time| *time <= now);
        let own = passed(self.spec.expires).map(|time| {
            invalid("spec.expires".to_owned(), format!("{time} has passed: the policy applies to no sandbox"))
        });
        let rules = self.rules().iter().enumerate().filter_map(|(index, rule)| {
            let time = passed(rule.expires)?;
            let field = format!("spec.egress.rules[{index}].expires");
            Some(invalid(field, format!("{time} has passed: the rule does not count")))
        });
        own.into_iter().chain(rules).collect()
    }

    /// Returns the names of credentials in rules that the policy does not offer itself, with the paths of their fields.
    pub fn other_credentials(&self) -> impl Iterator<Item = (String, &str)> {
        let named = named_credentials(self.rules());
        named.filter(|(_, name)| !self.offers().any(|own| own == *name))
    }

    /// Returns the names of the credentials that the policy offers.
    pub fn offers(&self) -> impl Iterator<Item = &str> {
        self.spec.credentials.iter().map(|credential| credential.name.as_str())
    }
}

/// Maximum destinations for which rules are compared.
const COMPARED: usize = 1000;

/// Returns what rules say about requests that another rule allows all the same, with a destination of both. Rules that do not
/// always count are not compared.
pub fn useless_requests(egress: &Egress) -> Vec<InvalidPolicy> {
    let always = |rule: &&EgressRule| rule.when.is_none() && rule.expires.is_none();
    let lasting: Vec<EgressRule> = egress.rules.iter().filter(always).cloned().collect();
    let lasting = Egress { rules: lasting.into(), budget: None };
    let (moment, mut left, mut found) = (Moment::default(), COMPARED, Vec::new());
    let reading = egress.rules.iter().enumerate().filter(|(_, rule)| rule.reads_requests() && always(rule));
    for (index, rule) in reading {
        let ports = rule.ports.iter().map(PortRange::first).chain(rule.default_port());
        let ports: Vec<NonZeroU16> = ports.filter_map(NonZeroU16::new).collect();
        let destinations = rule.hosts.iter().flat_map(|pattern| {
            let host = Host::Name(pattern.example());
            ports.iter().map(move |port| (pattern, Destination { host: host.clone(), port: *port }))
        });
        let mut useless = None;
        for (pattern, destination) in destinations.take(left) {
            left -= 1;
            let verdict = lasting.connection(&destination, &moment);
            if let Some(other) =
                verdict.rule.filter(|_| verdict.decision == Decision::Allow && !verdict.inspect)
            {
                useless = Some(format!(
                    "rule {:?} allows all requests to {pattern}:{}",
                    other.name, destination.port
                ));
                break;
            }
        }
        let field = match (rule.http.is_empty(), rule.mcp.is_empty()) {
            (false, _) => "http",
            (true, false) => "mcp",
            (true, true) => "credentials",
        };
        found.extend(useless.map(|why| {
            invalid(format!("spec.egress.rules[{index}].{field}"), format!("has no effect: {why}"))
        }));
    }
    found
}

/// Returns the private ranges in `cidrs` of rules that open nothing because `private` lacks them.
pub fn closed_ranges(rules: &[EgressRule]) -> Vec<InvalidPolicy> {
    let mut found = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let closed =
            |range: &&Cidr| needs_private(range) && !rule.private.iter().any(|private| private.covers(range));
        let opens = rule.decision == Decision::Allow;
        let closed = rule.cidrs.iter().enumerate().filter(|(_, range)| opens && closed(range));
        found.extend(closed.map(|(place, range)| {
            let field = format!("spec.egress.rules[{index}].cidrs[{place}]");
            invalid(field, format!("{range} opens nothing: `private` must have it too"))
        }));
    }
    found
}

/// Returns the names of credentials in rules, with the paths of their fields.
fn named_credentials(rules: &[EgressRule]) -> impl Iterator<Item = (String, &str)> {
    rules.iter().enumerate().flat_map(|(index, rule)| {
        let names = rule.credentials.iter().flatten().enumerate();
        names.map(move |(place, name)| {
            (format!("spec.egress.rules[{index}].credentials[{place}]"), name.as_str())
        })
    })
}
