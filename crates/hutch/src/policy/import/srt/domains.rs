//! Lists of allowed and denied domains.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use hutch_policy::{
    Cidr, Decision, EgressRule, HostPattern, PortRange, Protocol, is_never_dialed, opens_nothing,
};

use super::super::Notes;

/// Maximum hosts and ranges of a rule.
pub(super) const PER_RULE: usize = 64;
/// Maximum rules of a policy.
pub(super) const RULES: usize = 256;
/// Ports of the web, on which srt's users speak TLS and HTTP.
const WEB: [NonZeroU16; 2] = [NonZeroU16::new(80).unwrap(), NonZeroU16::new(443).unwrap()];
/// The other ports.
const OTHERS: [&str; 3] = ["1-79", "81-442", "444-65535"];

/// The lists, as they are written.
pub(super) struct Lists<'a> {
    pub(super) allowed: &'a [String],
    pub(super) denied: &'a [String],
    pub(super) reasons: &'a BTreeMap<String, String>,
}

/// Host of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Everything,
    Pattern(HostPattern),
    Address(IpAddr),
    /// A name of loopback.
    Local,
}

/// An entry: a host, and a port if it is for one only.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    host: Host,
    port: Option<NonZeroU16>,
}

impl Entry {
    fn parse(text: &str) -> Result<Entry, String> {
        let (host, port) = split(text)?;
        let host = match host.parse::<IpAddr>() {
            Ok(address) => Host::Address(address.to_canonical()),
            Err(_) if host == "*" => Host::Everything,
            Err(_) if host == "localhost" || host.ends_with(".localhost") => Host::Local,
            Err(_) => {
                // srt's `*.` stands for one or more labels.
                let pattern = match host.strip_prefix("*.") {
                    Some(parent) => format!("**.{parent}"),
                    None => host.to_owned(),
                };
                if !host.contains('.') || pattern.trim_start_matches('*').contains('*') {
                    return Err(format!("`{}` is not a domain of srt", host.escape_debug()));
                }
                Host::Pattern(pattern.parse().map_err(|error| format!("{error}"))?)
            }
        };
        Ok(Entry { host, port })
    }

    /// Returns the address if it is of loopback, where the sandbox finds itself.
    fn loopback(&self) -> Option<IpAddr> {
        match self.host {
            Host::Address(address) if address.is_loopback() => Some(address),
            _ => None,
        }
    }
}

/// Splits `HOST[:PORT]`; an IPv6 address stands in brackets.
fn split(text: &str) -> Result<(&str, Option<NonZeroU16>), String> {
    let shown = text.escape_debug();
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(format!("`{shown}` lacks `]`"))?;
            match rest.strip_prefix(':') {
                None if rest.is_empty() => (host, None),
                port => (host, Some(port.unwrap_or(""))),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
    let port = port.map(|port| {
        let number = Some(port).filter(|port| digits(port)).and_then(|port| port.parse().ok());
        number.ok_or(format!("`{shown}` is not HOST, HOST:PORT or [IPv6]:PORT"))
    });
    Ok((host, port.transpose()?))
}

/// Returns the rules of both lists: none if nothing is allowed.
pub(super) fn rules(lists: &Lists<'_>, private: &[Cidr], notes: &mut Notes) -> Vec<EgressRule> {
    let mut rules = allowing(&entries("network.allowedDomains", lists.allowed, notes), private, notes);
    if rules.is_empty() {
        return rules;
    }
    for key in lists.reasons.keys().filter(|key| !lists.denied.contains(key)) {
        let field = format!("network.deniedDomainReasons.{}", key.escape_debug());
        notes.change(&field, "no effect: no entry of deniedDomains is written so");
    }
    rules.extend(denying(lists, notes));
    if rules.len() > RULES {
        notes.refuse("network", format!("it makes {} rules; a policy has at most {RULES}", rules.len()));
    }
    rules
}

fn entries(field: &str, texts: &[String], notes: &mut Notes) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match Entry::parse(text) {
            Ok(entry) if entries.contains(&entry) => {}
            Ok(entry) => entries.push(entry),
            Err(error) => notes.refuse(&format!("{field}[{index}]"), error),
        }
    }
    entries
}

/// Returns the names of a list of domains without ports. Addresses and names of loopback are left out.
pub(super) fn patterns(field: &str, texts: &[String], notes: &mut Notes) -> Vec<HostPattern> {
    let mut patterns = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match Entry::parse(text) {
            Ok(Entry { host: Host::Pattern(pattern), port: None }) => patterns.push(pattern),
            Ok(Entry { host: Host::Address(_) | Host::Local, port: None }) => {}
            Ok(_) => notes.refuse(
                &format!("{field}[{index}]"),
                format!("`{}` is not a domain without a port", text.escape_debug()),
            ),
            Err(error) => notes.refuse(&format!("{field}[{index}]"), error),
        }
    }
    patterns
}

/// Returns the names of a list of domains that is valid, without the ports.
pub(super) fn names(texts: &[String]) -> Vec<HostPattern> {
    let pattern = |text: &String| match Entry::parse(text) {
        Ok(Entry { host: Host::Pattern(pattern), .. }) => Some(pattern),
        _ => None,
    };
    texts.iter().filter_map(pattern).collect()
}

/// Returns the rules that allow these entries.
fn allowing(entries: &[Entry], private: &[Cidr], notes: &mut Notes) -> Vec<EgressRule> {
    let mut by_port: BTreeMap<Option<NonZeroU16>, (Vec<HostPattern>, Vec<Cidr>)> = BTreeMap::new();
    let mut literals: Vec<(Cidr, Option<NonZeroU16>)> = Vec::new();
    for entry in entries {
        let slot = by_port.entry(entry.port).or_default();
        match &entry.host {
            Host::Everything => notes.refuse("network.allowedDomains", "`*` is not a domain of srt"),
            Host::Local => {
                notes.change(
                    "network.allowedDomains",
                    "localhost is the sandbox itself, which is always open",
                );
            }
            Host::Pattern(pattern) => slot.0.push(pattern.clone()),
            Host::Address(address) => {
                let Ok(cidr) = address.to_string().parse::<Cidr>() else { continue };
                literals.push((cidr, entry.port));
                match entry.loopback() {
                    Some(address) => notes.change(
                        "network.allowedDomains",
                        &format!("{address} by itself is the sandbox; allowed names may lead to that of this machine"),
                    ),
                    None => match is_never_dialed(&cidr) {
                        Some(why) => {
                            notes.change("network.allowedDomains", &format!("{address} opens nothing: {why}"));
                        }
                        None => slot.1.push(cidr),
                    },
                }
            }
        }
    }
    let mut rules = Vec::new();
    for (port, (hosts, cidrs)) in &by_port {
        // A name may lead to an address that is allowed by itself, on its port.
        let open = literals.iter().filter(|(_, other)| other.is_none() || other == port);
        let open: Vec<Cidr> = private.iter().copied().chain(open.map(|(cidr, _)| *cidr)).collect();
        rules.extend(grouped(*port, hosts, cidrs, &open));
        for (cidr, other) in literals.iter().filter(|(_, other)| port.is_none() && other.is_some()) {
            let mut further = grouped(*other, hosts, &[], &[*cidr]);
            further.iter_mut().for_each(|rule| rule.name += &format!(" at {cidr}"));
            rules.extend(further);
        }
    }
    rules
}

/// Returns rules for hosts and addresses on one port, or on all.
fn grouped(
    port: Option<NonZeroU16>,
    hosts: &[HostPattern],
    cidrs: &[Cidr],
    private: &[Cidr],
) -> Vec<EgressRule> {
    let others = || OTHERS.iter().filter_map(|ports| ports.parse().ok()).collect::<Vec<PortRange>>();
    let web = WEB.map(PortRange::one).to_vec();
    let classes = match port {
        Some(port) if WEB.contains(&port) => {
            vec![(format!("allowed, port {port}"), vec![PortRange::one(port)], true)]
        }
        Some(port) => vec![(format!("allowed, port {port}"), vec![PortRange::one(port)], false)],
        None => {
            vec![("allowed, web".to_owned(), web, true), ("allowed, other ports".to_owned(), others(), false)]
        }
    };
    let mut rules = Vec::new();
    let count = hosts.len().max(cidrs.len()).div_ceil(PER_RULE);
    for (name, ports, is_web) in classes {
        for number in 0..count {
            let piece =
                |length: usize| (number * PER_RULE).min(length)..((number + 1) * PER_RULE).min(length);
            let part = if count > 1 { format!(", part {}", number + 1) } else { String::new() };
            let mut rule = empty(format!("{name}{part}"));
            rule.hosts = hosts[piece(hosts.len())].to_vec();
            rule.cidrs = cidrs[piece(cidrs.len())].to_vec();
            rule.ports.clone_from(&ports);
            rule.private = private.iter().copied().filter(|range| opens_nothing(range).is_none()).collect();
            match is_web {
                true => rule.plaintext = true,
                false => rule.protocol = Protocol::Tcp,
            }
            rules.push(rule);
        }
    }
    rules
}

/// Returns one rule for each denied entry, whose name has the reason.
fn denying(lists: &Lists<'_>, notes: &mut Notes) -> Vec<EgressRule> {
    let (mut rules, mut seen) = (Vec::new(), BTreeSet::new());
    for (index, text) in lists.denied.iter().enumerate().filter(|(_, text)| seen.insert(text.as_str())) {
        let field = format!("network.deniedDomains[{index}]");
        let entry = match Entry::parse(text) {
            Ok(entry) => entry,
            Err(error) => {
                notes.refuse(&field, error);
                continue;
            }
        };
        let reason = lists.reasons.get(text).map(|reason| format!(": {}", reason.escape_debug()));
        let mut rule = empty(format!("denied {text}{}", reason.unwrap_or_default()));
        match entry.host {
            Host::Local => continue,
            Host::Everything => {
                rule.any = true;
                rule.cidrs = ["0.0.0.0/0", "::/0"].iter().filter_map(|text| text.parse().ok()).collect();
            }
            Host::Pattern(pattern) => rule.hosts = vec![pattern],
            Host::Address(address) => {
                rule.cidrs = address.to_string().parse().into_iter().collect();
            }
        }
        rule.ports = vec![entry.port.map_or(PortRange::ALL, PortRange::one)];
        rule.decision = Decision::Deny;
        rules.push(rule);
    }
    rules
}

fn empty(name: String) -> EgressRule {
    EgressRule { name, ..EgressRule::default() }
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Destination, Egress, Level, Moment, Traffic, decide, may_dial};

    use super::*;

    fn egress(allowed: &[&str], denied: &[&str]) -> (Level, Notes) {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (allowed, denied) = (texts(allowed), texts(denied));
        let reasons = BTreeMap::from([("*:22".to_owned(), "use https".to_owned())]);
        let mut notes = Notes::default();
        let private = ["10.0.0.0/8".parse().unwrap()];
        let lists = Lists { allowed: &allowed, denied: &denied, reasons: &reasons };
        let egress = Egress { rules: rules(&lists, &private, &mut notes).into(), ..Egress::default() };
        let level = Level::new(Authority::Invocation, "srt", Some(egress));
        (level, notes)
    }

    #[test]
    fn entries_mean_the_same_destinations() {
        let allowed = ["a.example", "*.b.example", "c.example:8443", "[2001:4860::1]:443", "192.0.2.9"];
        let (level, notes) = egress(&allowed, &["x.b.example", "*:22"]);
        assert!(notes.refusals.is_empty(), "{notes:?}");
        let decision = |to: &str| {
            let levels = [level.clone()];
            let destination: Destination = to.parse().unwrap();
            let verdict = decide(&levels, &destination, &Moment::default());
            let rule = verdict.opinions[0].rule.map(str::to_owned);
            (verdict.decision == Decision::Allow, verdict.traffic, rule)
        };
        for (to, traffic) in [
            ("a.example:443", Traffic::Web),
            ("a.example:80", Traffic::Web),
            ("a.example:5432", Traffic::Any),
            ("y.b.example:443", Traffic::Web),
            ("y.z.b.example:1", Traffic::Any),
            ("c.example:8443", Traffic::Any),
            ("[2001:4860::1]:443", Traffic::Web),
            ("192.0.2.9:444", Traffic::Any),
        ] {
            let (allowed, found, _) = decision(to);
            assert_eq!((allowed, found), (true, traffic), "{to}");
        }
        for to in [
            "b.example:443",
            "x.b.example:443",
            "a.example:22",
            "192.0.2.9:22",
            "c.example:443",
            "[2001:4860::1]:80",
            "other.example:443",
        ] {
            assert!(!decision(to).0, "{to}");
        }
        assert_eq!(decision("a.example:22").2.as_deref(), Some("denied *:22: use https"));
    }

    #[test]
    fn names_lead_to_listed_addresses_on_the_listed_port() {
        let (level, notes) = egress(&["a.example", "127.0.0.1:3000", "localhost:1"], &[]);
        let dial = |to: &str, address: &str| {
            let levels = [level.clone()];
            let destination: Destination = to.parse().unwrap();
            may_dial(&levels, &destination, address.parse().unwrap(), &[], &Moment::default()).is_ok()
        };
        assert!(dial("a.example:3000", "127.0.0.1") && !dial("a.example:443", "127.0.0.1"));
        assert!(dial("a.example:443", "10.1.2.3") && !dial("a.example:443", "192.168.0.1"));
        assert_eq!(notes.changes.len(), 3, "two for loopback, one for the reason: {notes:?}");
    }

    #[test]
    fn entry_of_another_form_is_refused_by_its_place() {
        for text in [
            "*",
            "*.com",
            "a",
            "https://a.example",
            "a.example/x",
            "a.example:0",
            "a.example:x",
            "::1",
            "2001:db8::1:443",
            "[::1",
            "[::1]x",
            "a.*.example",
            "*.1",
            "a b.example",
            "a.example:065",
            "",
            "a.example:70000",
        ] {
            let (_, notes) = egress(&["ok.example", text], &[]);
            assert_eq!(notes.refusals.len(), 1, "{text}: {notes:?}");
            let (_, notes) = egress(&["ok.example"], &[text]);
            assert_eq!(notes.refusals.len(), usize::from(text != "*"), "{text}: {notes:?}");
        }
    }

    #[test]
    fn long_lists_are_several_rules_that_make_a_policy() {
        let names: Vec<String> = (0..200).map(|number| format!("h{number}.example")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (level, notes) = egress(&names, &names[..100]);
        let rules = level.egress.unwrap().rules;
        assert_eq!((rules.len(), notes.refusals.len()), (8 + 100, 0));
        let hosts = rules.iter().map(|rule| rule.hosts.len()).max();
        let distinct: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!((hosts, distinct.len()), (Some(PER_RULE), rules.len()));
        assert!(rules_of(&names, &[]).is_empty(), "nothing is allowed, nothing is to be denied");
    }

    fn rules_of(denied: &[&str], allowed: &[&str]) -> Vec<EgressRule> {
        egress(allowed, denied).0.egress.unwrap().rules.to_vec()
    }
}
