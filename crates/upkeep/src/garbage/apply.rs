//! Reconciles one object: reads it live and does what the plan says.

use std::sync::Arc;

use futures::future::join_all;
use hutch_api::syntax::is_path_segment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use serde_json::{Value, json};

use super::graph::{Dependent, FOREGROUND, ORPHAN, Object};
use super::plan::{self, Held, Manner, Owner, Verdict, Wait};
use crate::Error;
use crate::error::{CONFLICT, gone_is_fine, has_code};
use crate::kinds::Kinds;

/// One object to reconcile, with its dependents in the graph.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) object: Object,
    pub(crate) dependents: Vec<Dependent>,
}

/// Outcome of a reconcile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// These are to be reconciled next.
    Next(Vec<String>),
    /// The object changed meanwhile, or an owner could not be read: requeue.
    Again,
}

/// Reconciles an object. A conflict is an outcome, not an error.
pub(crate) async fn reconcile(client: &Client, kinds: &Arc<Kinds>, task: &Task) -> Result<Outcome, Error> {
    let object = &task.object;
    let acted = match (object.deleting, object.orphan, object.foreground) {
        (true, true, _) => release_dependents(client, task).await,
        (true, _, true) => match plan::wait(&task.dependents) {
            Wait::Release => release(client, object, FOREGROUND).await,
            Wait::Until(next) => return Ok(Outcome::Next(next)),
        },
        (true, ..) => return Ok(Outcome::Done),
        (false, ..) => judge(client, kinds, task).await,
    };
    match acted {
        Err(Error::Write { source, .. }) if has_code(&source, CONFLICT) => Ok(Outcome::Again),
        other => other,
    }
}

fn path(object: &Object) -> String {
    format!("{} {}/{}", object.kind.resource.kind, object.namespace.as_deref().unwrap_or("-"), object.name)
}

/// The object's metadata now; `None` when it is gone or another has its name.
async fn live(client: &Client, object: &Object) -> Result<Option<ObjectMeta>, Error> {
    let api = object.kind.api(client, object.namespace.as_deref());
    let found = api.get_metadata_opt(&object.name).await.map_err(Error::read(path(object)))?;
    Ok(found.map(|found| found.metadata).filter(|metadata| metadata.uid.as_ref() == Some(&object.uid)))
}

async fn judge(client: &Client, kinds: &Arc<Kinds>, task: &Task) -> Result<Outcome, Error> {
    let object = &task.object;
    let Some(metadata) = live(client, object).await? else { return Ok(Outcome::Done) };
    if metadata.deletion_timestamp.is_some() {
        return Ok(Outcome::Done);
    }
    let references = metadata.owner_references.clone().unwrap_or_default();
    let found = join_all(references.iter().map(|reference| find(client, kinds, object, reference))).await;
    let has = |finalizer: &str| metadata.finalizers.iter().flatten().any(|f| f == finalizer);
    let held = Held {
        is_pod: object.kind.resource.group.is_empty() && object.kind.resource.kind == "Pod",
        owners: references.into_iter().zip(found.iter().map(|found| found.as_ref().ok().copied())).collect(),
        foreground: has(FOREGROUND),
        orphan: has(ORPHAN),
        has_dependents: !task.dependents.is_empty(),
        waiting_dependent: task.dependents.iter().any(|dependent| dependent.object.awaits_dependents()),
    };
    match plan::judge(&held) {
        Verdict::Keep => {
            return if found.iter().any(Result::is_err) { Ok(Outcome::Again) } else { Ok(Outcome::Done) };
        }
        Verdict::Trim(owners) => {
            patch(client, object, &metadata, json!({"ownerReferences": owners})).await?;
        }
        Verdict::Delete(manner) => delete(client, object, &metadata, manner).await?,
        Verdict::Unblock => {
            let owners = held
                .owners
                .into_iter()
                .map(|(reference, _)| OwnerReference { block_owner_deletion: Some(false), ..reference });
            let owners: Vec<_> = owners.collect();
            patch(client, object, &metadata, json!({"ownerReferences": owners})).await?;
            // The next event of the object leads to its deletion.
            return Ok(Outcome::Again);
        }
    }
    Ok(Outcome::Done)
}

/// Reads an owner. An error is worth another try; [`Owner::Unknown`] is not.
async fn find(
    client: &Client,
    kinds: &Kinds,
    dependent: &Object,
    reference: &OwnerReference,
) -> Result<Owner, kube::Error> {
    let Some(kind) = kinds.find(&reference.api_version, &reference.kind) else { return Ok(Owner::Unknown) };
    if kind.namespaced && dependent.namespace.is_none() {
        // A cluster-wide object cannot say in which namespace its owner would be.
        return Ok(Owner::Unknown);
    }
    if !is_path_segment(&reference.name) {
        // No object has such a name.
        return Ok(Owner::Absent);
    }
    let api = kind.api(client, dependent.namespace.as_deref());
    let Some(owner) = api.get_metadata_opt(&reference.name).await? else { return Ok(Owner::Absent) };
    let metadata = owner.metadata;
    if metadata.uid.as_ref() != Some(&reference.uid) {
        return Ok(Owner::Absent);
    }
    let waits = metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND);
    Ok(if metadata.deletion_timestamp.is_some() && waits { Owner::Waiting } else { Owner::Solid })
}

/// Deletes the object that was read, and no other life or later state of it: between the read and the deletion it may
/// have been given to another owner.
async fn delete(
    client: &Client,
    object: &Object,
    metadata: &ObjectMeta,
    manner: Manner,
) -> Result<(), Error> {
    let policy = match manner {
        Manner::Background => PropagationPolicy::Background,
        Manner::Foreground => PropagationPolicy::Foreground,
        Manner::Orphan => PropagationPolicy::Orphan,
    };
    let preconditions =
        Preconditions { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() };
    let parameters = DeleteParams {
        propagation_policy: Some(policy),
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    let api = object.kind.api(client, object.namespace.as_deref());
    gone_is_fine(api.delete(&object.name, &parameters).await).map_err(Error::write(path(object)))?;
    tracing::debug!(object = path(object), ?manner, "collected");
    Ok(())
}

/// Changes metadata of the object that was read, and no later state of it.
async fn patch(client: &Client, object: &Object, read: &ObjectMeta, mut change: Value) -> Result<(), Error> {
    change["uid"] = json!(read.uid);
    change["resourceVersion"] = json!(read.resource_version);
    let api = object.kind.api(client, object.namespace.as_deref());
    let patch = Patch::Merge(json!({"metadata": change}));
    let answer = api.patch_metadata(&object.name, &PatchParams::default(), &patch).await;
    gone_is_fine(answer).map_err(Error::write(path(object)))
}

/// Takes a finalizer off.
async fn release(client: &Client, object: &Object, finalizer: &str) -> Result<Outcome, Error> {
    let Some(metadata) = live(client, object).await? else { return Ok(Outcome::Done) };
    let all = metadata.finalizers.clone().unwrap_or_default();
    let kept: Vec<_> = all.iter().filter(|name| *name != finalizer).collect();
    if kept.len() < all.len() {
        patch(client, object, &metadata, json!({"finalizers": kept})).await?;
    }
    Ok(Outcome::Done)
}

/// Lets all dependents go, then the object.
async fn release_dependents(client: &Client, task: &Task) -> Result<Outcome, Error> {
    let owner = &task.object;
    for dependent in &task.dependents {
        let Some(metadata) = live(client, &dependent.object).await? else { continue };
        let references = metadata.owner_references.iter().flatten();
        let kept: Vec<_> = references.filter(|reference| reference.uid != owner.uid).collect();
        patch(client, &dependent.object, &metadata, json!({"ownerReferences": kept})).await?;
    }
    release(client, owner, ORPHAN).await
}
