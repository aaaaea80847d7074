//! Deployments, ReplicaSets and StatefulSets. What they own is read live at every look, so no view is stale.

pub(crate) mod deployment;
mod ownership;
pub(crate) mod pod;
pub(crate) mod replica_set;
mod rollout;
pub(crate) mod stateful_set;
mod template;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

pub(crate) use self::ownership::{controlled_by as owned_by, namespace};
use crate::Error;
use crate::error::gone_is_fine;

/// Pause before a failed look is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// Retries after a failed reconcile, soon. Conflicts are ordinary.
pub(crate) fn again<K: ResourceExt, C>(object: Arc<K>, error: &Error, _: Arc<C>) -> Action {
    if error.is_unreadable() {
        tracing::debug!(%error, object = object.name_any(), "is left as it is");
        return Action::await_change();
    }
    let conflict = matches!(error, Error::Write { source, .. } if crate::error::has_code(source, crate::error::CONFLICT));
    if conflict {
        return Action::requeue(PAUSE / 10);
    }
    tracing::warn!(%error, object = object.name_any(), "will try again");
    Action::requeue(PAUSE)
}

/// Runs a controller's stream to its end. Failures were logged by [`again`].
pub(crate) async fn drive<K, E>(
    results: impl Stream<Item = Result<(ObjectRef<K>, Action), E>>,
) -> Result<(), Error>
where
    K: kube::Resource<DynamicType = ()> + Debug,
    E: std::error::Error,
{
    results
        .for_each(|result| async move {
            if let Err(error) = result {
                tracing::debug!(%error, "a reconcile failed");
            }
        })
        .await;
    Ok(())
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
