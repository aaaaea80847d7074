//! Removing an object: at once, or when its finalizers, its grace period or its content are through.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use hutch_store::{Entry, Error};
use serde_json::{Value, json};
use std::sync::Arc;

use super::create::{changed, preview};
use crate::admission::owner;
use crate::admit::{Admission, Objects};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::hooks::rule::Operation;
use crate::object::Object;
use crate::{admission, body, convert, meta, quota, respond};

/// Maximum tries of a delete after conflicts.
const TRIES: usize = 16;
/// Held by the garbage collector until the dependents are gone.
const FOREGROUND: &str = "foregroundDeletion";
/// Held by the garbage collector until the dependents have no owner.
const ORPHAN: &str = "orphan";

/// Options of a delete.
#[derive(Debug, Default, Clone)]
pub(crate) struct Options {
    grace: Option<i64>,
    policy: Policy,
    uid: Option<String>,
    revision: Option<String>,
    /// Nothing is stored.
    pub(crate) dry_run: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Policy {
    #[default]
    Background,
    Foreground,
    Orphan,
}

impl Options {
    /// The fields that policies and webhooks see.
    fn shown(&self) -> Value {
        let mut shown = json!({});
        if let Some(grace) = self.grace {
            shown["gracePeriodSeconds"] = grace.into();
        }
        if self.policy != Policy::Background {
            shown["propagationPolicy"] = format!("{:?}", self.policy).into();
        }
        for (field, value) in [("uid", &self.uid), ("resourceVersion", &self.revision)] {
            if let Some(value) = value {
                shown["preconditions"][field] = value.as_str().into();
            }
        }
        shown
    }

    /// Reads them from the body, else from the parameters.
    pub(crate) fn of(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Options, Failure> {
        let options = if bytes.is_empty() { json!({}) } else { body::decode(bytes, media_type)?.value };
        let text = |pointer: &str| options.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let grace =
            call.query.number("gracePeriodSeconds")?.or_else(|| options["gracePeriodSeconds"].as_i64());
        // As a Kubernetes API server has it.
        let grace = grace.map(|grace| if grace < 0 { 1 } else { grace });
        let named =
            call.query.get("propagationPolicy").map(str::to_owned).or_else(|| text("/propagationPolicy"));
        let orphan = call.query.get("orphanDependents").map(|text| text == "true");
        let orphan = orphan.or_else(|| options["orphanDependents"].as_bool());
        let policy = match (named.as_deref(), orphan) {
            (None | Some("" | "Background"), None | Some(false)) => Policy::Background,
            (Some("Foreground"), None) => Policy::Foreground,
            (Some("Orphan"), None) | (None, Some(true)) => Policy::Orphan,
            (Some(other), _) => {
                let message = format!(
                    "Unsupported value: \"{other}\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                );
                let cause = Cause::new("FieldValueNotSupported", "propagationPolicy", message);
                return Err(Failure::invalid_options("DeleteOptions", cause));
            }
        };
        if policy == Policy::Orphan {
            owner::check_orphans(call, "propagationPolicy")?;
        }
        let (uid, revision) = (text("/preconditions/uid"), text("/preconditions/resourceVersion"));
        let dry_run = call.dry_run()? || is_dry(&options["dryRun"])?;
        Ok(Options { grace, policy, uid, revision, dry_run })
    }

    /// Returns true if the client names the revision of the object.
    pub(crate) fn names_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// The same for the object of that uid alone.
    pub(crate) fn only(&self, uid: &str) -> Options {
        Options { uid: Some(uid.to_owned()), ..self.clone() }
    }

    /// The same for an object of that revision alone.
    pub(crate) fn at(&self, revision: &str) -> Options {
        Options { revision: Some(revision.to_owned()), ..self.clone() }
    }
}

/// Reads `dryRun` of the body, where kubectl has it.
fn is_dry(field: &Value) -> Result<bool, Failure> {
    let words = field.as_array().map_or(&[][..], Vec::as_slice);
    match words.iter().find(|word| *word != "All") {
        Some(other) => {
            let message = format!("Unsupported value: {other}: supported values: \"All\"");
            let cause = Cause::new("FieldValueNotSupported", "dryRun", message);
            Err(Failure::invalid_options("DeleteOptions", cause))
        }
        None => Ok(!words.is_empty()),
    }
}

/// Kinds of which the last state is the answer to a delete, as Kubernetes has it and the types of its clients say. Of others
/// it is a Status.
const SHOWN: [&str; 8] = [
    "pods",
    "podtemplates",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourcequotas",
    "services",
    "serviceaccounts",
    "storageclasses.storage.k8s.io",
];

pub(crate) async fn delete(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let options = Options::of(call, bytes, media_type)?;
    let outcome = remove(call, &call.name, &options).await?;
    match outcome {
        Outcome::Gone(entry) if SHOWN.contains(&call.kind().group_resource().as_str()) => {
            respond::entry(call, StatusCode::OK, &entry)
        }
        Outcome::Gone(entry) => {
            let uid = entry.value.value();
            Ok(respond::success(call, &call.name, meta::text(&uid, "uid")))
        }
        Outcome::Going(entry) => respond::entry(call, StatusCode::OK, &entry),
    }
}

/// Outcome of a delete.
pub(crate) enum Outcome {
    /// It is no more.
    Gone(Arc<Entry<Object>>),
    /// It is marked, and goes when nothing holds it.
    Going(Arc<Entry<Object>>),
}

/// Deletes one object.
pub(crate) async fn remove(call: &Call, name: &str, options: &Options) -> Result<Outcome, Failure> {
    let admission = Admission::of(call, Operation::Delete, "", name, options.dry_run);
    let admission = admission.map(|admission| admission.with_options(options.shown()));
    remove_admitted(call, name, options, admission.as_ref()).await
}

/// Deletes one object that passes through this admission, or has passed through another.
pub(crate) async fn remove_admitted(
    call: &Call,
    name: &str,
    options: &Options,
    admission: Option<&Admission<'_>>,
) -> Result<Outcome, Failure> {
    let (kind, key) = (call.kind(), call.key(name));
    let dry_run = options.dry_run;
    check_allowed(call, name)?;
    for _ in 0..TRIES {
        let Some(entry) = call.store.latest(&call.resource.collection, &key) else {
            return Err(Failure::not_found(kind, name));
        };
        let current = entry.value.value();
        preconditions(call, name, &current, options)?;
        if let Some(admission) = admission {
            let shown = convert::from_storage(kind, current.clone())?;
            admission.pass(Objects { old: Some(&shown), ..Objects::default() }).await?;
        }
        let (next, over) = mark(call, &current, options);
        if dry_run {
            let entry = preview(&key, next, entry.revision);
            return Ok(if over { Outcome::Gone(entry) } else { Outcome::Going(entry) });
        }
        let written = if over {
            let gone = call.store.delete(&call.resource.collection, &key, entry.revision, next).await;
            gone.map(Outcome::Gone)
        } else if next == current {
            if call.store.settled(&call.resource.collection, &entry).await {
                return Ok(Outcome::Going(entry));
            }
            continue;
        } else {
            let marked = call.store.update(&call.resource.collection, &key, entry.revision, next).await;
            marked.map(Outcome::Going)
        };
        match written {
            Ok(outcome) => {
                if let Outcome::Gone(removed) = &outcome {
                    after_removal(call, &current, removed.revision).await;
                }
                return Ok(outcome);
            }
            Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(Failure::of_store(error, kind, name)),
        }
    }
    Err(Failure::modified(kind, name))
}

fn check_allowed(call: &Call, name: &str) -> Result<(), Failure> {
    if call.resource.is("", "namespaces") && admission::namespace::IMMORTAL.contains(&name) {
        return Err(Failure::forbidden(call.kind(), name, "this namespace may not be deleted", Vec::new()));
    }
    if call.resource.is("apiextensions.k8s.io", "customresourcedefinitions")
        && admission::definition::is_builtin(name)
    {
        return Err(Failure::forbidden(call.kind(), name, "it is built into this server", Vec::new()));
    }
    admission::pod_snapshot::check_delete(call, name)
}

/// Checks the uid and the revision that the client names.
pub(crate) fn preconditions(
    call: &Call,
    name: &str,
    current: &Value,
    options: &Options,
) -> Result<(), Failure> {
    let checks = [("UID", "uid", &options.uid), ("ResourceVersion", "resourceVersion", &options.revision)];
    for (label, field, wanted) in checks {
        let own = meta::text(current, field);
        if let Some(wanted) = wanted
            && wanted != own
        {
            let why = format!(
                "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {own}"
            );
            return Err(Failure::conflict(call.kind(), name, &why));
        }
    }
    Ok(())
}

/// The object marked for deletion, and whether nothing holds it.
fn mark(call: &Call, current: &Value, options: &Options) -> (Value, bool) {
    let mut next = current.clone();
    set_policy(&mut next, options.policy);
    let grace = if call.resource.is("", "pods") { pod_grace(current, options) } else { 0 };
    let was_terminating = meta::is_terminating(current);
    let pending = current["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    // A grace period can be shortened, not prolonged.
    let grace = if was_terminating { grace.min(pending) } else { grace };
    if call.resource.is("", "namespaces") {
        next["status"]["phase"] = "Terminating".into();
    }
    let contents = call.resource.is("", "namespaces")
        && next["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let over = grace == 0 && meta::finalizers(&next).is_empty() && !contents;
    let generation = next["metadata"]["generation"].as_i64();
    let metadata = meta::metadata(&mut next);
    if !was_terminating || grace != pending {
        let due = call.core.ambient.now().checked_add(jiff::SignedDuration::from_secs(grace));
        // Beyond the end of time is never.
        let due = due.unwrap_or(jiff::Timestamp::MAX);
        metadata.insert("deletionTimestamp".into(), meta::seconds(due).into());
        metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    }
    if let Some(generation) = generation
        && !was_terminating
        && !over
    {
        metadata.insert("generation".into(), (generation + 1).into());
    }
    if over && !was_terminating {
        // What is gone at once was never seen terminating.
        metadata.remove("deletionTimestamp");
        metadata.remove("deletionGracePeriodSeconds");
    }
    (next, over)
}

fn set_policy(object: &mut Value, policy: Policy) {
    let mut finalizers: Vec<String> = meta::finalizers(object).into_iter().map(str::to_owned).collect();
    finalizers.retain(|name| name != FOREGROUND && name != ORPHAN);
    match policy {
        Policy::Background => {}
        Policy::Foreground => finalizers.push(FOREGROUND.into()),
        Policy::Orphan => finalizers.push(ORPHAN.into()),
    }
    let metadata = meta::metadata(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), finalizers.into());
    }
}

/// Seconds that a Pod gets to stop. One that no node has begun to run, or that has ended, needs none.
fn pod_grace(pod: &Value, options: &Options) -> i64 {
    let bound = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let begun = pod["status"].get("startTime").is_some_and(|time| !time.is_null());
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if !bound || !begun || ended {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    options.grace.unwrap_or(own)
}

/// Actions after every removal at a revision, also after that of the last finalizer, by kind.
pub(super) async fn after_removal(call: &Call, gone: &Value, revision: u64) {
    changed(call).await;
    quota::refresh(&call.core, meta::text(gone, "namespace")).await;
    if call.resource.is("", "serviceaccounts") {
        admission::token_secret::collect(&call.core, gone).await;
    }
    if call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        remove_objects(call, meta::text(gone, "name"), revision).await;
    }
}

/// Before a definition is stored: removes what an earlier one of this name has left behind. The server was killed after it had
/// removed that definition, and before all of its objects.
pub(super) async fn remove_leftovers(call: &Call, collection: &str) {
    if !call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        return;
    }
    // Read first: if another call stores the definition meanwhile, its objects are later ones.
    let revision = call.store.current_revision();
    let built_in = call.core.registry.served().showing(collection).any(|resource| !resource.kind.is_custom());
    if !built_in && call.store.latest(&call.resource.collection, collection).is_none() {
        remove_objects(call, collection, revision + 1).await;
    }
}

/// Removes the objects of a definition that was removed at this revision. Later ones belong to another definition.
async fn remove_objects(call: &Call, collection: &str, revision: u64) {
    for _ in 0..TRIES {
        let list = call.store.list(collection, hutch_store::Page::default());
        let mut changed = false;
        for entry in list.entries.into_iter().filter(|entry| entry.created < revision) {
            let last = entry.value.value();
            match call.store.delete(collection, &entry.name, entry.revision, last).await {
                // A change that began before the definition was deleted.
                Err(Error::Conflict { .. }) => changed = true,
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => {
                    tracing::warn!(%error, collection, name = %entry.name, "an object outlives its definition");
                }
            }
        }
        if !changed {
            return;
        }
    }
}
