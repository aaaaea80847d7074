//! Combines the levels of a sandbox into one verdict.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::{Forbidden, check_address};
use crate::destination::{Decision, Destination};
use crate::egress::{Egress, Traffic};
use crate::host::HostName;

/// Effect of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// The level decides.
    #[default]
    Enforce,
    /// The level abstains. Its opinion is reported.
    Observe,
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
}

/// Verdict of all levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// Decision.
    pub decision: Decision,
    /// Permitted traffic, if it is allowed.
    pub traffic: Traffic,
    /// Opinions of the levels that have egress rules, by authority and name.
    pub opinions: Vec<Opinion<'a>>,
}

/// Decides whether a sandbox with these levels may reach the destination: only if at least one level that enforces has
/// egress rules, and all of those allow it. The order of levels and rules has no meaning.
pub fn decide<'a>(levels: &'a [Level], destination: &Destination) -> Verdict<'a> {
    let mut opinions: Vec<_> = levels
        .iter()
        .filter_map(|level| {
            let rule = level.egress.as_ref()?.rule_for(destination);
            let decision = rule.map_or(Decision::Deny, |rule| rule.decision);
            Some(Opinion { level, rule: rule.map(|rule| rule.name.as_str()), decision })
        })
        .collect();
    opinions.sort_by(|a, b| (a.level.authority, &a.level.name).cmp(&(b.level.authority, &b.level.name)));
    let enforced = opinions.iter().filter(|opinion| opinion.level.mode == Mode::Enforce);
    let decision = enforced.map(|opinion| opinion.decision).max().unwrap_or(Decision::Deny);
    let traffic = enforcing(levels).map(|egress| egress.traffic_to(destination));
    Verdict { decision, traffic: traffic.min().unwrap_or_default(), opinions }
}

/// Returns true if a sandbox with these levels may perhaps reach some port of the name. Other names need no address.
pub fn may_resolve(levels: &[Level], name: &HostName) -> bool {
    let mut opinions = enforcing(levels).map(|egress| egress.allows_name(name)).peekable();
    opinions.peek().is_some() && opinions.all(|allows| allows)
}

/// Checks an address to which an allowed destination leads; `own` are the addresses of this machine. A private range counts
/// only for the level whose rule opens it: the address must be open for every level.
///
/// # Errors
/// The reason.
pub fn may_dial(
    levels: &[Level],
    destination: &Destination,
    address: IpAddr,
    own: &[IpAddr],
) -> Result<(), Forbidden> {
    let mut ranges: Vec<_> = enforcing(levels).map(|egress| egress.private_for(destination)).collect();
    if ranges.is_empty() {
        ranges.push(Vec::new());
    }
    ranges.iter().try_for_each(|private| check_address(address, private, own))
}

/// Returns the egress rules of the levels that decide.
fn enforcing(levels: &[Level]) -> impl Iterator<Item = &Egress> {
    levels.iter().filter(|level| level.mode == Mode::Enforce).filter_map(|level| level.egress.as_ref())
}

#[cfg(test)]
mod tests;
