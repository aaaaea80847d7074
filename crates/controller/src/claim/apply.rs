//! Carries out what is planned for a claim: its Sandbox first, then its status, then all that no client waits for.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::condition::reason;
use hutch_api::{Sandbox, SandboxClaim};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PropagationPolicy;
use serde_json::{Value, json};

use super::annotate::{self, Pass};
use super::observe::{Observed, candidates, lacks_late_env, observe, owned};
use super::plan::{self, Attempt, Choice, Fallback, Plan, plan};
use super::refusal::Refusal;
use super::status::{State, status};
use super::{adopt, create, expiry, is_ready, late_env, trace};
use crate::cache::Change;
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::metrics::Created;
use crate::outcome::Outcome;
use crate::owner;
use crate::pending::Request;
use crate::record::Note;
use crate::scheduler::{Adoption, Write};

/// Maximum number of candidates that a claim tries in one reconcile when other claims are faster.
const ADOPTION_ROUNDS: usize = 3;
/// Time until the next reconcile after another client was faster with the claim's status. Its change requeues the claim
/// sooner, unless it was seen already.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// Sandbox of a claim.
struct Bound {
    sandbox: Arc<Sandbox>,
    origin: Origin,
    /// Change that the other reconcilers learn once the claim's status is written.
    change: Option<Change<Sandbox>>,
    /// Held until then.
    adoption: Option<Adoption>,
}

impl Bound {
    fn new(sandbox: Arc<Sandbox>, origin: Origin) -> Self {
        Bound { sandbox, origin, change: None, adoption: None }
    }
}

/// Origin of a claim's Sandbox in this reconcile.
#[derive(PartialEq)]
enum Origin {
    Kept,
    Adopted,
    Created,
}

/// Reason why there is no Sandbox yet.
enum Missing {
    Refused(Refusal),
    /// A pooled Sandbox is about to get its address.
    Wait(Duration),
}

impl<E: Into<Refusal>> From<E> for Missing {
    fn from(refusal: E) -> Self {
        Missing::Refused(refusal.into())
    }
}

pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(claim) = ctx.claims.get(key) else {
        ctx.forget_claim(key);
        return Outcome::Settled;
    };
    delete_old_policy(ctx, key, &claim).await;
    if claim.metadata.deletion_timestamp.is_some() {
        ctx.forget_claim(key);
        return Outcome::Settled;
    }
    let now = ctx.now();
    ctx.times(&claim, now);
    let span = ctx.spans.start("ReconcileSandboxClaim", claim.as_ref());
    let mut observed = observe(ctx, span.stamp(claim));
    loop {
        match plan(&observed, &ctx.config.label_domains, now) {
            Plan::Refresh(keys) => {
                if let Err(error) = refresh(ctx, &keys).await {
                    tracing::debug!(claim = %key, %error, "failed to read the sandbox of a claim");
                    return Outcome::Failed;
                }
                observed = Observed { refreshed: true, ..observe(ctx, observed.claim) };
            }
            Plan::Bind(attempts, fallback) => {
                return match bind(ctx, key, &observed, attempts, fallback, now).await {
                    Ok(bound) => settle(ctx, key, &observed, bound).await,
                    Err(Missing::Wait(pause)) => Outcome::Again(pause),
                    Err(Missing::Refused(refusal)) => refuse(ctx, key, &observed, &refusal, now).await,
                };
            }
            Plan::AnnounceExpiry => return announce_expiry(ctx, key, &observed).await,
            Plan::DeleteClaim(propagation) => {
                return delete_claim(ctx, key, &observed, propagation, now).await;
            }
            Plan::Retain { delete, problem } => {
                return retain(ctx, key, observed, delete, problem).await;
            }
        }
    }
}

/// Deletes the NetworkPolicy that earlier versions of Agent Sandbox made for each claim. The one of the template has
/// taken its place.
async fn delete_old_policy(ctx: &Context, key: &Key, claim: &SandboxClaim) {
    let policy = key.beside(&format!("{}-network-policy", key.name));
    let owned = ctx.policies.get(&policy).is_some_and(|known| {
        owner::extension(known.as_ref(), "SandboxClaim").is_some()
            && owner::is_controlled_by(known.as_ref(), claim)
            && known.metadata.deletion_timestamp.is_none()
    });
    if owned && let Err(error) = ctx.policies.delete(&policy, None).await {
        tracing::warn!(claim = %key, %error, "failed to delete an old network policy");
    }
}

async fn refresh(ctx: &Context, sandboxes: &[Key]) -> Result<(), Error> {
    for key in sandboxes {
        ctx.sandboxes.refresh(key).await?;
    }
    Ok(())
}

async fn bind(
    ctx: &Context,
    key: &Key,
    observed: &Observed,
    attempts: Vec<Attempt>,
    fallback: Fallback,
    now: Timestamp,
) -> Result<Bound, Missing> {
    for attempt in attempts {
        let bound = match attempt {
            Attempt::RepeatAdoption(sandbox) => take(ctx, observed, &sandbox).await?,
            Attempt::AdoptPooled => adopt_from_pool(ctx, observed, now).await?,
        };
        if let Some(bound) = bound {
            return Ok(bound);
        }
    }
    match fallback {
        Fallback::Keep { sandbox, surplus, update } => {
            ctx.pending.forget(key);
            delete_surplus(ctx, key, &surplus).await;
            Ok(Bound::new(update_metadata(ctx, sandbox, update?).await?, Origin::Kept))
        }
        Fallback::AdoptRecorded(sandbox) => match take(ctx, observed, &sandbox).await? {
            // It was the claim's before, so this is not reported as an adoption.
            Some(bound) => Ok(Bound { origin: Origin::Kept, ..bound }),
            None => Err(Refusal::conflict("the recorded sandbox changed while it was being taken").into()),
        },
        Fallback::Create => make(ctx, key, observed).await,
        Fallback::Refuse(refusal) => Err(refusal.into()),
    }
}

async fn delete_surplus(ctx: &Context, claim: &Key, surplus: &[Arc<Sandbox>]) {
    for sandbox in surplus {
        let Some(version) = sandbox.resource_version() else { continue };
        let key = Key::of(sandbox.as_ref());
        tracing::warn!(sandbox = %key, claim = claim.name, "deleting the second sandbox of a claim");
        if let Err(error) = ctx.sandboxes.delete_version(&key, version).await {
            tracing::debug!(sandbox = %key, %error, "failed to delete it; a change brings the next try");
        }
    }
}

/// Updates the metadata of a bound Sandbox.
async fn update_metadata(
    ctx: &Context,
    sandbox: Arc<Sandbox>,
    patch: Option<Value>,
) -> Result<Arc<Sandbox>, Error> {
    let Some(patch) = patch else { return Ok(sandbox) };
    match ctx.sandboxes.patch(&Key::of(sandbox.as_ref()), patch).await {
        Err(error) if error.is_not_found() => Ok(sandbox),
        result => result,
    }
}

/// Adopts the best Sandbox of the pool, or returns nothing when the pool has none.
async fn adopt_from_pool(
    ctx: &Context,
    observed: &Observed,
    now: Timestamp,
) -> Result<Option<Bound>, Missing> {
    for round in 0..ADOPTION_ROUNDS {
        let chosen = match reserve(ctx, observed, round > 0, now) {
            Choice::Adopt(chosen) => chosen,
            Choice::Wait(pause) => return Err(Missing::Wait(pause)),
            Choice::Leave => return Ok(None),
            Choice::Refuse(refusal) => return Err(refusal.into()),
        };
        let adoption = ctx.scheduler.adopting();
        let taken = take(ctx, observed, &chosen).await;
        ctx.taking().remove(&Key::of(chosen.as_ref()));
        if let Some(bound) = taken? {
            return Ok(Some(Bound { adoption: Some(adoption), ..bound }));
        }
    }
    Err(plan::adoption_conflict().into())
}

/// Chooses a candidate, and keeps other claims of this process from choosing the same.
fn reserve(ctx: &Context, observed: &Observed, lost: bool, now: Timestamp) -> Choice {
    let mut taking = ctx.taking();
    let choice = plan::choose(candidates(ctx, observed, &taking), &observed.claim, lost, now);
    if let Choice::Adopt(chosen) = &choice {
        taking.insert(Key::of(chosen.as_ref()));
    }
    choice
}

/// Sends the patch that assigns the Sandbox to the claim. Returns nothing when another client was faster.
async fn take(ctx: &Context, observed: &Observed, sandbox: &Arc<Sandbox>) -> Result<Option<Bound>, Missing> {
    let (key, claim) = (Key::of(sandbox.as_ref()), observed.claim.as_ref());
    let mut patch = adopt::patch(sandbox, claim, observed.template.as_deref())?;
    if let Some(patch) = patch.as_object_mut() {
        late_env::put_variables(patch, observed, sandbox)?;
    }
    let result = ctx.sandboxes.patch_quietly(&key, patch).await;
    let overtaken = matches!(&result, Err(error) if error.is_conflict() || error.is_not_found());
    if overtaken {
        // No other Sandbox is requested before the owner of this one is known.
        ctx.sandboxes.refresh(&key).await?;
    }
    ctx.pending.note(claim, &Request::Adopt(sandbox.clone()), &result);
    match result {
        Ok((sandbox, change)) => Ok(Some(Bound { change, ..Bound::new(sandbox, Origin::Adopted) })),
        // An earlier request of this claim may have been the faster one.
        Err(_) if overtaken => {
            Ok(owned(ctx, &key, sandbox, claim).map(|sandbox| Bound::new(sandbox, Origin::Adopted)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates a Sandbox for the claim.
async fn make(ctx: &Context, key: &Key, observed: &Observed) -> Result<Bound, Missing> {
    let sandbox = Box::new(create::desired(observed)?);
    let result = ctx.sandboxes.create(&key.namespace, sandbox).await;
    let exists = result.as_ref().is_err_and(Error::is_already_exists);
    if exists {
        ctx.sandboxes.refresh(key).await?;
    }
    ctx.pending.note(&observed.claim, &Request::Create, &result);
    match result {
        Ok(sandbox) => Ok(Bound::new(sandbox, Origin::Created)),
        Err(_) if exists => Err(Refusal::create_pending().into()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the status of a bound claim, then all that no client waits for.
async fn settle(ctx: &Context, key: &Key, observed: &Observed, mut bound: Bound) -> Outcome {
    let before = &observed.claim;
    let mut state = State::Bound(&bound.sandbox);
    if lacks_late_env(ctx, &bound.sandbox) {
        // The node learns the variables first. Its report requeues the claim.
        ctx.sandboxes.tell(bound.change.take());
        if let Some(pause) = plan::waiting_time(before, ctx.now()) {
            report(ctx, before, &bound);
            return Outcome::Again(pause);
        }
        state = State::Unready(&bound.sandbox);
    }
    let written = write(ctx, key, before, &state).await;
    drop(bound.adoption.take());
    ctx.sandboxes.tell(bound.change.take());
    report(ctx, before, &bound);
    let after = match stored(key, written) {
        Ok(after) => after,
        Err(outcome) => return outcome,
    };
    measure(ctx, before, &after, &bound.sandbox);
    // The trace of this reconcile is written with the annotations, so with a tracer they are not deferred.
    if ctx.config.tracer.is_none()
        && let Some(pause) = ctx.scheduler.delay(Write::ClaimAnnotations, key)
    {
        return Outcome::Again(pause);
    }
    ctx.scheduler.clear(Write::ClaimAnnotations, key);
    if !annotate(ctx, key, Pass { before, after: &after, sandbox: Some(&bound.sandbox) }).await {
        return Outcome::Failed;
    }
    plan::settled(&after, ctx.now())
}

/// Counts a new Sandbox of the claim and records an event.
fn report(ctx: &Context, claim: &SandboxClaim, bound: &Bound) {
    let name = bound.sandbox.name_any();
    let (reason, action, text) = match bound.origin {
        Origin::Kept => return,
        Origin::Adopted => ("SandboxAdopted", "Adoption", format!("Adopted warm pool Sandbox {name:?}")),
        Origin::Created => ("SandboxProvisioned", "Provisioning", format!("Created Sandbox {name:?}")),
    };
    let warm = bound.origin == Origin::Adopted;
    ctx.config.metrics.claims().created(&Created { claim, sandbox: &bound.sandbox, warm });
    note(ctx, claim, reason, action, text);
}

/// Measures a claim that has become Ready.
fn measure(ctx: &Context, before: &SandboxClaim, after: &SandboxClaim, sandbox: &Sandbox) {
    let seen = ctx.times(after, ctx.now()).seen;
    if !is_ready(after) || is_ready(before) {
        return;
    }
    if !annotate::has_ready_time(after) {
        ctx.config.metrics.claims().first_ready(after, sandbox, seen, ctx.now());
    }
    ctx.became_ready(after, ctx.now());
}

/// Writes the annotations that are due. Returns whether that succeeded.
async fn annotate(ctx: &Context, key: &Key, pass: Pass<'_>) -> bool {
    let times = ctx.config.claim_times.then(|| ctx.times(pass.after, ctx.now()));
    let mut due = annotate::patch(&pass, times);
    if ctx.config.claim_times
        && let Some(stored) = ctx.claims.get(key)
    {
        due = trace::added(due, pass.before, &stored, is_ready(pass.after));
    }
    let Some(patch) = due else { return true };
    match ctx.claims.patch(key, patch).await {
        Err(error) if !error.is_not_found() => {
            tracing::debug!(claim = %key, %error, "failed to write the annotations of a claim");
            false
        }
        _ => true,
    }
}

async fn refuse(ctx: &Context, key: &Key, observed: &Observed, refusal: &Refusal, now: Timestamp) -> Outcome {
    let claim = &observed.claim;
    if let Some(state) = plan::refused(claim, refusal) {
        let after = match stored(key, write(ctx, key, claim, &state).await) {
            Ok(after) => after,
            Err(outcome) => return outcome,
        };
        if !annotate(ctx, key, Pass { before: claim, after: &after, sandbox: None }).await {
            return Outcome::Failed;
        }
    }
    tracing::debug!(claim = %key, reason = refusal.reason, message = refusal.message, "claim not bound");
    plan::retry(claim, refusal, now)
}

async fn announce_expiry(ctx: &Context, key: &Key, observed: &Observed) -> Outcome {
    let claim = &observed.claim;
    let state = State::Expired { sandbox: plan::current(observed).map(Arc::as_ref), problem: None };
    let written = write(ctx, key, claim, &state).await;
    if let Ok(Some(_)) = written {
        note(ctx, claim, reason::CLAIM_EXPIRED, "Claim Expired", "Claim expired".into());
    }
    expired(key, written.map(drop), plan::second_pass())
}

async fn delete_claim(
    ctx: &Context,
    key: &Key,
    observed: &Observed,
    propagation: Option<PropagationPolicy>,
    now: Timestamp,
) -> Outcome {
    let claim = &observed.claim;
    let text = format!("Deleting Claim (ShutdownPolicy={:?})", expiry::policy(claim));
    note(ctx, claim, reason::CLAIM_EXPIRED, "Deleting", text);
    tracing::debug!(claim = %key, over = ?expiry::end(claim), %now, "claim expired");
    expired(key, ctx.claims.delete(key, propagation).await, Outcome::Settled)
}

/// Deletes the Sandbox of an expired claim that is retained.
async fn retain(
    ctx: &Context,
    key: &Key,
    observed: Observed,
    delete: Option<Arc<Sandbox>>,
    problem: Option<String>,
) -> Outcome {
    if let Some(sandbox) = delete
        && let Err(error) = ctx.sandboxes.delete(&Key::of(sandbox.as_ref()), None).await
    {
        return expired(key, Err(error), Outcome::Failed);
    }
    let after = observe(ctx, observed.claim);
    let left = plan::current(&after).filter(|_| problem.is_none());
    let state = State::Expired { sandbox: left.map(Arc::as_ref), problem };
    let written = write(ctx, key, &after.claim, &state).await;
    let done = if matches!(written, Ok(None)) { Outcome::Again(AFTER_CONFLICT) } else { Outcome::Settled };
    expired(key, written.map(drop), done)
}

fn expired(key: &Key, result: Result<(), Error>, done: Outcome) -> Outcome {
    match result {
        Ok(()) => done,
        Err(error) => {
            tracing::warn!(claim = %key, %error, "failed to end an expired claim");
            Outcome::Failed
        }
    }
}

/// Returns the claim after [`write`], or the result of the reconcile if the status was not written.
fn stored(
    key: &Key,
    written: Result<Option<Arc<SandboxClaim>>, Error>,
) -> Result<Arc<SandboxClaim>, Outcome> {
    match written {
        Ok(Some(after)) => Ok(after),
        Ok(None) => Err(Outcome::Again(AFTER_CONFLICT)),
        Err(error) => {
            tracing::warn!(claim = %key, %error, "failed to write the status of a claim");
            Err(Outcome::Failed)
        }
    }
}

/// Writes the status if it differs, against the version that was observed. Returns nothing when another client was
/// faster, or the claim is gone.
async fn write(
    ctx: &Context,
    key: &Key,
    claim: &Arc<SandboxClaim>,
    state: &State<'_>,
) -> Result<Option<Arc<SandboxClaim>>, Error> {
    let wanted = status(claim, state, ctx.now());
    if claim.status.as_ref() == Some(&wanted) {
        return Ok(Some(claim.clone()));
    }
    let sandbox =
        wanted.sandbox.as_ref().map(|sandbox| json!({"name": sandbox.name, "podIPs": sandbox.pod_ips}));
    let patch = json!({
        "metadata": {"resourceVersion": claim.resource_version()},
        "status": {"conditions": wanted.conditions, "sandbox": sandbox},
    });
    match ctx.claims.patch_status(key, patch).await {
        Ok(claim) => Ok(Some(claim)),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn note(ctx: &Context, claim: &SandboxClaim, reason: &'static str, action: &'static str, text: String) {
    if ctx.config.claim_events {
        ctx.record(claim, Note { warning: false, reason, action, text });
    }
}
