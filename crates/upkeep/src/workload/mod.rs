//! Deployments, ReplicaSets and StatefulSets. Each reconcile reads what they own live, so no view is stale.

mod claim;
pub(crate) mod deployment;
mod family;
mod ownership;
pub(crate) mod pod;
mod progress;
pub(crate) mod replica_set;
mod rollout;
pub(crate) mod share;
pub(crate) mod stateful_set;
mod template;

use std::sync::Arc;
use std::time::Duration;

use hutch_reconcile::controller::{Controller, Object};
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

pub(crate) use self::ownership::controlled_by as owned_by;
use crate::Error;
use crate::error::{CONFLICT, gone_is_fine, has_code};

/// Pause before a failed reconcile is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a controller until dropped. Failed reconciles are repeated soon; conflicts are ordinary.
pub(crate) async fn drive<K, C, F>(
    controller: Controller<K>,
    reconcile: impl Fn(Key, Arc<C>) -> F + Send + Sync + 'static,
    context: Arc<C>,
) -> Result<(), Error>
where
    K: Object,
    C: Send + Sync + 'static,
    F: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    let reconcile = move |key: Key| {
        let result = reconcile(key.clone(), context.clone());
        async move { result.await.unwrap_or_else(|error| again(&key, &error)) }
    };
    controller.run(reconcile).await;
    Ok(())
}

/// Returns when to reconcile again after an error.
fn again(key: &Key, error: &Error) -> Outcome {
    if error.is_unreadable() {
        tracing::debug!(%error, object = key.name, "is left as it is");
        return Outcome::Settled;
    }
    if matches!(error, Error::Write { source, .. } if has_code(source, CONFLICT)) {
        return Outcome::Again(PAUSE / 10);
    }
    tracing::warn!(%error, object = key.name, "will try again");
    Outcome::Again(PAUSE)
}

/// Deletes Pods by name, each only in the life of its UID.
pub(crate) async fn delete_pods(
    pods: &Api<Pod>,
    namespace: &str,
    doomed: &[(String, Option<String>)],
) -> Result<(), Error> {
    for (name, uid) in doomed {
        let preconditions = Preconditions { uid: uid.clone(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        gone_is_fine(pods.delete(name, &parameters).await)
            .map_err(Error::write(format!("Pod {namespace}/{name}")))?;
    }
    Ok(())
}
