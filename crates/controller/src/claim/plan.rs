//! Decides what to do about a claim. Pure.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::condition::reason;
use hutch_api::{ClaimShutdownPolicy, Sandbox, SandboxClaim, annotation, label};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::PropagationPolicy;
use serde_json::Value;

use super::adopt::{self, Pick};
use super::observe::Observed;
use super::refusal::{Refusal, Retry};
use super::status::State;
use super::{create, expiry, late_env, metadata, variables};
use crate::binding::bound_name;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::owner;
use crate::pending::Request;

/// Longest wait for the address of a pooled Sandbox, from the claim's creation.
const ADDRESS_TIMEOUT: SignedDuration = SignedDuration::from_secs(2);
/// Maximum time until a claim that waits for an address is reconciled; a change requeues it sooner.
const PENDING_RECHECK: Duration = Duration::from_millis(500);
/// Time until the second pass of an expiry.
const NEXT_PASS: Duration = Duration::from_millis(1);

/// Decision about one claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plan {
    /// The claim's status names a Sandbox that is not known as the claim's: the caches of claims and Sandboxes disagree,
    /// or the Sandbox is gone. Reads these from the server and plans again.
    Refresh(Vec<Key>),
    /// Tries the attempts in order until one binds the claim, then the fallback.
    Bind(Vec<Attempt>, Fallback),
    /// Reports the expiry in the status.
    AnnounceExpiry,
    /// Deletes the expired claim.
    DeleteClaim(Option<PropagationPolicy>),
    /// Deletes the Sandbox of an expired claim that is retained, if there is one, and reports the problem.
    Retain { delete: Option<Arc<Sandbox>>, problem: Option<String> },
}

/// Attempt to bind a claim, which may end without a result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attempt {
    /// Repeats an adoption whose outcome is unknown.
    RepeatAdoption(Arc<Sandbox>),
    /// Adopts the best Sandbox of the pool.
    AdoptPooled,
}

/// Last step of binding a claim. It always has a result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fallback {
    /// Keeps the Sandbox that the claim has, deletes surplus ones, and updates its metadata.
    Keep { sandbox: Arc<Sandbox>, surplus: Vec<Arc<Sandbox>>, update: Result<Option<Value>, Refusal> },
    /// Completes the adoption of the Sandbox that an assignment record names.
    AdoptRecorded(Arc<Sandbox>),
    /// Creates a Sandbox.
    Create,
    /// Reports why the claim gets none.
    Refuse(Refusal),
}

/// Decides what to do about the claim.
pub(super) fn plan(observed: &Observed, label_domains: &[String], now: Timestamp) -> Plan {
    if expiry::is_over(&observed.claim, now) {
        return expire(observed);
    }
    if let Some(keys) = disagreement(observed) {
        return Plan::Refresh(keys);
    }
    let (attempts, fallback) = match metadata::validate(&observed.claim, label_domains) {
        Ok(()) => bind(observed),
        Err(refusal) => (Vec::new(), Fallback::Refuse(refusal)),
    };
    Plan::Bind(attempts, fallback)
}

/// Reports an expiry before anything is deleted.
fn expire(observed: &Observed) -> Plan {
    let claim = observed.claim.as_ref();
    if !expiry::is_announced(claim) {
        return Plan::AnnounceExpiry;
    }
    match expiry::policy(claim) {
        ClaimShutdownPolicy::Delete => return Plan::DeleteClaim(None),
        ClaimShutdownPolicy::DeleteForeground => {
            return Plan::DeleteClaim(Some(PropagationPolicy::Foreground));
        }
        ClaimShutdownPolicy::Retain => {}
    }
    let Some(sandbox) = current(observed) else { return Plan::Retain { delete: None, problem: None } };
    if owner::is_controlled_by(sandbox.as_ref(), claim) {
        let delete = sandbox.metadata.deletion_timestamp.is_none().then(|| sandbox.clone());
        return Plan::Retain { delete, problem: None };
    }
    let (name, claim) = (sandbox.name_any(), claim.name_any());
    let problem = format!(
        "sandbox not owned by this claim: sandbox {name:?} is not owned by claim {claim:?}; deletion skipped."
    );
    Plan::Retain { delete: None, problem: Some(problem) }
}

/// Returns the Sandbox that an expired claim has, or would have.
pub(super) fn current(observed: &Observed) -> Option<&Arc<Sandbox>> {
    // The status may not have been written before a crash, so the owner reference counts.
    let named = match bound_name(&observed.claim) {
        Some(_) => &observed.bound,
        None => &observed.namesake,
    };
    observed.owned.first().or(named.as_ref())
}

/// Returns the Sandboxes that must be read from the server before the claim's Sandbox is known.
fn disagreement(observed: &Observed) -> Option<Vec<Key>> {
    let name = bound_name(&observed.claim).filter(|_| !observed.refreshed)?;
    if observed.owned.iter().any(|sandbox| sandbox.name_any() == name) {
        return None;
    }
    let named = Key::of(observed.claim.as_ref()).beside(name);
    Some(std::iter::once(named).chain(observed.owned.iter().map(|it| Key::of(it.as_ref()))).collect())
}

fn bind(observed: &Observed) -> (Vec<Attempt>, Fallback) {
    let claim = observed.claim.as_ref();
    if let Some(sandbox) = assigned(observed) {
        return (Vec::new(), keep(observed, sandbox));
    }
    let late = observed.late_env && !variables(claim).is_empty();
    // Policies of the claim bind from the first process on, so the Sandbox starts with them.
    let policies = claim.annotations().contains_key(annotation::POLICIES);
    let may_adopt = !late && !policies;
    let recorded = observed.recorded.as_ref().filter(|sandbox| {
        may_adopt
            && adopt::is_candidate(sandbox, claim)
            && adopt::is_of_pool(sandbox, observed.pool.as_deref())
    });
    let foreign = observed.namesake.as_ref().filter(|it| !owner::is_controlled_by(it.as_ref(), claim));
    if recorded.is_none()
        && let Some(foreign) = foreign
    {
        return (Vec::new(), Fallback::Refuse(name_is_taken(foreign, claim)));
    }
    let mut attempts = Vec::new();
    match &observed.pending {
        Some(Request::Create) => return (attempts, Fallback::Create),
        Some(Request::Adopt(sandbox)) => attempts.push(Attempt::RepeatAdoption(sandbox.clone())),
        None => {}
    }
    if let Some(recorded) = recorded {
        return (attempts, Fallback::AdoptRecorded(recorded.clone()));
    }
    // A Sandbox of a pool has no volumes for the claim, and variables only where a running Pod can get them.
    let volumes = claim.spec.volume_claim_templates.as_ref();
    // Processes begin with a snapshot, and those of a pooled Sandbox have begun.
    let metadata = claim.spec.additional_pod_metadata.as_ref();
    let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref());
    let has = |key| annotations.is_some_and(|annotations| annotations.contains_key(key));
    let restores = has(annotation::RESTORE_FROM) || (observed.snapshots && has(annotation::POD_SNAPSHOT));
    let own = policies
        || restores
        || (!variables(claim).is_empty() && !late)
        || volumes.is_some_and(|list| !list.is_empty());
    if own || observed.pool.is_none() {
        return (attempts, Fallback::Create);
    }
    match late_env::allows_pool(observed) {
        Ok(true) => attempts.push(Attempt::AdoptPooled),
        Ok(false) => {}
        Err(refusal) => return (attempts, Fallback::Refuse(refusal)),
    }
    (attempts, Fallback::Create)
}

/// Returns the Sandbox that the claim has.
fn assigned(observed: &Observed) -> Option<&Arc<Sandbox>> {
    let bound = bound_name(&observed.claim);
    let chosen = observed.owned.iter().find(|sandbox| Some(sandbox.name_any().as_str()) == bound);
    // The status may not have been written before a crash, so the owner reference alone is enough.
    let alive = || observed.owned.iter().find(|sandbox| sandbox.metadata.deletion_timestamp.is_none());
    chosen.or_else(alive).or(observed.owned.first())
}

fn keep(observed: &Observed, sandbox: &Arc<Sandbox>) -> Fallback {
    let claim = observed.claim.as_ref();
    let update = match &observed.template {
        Some(template) => adopt::alignment(sandbox, claim, template),
        // Without metadata of its own the claim does not need the template any more.
        None if claim.spec.additional_pod_metadata.is_some() => Err(create::no_template(observed)),
        None => Ok(adopt::alignment_without_template(sandbox, claim)),
    };
    Fallback::Keep { sandbox: sandbox.clone(), surplus: surplus(observed, sandbox), update }
}

/// Returns the Sandboxes that the claim has besides the one that its status names. Two controllers that both take
/// themselves for the leader can each give it one, and no client knows the second.
fn surplus(observed: &Observed, kept: &Sandbox) -> Vec<Arc<Sandbox>> {
    let claim = observed.claim.as_ref();
    if bound_name(claim) != Some(kept.name_any().as_str()) {
        return Vec::new();
    }
    let is_surplus = |other: &&Arc<Sandbox>| {
        other.uid() != kept.uid()
            && other.labels().get(label::CLAIM_UID) == claim.uid().as_ref()
            && other.metadata.deletion_timestamp.is_none()
    };
    observed.owned.iter().filter(is_surplus).cloned().collect()
}

fn name_is_taken(sandbox: &Sandbox, claim: &SandboxClaim) -> Refusal {
    Refusal::error(format!(
        "sandbox {:?} is not controlled by claim {:?}. Please use a different claim name or delete the sandbox manually",
        sandbox.name_any(),
        claim.name_any()
    ))
}

/// Decision about the pooled Sandboxes that a claim may adopt.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Choice {
    /// Adopts this one.
    Adopt(Arc<Sandbox>),
    /// Waits: one of them is about to get its address.
    Wait(Duration),
    /// Leaves the pool for the fallback.
    Leave,
    /// Reports that other claims adopted every Sandbox that this one tried.
    Refuse(Refusal),
}

/// Chooses from the candidates; `lost` after another claim was faster with an earlier choice.
pub(super) fn choose(
    candidates: Vec<Arc<Sandbox>>,
    claim: &SandboxClaim,
    lost: bool,
    now: Timestamp,
) -> Choice {
    match adopt::pick(candidates) {
        Pick::Take(sandbox) => Choice::Adopt(sandbox),
        Pick::Pending => waiting_time(claim, now).map_or(Choice::Leave, Choice::Wait),
        Pick::Nothing if lost => Choice::Refuse(adoption_conflict()),
        Pick::Nothing => Choice::Leave,
    }
}

pub(super) fn adoption_conflict() -> Refusal {
    Refusal::conflict("other claims were faster")
}

/// Returns how long to wait before the next reconcile of a claim whose Sandbox is almost ready; nothing after
/// [`ADDRESS_TIMEOUT`].
pub(super) fn waiting_time(claim: &SandboxClaim, now: Timestamp) -> Option<Duration> {
    let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let age = now.duration_since(created).max(SignedDuration::ZERO);
    let left = Duration::try_from(ADDRESS_TIMEOUT.saturating_sub(age)).unwrap_or_default();
    (!left.is_zero()).then(|| left.min(PENDING_RECHECK))
}

/// Returns the status of a claim that was refused, unless its present one stays: a bound claim does not lose it while
/// a cache is behind.
pub(super) fn refused<'a>(claim: &SandboxClaim, refusal: &'a Refusal) -> Option<State<'a>> {
    let stays = refusal.reason == reason::SANDBOX_CREATE_PENDING && bound_name(claim).is_some();
    (!stays).then_some(State::Refused(refusal))
}

/// Returns when to reconcile a refused claim again.
pub(super) fn retry(claim: &SandboxClaim, refusal: &Refusal, now: Timestamp) -> Outcome {
    let expiry = expiry::remaining(claim, now);
    match refusal.retry {
        Retry::Backoff => Outcome::Failed,
        Retry::Never => expiry.map_or(Outcome::Settled, Outcome::Again),
        Retry::After(pause) => Outcome::Again(expiry.map_or(pause, |left| left.min(pause))),
    }
}

/// Returns when to reconcile a bound claim again.
pub(super) fn settled(claim: &SandboxClaim, now: Timestamp) -> Outcome {
    if expiry::is_over(claim, now) {
        return second_pass();
    }
    expiry::remaining(claim, now).map_or(Outcome::Settled, Outcome::Again)
}

/// Returns when to carry out an expiry that was announced.
pub(super) fn second_pass() -> Outcome {
    Outcome::Again(NEXT_PASS)
}
