//! Decides what to do about a pool. Pure.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::{Sandbox, SandboxWarmPoolStatus, UpdateStrategyType, annotation, label, name_hash};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Observed;
use super::member::{Health, desired, health};
use crate::blueprint::{Hashes, is_fresh};
use crate::config::Config;
use crate::owner;

/// Added to the remaining time of a starting Sandbox, so that it is over at the next reconcile.
const AFTER_GRACE: SignedDuration = SignedDuration::from_secs(2);

/// Time until the next reconcile after an orphan was deleted: its end requeues no pool.
const AFTER_ORPHAN: Duration = Duration::from_millis(100);

/// Actions for a pool: deletes and patches first, then creates.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    /// Names of the Sandboxes to delete.
    pub(super) delete: Vec<String>,
    /// Merge patches: a missing owner, a missing label.
    pub(super) patch: Vec<(String, Value)>,
    /// Number of Sandboxes to create.
    pub(super) create: usize,
    pub(super) new: Option<Box<Sandbox>>,
    /// Number of Sandboxes that are unschedulable past their grace period.
    pub(super) unschedulable: usize,
    /// Number of Sandboxes before creates and deletes.
    pub(super) members: usize,
    /// Time of the next reconcile without a change.
    pub(super) again: Option<Duration>,
    /// Time until the grace period of a starting Sandbox ends. May get jitter: many pools were created together.
    pub(super) grace_left: Option<Duration>,
    pub(super) status: SandboxWarmPoolStatus,
}

struct Active<'a> {
    sandbox: &'a Sandbox,
    ready: bool,
}

pub(super) fn plan(observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let hashes = observed.template.as_ref().map(|template| Hashes::of(template));
    // An undecodable Sandbox is left as it is: it counts, and is not Ready.
    let (leaving, undecodable): (Vec<_>, Vec<_>) =
        observed.undecodable.iter().partition(|member| member.metadata.deletion_timestamp.is_some());
    let mut terminating = leaving.len();
    let mut active = Vec::new();
    for sandbox in &observed.labelled {
        match classify(observed, hashes.as_ref(), sandbox) {
            Standing::NotOurs => {}
            Standing::Terminating => terminating += 1,
            Standing::Stale => {
                plan.delete.push(sandbox.name_any());
                terminating += 1;
            }
            Standing::Member(patch) => {
                if let Some(ready) = look_after(&mut plan, observed, config, sandbox, now) {
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
    scale(
        &mut plan,
        observed,
        config,
        hashes,
        active,
        Others { terminating, undecodable: undecodable.len() },
    );
    let orphans = observed.labelled.iter().filter(|sandbox| owner::controller(sandbox.as_ref()).is_none());
    if orphans.into_iter().any(|orphan| plan.delete.contains(&orphan.name_any())) {
        sooner(&mut plan.again, AFTER_ORPHAN);
    }
    plan
}

/// Relation of a labeled Sandbox to the pool.
enum Standing {
    NotOurs,
    Terminating,
    Stale,
    /// A Sandbox of the pool, with the patch that it needs.
    Member(Option<Value>),
}

fn classify(observed: &Observed, hashes: Option<&Hashes>, sandbox: &Sandbox) -> Standing {
    let pool = observed.pool.as_ref();
    let ours = owner::is_controlled_by(sandbox, pool);
    if sandbox.metadata.deletion_timestamp.is_some() {
        return if ours { Standing::Terminating } else { Standing::NotOurs };
    }
    let orphan = owner::controller(sandbox).is_none();
    if !ours && !orphan {
        return Standing::NotOurs;
    }
    // No claim adopts one of another template: see `claim::adopt`.
    let template = sandbox.annotations().get(annotation::TEMPLATE_REF);
    if template.is_some_and(|template| *template != pool.spec.sandbox_template_ref.name) {
        return Standing::Stale;
    }
    let replace_stale = orphan || pool.spec.strategy() == UpdateStrategyType::Recreate;
    if replace_stale
        && let (Some(template), Some(hashes)) = (&observed.template, hashes)
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

/// Returns whether the Sandbox is Ready, or `None` when its time is over and it is deleted.
fn look_after(
    plan: &mut Plan,
    observed: &Observed,
    config: &Config,
    sandbox: &Sandbox,
    now: Timestamp,
) -> Option<bool> {
    let grace = SignedDuration::try_from(config.readiness_grace).unwrap_or(SignedDuration::MAX);
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let (pod, age) = (observed.pods.get(name), observed.ages.get(name));
    match health(sandbox, pod.map(Arc::as_ref), grace, now, age.copied()) {
        Health::Ready => return Some(true),
        Health::Starting(left) => {
            let wait = left.saturating_add(AFTER_GRACE);
            sooner(&mut plan.grace_left, Duration::try_from(wait).unwrap_or_default());
        }
        Health::Unschedulable => plan.unschedulable += 1,
        Health::Stuck => {
            plan.delete.push(sandbox.name_any());
            return None;
        }
    }
    Some(false)
}

/// Sandboxes that are counted only.
struct Others {
    terminating: usize,
    undecodable: usize,
}

/// Plans creates and deletes. Creates count terminating Sandboxes too, so that a rolling replacement never exceeds
/// `replicas`.
fn scale(
    plan: &mut Plan,
    observed: &Observed,
    config: &Config,
    hashes: Option<Hashes>,
    mut active: Vec<Active<'_>>,
    others: Others,
) {
    let wanted = usize::try_from(observed.pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let members = active.len() + others.undecodable;
    let total = members + others.terminating;
    if let (true, Some(template), Some(hashes)) = (total < wanted, &observed.template, hashes) {
        plan.create = (wanted - total).min(config.pool_batch);
        plan.new = Some(Box::new(desired(&observed.pool, template, &hashes)));
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
        selector: Some(format!("{}={}", label::WARM_POOL_SANDBOX, name_hash(&observed.pool.name_any()))),
        observed_generation: observed.pool.metadata.generation,
    };
}

/// Converts a count; every field is present.
fn count(members: usize) -> Option<i32> {
    i32::try_from(members).ok().filter(|count| *count > 0)
}

fn sooner(again: &mut Option<Duration>, wait: Duration) {
    *again = Some(again.map_or(wait, |known| known.min(wait)));
}
