//! Policies and webhooks of one request.
//!
//! Mutating webhooks are called one after the other, before the object is completed and checked for the last time; validating
//! ones several at once, when nothing but its storing is left. No lock is held meanwhile, so a webhook may itself send requests
//! to this server. The objects of [`hooks::GROUP`] pass without: a webhook must not keep its own configuration from being
//! removed.

mod client;
mod policies;
mod select;

pub(crate) use self::policies::may_be_parameters;
pub(crate) use self::select::stream_options;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::{Instant, timeout};

use self::select::Views;
use crate::call::Call;
use crate::expression::Budget;
use crate::failure::Failure;
use crate::hooks::answer::{self, Answer};
use crate::hooks::review::{Request, review};
use crate::hooks::room::{Kept, memory};
use crate::hooks::rule::Operation;
use crate::hooks::webhook::Webhook;
use crate::hooks::{self, Compiled};
use crate::kinds::Kind;
use crate::registry::Resource;
use crate::{convert, fields, meta, patch};

/// Time for all policies and webhooks of one request, also for those of all objects that it deletes.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum webhooks that are called at the same time for one request. Each call holds the text of the objects.
const PARALLEL: usize = 8;
/// Rounds of mutating webhooks: those that ask for it are called once more.
const ROUNDS: usize = 2;

/// A request that passes through webhooks.
pub(crate) struct Admission<'a> {
    call: &'a Call,
    request: Request<'a>,
    hooks: Arc<Compiled>,
    /// The kind of the request, then those that show the same objects.
    kinds: Vec<Arc<Resource>>,
    budget: Budget,
    until: Instant,
}

/// The objects of a request, in its version. What a subresource takes is in no other version.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Objects<'a> {
    pub(crate) new: Option<&'a Value>,
    pub(crate) old: Option<&'a Value>,
    /// Another object that the request holds, and webhooks do not see.
    pub(crate) held: Option<&'a Value>,
}

impl<'a> Admission<'a> {
    /// Begins the admission of a request about one object; `None` if no policy and no webhook could concern it.
    pub(crate) fn of(
        call: &'a Call,
        operation: Operation,
        subresource: &'a str,
        name: &'a str,
        dry_run: bool,
    ) -> Option<Admission<'a>> {
        if call.unhooked || call.kind().group == hooks::GROUP {
            return None;
        }
        let hooks = call.core.hooks.compiled();
        if hooks.mutating.is_empty() && hooks.validating.is_empty() && hooks.policies.is_empty() {
            return None;
        }
        let own = call.namespace.as_deref().unwrap_or_default();
        let namespace = if call.resource.is("", "namespaces") { name } else { own };
        let served = call.core.registry.served();
        let others =
            served.showing(&call.resource.collection).filter(|other| other.kind != call.resource.kind);
        let kinds = std::iter::once(&call.resource).chain(others).cloned().collect();
        let request = Request {
            operation,
            kind: call.kind(),
            subresource,
            namespace,
            name,
            identity: &call.identity,
            dry_run,
            options: options(call, operation, dry_run),
        };
        Some(Admission {
            call,
            request,
            hooks,
            kinds,
            budget: Budget::default(),
            until: *call.admitted_until.get_or_init(|| Instant::now() + LIMIT),
        })
    }

    /// Adds fields to the options of the request.
    pub(crate) fn with_options(mut self, fields: Value) -> Admission<'a> {
        if let (Some(options), Value::Object(fields)) = (self.request.options.as_object_mut(), fields) {
            options.extend(fields);
        }
        self
    }

    /// Begins anew with an object that has changed meanwhile.
    pub(crate) fn renew(&self) {
        self.budget.renew();
    }

    /// Returns true if there are mutating webhooks.
    pub(crate) fn mutates(&self) -> bool {
        !self.hooks.mutating.is_empty()
    }

    /// Calls the mutating webhooks. Returns the object that they make of the new one, if it is another.
    pub(crate) async fn mutate(&self, object: &Value, old: Option<&Value>) -> Result<Option<Value>, Failure> {
        let mut current = object.clone();
        let (mut kept, mut views) = (None, Views::default());
        let (mut called, mut again) = (BTreeSet::new(), BTreeSet::new());
        for round in 0..ROUNDS {
            for (index, webhook) in self.hooks.mutating.iter().enumerate() {
                if round > 0 && !again.contains(&index) {
                    continue;
                }
                let objects = Objects { new: Some(&current), old, held: None };
                let Some(kind) = self.selected(webhook, objects, &mut views)? else { continue };
                if kept.is_none() {
                    kept = Some(self.keep(objects)?);
                }
                // Copies of the objects: the next webhook with conditions makes them again.
                views = Views::default();
                let next = match self.answer(webhook, kind, objects, true).await? {
                    Some(Answer { patch: Some(patch), .. }) => {
                        self.patched(webhook, kind, &current, &patch)?
                    }
                    _ => None,
                };
                if let Some(next) = next {
                    again.extend(called.iter().copied());
                    current = next;
                    // It may have grown.
                    kept = None;
                }
                if webhook.reinvoked {
                    called.insert(index);
                }
            }
            if again.is_empty() {
                break;
            }
        }
        Ok((current != *object).then_some(current))
    }

    /// Checks the policies, then calls the validating webhooks.
    pub(crate) async fn validate(&self, objects: Objects<'_>) -> Result<(), Failure> {
        let mut views = Views::default();
        self.check_policies(objects, &mut views)?;
        let mut calls = Vec::new();
        for webhook in &self.hooks.validating {
            if let Some(kind) = self.selected(webhook, objects, &mut views)? {
                calls.push(self.answer(webhook, kind, objects, false));
            }
        }
        drop(views);
        let _kept = if calls.is_empty() { None } else { Some(self.keep(objects)?) };
        // All are awaited, so that the warnings of all reach the client; the first refusal counts.
        let answers: Vec<_> = stream::iter(calls).buffered(PARALLEL).collect().await;
        answers.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// Calls all webhooks about an object that is not stored as it is, or is not there any more: none may change it.
    pub(crate) async fn pass(&self, objects: Objects<'_>) -> Result<(), Failure> {
        let (mut kept, mut views) = (None, Views::default());
        for webhook in &self.hooks.mutating {
            let Some(kind) = self.selected(webhook, objects, &mut views)? else { continue };
            if kept.is_none() {
                kept = Some(self.keep(objects)?);
            }
            views = Views::default();
            let answer = self.answer(webhook, kind, objects, true).await?;
            let patch = answer.and_then(|answer| answer.patch);
            if patch.is_some_and(|patch| patch.as_array().is_none_or(|operations| !operations.is_empty())) {
                return Err(Failure::internal(format!(
                    "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                    webhook.name
                )));
            }
        }
        drop((kept, views));
        self.validate(objects).await
    }

    /// Time that is left, or the refusal without any.
    fn left(&self) -> Result<Duration, Failure> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Failure::timeout()) } else { Ok(left) }
    }

    /// Takes the room of these objects while webhooks are called.
    fn keep(&self, Objects { new, old, held }: Objects<'_>) -> Result<Kept, Failure> {
        let bytes = [new, old, held].into_iter().flatten().map(memory).sum();
        self.call.core.hooks.room.take(&self.call.identity.name, self.call.external, bytes)
    }

    /// Calls one webhook and reads its answer; `None` when that failed and failures are ignored.
    async fn answer(
        &self,
        webhook: &Webhook,
        kind: &Kind,
        objects: Objects<'_>,
        mutating: bool,
    ) -> Result<Option<Answer>, Failure> {
        let core = &self.call.core;
        let _places = self.places(webhook, self.left()?).await?;
        let left = self.left()?;
        let uid = core.ambient.uuid().to_string();
        let [new, old] = [objects.new, objects.old].map(|object| self.converted(kind, object));
        // Only the text is kept while the webhook is called: a decoded object costs several times as much.
        let review = review(self.request.describe(kind), &uid, new?, old?).to_string();
        let answer = client::call(core, webhook, review.into(), left).await;
        let answer = match answer.and_then(|review| answer::read(&review, &uid, mutating)) {
            Ok(answer) => answer,
            Err(why) => {
                let message = format!("failed calling webhook {:?}: {why}", webhook.name);
                if !webhook.ignores_failures {
                    return Err(Failure::internal(message));
                }
                tracing::warn!(
                    webhook = webhook.name,
                    error = why,
                    "failed calling webhook; the request passes"
                );
                return Ok(None);
            }
        };
        for warning in &answer.warnings {
            self.call.warn(warning);
        }
        for (key, value) in &answer.audit {
            self.call.annotations.add(&webhook.name, key, value);
        }
        if answer.allowed { Ok(Some(answer)) } else { Err(answer::denial(&webhook.name, &answer.status)) }
    }

    /// Waits for the right to call a webhook. Without it, the request is refused, also where failures are ignored: another
    /// request must not be able to have a webhook left out.
    async fn places<'b>(
        &'b self,
        webhook: &'b Webhook,
        left: Duration,
    ) -> Result<[SemaphorePermit<'b>; 2], Failure> {
        let both = async {
            Ok::<_, AcquireError>([
                webhook.calls.acquire().await?,
                self.call.core.hooks.calls.acquire().await?,
            ])
        };
        let busy = || {
            Failure::too_many_requests(format!(
                "too many calls of webhook {:?} are in progress",
                webhook.name
            ))
        };
        match timeout(left, both).await {
            Ok(Ok(places)) => Ok(places),
            _ => Err(busy()),
        }
    }

    /// An object in the version that a webhook reads; null without one.
    fn converted(&self, kind: &Kind, object: Option<&Value>) -> Result<Value, Failure> {
        let Some(object) = object else { return Ok(Value::Null) };
        if kind == self.request.kind || self.takes_another_kind() {
            return Ok(object.clone());
        }
        convert::from_storage(kind, convert::to_storage(self.request.kind, object.clone())?)
    }

    /// Returns true if the body of the request is no object of the kind, as that of `/scale`.
    fn takes_another_kind(&self) -> bool {
        let kind = self.request.kind;
        self.request.body(kind).2 != kind.kind
    }

    /// The object after a patch in the version of the webhook, if that changes it.
    fn patched(
        &self,
        webhook: &Webhook,
        kind: &Kind,
        object: &Value,
        patch: &Value,
    ) -> Result<Option<Value>, Failure> {
        let failed = |why: String| {
            let name = &webhook.name;
            Failure::internal(format!("the patch of admission webhook {name:?} cannot be applied: {why}"))
        };
        let before = self.converted(kind, Some(object))?;
        let patched = patch::json(&before, patch).map_err(|error| failed(error.to_string()))?;
        if patched == before {
            return Ok(None);
        }
        let own = |object: &Value| {
            let texts = ["name", "namespace", "uid"].map(|field| meta::text(object, field).to_owned());
            (object["apiVersion"].clone(), object["kind"].clone(), texts)
        };
        if own(&patched) != own(&before) {
            return Err(failed(
                "it changes the type, the name, the namespace or the uid of the object".into(),
            ));
        }
        if patched.to_string().len() > crate::BODY_BYTES {
            return Err(failed(format!("the object would have more than {} bytes", crate::BODY_BYTES)));
        }
        let back = if kind == self.request.kind {
            patched
        } else {
            convert::from_storage(self.request.kind, convert::to_storage(kind, patched)?)?
        };
        fields::settle_mutated(self.call, back).map(Some).map_err(failed)
    }
}

/// The options of a request, as a review has them.
fn options(call: &Call, operation: Operation, dry_run: bool) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(value) = call.query.get(field).filter(|value| !value.is_empty()) {
            options[field] = value.into();
        }
    }
    options
}
