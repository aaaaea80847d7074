//! Looks at one claim and does what is needed, the wish first and everything else after it.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::condition::reason;
use hutch_api::{Sandbox, SandboxClaim, UpdateStrategyType, label, name_hash};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::adopt::{self, Pick, pick};
use super::annotate::{self, Look};
use super::find::{Step, find, patience};
use super::refusal::{Refusal, Retry};
use super::status::{Outcome as End, status};
use super::{Seen, create, expiry, late, measure, metadata, retire, trace, variables};
use crate::binding::bound_name;
use crate::blueprint::{Hashes, is_fresh};
use crate::cache::Change;
use crate::error::Error;
use crate::key::Key;
use crate::metrics::Created;
use crate::outcome::Outcome;
use crate::owner;
use crate::pending::Request;
use crate::record::Note;
use crate::scheduler::{Adoption, Write};
use crate::world::{World, pool_hash_term};

/// Candidates that a claim tries in one look when others are faster.
const ADOPTION_ROUNDS: usize = 3;
/// Longest pause of a claim that waits for a pooled Sandbox to get its address; a change brings it back sooner.
const PENDING_RECHECK: Duration = Duration::from_millis(500);

/// Pause after somebody else was faster with the claim's status, in case that their change was seen already and brings no
/// look.
pub(super) const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// How the claim came by its Sandbox.
struct Bound {
    sandbox: Arc<Sandbox>,
    how: How,
    /// What the other reconcilers are told once the claim's status is written.
    change: Option<Change<Sandbox>>,
    /// Held until then.
    meeting: Option<Adoption>,
}

#[derive(PartialEq)]
enum How {
    Had,
    Adopted,
    Created,
}

/// Why there is no Sandbox yet.
enum Missing {
    Refused(Refusal),
    /// One of the pool is about to get its address.
    Wait(Duration),
}

impl<E: Into<Refusal>> From<E> for Missing {
    fn from(refusal: E) -> Self {
        Missing::Refused(refusal.into())
    }
}

pub(crate) async fn reconcile(world: &World, key: &Key) -> Outcome {
    let Some(claim) = world.claims.get(key) else {
        world.forget_claim(key);
        return Outcome::Settled;
    };
    drop_old_policy(world, key, &claim).await;
    if claim.metadata.deletion_timestamp.is_some() {
        world.forget_claim(key);
        return Outcome::Settled;
    }
    let began = world.now();
    world.times(&claim, began);
    let span = world.spans.start("ReconcileSandboxClaim", claim.as_ref());
    let seen = Seen::observe(world, span.stamp(claim));
    if expiry::is_over(&seen.claim, began) {
        return retire::expire(world, key, &seen, began).await;
    }
    let seen = match catch_up(world, key, seen).await {
        Ok(seen) => seen,
        Err(error) => {
            tracing::debug!(claim = %key, %error, "a claim's sandbox could not be read");
            return Outcome::Failed;
        }
    };
    match obtain(world, key, &seen, began).await {
        Ok(bound) => settle(world, key, &seen, bound).await,
        Err(Missing::Wait(pause)) => Outcome::Again(pause),
        Err(Missing::Refused(refusal)) => refuse(world, key, &seen, &refusal, began).await,
    }
}

/// A claim whose status names a Sandbox that is not known as the claim's: the view of one kind is behind that of the
/// other, or the Sandbox is gone. The server knows.
async fn catch_up(world: &World, key: &Key, seen: Seen) -> Result<Seen, Error> {
    let Some(name) = bound_name(&seen.claim) else { return Ok(seen) };
    if seen.owned.iter().any(|sandbox| sandbox.name_any() == name) {
        return Ok(seen);
    }
    world.sandboxes.refresh(&key.beside(name)).await?;
    for other in &seen.owned {
        world.sandboxes.refresh(&Key::of(other.as_ref())).await?;
    }
    Ok(Seen::observe(world, seen.claim))
}

/// Earlier versions of Agent Sandbox made a NetworkPolicy for each claim; one for the template has taken its place.
async fn drop_old_policy(world: &World, key: &Key, claim: &SandboxClaim) {
    let policy = key.beside(&format!("{}-network-policy", key.name));
    let owned = world.policies.get(&policy).is_some_and(|known| {
        owner::extension(known.as_ref(), "SandboxClaim").is_some()
            && owner::is_controlled_by(known.as_ref(), claim)
            && known.metadata.deletion_timestamp.is_none()
    });
    if owned && let Err(error) = world.policies.delete(&policy, None).await {
        tracing::warn!(claim = %key, %error, "an old network policy could not be deleted");
    }
}

async fn obtain(world: &World, key: &Key, seen: &Seen, now: Timestamp) -> Result<Bound, Missing> {
    metadata::validate(&seen.claim, &world.config.label_domains)?;
    let had = |sandbox| Bound { sandbox, how: How::Had, change: None, meeting: None };
    let step = find(seen)?;
    if !matches!(step, Step::Use(_)) {
        match world.pending.of(&seen.claim) {
            Some(Request::Adopt(sandbox)) => {
                if let Some(bound) = take(world, seen, &sandbox).await? {
                    return Ok(bound);
                }
            }
            Some(Request::Create) => return make(world, key, seen).await,
            None => {}
        }
    }
    match step {
        Step::Use(sandbox) => {
            world.pending.forget(key);
            drop_others(world, seen, &sandbox).await;
            Ok(had(align(world, seen, sandbox).await?))
        }
        Step::Adopt(sandbox) => match take(world, seen, &sandbox).await? {
            // It was the claim's before: nothing to tell.
            Some(bound) => Ok(Bound { how: How::Had, ..bound }),
            None => Err(Refusal::conflict("the recorded sandbox changed while it was being taken").into()),
        },
        Step::TakeOrCreate => match adopt_from_pool(world, key, seen, now).await? {
            Some(bound) => Ok(bound),
            None => make(world, key, seen).await,
        },
        Step::Create => make(world, key, seen).await,
    }
}

/// Two controllers that both take themselves for the leader can each give the claim a Sandbox. The one that the claim's
/// status names stays; nobody was ever told of the other.
async fn drop_others(world: &World, seen: &Seen, kept: &Sandbox) {
    let claim = seen.claim.as_ref();
    if bound_name(claim) != Some(kept.name_any().as_str()) {
        return;
    }
    for other in seen.owned.iter().filter(|other| other.uid() != kept.uid()) {
        let assigned = other.labels().get(label::CLAIM_UID) == claim.uid().as_ref();
        let (Some(version), true) = (other.resource_version(), assigned) else { continue };
        if other.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let key = Key::of(other.as_ref());
        tracing::warn!(sandbox = %key, claim = claim.name_any(), "a claim's second sandbox is deleted");
        if let Err(error) = world.sandboxes.delete_version(&key, version).await {
            tracing::debug!(sandbox = %key, %error, "and could not be; a change brings the next try");
        }
    }
}

/// Brings the metadata of a bound Sandbox up to date.
async fn align(world: &World, seen: &Seen, sandbox: Arc<Sandbox>) -> Result<Arc<Sandbox>, Missing> {
    let claim = seen.claim.as_ref();
    let patch = match &seen.template {
        Some(template) => adopt::alignment(&sandbox, claim, template)?,
        // Without wishes of its own the claim needs no template any more.
        None if claim.spec.additional_pod_metadata.is_some() => return Err(create::no_template(seen).into()),
        None => adopt::alignment_without_template(&sandbox, claim),
    };
    let Some(patch) = patch else { return Ok(sandbox) };
    match world.sandboxes.patch(&Key::of(sandbox.as_ref()), patch).await {
        Err(error) if error.is_not_found() => Ok(sandbox),
        result => Ok(result?),
    }
}

/// Takes the best Sandbox that the pool has, nothing when it has none.
async fn adopt_from_pool(
    world: &World,
    key: &Key,
    seen: &Seen,
    now: Timestamp,
) -> Result<Option<Bound>, Missing> {
    if !late::allows_pool(seen)? {
        return Ok(None);
    }
    let mut lost = false;
    for _ in 0..ADOPTION_ROUNDS {
        let chosen = match reserve(world, key, seen) {
            Pick::Take(chosen) => chosen,
            Pick::Pending => {
                let left = Duration::try_from(patience(seen, now)).unwrap_or_default();
                if left.is_zero() {
                    return Ok(None);
                }
                return Err(Missing::Wait(left.min(PENDING_RECHECK)));
            }
            Pick::Nothing if lost => break,
            Pick::Nothing => return Ok(None),
        };
        let meeting = world.scheduler.adopting();
        let taken = take(world, seen, &chosen).await;
        world.taking().remove(&Key::of(chosen.as_ref()));
        match taken? {
            Some(bound) => return Ok(Some(Bound { meeting: Some(meeting), ..bound })),
            None => lost = true,
        }
    }
    Err(Refusal::conflict("other claims were faster").into())
}

/// Picks a candidate and keeps other claims of this process from picking the same.
fn reserve(world: &World, key: &Key, seen: &Seen) -> Pick {
    let claim = seen.claim.as_ref();
    let recreate =
        seen.pool.as_ref().is_some_and(|pool| pool.spec.strategy() == UpdateStrategyType::Recreate);
    // Variables are checked against the template, so they are only for members that are like it.
    let late = !variables(claim).is_empty();
    let fresh =
        (recreate || late).then(|| seen.template.as_ref().map(|template| (template, Hashes::of(template))));
    let members =
        world.sandboxes.find(&pool_hash_term(&key.namespace, &name_hash(&claim.spec.warm_pool_ref.name)));
    let mut taking = world.taking();
    let candidates = members.into_iter().filter(|sandbox| {
        let current = match &fresh {
            None => true,
            Some(None) => false,
            Some(Some((template, hashes))) => is_fresh(sandbox, template, hashes, true),
        };
        current
            && adopt::is_candidate(sandbox, claim)
            && (!late || late::is_possible(world, sandbox) || !adopt::has_address(sandbox))
            && !taking.contains(&Key::of(sandbox.as_ref()))
    });
    let pick = pick(candidates.collect());
    if let Pick::Take(chosen) = &pick {
        taking.insert(Key::of(chosen.as_ref()));
    }
    pick
}

/// The guarded patch. Nothing when somebody else was faster.
async fn take(world: &World, seen: &Seen, sandbox: &Arc<Sandbox>) -> Result<Option<Bound>, Missing> {
    let key = Key::of(sandbox.as_ref());
    let mut patch = adopt::patch(sandbox, &seen.claim, seen.template.as_deref())?;
    if let Some(patch) = patch.as_object_mut() {
        late::put_variables(patch, seen, sandbox)?;
    }
    let result = world.sandboxes.patch_quietly(&key, patch).await;
    let overtaken = matches!(&result, Err(error) if error.is_conflict() || error.is_not_found());
    if overtaken {
        // Until it is known whose it is, no other is asked for.
        world.sandboxes.refresh(&key).await?;
    }
    world.pending.note(&seen.claim, &Request::Adopt(sandbox.clone()), &result);
    match result {
        Ok((sandbox, change)) => Ok(Some(Bound { sandbox, how: How::Adopted, change, meeting: None })),
        Err(_) if overtaken => {
            // An earlier request of this claim may have been the faster one.
            let there = world.sandboxes.get(&key).filter(|there| there.uid() == sandbox.uid());
            let ours = there.filter(|there| owner::is_controlled_by(there.as_ref(), seen.claim.as_ref()));
            Ok(ours.map(|sandbox| Bound { sandbox, how: How::Adopted, change: None, meeting: None }))
        }
        Err(error) => Err(error.into()),
    }
}

async fn make(world: &World, key: &Key, seen: &Seen) -> Result<Bound, Missing> {
    let sandbox = Box::new(create::desired(seen)?);
    let result = world.sandboxes.create(&key.namespace, sandbox).await;
    let exists = result.as_ref().is_err_and(Error::is_already_exists);
    if exists {
        world.sandboxes.refresh(key).await?;
    }
    world.pending.note(&seen.claim, &Request::Create, &result);
    match result {
        Ok(sandbox) => Ok(Bound { sandbox, how: How::Created, change: None, meeting: None }),
        Err(_) if exists => Err(Refusal::create_pending().into()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the status of a claim that has its Sandbox, then all that nobody waits for.
async fn settle(world: &World, key: &Key, seen: &Seen, mut bound: Bound) -> Outcome {
    let mut end = End::Bound(&bound.sandbox);
    if late::is_missing(world, &bound.sandbox) {
        // The Pod is told before anybody else, and what it says brings the next look.
        world.sandboxes.tell(bound.change.take());
        let left = Duration::try_from(patience(seen, world.now())).unwrap_or_default();
        if !left.is_zero() {
            tell(world, seen, &bound);
            return Outcome::Again(left.min(PENDING_RECHECK));
        }
        end = End::Unready(&bound.sandbox);
    }
    let written = write(world, key, &seen.claim, &end).await;
    drop(bound.meeting.take());
    world.sandboxes.tell(bound.change.take());
    tell(world, seen, &bound);
    let after = match written {
        Ok(Some(after)) => after,
        Ok(None) => return Outcome::Again(AFTER_CONFLICT),
        Err(error) => {
            tracing::warn!(claim = %key, %error, "status of a claim could not be written");
            return Outcome::Failed;
        }
    };
    let first = world.times(&after, world.now()).seen;
    measure::ready(world, &seen.claim, &after, &bound.sandbox, first);
    if measure::is_ready(&after) && !measure::is_ready(&seen.claim) {
        world.became_ready(&after, world.now());
    }
    // The trace of this look is written with the annotations, so they do not wait where there is one.
    if world.config.tracer.is_none()
        && let Some(pause) = world.scheduler.delay(Write::ClaimAnnotations, key)
    {
        return Outcome::Again(pause);
    }
    world.scheduler.clear(Write::ClaimAnnotations, key);
    let look = Look { before: &seen.claim, after: &after, sandbox: Some(&bound.sandbox) };
    if !annotate(world, key, look).await {
        return Outcome::Failed;
    }
    let now = world.now();
    if expiry::is_over(&after, now) {
        return Outcome::Again(retire::NEXT_PASS);
    }
    expiry::remaining(&after, now).map_or(Outcome::Settled, Outcome::Again)
}

/// Counts and notes how the claim came by its Sandbox, once.
fn tell(world: &World, seen: &Seen, bound: &Bound) {
    let name = bound.sandbox.name_any();
    let (reason, action, text) = match bound.how {
        How::Had => return,
        How::Adopted => ("SandboxAdopted", "Adoption", format!("Adopted warm pool Sandbox {name:?}")),
        How::Created => ("SandboxProvisioned", "Provisioning", format!("Created Sandbox {name:?}")),
    };
    let warm = bound.how == How::Adopted;
    world.config.metrics.claims().created(&Created { claim: &seen.claim, sandbox: &bound.sandbox, warm });
    note(world, &seen.claim, reason, action, text);
}

/// Writes the annotations that are due. Says whether that went well.
async fn annotate(world: &World, key: &Key, look: Look<'_>) -> bool {
    let times = world.config.claim_times.then(|| world.times(look.after, world.now()));
    let mut due = annotate::patch(&look, times);
    if world.config.claim_times
        && let Some(stored) = world.claims.get(key)
    {
        due = trace::added(due, look.before, &stored, measure::is_ready(look.after));
    }
    let Some(patch) = due else { return true };
    match world.claims.patch(key, patch).await {
        Err(error) if !error.is_not_found() => {
            tracing::debug!(claim = %key, %error, "annotations of a claim could not be written");
            false
        }
        _ => true,
    }
}

async fn refuse(world: &World, key: &Key, seen: &Seen, refusal: &Refusal, now: Timestamp) -> Outcome {
    // A claim that has its Sandbox does not lose its status over a view that is about to catch up.
    let waits = refusal.reason == reason::SANDBOX_CREATE_PENDING && bound_name(&seen.claim).is_some();
    if !waits {
        match write(world, key, &seen.claim, &End::Refused(refusal)).await {
            Ok(Some(after)) => {
                let look = Look { before: &seen.claim, after: &after, sandbox: None };
                if !annotate(world, key, look).await {
                    return Outcome::Failed;
                }
            }
            Ok(None) => return Outcome::Again(AFTER_CONFLICT),
            Err(error) => {
                tracing::warn!(claim = %key, %error, "status of a claim could not be written");
                return Outcome::Failed;
            }
        }
    }
    tracing::debug!(claim = %key, reason = refusal.reason, message = refusal.message, "claim not met");
    let expiry = expiry::remaining(&seen.claim, now);
    match refusal.retry {
        Retry::Backoff => Outcome::Failed,
        Retry::Never => expiry.map_or(Outcome::Settled, Outcome::Again),
        Retry::After(pause) => Outcome::Again(expiry.map_or(pause, |left| left.min(pause))),
    }
}

/// Writes the status if it differs, against the version that was seen. Nothing when somebody else was faster, or the
/// claim is gone.
pub(super) async fn write(
    world: &World,
    key: &Key,
    claim: &Arc<SandboxClaim>,
    end: &End<'_>,
) -> Result<Option<Arc<SandboxClaim>>, Error> {
    let wanted = status(claim, end, world.now());
    if claim.status.as_ref() == Some(&wanted) {
        return Ok(Some(claim.clone()));
    }
    let sandbox =
        wanted.sandbox.as_ref().map(|sandbox| json!({"name": sandbox.name, "podIPs": sandbox.pod_ips}));
    let patch = json!({
        "metadata": {"resourceVersion": claim.resource_version()},
        "status": {"conditions": wanted.conditions, "sandbox": sandbox},
    });
    match world.claims.patch_status(key, patch).await {
        Ok(claim) => Ok(Some(claim)),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn note(
    world: &World,
    claim: &SandboxClaim,
    reason: &'static str,
    action: &'static str,
    text: String,
) {
    if world.config.claim_events {
        world.record(claim, Note { warning: false, reason, action, text });
    }
}
