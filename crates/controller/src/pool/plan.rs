//! What to do about a pool, given its members. Pure.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::{Sandbox, SandboxWarmPoolStatus, UpdateStrategyType, label, name_hash};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Seen;
use super::member::{Health, desired, health};
use crate::blueprint::{Hashes, is_fresh};
use crate::config::Config;
use crate::owner;

/// Added to the time that a starting member has left, so that the next look finds it over.
const AFTER_GRACE: SignedDuration = SignedDuration::from_secs(2);

/// Pause after the deletion of one that nobody owns: its end wakes no pool.
const AFTER_ORPHAN: Duration = Duration::from_millis(100);

/// What to do; deletes and patches first, then creates.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    /// Names of members to delete.
    pub(super) delete: Vec<String>,
    /// Merge patches of members: an owner for one that has none, a label that is missing.
    pub(super) patch: Vec<(String, Value)>,
    /// How many to create, and what.
    pub(super) create: usize,
    pub(super) new: Option<Box<Sandbox>>,
    /// Members that wait for a node past their time.
    pub(super) unschedulable: usize,
    /// Members, before any is made or deleted for the pool's size.
    pub(super) members: usize,
    /// When to look again although nothing changed.
    pub(super) again: Option<Duration>,
    /// When to look whether a starting member is Ready. May be late: many pools were made at the same time.
    pub(super) patience: Option<Duration>,
    pub(super) status: SandboxWarmPoolStatus,
}

struct Active<'a> {
    sandbox: &'a Sandbox,
    ready: bool,
}

pub(super) fn plan(seen: &Seen, config: &Config, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let hashes = seen.template.as_ref().map(|template| Hashes::of(template));
    // What cannot be read is left as it is: it counts, and is not Ready.
    let (leaving, undecodable): (Vec<_>, Vec<_>) =
        seen.undecodable.iter().partition(|member| member.metadata.deletion_timestamp.is_some());
    let mut terminating = leaving.len();
    let mut active = Vec::new();
    for sandbox in &seen.labelled {
        match classify(seen, hashes.as_ref(), sandbox) {
            Standing::NotOurs => {}
            Standing::Terminating => terminating += 1,
            Standing::Stale => {
                plan.delete.push(sandbox.name_any());
                terminating += 1;
            }
            Standing::Member(patch) => {
                if let Some(ready) = look_after(&mut plan, seen, config, sandbox, now) {
                    plan.patch.extend(patch.map(|patch| (sandbox.name_any(), patch)));
                    active.push(Active { sandbox, ready });
                } else {
                    terminating += 1;
                }
            }
        }
    }
    if plan.unschedulable > 0 {
        sooner(&mut plan.again, config.unschedulable_recheck);
    }
    plan.members = active.len() + undecodable.len();
    scale(&mut plan, seen, config, hashes, active, Others { terminating, undecodable: undecodable.len() });
    let orphans = seen.labelled.iter().filter(|sandbox| owner::controller(sandbox.as_ref()).is_none());
    if orphans.into_iter().any(|orphan| plan.delete.contains(&orphan.name_any())) {
        sooner(&mut plan.again, AFTER_ORPHAN);
    }
    plan
}

/// What a Sandbox with the pool's label is to the pool.
enum Standing {
    NotOurs,
    Terminating,
    Stale,
    /// A member, with what has to be put right about it.
    Member(Option<Value>),
}

fn classify(seen: &Seen, hashes: Option<&Hashes>, sandbox: &Sandbox) -> Standing {
    let pool = seen.pool.as_ref();
    let ours = owner::is_controlled_by(sandbox, pool);
    if sandbox.metadata.deletion_timestamp.is_some() {
        return if ours { Standing::Terminating } else { Standing::NotOurs };
    }
    let orphan = owner::controller(sandbox).is_none();
    if !ours && !orphan {
        return Standing::NotOurs;
    }
    let replace_stale = orphan || pool.spec.strategy() == UpdateStrategyType::Recreate;
    if replace_stale
        && let (Some(template), Some(hashes)) = (&seen.template, hashes)
        && !is_fresh(sandbox, template, hashes, ours)
    {
        return Standing::Stale;
    }
    let mut metadata = json!({});
    if orphan {
        let mut owners = sandbox.owner_references().to_vec();
        owners.push(owner::reference(pool));
        metadata["ownerReferences"] = json!(owners);
        metadata["labels"] = json!({label::LAUNCH_TYPE: label::LAUNCH_WARM});
    } else if !sandbox.labels().contains_key(label::LAUNCH_TYPE) {
        metadata["labels"] = json!({label::LAUNCH_TYPE: label::LAUNCH_WARM});
    }
    let nothing = metadata.as_object().is_none_or(serde_json::Map::is_empty);
    if nothing {
        return Standing::Member(None);
    }
    metadata["resourceVersion"] = json!(sandbox.resource_version());
    Standing::Member(Some(json!({ "metadata": metadata })))
}

/// Whether the member is Ready; none when it has had its time and is deleted.
fn look_after(
    plan: &mut Plan,
    seen: &Seen,
    config: &Config,
    sandbox: &Sandbox,
    now: Timestamp,
) -> Option<bool> {
    let grace = SignedDuration::try_from(config.readiness_grace).unwrap_or(SignedDuration::MAX);
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let (pod, age) = (seen.pods.get(name), seen.ages.get(name));
    match health(sandbox, pod.map(Arc::as_ref), grace, now, age.copied()) {
        Health::Ready => return Some(true),
        Health::Starting(left) => {
            let wait = left.saturating_add(AFTER_GRACE);
            sooner(&mut plan.patience, Duration::try_from(wait).unwrap_or_default());
        }
        Health::Unschedulable => plan.unschedulable += 1,
        Health::Stuck => {
            plan.delete.push(sandbox.name_any());
            return None;
        }
    }
    Some(false)
}

/// Members about which nothing is decided here.
struct Others {
    terminating: usize,
    undecodable: usize,
}

/// Creation counts those on their way out too, so that a rolling replacement never has more than asked for.
fn scale(
    plan: &mut Plan,
    seen: &Seen,
    config: &Config,
    hashes: Option<Hashes>,
    mut active: Vec<Active<'_>>,
    others: Others,
) {
    let wanted = usize::try_from(seen.pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let members = active.len() + others.undecodable;
    let total = members + others.terminating;
    if let (true, Some(template), Some(hashes)) = (total < wanted, &seen.template, hashes) {
        plan.create = (wanted - total).min(config.pool_batch);
        plan.new = Some(Box::new(desired(&seen.pool, template, &hashes)));
    } else if members > wanted {
        let excess = (members - wanted).min(active.len()).min(config.pool_batch);
        let age =
            |member: &Active<'_>| member.sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        active.sort_by(|a, b| a.ready.cmp(&b.ready).then_with(|| age(b).cmp(&age(a))));
        plan.delete.extend(active.drain(..excess).map(|member| member.sandbox.name_any()));
    }
    let ready = active.iter().filter(|member| member.ready).count();
    plan.status = SandboxWarmPoolStatus {
        replicas: count(active.len() + others.undecodable),
        ready_replicas: count(ready),
        selector: Some(format!("{}={}", label::WARM_POOL_SANDBOX, name_hash(&seen.pool.name_any()))),
        observed_generation: seen.pool.metadata.generation,
    };
}

/// None is left out.
fn count(members: usize) -> Option<i32> {
    i32::try_from(members).ok().filter(|count| *count > 0)
}

fn sooner(again: &mut Option<Duration>, wait: Duration) {
    *again = Some(again.map_or(wait, |known| known.min(wait)));
}
