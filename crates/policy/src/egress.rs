//! Egress rules of one level.

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::cidr::Cidr;
use crate::destination::{Decision, Destination};
use crate::expression::Moment;
use crate::host::HostName;
use crate::list::RuleList;
use crate::pattern::HostPattern;
use crate::request::Request;
use crate::rule::{EgressRule, Holds, Tls, Traffic};
use crate::unmet::{self, Unmet};

/// Egress rules of one level. Their order has no meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Egress {
    /// Rules. What none of them allows is denied.
    #[serde(default)]
    pub rules: RuleList,
    /// Amounts that each sandbox may use up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// Opinion of the rules of one level about a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection<'a> {
    /// Rule that decides; `None` if no rule matches, which denies.
    pub(crate) rule: Option<&'a EgressRule>,
    pub(crate) decision: Decision,
    /// Requests must be read.
    pub(crate) inspect: bool,
    /// TLS must not end at the proxy.
    pub(crate) passthrough: bool,
    /// Permitted traffic, if it is allowed.
    pub(crate) traffic: Traffic,
    /// Condition because of which it is denied.
    pub(crate) unmet: Option<Unmet>,
}

/// Opinion of the rules of one level about a request.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// Rule that decides; `None` if no rule matches, which denies.
    pub(crate) rule: Option<&'a EgressRule>,
    pub(crate) decision: Decision,
    /// Maximum length of its body, if it is allowed.
    pub(crate) max_body: u64,
    /// Condition because of which it is denied.
    pub(crate) unmet: Option<Unmet>,
}

impl Egress {
    /// Returns true if a rule allows some port of the name.
    pub fn allows_name(&self, name: &HostName) -> bool {
        self.rules.about_name(name).any(|rule| rule.can(Decision::Allow) && rule.matches_name(name))
    }

    /// Returns the pattern, or `any`, by which the rules allow some port of the name; `None` if one of them names it.
    pub(crate) fn wildcard(&self, name: &HostName) -> Option<String> {
        let mut found = None;
        for rule in self.rules.about_name(name).filter(|rule| rule.can(Decision::Allow)) {
            let patterns = || rule.hosts.iter().filter(|pattern| pattern.matches(name));
            if patterns().any(|pattern| matches!(pattern, HostPattern::Exact(_))) {
                return None;
            }
            let pattern = patterns().next().map(ToString::to_string);
            found = found.or(pattern).or_else(|| rule.any.then(|| "any".to_owned()));
        }
        found
    }

    /// Returns true if a rule for the destination judges calls of JSON-RPC.
    pub(crate) fn reads_calls(&self, destination: &Destination) -> bool {
        self.rules.about(&destination.host).any(|rule| !rule.mcp.is_empty() && rule.matches(destination))
    }

    /// Returns true if a rule for the destination denies some call of JSON-RPC.
    pub(crate) fn denies_calls(&self, destination: &Destination) -> bool {
        let denies = |rule: &EgressRule| rule.mcp.iter().any(|entry| entry.decision == Decision::Deny);
        self.rules.about(&destination.host).any(|rule| denies(rule) && rule.matches(destination))
    }

    /// Returns true if a rule that allows the destination now does not let its traffic be read.
    pub(crate) fn is_opaque(&self, destination: &Destination, moment: &Moment<'_>) -> bool {
        let opaque = |rule: &EgressRule| rule.tls == Tls::Passthrough || !rule.protocol.is_auto();
        let mut matching = self.matching(destination, moment);
        matching.any(|(rule, holds)| opaque(rule) && rule.can_now(holds, Decision::Allow))
    }

    /// Returns the ranges that any rule that allows the destination opens for it.
    pub(crate) fn private_for(&self, destination: &Destination, moment: &Moment<'_>) -> Vec<Cidr> {
        let matching = self.matching(destination, moment);
        let allowing = matching.filter(|(rule, holds)| rule.can_now(*holds, Decision::Allow));
        allowing.flat_map(|(rule, _)| rule.private.iter().copied()).collect()
    }

    /// Returns the rules for the destination, and whether their conditions hold, or could hold for some request.
    fn matching<'a>(
        &'a self,
        destination: &Destination,
        moment: &Moment<'_>,
    ) -> impl Iterator<Item = (&'a EgressRule, Holds)> {
        let about = self.rules.about(&destination.host).filter(|rule| rule.matches(destination));
        about.map(move |rule| (rule, rule.holds(moment, None)))
    }

    /// Decides about a connection. One that is allowed may still be read, and each request denied.
    pub(crate) fn connection(&self, destination: &Destination, moment: &Moment<'_>) -> Connection<'_> {
        let mut found = Connection { decision: Decision::Deny, ..Connection::default() };
        let (mut allows, mut denies_requests) = (None, false);
        let mut allows_requests = None;
        let first =
            |old: Option<&'_ EgressRule>, new: &'_ EgressRule| old.is_none_or(|old| new.name < old.name);
        for (rule, holds) in self.matching(destination, moment) {
            let can = |decision| rule.can_now(holds, decision);
            let reads = rule.reads_requests();
            if can(Decision::Allow) {
                found.traffic = found.traffic.max(rule.traffic());
                found.passthrough |= rule.tls == Tls::Passthrough;
            }
            match (reads, can(Decision::Deny)) {
                // Of equally strict rules the first by name, so that the order of the list does not show.
                (false, true) if first(found.rule, rule) => found.rule = Some(rule),
                (false, false) if can(Decision::Allow) && first(allows, rule) => allows = Some(rule),
                (true, denies) => {
                    denies_requests |= denies;
                    if can(Decision::Allow) && first(allows_requests, rule) {
                        allows_requests = Some(rule);
                    }
                }
                _ => {}
            }
        }
        if let Some(rule) = found.rule {
            found.unmet = rule.unmet(moment, None);
            return found;
        }
        found.rule = allows.or(allows_requests);
        if found.rule.is_some() {
            found.decision = Decision::Allow;
            found.inspect = allows.is_none() || denies_requests;
        } else {
            let allowing = self.matching(destination, moment).filter(|(rule, _)| rule.can(Decision::Allow));
            found.unmet = unmet::first(allowing.filter_map(|(rule, _)| rule.unmet(moment, None)));
        }
        found
    }

    /// Decides about a request.
    pub(crate) fn request(
        &self,
        destination: &Destination,
        request: &Request<'_>,
        moment: &Moment<'_>,
    ) -> Asked<'_> {
        let matching = || self.rules.about(&destination.host).filter(|rule| rule.matches(destination));
        let decided = matching().filter_map(|rule| Some((rule, rule.decide_request(request, moment)?)));
        let decided: Vec<_> = decided.collect();
        let strictest = decided.iter().max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.name.cmp(&a.0.name)));
        let Some((rule, decision)) = strictest else {
            let unmet = matching().filter_map(|rule| {
                let unmet = rule.unmet(moment, Some(request))?;
                (rule.decide_if_it_held(request, moment) == Some(Decision::Allow)).then_some(unmet)
            });
            return Asked { rule: None, decision: Decision::Deny, max_body: 0, unmet: unmet::first(unmet) };
        };
        let allowing = decided.iter().filter(|(_, decision)| *decision == Decision::Allow);
        let max_body = allowing.map(|(rule, _)| rule.max_body(request)).max().unwrap_or(0);
        let unmet = (*decision == Decision::Deny).then(|| rule.unmet(moment, Some(request))).flatten();
        Asked { rule: Some(rule), decision: *decision, max_body, unmet }
    }
}
