//! Credentials that the levels of a sandbox offer, and requests that may use them.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::num::NonZeroU16;

use crate::credential::{Binding, Credential};
use crate::decide::{Level, Mode, enforcing};
use crate::destination::{Decision, Destination};
use crate::egress::Egress;
use crate::expression::Moment;
use crate::host::Host;
use crate::pattern::HostPattern;
use crate::ports::PortRange;
use crate::request::Request;
use crate::rule::{EgressRule, Holds};

/// Returns the credentials that the levels offer, in the order of the levels. A level that only observes offers none.
pub fn offered<L: Borrow<Level>>(levels: &[L]) -> impl Iterator<Item = (&Level, &Credential)> {
    let levels = levels.iter().map(Borrow::borrow).filter(|level: &&Level| level.mode == Mode::Enforce);
    levels.flat_map(|level| level.credentials.iter().map(move |credential| (level, credential)))
}

/// Returns the credentials that the levels offer, without those that two levels offer by the same name or variable, and what
/// is wrong with these.
pub fn unambiguous<L: Borrow<Level>>(levels: &[L]) -> (Vec<(&Level, &Credential)>, Vec<String>) {
    let all: Vec<_> = offered(levels).collect();
    let mut mistakes = Vec::new();
    let alone = |(index, (level, one)): &(usize, &(&Level, &Credential))| {
        let same = |(other, (_, credential)): (usize, &(&Level, &Credential))| {
            other != *index
                && (credential.name == one.name || (one.env.is_some() && credential.env == one.env))
        };
        let other = all.iter().enumerate().find(|(place, other)| same((*place, other)));
        if let Some((_, (other_level, other))) = other {
            mistakes.push(format!(
                "credential {:?} of policy {:?} has the same name or variable as {:?} of policy {:?}",
                one.name, level.name, other.name, other_level.name
            ));
        }
        other.is_none()
    };
    let found = all.iter().enumerate().filter(alone).map(|(_, one)| *one).collect();
    (found, mistakes)
}

/// Returns true if no level excludes a credential from a request that is allowed. A level excludes it if the rules by which
/// it allows the request have lists of credentials, and none of them names it.
pub fn may_use<L: Borrow<Level>>(
    levels: &[L],
    name: &str,
    destination: &Destination,
    request: &Request<'_>,
    moment: &Moment<'_>,
) -> bool {
    enforcing(levels).all(|(_, egress)| {
        let matching = egress.rules.about(&destination.host).filter(|rule| rule.matches(destination));
        let allowing =
            matching.filter(|rule| rule.decide_if_it_held(request, moment) == Some(Decision::Allow));
        let lists: Vec<(Holds, bool)> = allowing
            .filter_map(|rule| Some((rule, rule.credentials.as_ref()?)))
            .map(|(rule, list)| (rule.holds(moment, Some(request)), list.iter().any(|named| named == name)))
            .filter(|(holds, _)| *holds != Holds::No)
            .collect();
        match lists.iter().any(|(holds, _)| *holds == Holds::Yes) {
            true => lists.contains(&(Holds::Yes, true)),
            // A list whose condition has no value excludes as if that held.
            false => lists.iter().all(|(_, names)| *names),
        }
    })
}

/// Returns true if some destination of the binding is covered by a rule of each level that enforces, and none of these rules
/// denies every request. Conditions and expiry are not considered.
pub fn is_opened<L: Borrow<Level>>(levels: &[L], binding: &Binding) -> bool {
    let opens = |rule: &&EgressRule| rule.can(Decision::Allow);
    let rules = || enforcing(levels).flat_map(|(_, egress)| egress.rules.iter()).filter(opens);
    let hosts = || rules().flat_map(|rule| &rule.hosts).chain(&binding.hosts).map(HostPattern::example);
    let https = PortRange::one(const { NonZeroU16::new(443).unwrap() });
    let ports = || rules().flat_map(|rule| &rule.ports).chain(&binding.ports).copied().chain([https]);
    let ports: BTreeSet<NonZeroU16> = ports().filter_map(|range| NonZeroU16::new(range.first())).collect();
    let mut destinations = hosts().flat_map(|host| {
        ports.iter().map(move |port| Destination { host: Host::Name(host.clone()), port: *port })
    });
    enforcing(levels).next().is_some()
        && destinations.any(|destination| {
            let covers =
                |egress: &Egress| egress.rules.iter().filter(opens).any(|rule| rule.matches(&destination));
            binding.covers(&destination) && enforcing(levels).all(|(_, egress)| covers(egress))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Authority;
    use crate::object::PolicyObject;

    fn policy(spec: &str) -> Level {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "p"}}, "spec": {spec}}}"#
        );
        let object: PolicyObject = serde_json::from_str(&text).unwrap();
        object.into_level(Authority::Namespace).unwrap()
    }

    #[test]
    fn credential_that_two_policies_offer_is_offered_by_none() {
        let offer = |name: &str, env: &str| {
            policy(&format!(
                r#"{{"credentials": [{{"name": "{name}", "provider": "p", "hosts": ["a.example"], "env": "{env}"}}]}}"#
            ))
        };
        let count = |levels: &[Level]| {
            let (found, mistakes) = unambiguous(levels);
            (found.len(), mistakes.len())
        };
        assert_eq!(count(&[offer("a", "A"), offer("b", "B")]), (2, 0));
        assert_eq!(count(&[offer("a", "A"), offer("a", "B"), offer("c", "C")]), (1, 2));
        assert_eq!(count(&[offer("a", "A"), offer("b", "A")]), (0, 2));
        let (_, mistakes) = unambiguous(&[offer("a", "A"), offer("b", "A")]);
        assert!(mistakes[0].contains(r#""a""#) && mistakes[0].contains(r#""b""#), "{mistakes:?}");
    }

    #[test]
    fn credential_is_usable_unless_a_level_excludes_it() {
        let rule = |more: &str| {
            format!(r#"{{"egress": {{"rules": [{{"name": "a", "hosts": ["api.github.com"]{more}}}]}}}}"#)
        };
        let usable = |specs: &[String]| {
            let levels: Vec<Level> = specs.iter().map(|spec| policy(spec)).collect();
            let path = crate::request::Path::read("/a").unwrap();
            let request = Request {
                host: "api.github.com",
                port: 443,
                method: "GET",
                path: &path,
                query: "",
                headers: Vec::new(),
                websocket: false,
                tls: true,
                length: Some(0),
                calls: None,
            };
            let destination = "api.github.com".parse().unwrap();
            may_use(&levels, "github", &destination, &request, &Moment::default())
        };
        let (open, named) = (rule(""), rule(r#", "credentials": ["github"]"#));
        let (other, none) = (rule(r#", "credentials": ["other"]"#), rule(r#", "credentials": []"#));
        assert!(usable(std::slice::from_ref(&open)) && usable(&[open.clone(), named.clone()]));
        for excluding in [other, none] {
            assert!(!usable(std::slice::from_ref(&excluding)), "{excluding}");
            assert!(!usable(&[named.clone(), excluding.clone()]), "{excluding}");
        }
        // The condition has no value: there is no field `missing`.
        let unknown = |list: &str| {
            format!(
                r#"{{"egress": {{"rules": [{{"name": "a", "hosts": ["api.github.com"]}}, {{"name": "b",
                    "hosts": ["api.github.com"], "when": "task.missing == 1", "credentials": {list}}}]}}}}"#
            )
        };
        assert!(!usable(&[unknown("[]")]) && !usable(&[unknown(r#"["other"]"#)]));
        assert!(usable(&[unknown(r#"["github"]"#)]));
        let observing =
            r#"{"mode": "Observe", "egress": {"rules": [{"name": "a", "any": true, "credentials": []}]}}"#;
        assert!(usable(&[open, observing.to_owned()]));
    }

    #[test]
    fn binding_is_opened_by_a_rule_of_every_level() {
        let rules = |rules: &str| policy(&format!(r#"{{"egress": {{"rules": [{rules}]}}}}"#));
        let one = r#"{"name": "a", "hosts": ["s3.amazonaws.com"]}"#;
        let denies = r#"{"name": "a", "hosts": ["s3.amazonaws.com"], "decision": "Deny"}"#;
        let other = r#"{"name": "a", "hosts": ["other.example"]}"#;
        let port = r#"{"name": "a", "hosts": ["s3.amazonaws.com"], "ports": [8443]}"#;
        let any = r#"{"name": "a", "any": true}"#;
        let binding = |hosts: &str| -> Binding {
            serde_json::from_str(&format!(r#"{{"hosts": ["{hosts}"]}}"#)).unwrap()
        };
        for (levels, hosts, expected) in [
            (vec![rules(one)], "s3.amazonaws.com", true),
            (vec![rules(one)], "*.amazonaws.com", true),
            (vec![rules(any)], "*.amazonaws.com", true),
            (vec![rules(one), rules(any)], "*.amazonaws.com", true),
            (vec![rules(one), rules(other)], "*.amazonaws.com", false),
            (vec![rules(denies)], "s3.amazonaws.com", false),
            (vec![rules(port)], "s3.amazonaws.com", false),
            (vec![policy("{}")], "s3.amazonaws.com", false),
        ] {
            assert_eq!(is_opened(&levels, &binding(hosts)), expected, "{levels:?} {hosts}");
        }
    }
}
