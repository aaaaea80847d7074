//! Combines the levels of a sandbox into one verdict.

use std::borrow::Borrow;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::{Forbidden, check_address, judged_as};
use crate::credential::{self, Credential};
use crate::destination::{Decision, Destination};
use crate::egress::Egress;
use crate::expression::{Moment, Work};
use crate::host::{Host, HostName};
use crate::request::Request;
use crate::rule::{EgressRule, Traffic};
use crate::scanner::ScannerRules;
use crate::unmet::Unmet;

/// Begin of the names of levels that the `networkPolicy` of a template is. No policy object has a name with a space.
pub(crate) const NETWORK_POLICY: &str = "networkPolicy of ";

/// Effect of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The level decides.
    #[default]
    Enforce,
    /// The level abstains. Its opinion is reported.
    Observe,
}

/// Effect of `files`, and of the scanner of output, where they are not enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnUnsupported {
    /// Nothing is reachable; a command does not start.
    #[default]
    Refuse,
    /// The rest of the policy applies, and what is not enforced is reported.
    Report,
}

impl OnUnsupported {
    pub(crate) fn is_default(&self) -> bool {
        *self == OnUnsupported::Refuse
    }
}

/// Authority behind a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Authority {
    /// Administrators of the cluster or the machine.
    Cluster,
    /// Owners of the namespace.
    Namespace,
    /// Author of the template.
    Template,
    /// Author of the claim.
    Claim,
    /// Caller of `hutch run`.
    Invocation,
}

/// Policy of one authority for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Authority.
    pub authority: Authority,
    /// Name of the policy object, for messages.
    pub name: String,
    /// Effect.
    pub mode: Mode,
    /// Egress rules; without them the level abstains.
    pub egress: Option<Egress>,
    /// Scanner; without it the level abstains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanner: Option<ScannerRules>,
    /// Credentials that the level offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
}

impl Level {
    /// Returns a level that enforces these rules, without a scanner and credentials.
    pub fn new(authority: Authority, name: impl Into<String>, egress: Option<Egress>) -> Level {
        let (name, mode) = (name.into(), Mode::Enforce);
        Level { authority, name, mode, egress, scanner: None, credentials: Vec::new() }
    }

    /// Returns true if this is the `networkPolicy` of a template.
    pub fn is_network_policy(&self) -> bool {
        self.authority == Authority::Template && self.name.starts_with(NETWORK_POLICY)
    }

    /// Returns true if this is the `networkPolicy` of a template, and does not allow the address to which a destination leads,
    /// or the IPv4 address for which it stands. An address that the sandbox names was decided about as it is.
    fn closes(&self, destination: &Destination, address: IpAddr, moment: &Moment<'_>) -> bool {
        let allows = |address: IpAddr| {
            let dialed = Destination { host: Host::Address(address), port: destination.port };
            let decision = |egress: &Egress| egress.connection(&dialed, moment).decision;
            self.egress.as_ref().map(decision) == Some(Decision::Allow)
        };
        let is_decided = |form: IpAddr| destination.host == Host::Address(form);
        let forms = [address.to_canonical(), judged_as(address)];
        self.is_network_policy() && forms.into_iter().any(|form| !is_decided(form) && !allows(form))
    }

    /// Returns the rule that denies the address to which a destination leads, also as the IPv4 address for which it stands, if
    /// the level enforces.
    fn denying(&self, destination: &Destination, address: IpAddr, moment: &Moment<'_>) -> Option<&str> {
        let egress = self.egress.as_ref().filter(|_| self.mode == Mode::Enforce)?;
        [address.to_canonical(), judged_as(address)].into_iter().find_map(|address| {
            let dialed = Destination { host: Host::Address(address), port: destination.port };
            let found = egress.connection(&dialed, moment);
            found.rule.filter(|_| found.decision == Decision::Deny).map(|rule| rule.name.as_str())
        })
    }
}

/// Opinion of one level about a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opinion<'a> {
    /// Level.
    pub level: &'a Level,
    /// Name of the rule; `None` if no rule matched.
    pub rule: Option<&'a str>,
    /// Its decision. It does not count if the level observes.
    pub decision: Decision,
    /// Condition because of which it denies.
    pub unmet: Option<Unmet>,
}

/// Verdict of all levels about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// Decision.
    pub decision: Decision,
    /// Permitted traffic, if it is allowed.
    pub traffic: Traffic,
    /// Requests must be read and decided one by one, so TLS ends at the proxy.
    pub inspect: bool,
    /// Requests must be read because a scanner reads them.
    pub scan: bool,
    /// One rule or scanner needs requests to be read, and another one forbids that TLS ends at the proxy. Then it is denied.
    pub conflict: bool,
    /// Opinions of the levels that have egress rules, by authority and name.
    pub opinions: Vec<Opinion<'a>>,
}

/// Verdict of all levels about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestVerdict<'a> {
    /// Decision.
    pub decision: Decision,
    /// Maximum length of the body, if it is allowed.
    pub max_body: u64,
    /// Opinions of the levels that have egress rules, by authority and name.
    pub opinions: Vec<Opinion<'a>>,
}

/// Decides whether a sandbox with these levels may reach the destination: only if at least one level that enforces and is
/// not the claim's has egress rules, and all levels that enforce and have rules allow it. The order of levels and rules
/// has no meaning.
pub fn decide<'a, L: Borrow<Level>>(
    levels: &'a [L],
    destination: &Destination,
    moment: &Moment<'_>,
) -> Verdict<'a> {
    let mut opinions = Vec::new();
    let (mut inspect, mut passthrough, mut traffic) = (false, false, None::<Traffic>);
    for level in levels.iter().map(Borrow::borrow) {
        inspect |= level.mode == Mode::Enforce && credential::any_covers(&level.credentials, destination);
        let Some(egress) = &level.egress else { continue };
        let found = egress.connection(destination, moment);
        opinions.push(Opinion {
            level,
            rule: found.rule.map(|rule| rule.name.as_str()),
            decision: found.decision,
            unmet: found.unmet,
        });
        if level.mode == Mode::Enforce {
            inspect |= found.inspect;
            passthrough |= found.passthrough;
            traffic = Some(traffic.map_or(found.traffic, |least| least.min(found.traffic)));
        }
    }
    // What a level itself does not let be read is not scanned for it.
    let scan = scans(levels, (destination, moment));
    let conflict = (inspect || scan) && passthrough;
    let decision = if conflict { Decision::Deny } else { strictest(levels, &opinions) };
    sort(&mut opinions);
    Verdict { decision, traffic: traffic.unwrap_or_default(), inspect, scan, conflict, opinions }
}

/// Decides about a request on a connection that [`decide`] allowed. One with more arguments than all conditions together can
/// read in a bounded time is denied.
pub fn decide_request<'a, L: Borrow<Level>>(
    levels: &'a [L],
    destination: &Destination,
    request: &Request<'_>,
    moment: &Moment<'_>,
) -> RequestVerdict<'a> {
    let (mut opinions, mut max_body, mut is_used_up) = (Vec::new(), u64::MAX, false);
    // Those that only observe do not use up what the others need.
    for mode in [Mode::Enforce, Mode::Observe] {
        let work = Work::begin();
        for level in levels.iter().map(Borrow::borrow).filter(|level| level.mode == mode) {
            let Some(egress) = &level.egress else { continue };
            let asked = egress.request(destination, request, moment);
            let rule = asked.rule.map(|rule| rule.name.as_str());
            opinions.push(Opinion { level, rule, decision: asked.decision, unmet: asked.unmet });
            if mode == Mode::Enforce {
                max_body = max_body.min(asked.max_body);
            }
        }
        is_used_up |= mode == Mode::Enforce && work.is_used_up();
    }
    // In another order other conditions would have had no value.
    let decision = if is_used_up { Decision::Deny } else { strictest(levels, &opinions) };
    sort(&mut opinions);
    RequestVerdict { decision, max_body, opinions }
}

/// Returns true if a level that enforces judges calls of JSON-RPC to the destination, so that bodies must be read.
pub fn reads_calls<L: Borrow<Level>>(levels: &[L], destination: &Destination) -> bool {
    enforcing(levels).any(|(_, egress)| egress.reads_calls(destination))
}

/// Returns true if a rule of a level that decides judges requests to the destination, whatever its condition, or a credential is
/// offered for some of them.
pub fn judges_requests<L: Borrow<Level>>(levels: &[L], destination: &Destination) -> bool {
    let mut deciding = levels.iter().map(Borrow::borrow).filter(|level: &&Level| level.mode == Mode::Enforce);
    let judges = |rule: &EgressRule| rule.reads_requests() && rule.matches(destination);
    deciding.any(|level| {
        let mut rules = level.egress.iter().flat_map(|egress| &egress.rules);
        credential::any_covers(&level.credentials, destination) || rules.any(judges)
    })
}

/// Returns true if a rule for the destination has a condition, which can change by itself.
pub fn has_conditions<L: Borrow<Level>>(levels: &[L], destination: &Destination) -> bool {
    let rules =
        levels.iter().filter_map(|level| level.borrow().egress.as_ref()).flat_map(|egress| &egress.rules);
    let has_one =
        |rule: &EgressRule| rule.when.is_some() || rule.mcp.iter().any(|entry| entry.args.is_some());
    rules.into_iter().any(|rule| has_one(rule) && rule.matches(destination))
}

/// Returns the levels that only observe and have rules about requests, if no level that decides has requests read.
pub fn blind_observers<L: Borrow<Level>>(levels: &[L]) -> impl Iterator<Item = &Level> {
    let judges =
        |level: &Level| level.egress.iter().flat_map(|egress| &egress.rules).any(EgressRule::reads_requests);
    let reads = |level: &Level| judges(level) || level.scanner.is_some() || !level.credentials.is_empty();
    let mut deciding = levels.iter().map(Borrow::borrow).filter(|level: &&Level| level.mode == Mode::Enforce);
    let is_read = deciding.any(reads);
    let observing = levels.iter().map(Borrow::borrow).filter(|level: &&Level| level.mode == Mode::Observe);
    observing.filter(move |level| !is_read && judges(level))
}

/// Returns true if a condition decides which addresses are open, so that one of a name may close by itself.
pub fn closes_addresses<L: Borrow<Level>>(levels: &[L]) -> bool {
    let closes = |rule: &EgressRule| !rule.private.is_empty() || rule.decision == Decision::Deny;
    let mut rules = enforcing(levels).flat_map(|(_, egress)| egress.rules.iter());
    rules.any(|rule| rule.when.is_some() && closes(rule))
}

/// Returns true if a level that enforces denies some calls of JSON-RPC to the destination, so that a body must not pass in which
/// a server may find one that cannot be read.
pub fn denies_calls<L: Borrow<Level>>(levels: &[L], destination: &Destination) -> bool {
    enforcing(levels).any(|(_, egress)| egress.denies_calls(destination))
}

/// Returns the scanners of levels, each for itself, and those of levels that only observe too. A level scans nothing of the
/// destinations that its own rules do not let be read at that moment.
pub fn scanners<'a, L: Borrow<Level>>(
    levels: &'a [L],
    destination: Option<(&'a Destination, &'a Moment<'a>)>,
) -> impl Iterator<Item = (&'a Level, &'a ScannerRules)> {
    let with =
        levels.iter().map(Borrow::borrow).filter_map(|level: &Level| Some((level, level.scanner.as_ref()?)));
    with.filter(move |(level, _)| {
        let egress = level.egress.as_ref();
        !destination.zip(egress).is_some_and(|((of, moment), egress)| egress.is_opaque(of, moment))
    })
}

/// Returns true if a level that decides scans what it lets pass to a destination, so that it must be read.
fn scans<L: Borrow<Level>>(levels: &[L], destination: (&Destination, &Moment<'_>)) -> bool {
    scanners(levels, Some(destination)).any(|(level, _)| level.mode == Mode::Enforce)
}

/// Returns the decision of all levels that enforce.
pub(crate) fn strictest<L: Borrow<Level>>(levels: &[L], opinions: &[Opinion<'_>]) -> Decision {
    let enforced = opinions.iter().filter(|opinion| opinion.level.mode == Mode::Enforce);
    match opens(levels) {
        true => enforced.map(|opinion| opinion.decision).max().unwrap_or(Decision::Deny),
        false => Decision::Deny,
    }
}

/// Sorts opinions by authority and name.
pub(crate) fn sort(opinions: &mut [Opinion<'_>]) {
    opinions.sort_by(|a, b| (a.level.authority, &a.level.name).cmp(&(b.level.authority, &b.level.name)));
}

/// Returns true if a sandbox with these levels may perhaps reach some port of the name. Other names need no address.
pub fn may_resolve<L: Borrow<Level>>(levels: &[L], name: &HostName) -> bool {
    opens(levels) && enforcing(levels).all(|(_, egress)| egress.allows_name(name))
}

/// Returns the pattern by which a name that may be resolved is allowed; `None` if a level names it exactly. A pattern allows
/// any number of names.
pub fn wildcard<L: Borrow<Level>>(levels: &[L], name: &HostName) -> Option<String> {
    let mut first = None;
    for (_, egress) in enforcing(levels) {
        let pattern = egress.wildcard(name)?;
        first = first.or(Some(pattern));
    }
    first
}

/// Checks an address to which an allowed destination leads; `own` are the addresses of this machine. A private range counts
/// only for the level whose rule opens it: the address must be open for every level. Addresses of this machine, and those
/// that no network routes, are opened only by administrators and by the caller of `hutch run`. The `networkPolicy` of a
/// template must allow the address of a name too, and no rule may deny it.
///
/// # Errors
/// The reason.
pub fn may_dial<L: Borrow<Level>>(
    levels: &[L],
    destination: &Destination,
    address: IpAddr,
    own: &[IpAddr],
    moment: &Moment<'_>,
) -> Result<(), Forbidden> {
    if levels.iter().any(|level| level.borrow().closes(destination, address, moment)) {
        return Err(Forbidden::NetworkPolicy);
    }
    for level in levels.iter().map(Borrow::borrow) {
        if let Some(rule) = level.denying(destination, address, moment) {
            return Err(Forbidden::Denied { level: level.name.clone(), rule: rule.to_owned() });
        }
    }
    let Err(closed) = check_address(address, &[], own) else { return Ok(()) };
    let mut opened = Err(closed.clone());
    for (authority, egress) in enforcing(levels) {
        let administers = matches!(authority, Authority::Cluster | Authority::Invocation);
        if !administers && closed != Forbidden::Private {
            return Err(closed);
        }
        check_address(address, &egress.private_for(destination, moment), own)?;
        opened = Ok(());
    }
    opened
}

/// Returns the egress rules of the levels that decide, with their authorities.
pub(crate) fn enforcing<L: Borrow<Level>>(levels: &[L]) -> impl Iterator<Item = (Authority, &Egress)> {
    let levels = levels.iter().map(Borrow::borrow).filter(|level: &&Level| level.mode == Mode::Enforce);
    levels.filter_map(|level| Some((level.authority, level.egress.as_ref()?)))
}

/// Returns true if a level decides that is not the claim's, which can only take away.
pub fn opens<L: Borrow<Level>>(levels: &[L]) -> bool {
    enforcing(levels).any(|(authority, _)| authority != Authority::Claim)
}

#[cfg(test)]
mod tests;
