//! Sandboxes that reach each other.
//!
//! A rule names other Sandboxes by their identity: namespace, labels and name of the object. An address has no meaning
//! here. A program inside connects to the name of a Service, and the node finds the Sandbox behind it.

use std::borrow::Borrow;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::attach::Subject;
use crate::decide::{Level, Mode, Opinion, enforcing, opens, sort, strictest};
use crate::destination::Decision;
use crate::egress::Egress;
use crate::host::HostName;
use crate::ports::PortRange;
use crate::rule::EgressRule;

/// Domain of the names of Services.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Service through which a sandbox reaches another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Name of the Service.
    pub service: String,
    /// Its namespace.
    pub namespace: String,
    /// Ports of the Service that are open.
    pub ports: Vec<PortRange>,
}

impl Peer {
    /// Maximum ranges of ports: tenants decide how many ports their Services have.
    pub const RANGES: usize = 32;

    /// Returns the names of the Service, for a sandbox of the namespace `from`.
    pub fn names(&self, from: &str) -> Vec<HostName> {
        let Peer { service, namespace, .. } = self;
        let short = format!("{service}.{namespace}");
        let names = [
            (from == namespace).then(|| service.clone()),
            Some(short.clone()),
            Some(format!("{short}.svc")),
            Some(format!("{short}.svc.{CLUSTER_DOMAIN}")),
        ];
        names.into_iter().flatten().filter_map(|name| name.parse().ok()).collect()
    }
}

/// The rule of a level that decides about a port of another sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// No level decides that is not the claim's.
    #[error("no policy opens another sandbox")]
    NoPolicy,
    /// A rule denies it.
    #[error("rule {rule:?} of policy {level:?} denies it")]
    Rule {
        /// Name of the level.
        level: String,
        /// Name of the rule.
        rule: String,
    },
    /// No rule of a level allows it.
    #[error("no rule of policy {0:?} allows it")]
    NoRule(String),
}

impl Closed {
    /// Returns the level and the rule that decide, as far as there are.
    pub fn by(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Closed::NoPolicy => (None, None),
            Closed::Rule { level, rule } => (Some(level), Some(rule)),
            Closed::NoRule(level) => (Some(level), None),
        }
    }
}

impl EgressRule {
    fn matches_peer(&self, from: &str, to: &Subject, port: NonZeroU16) -> bool {
        self.ports.iter().any(|range| range.contains(port.get()))
            && self.sandboxes.iter().any(|target| target.matches(from, to))
    }
}

/// Returns the rule that decides about a port of another sandbox. Of equally strict rules, the first by name counts.
fn rule_for<'a>(egress: &'a Egress, from: &str, to: &Subject, port: NonZeroU16) -> Option<&'a EgressRule> {
    let matching = egress.rules.iter().filter(|rule| rule.matches_peer(from, to, port));
    matching.max_by(|a, b| a.decision.cmp(&b.decision).then_with(|| b.name.cmp(&a.name)))
}

/// Returns what a level has against a port of another sandbox.
fn objection(level: &Level, egress: &Egress, from: &str, to: &Subject, port: NonZeroU16) -> Option<Closed> {
    match rule_for(egress, from, to, port) {
        Some(rule) if rule.decision == Decision::Allow => None,
        Some(rule) => Some(Closed::Rule { level: level.name.clone(), rule: rule.name.clone() }),
        None => Some(Closed::NoRule(level.name.clone())),
    }
}

/// Decides whether a sandbox of the namespace `from` with these levels may reach a port of another sandbox, as
/// [`crate::decide`] does: all levels that enforce and have rules must allow it.
///
/// # Errors
/// The reason.
pub fn may_reach<L: Borrow<Level>>(
    levels: &[L],
    from: &str,
    to: &Subject,
    port: NonZeroU16,
) -> Result<(), Closed> {
    if !opens(levels) {
        return Err(Closed::NoPolicy);
    }
    let mut enforced: Vec<&Level> = levels.iter().map(Borrow::borrow).collect();
    enforced.retain(|level| level.mode == Mode::Enforce);
    enforced.sort_by(|a, b| (a.authority, &a.name).cmp(&(b.authority, &b.name)));
    let mut objections =
        enforced.into_iter().filter_map(|level| objection(level, level.egress.as_ref()?, from, to, port));
    objections.next().map_or(Ok(()), Err)
}

/// Returns the decision of [`may_reach`] with the opinions of all levels that have egress rules, by authority and name.
pub fn decide_peer<'a, L: Borrow<Level>>(
    levels: &'a [L],
    from: &str,
    to: &Subject,
    port: NonZeroU16,
) -> (Decision, Vec<Opinion<'a>>) {
    let opinion = |level: &'a Level| {
        let rule = rule_for(level.egress.as_ref()?, from, to, port);
        let decision = rule.map_or(Decision::Deny, |rule| rule.decision);
        Some(Opinion { level, rule: rule.map(|rule| rule.name.as_str()), decision, unmet: None })
    };
    let mut opinions: Vec<_> = levels.iter().map(Borrow::borrow).filter_map(opinion).collect();
    sort(&mut opinions);
    (strictest(levels, &opinions), opinions)
}

/// Returns the first level that only observes and would refuse the port.
pub fn would_refuse<L: Borrow<Level>>(
    levels: &[L],
    from: &str,
    to: &Subject,
    port: NonZeroU16,
) -> Option<Closed> {
    let observing = levels.iter().map(Borrow::borrow).filter(|level: &&Level| level.mode == Mode::Observe);
    observing.filter_map(|level| objection(level, level.egress.as_ref()?, from, to, port)).next()
}

/// Rules of a level that are about a port.
#[derive(Debug, Clone, Copy, Default)]
struct About {
    allow: i32,
    deny: i32,
}

impl About {
    fn allows(self) -> bool {
        self.allow > 0 && self.deny == 0
    }
}

/// Returns the ports of another sandbox that [`may_reach`] allows, as at most 32 ranges. It looks at each range of a rule once:
/// tenants decide how many there are.
pub fn open_ports<L: Borrow<Level>>(levels: &[L], from: &str, to: &Subject) -> Vec<PortRange> {
    if !opens(levels) {
        return Vec::new();
    }
    // At each port: the levels of which a rule begins or ends to count there.
    let (mut changes, mut number): (Vec<(u32, usize, Decision, i32)>, usize) = (Vec::new(), 0);
    for (index, (_, egress)) in enforcing(levels).enumerate() {
        number = index + 1;
        for rule in
            egress.rules.iter().filter(|rule| rule.sandboxes.iter().any(|target| target.matches(from, to)))
        {
            for range in &rule.ports {
                changes.push((range.first().into(), index, rule.decision, 1));
                changes.push((u32::from(range.last()) + 1, index, rule.decision, -1));
            }
        }
    }
    changes.sort_unstable_by_key(|(port, ..)| *port);
    let mut about = vec![About::default(); number];
    let mut allowing = 0;
    let mut open: Vec<(u32, u32)> = Vec::new();
    for (place, (port, index, decision, change)) in changes.iter().enumerate() {
        let level = &mut about[*index];
        let before = level.allows();
        match decision {
            Decision::Allow => level.allow += change,
            Decision::Deny => level.deny += change,
        }
        allowing = allowing + usize::from(level.allows()) - usize::from(before);
        // Until the next change, of which several may be at one port.
        let next = changes.get(place + 1).map_or(u32::from(u16::MAX) + 1, |(next, ..)| *next);
        if allowing < number || *port == next || *port == 0 {
            continue;
        }
        let full = open.len() == Peer::RANGES;
        match open.last_mut() {
            Some((_, end)) if *end == *port => *end = next,
            _ if !full => open.push((*port, next)),
            _ => {}
        }
    }
    let range =
        |(first, end): (u32, u32)| PortRange::new(u16::try_from(first).ok()?, u16::try_from(end - 1).ok()?);
    open.into_iter().filter_map(range).collect()
}

/// Returns true if a rule of these levels is about other sandboxes.
pub fn names_sandboxes<L: Borrow<Level>>(levels: &[L]) -> bool {
    enforcing(levels).flat_map(|(_, egress)| &egress.rules).any(|rule| !rule.sandboxes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Authority;

    fn level(authority: Authority, rules: &serde_json::Value) -> Level {
        let egress = serde_json::from_value(serde_json::json!({ "rules": rules })).unwrap();
        Level::new(authority, "p", Some(egress))
    }

    fn to(namespace: &str, name: &str) -> Subject {
        Subject {
            namespace: namespace.into(),
            namespace_labels: [("team".to_owned(), namespace.to_owned())].into(),
            sandbox: Some(name.into()),
            labels: [("app".to_owned(), name.to_owned())].into(),
            ..Subject::default()
        }
    }

    fn shown(levels: &[Level], from: &str, to: &Subject) -> String {
        open_ports(levels, from, to).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rule_opens_the_ports_of_the_sandboxes_that_it_names() {
        let by_name = level(
            Authority::Namespace,
            &serde_json::json!([{"name": "db", "sandboxes": [{"name": "db"}], "ports": [5432, "8000-8080"]}]),
        );
        let levels = [by_name];
        assert_eq!(shown(&levels, "a", &to("a", "db")), "5432 8000-8080");
        assert_eq!(shown(&levels, "a", &to("a", "other")), "");
        assert_eq!(shown(&levels, "a", &to("b", "db")), "", "another namespace");
        let port = |number| NonZeroU16::new(number).unwrap();
        assert_eq!(may_reach(&levels, "a", &to("a", "db"), port(5432)), Ok(()));
        assert_eq!(may_reach(&levels, "a", &to("a", "db"), port(443)), Err(Closed::NoRule("p".into())));
        assert_eq!(may_reach::<Level>(&[], "a", &to("a", "db"), port(1)), Err(Closed::NoPolicy));
    }

    #[test]
    fn namespace_selector_opens_other_namespaces() {
        let rules = serde_json::json!([{
            "name": "db", "ports": [1],
            "sandboxes": [{"selector": {"matchLabels": {"app": "db"}}, "namespaceSelector": {"matchLabels": {"team": "b"}}}],
        }]);
        let levels = [level(Authority::Cluster, &rules)];
        assert_eq!(shown(&levels, "a", &to("b", "db")), "1");
        assert_eq!(shown(&levels, "a", &to("a", "db")), "");
        assert_eq!(shown(&levels, "a", &to("b", "other")), "");
    }

    #[test]
    fn every_level_must_allow_a_port_and_deny_wins() {
        let open = |ports: &str| {
            let rule = serde_json::json!([{"name": "o", "sandboxes": [{"selector": {}}], "ports": [ports]}]);
            level(Authority::Namespace, &rule)
        };
        let denies = serde_json::json!([
            {"name": "all", "sandboxes": [{"selector": {}}], "ports": ["1-65535"]},
            {"name": "no", "sandboxes": [{"name": "db"}], "ports": ["15-16"], "decision": "Deny"},
        ]);
        let levels = [open("10-20"), level(Authority::Cluster, &denies)];
        assert_eq!(shown(&levels, "a", &to("a", "db")), "10-14 17-20");
        assert_eq!(shown(&levels, "a", &to("a", "web")), "10-20");
        let without = level(Authority::Cluster, &serde_json::json!([{"name": "web", "any": true}]));
        assert_eq!(shown(&[open("10-20"), without], "a", &to("a", "db")), "");
        let claim = Level { authority: Authority::Claim, ..open("10-20") };
        assert_eq!(shown(&[claim], "a", &to("a", "db")), "", "a claim opens nothing");
        let observes = Level { mode: Mode::Observe, ..open("1-2") };
        let levels = [open("10-20"), observes];
        assert_eq!(shown(&levels, "a", &to("a", "db")), "10-20");
        let refused = would_refuse(&levels, "a", &to("a", "db"), NonZeroU16::new(10).unwrap());
        assert_eq!(refused, Some(Closed::NoRule("p".into())));
    }

    /// A level with rules for ports of `db`, by their numbers.
    fn any_level() -> impl proptest::strategy::Strategy<Value = Level> {
        use proptest::prelude::*;
        let rule = (1..20_u16, 0..10_u16, any::<bool>(), any::<bool>());
        let authority =
            prop::sample::select(vec![Authority::Cluster, Authority::Namespace, Authority::Claim]);
        (prop::collection::vec(rule, 0..4), authority, any::<bool>()).prop_map(
            |(rules, authority, observes)| {
                let rules = rules.into_iter().enumerate().map(|(index, (first, length, denies, named))| {
                    let target = if named {
                        serde_json::json!({"name": "db"})
                    } else {
                        serde_json::json!({"selector": {}})
                    };
                    let decision = if denies { "Deny" } else { "Allow" };
                    serde_json::json!({"name": index.to_string(), "sandboxes": [target], "decision": decision,
                    "ports": [format!("{first}-{}", first + length)]})
                });
                let mode = if observes { Mode::Observe } else { Mode::Enforce };
                Level { mode, ..level(authority, &rules.collect::<Vec<_>>().into()) }
            },
        )
    }

    proptest::proptest! {
        #[test]
        fn one_more_level_never_opens_more(
            levels in proptest::collection::vec(any_level(), 1..4), more in any_level(), port in 1..40_u16,
        ) {
            let port = NonZeroU16::new(port).unwrap();
            let open = |levels: &[Level]| may_reach(levels, "a", &to("a", "db"), port).is_ok();
            let ranges = open_ports(&levels, "a", &to("a", "db"));
            let decided = decide_peer(&levels, "a", &to("a", "db"), port).0;
            proptest::prop_assert_eq!(open(&levels), decided == Decision::Allow);
            proptest::prop_assert_eq!(open(&levels), ranges.iter().any(|range| range.contains(port.get())));
            let turned: Vec<Level> = levels.iter().rev().cloned().collect();
            proptest::prop_assert_eq!(open(&levels), open(&turned));
            // A claim alone opens nothing, so a level that decides beside it may open what both allow.
            let decides = levels.iter().any(|level| level.mode == Mode::Enforce && level.authority != Authority::Claim);
            if decides && !open(&levels) {
                proptest::prop_assert!(!open(&[levels, vec![more]].concat()));
            }
        }
    }

    #[test]
    fn all_ports_are_one_range() {
        let rules = serde_json::json!([{"name": "a", "sandboxes": [{"selector": {}}], "ports": ["1-65535"]}]);
        assert_eq!(shown(&[level(Authority::Namespace, &rules)], "a", &to("a", "db")), "1-65535");
    }

    #[test]
    fn service_has_its_short_name_in_its_own_namespace_only() {
        let peer = Peer { service: "db".into(), namespace: "a".into(), ports: Vec::new() };
        let names = |from| peer.names(from).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(names("a"), "db db.a db.a.svc db.a.svc.cluster.local");
        assert_eq!(names("b"), "db.a db.a.svc db.a.svc.cluster.local");
    }
}
