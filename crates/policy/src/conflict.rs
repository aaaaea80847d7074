//! Destinations that a sandbox does not reach because its rules disagree whether TLS ends at the proxy.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::num::NonZeroU16;

use crate::decide::{Level, decide, enforcing, strictest};
use crate::destination::{Decision, Destination};
use crate::expression::Moment;
use crate::host::{Host, HostName};
use crate::pattern::HostPattern;
use crate::ports::PortRange;
use crate::rule::{EgressRule, Tls};
use crate::usable::offered;

/// Maximum destinations that are compared with a rule, and those that are decided.
const COMPARED: usize = 100_000;
const DECIDED: usize = 1_000;
/// Ports of rules without ports.
const DEFAULTS: [u16; 2] = [80, 443];

/// Returns destinations that the levels would allow if they agreed whether TLS ends at the proxy, as the rules name them, at
/// most so many. Of rules with very many names and ports, not all are compared; [`decide`] denies each destination anyway.
pub fn conflicts<L: Borrow<Level>>(levels: &[L], moment: &Moment<'_>, most: usize) -> BTreeSet<String> {
    let passes = |rule: &&EgressRule| rule.tls == Tls::Passthrough && rule.can(Decision::Allow);
    let mut found = BTreeSet::new();
    if !rules(levels).any(|rule| passes(&rule)) {
        return found;
    }
    let (hosts, ports) = (hosts(levels), ports(levels));
    let (mut compared, mut decided) = (0, 0);
    for rule in rules(levels).filter(passes) {
        for (shown, host) in &hosts {
            for port in &ports {
                let destination = Destination { host: host.clone(), port: *port };
                compared += 1;
                if rule.matches(&destination) {
                    decided += 1;
                    if is_conflict(levels, &destination, moment) {
                        found.insert(format!("{shown}:{port}"));
                    }
                }
                if found.len() == most || compared == COMPARED || decided == DECIDED {
                    return found;
                }
            }
        }
    }
    found
}

fn rules<L: Borrow<Level>>(levels: &[L]) -> impl Iterator<Item = &EgressRule> {
    enforcing(levels).flat_map(|(_, egress)| egress.rules.iter())
}

/// Returns true if nothing else than the conflict denies the destination.
fn is_conflict<L: Borrow<Level>>(levels: &[L], destination: &Destination, moment: &Moment<'_>) -> bool {
    let verdict = decide(levels, destination, moment);
    verdict.conflict && strictest(levels, &verdict.opinions) == Decision::Allow
}

/// Returns an example of each host that rules and credentials name, and how they name it.
fn hosts<L: Borrow<Level>>(levels: &[L]) -> Vec<(String, Host)> {
    let patterns = rules(levels).flat_map(|rule| &rule.hosts);
    let patterns = patterns.chain(offered(levels).flat_map(|(_, credential)| &credential.binding.hosts));
    let named = patterns.map(|pattern: &HostPattern| (pattern.to_string(), Host::Name(pattern.example())));
    let ranges = rules(levels).flat_map(|rule| &rule.cidrs);
    let addresses = ranges.map(|range| (range.to_string(), Host::Address(range.first())));
    let any = rules(levels).any(|rule| rule.any).then(|| "x.example".parse::<HostName>().ok()).flatten();
    let any = any.map(|name| ("any host".to_owned(), Host::Name(name)));
    any.into_iter().chain(named).chain(addresses).collect()
}

/// Returns a port of each range that rules and credentials name.
fn ports<L: Borrow<Level>>(levels: &[L]) -> BTreeSet<NonZeroU16> {
    let ranges = rules(levels).flat_map(|rule| &rule.ports);
    let ranges = ranges.chain(offered(levels).flat_map(|(_, credential)| &credential.binding.ports));
    let first = ranges.map(PortRange::first).chain(DEFAULTS);
    first.filter_map(NonZeroU16::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Authority, Mode};
    use crate::object::PolicyObject;

    fn policy(spec: &str) -> Level {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy", "metadata": {{"name": "p"}}, "spec": {spec}}}"#
        );
        let object: PolicyObject = serde_json::from_str(&text).unwrap();
        object.into_level(Authority::Cluster).unwrap()
    }

    fn egress(rules: &str) -> Level {
        policy(&format!(r#"{{"egress": {{"rules": [{rules}]}}}}"#))
    }

    #[test]
    fn conflicts_are_the_destinations_that_are_denied_for_nothing_else() {
        let pass = |hosts: &str| {
            egress(&format!(r#"{{"name": "pass", {hosts}, "ports": [443, 8443], "tls": "Passthrough"}}"#))
        };
        let read = |hosts: &str| {
            egress(&format!(
                r#"{{"name": "read", {hosts}, "ports": ["8000-9000"], "http": [{{"methods": ["GET"]}}]}},
                   {{"name": "rest", "any": true, "ports": [443]}}"#
            ))
        };
        let scan = || policy(r#"{"scanner": {}}"#);
        let all = || egress(r#"{"name": "all", "any": true, "ports": ["1-65535"]}"#);
        let none = || egress(r#"{"name": "none", "any": true, "ports": ["1-65535"], "decision": "Deny"}"#);
        let when = |value: &str| {
            egress(&format!(
                r#"{{"name": "when", "any": true, "ports": [8443], "when": "{value}", "http": [{{"decision": "Deny"}}]}},
                   {{"name": "rest", "any": true, "ports": ["1-65535"]}}"#
            ))
        };
        let observing = |level: Level| Level { mode: Mode::Observe, ..level };
        let hosts = r#""hosts": ["a.example.com"]"#;
        let below = r#""hosts": ["**.example.com"]"#;
        for (levels, expected) in [
            (vec![pass(hosts), all()], vec![]),
            (vec![pass(hosts), read(hosts)], vec!["a.example.com:8443"]),
            (vec![pass(hosts), read(below)], vec!["a.example.com:8443"]),
            (vec![pass(below), read(hosts)], vec!["a.example.com:8443"]),
            (vec![pass(below), read(below)], vec!["**.example.com:8443"]),
            (vec![pass(hosts), read(r#""hosts": ["b.example.com"]"#)], vec![]),
            (vec![pass(hosts), scan()], vec!["a.example.com:443", "a.example.com:8443"]),
            (vec![pass(r#""any": true"#), scan()], vec!["any host:443", "any host:8443"]),
            (
                vec![pass(r#""cidrs": ["192.0.2.0/24"]"#), scan()],
                vec!["192.0.2.0/24:443", "192.0.2.0/24:8443"],
            ),
            (vec![pass(hosts), scan(), none()], vec![]),
            (vec![pass(hosts), observing(scan()), all()], vec![]),
            (vec![observing(pass(hosts)), scan(), all()], vec![]),
            (vec![pass(hosts), when("request.method == 'GET'")], vec!["a.example.com:8443"]),
            (vec![pass(hosts), when("sandbox.name == 'other'")], vec![]),
        ] {
            let found: Vec<String> = conflicts(&levels, &Moment::default(), 3).into_iter().collect();
            assert_eq!(found, expected, "{levels:?}");
        }
    }

    #[test]
    fn conflicts_of_very_many_rules_are_found_in_bounded_time() {
        let hosts: Vec<String> = (0..60).map(|number| format!("\"h{number}.example.com\"")).collect();
        let rule = |number: usize, tls: &str| {
            format!(
                r#"{{"name": "r{number}", "hosts": [{}], "ports": [{}], "tls": "{tls}"}}"#,
                hosts.join(","),
                number + 1
            )
        };
        let rules = |tls: &str| (0..20).map(|number| rule(number, tls)).collect::<Vec<_>>().join(",");
        let levels = [egress(&rules("Passthrough")), egress(&rules("Auto"))];
        assert!(conflicts(&levels, &Moment::default(), 3).is_empty());
        let levels = [egress(&rules("Passthrough")), policy(r#"{"scanner": {}}"#)];
        assert_eq!(conflicts(&levels, &Moment::default(), 3).len(), 3);
    }
}
