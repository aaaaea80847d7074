//! `network.tlsTerminate`: TLS of the allowed names ends at the proxy, which reads their requests.

use std::collections::{BTreeMap, BTreeSet};

use hutch_policy::{EgressRule, HostPattern, HttpRule, Tls};
use serde_json::Value;

use super::super::Notes;
use super::{domains, strings};

const FIELD: &str = "network.tlsTerminate";

/// Settings of TLS that ends at the proxy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Terminate {
    /// Domains whose TLS does not end there.
    pub(super) exclude: Vec<String>,
    /// Files with certificates of authorities that programs inside trust too.
    pub(crate) authorities: Vec<String>,
}

impl Terminate {
    /// Takes the settings out of the keys.
    pub(super) fn parse(found: &mut BTreeMap<String, Value>) -> anyhow::Result<Option<Terminate>> {
        let is_there = found.remove(FIELD).is_some();
        let exclude = strings(found, &format!("{FIELD}.excludeDomains"))?;
        let authorities = strings(found, &format!("{FIELD}.extraCaCertPaths"))?;
        Ok(is_there.then_some(Terminate { exclude, authorities }))
    }

    /// Returns the rules so that the requests for names on ports of the web are read, but for those of the excluded domains.
    pub(super) fn rules(&self, rules: Vec<EgressRule>, notes: &mut Notes) -> Vec<EgressRule> {
        let excluded = domains::patterns(&format!("{FIELD}.excludeDomains"), &self.exclude, notes);
        let what = "TLS ends at the proxy on ports 80 and 443 alone";
        if rules.iter().any(|rule| !rule.plaintext && !rule.hosts.is_empty() && !rule.protocol.is_auto()) {
            notes.change(FIELD, what);
        }
        // Only rules for these ports allow HTTP.
        let read = |rule: EgressRule| if rule.plaintext { split(rule, &excluded) } else { vec![rule] };
        rules.into_iter().flat_map(read).collect()
    }
}

/// Returns the parts of a rule: names whose requests are read, names that are excluded, addresses.
fn split(rule: EgressRule, excluded: &[HostPattern]) -> Vec<EgressRule> {
    let is_out = |host: &HostPattern| excluded.iter().any(|out| covers(out, host));
    let (mut out, read): (Vec<HostPattern>, Vec<HostPattern>) = rule.hosts.iter().cloned().partition(is_out);
    let within = excluded.iter().filter(|out| read.iter().any(|host| covers(host, out)));
    out.extend(within.cloned());
    let (mut seen, mut rules) = (BTreeSet::new(), Vec::new());
    out.retain(|host| seen.insert(host.to_string()));
    let part = |name: &str| EgressRule {
        name: format!("{}{name}", rule.name),
        hosts: Vec::new(),
        cidrs: Vec::new(),
        ..rule.clone()
    };
    if !read.is_empty() {
        let socket = HttpRule { websocket: true, ..HttpRule::default() };
        rules.push(EgressRule { hosts: read, http: vec![HttpRule::default(), socket], ..part("") });
    }
    for (number, hosts) in out.chunks(domains::PER_RULE).enumerate() {
        let name = if number == 0 { ", excluded".to_owned() } else { format!(", excluded {}", number + 1) };
        rules.push(EgressRule { hosts: hosts.to_vec(), tls: Tls::Passthrough, ..part(&name) });
    }
    if !rule.cidrs.is_empty() {
        rules.push(EgressRule { cidrs: rule.cidrs.clone(), ..part(", addresses") });
    }
    rules
}

/// Returns true if each name that a pattern of srt covers is covered by another one.
pub(super) fn covers(wide: &HostPattern, narrow: &HostPattern) -> bool {
    let (wide, narrow) = (wide.to_string(), narrow.to_string());
    let Some(parent) = wide.strip_prefix("**.") else { return wide == narrow };
    let below = |name: &str| name.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
    match narrow.strip_prefix("**.") {
        Some(other) => other == parent || below(other),
        None => below(&narrow),
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Decision, Destination, Egress, Level, Moment, decide};

    use super::super::Settings;
    use super::*;

    fn level(network: &str) -> (Level, Notes) {
        let mut notes = Notes::default();
        let settings = Settings::parse(&format!(r#"{{"network": {network}}}"#), &mut notes).unwrap();
        let egress = Egress { rules: settings.egress(&mut notes).into(), ..Egress::default() };
        (Level::new(Authority::Invocation, "srt", Some(egress)), notes)
    }

    #[test]
    fn requests_are_read_but_those_of_excluded_domains() {
        let (level, notes) = level(
            r#"{"allowedDomains": ["a.example", "*.b.example", "c.d.example", "192.0.2.1", "e.example:8443"],
                "tlsTerminate": {"excludeDomains": ["x.b.example", "*.d.example", "other.example"]}}"#,
        );
        assert!(notes.refusals.is_empty() && notes.changes.len() == 1, "{notes:?}");
        for (to, allowed, read) in [
            ("a.example:443", true, true),
            ("a.example:80", true, true),
            ("y.b.example:443", true, true),
            ("x.b.example:443", true, false),
            ("c.d.example:443", true, false),
            ("192.0.2.1:443", true, false),
            ("e.example:8443", true, false),
            ("a.example:22", true, false),
            ("z.d.example:443", false, false),
            ("other.example:443", false, false),
        ] {
            let destination: Destination = to.parse().unwrap();
            let levels = [level.clone()];
            let verdict = decide(&levels, &destination, &Moment::default());
            assert_eq!((verdict.decision == Decision::Allow, verdict.inspect), (allowed, read), "{to}");
        }
    }

    #[test]
    fn pattern_covers_names_and_patterns_below_it() {
        let covers = |wide: &str, narrow: &str| covers(&wide.parse().unwrap(), &narrow.parse().unwrap());
        for (wide, narrow, expected) in [
            ("a.example", "a.example", true),
            ("**.b.example", "a.b.example", true),
            ("**.b.example", "**.a.b.example", true),
            ("**.b.example", "**.b.example", true),
            ("**.b.example", "b.example", false),
            ("**.b.example", "a.xb.example", false),
            ("a.b.example", "**.b.example", false),
            ("**.a.b.example", "**.b.example", false),
        ] {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
    }
}
