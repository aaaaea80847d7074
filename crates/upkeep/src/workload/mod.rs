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
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

pub(crate) use self::ownership::{controlled_by as owned_by, namespace};
use crate::Error;

/// Pause before a failed look is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// What to do after a look failed: the same again, soon. Conflicts are ordinary.
pub(crate) fn again<K: ResourceExt, C>(object: Arc<K>, error: &Error, _: Arc<C>) -> Action {
    let conflict = matches!(error, Error::Write { source, .. } if crate::error::has_code(source, crate::error::CONFLICT));
    if conflict {
        return Action::requeue(PAUSE / 10);
    }
    tracing::warn!(%error, object = object.name_any(), "will try again");
    Action::requeue(PAUSE)
}

/// Runs a controller's stream to its end. Failed looks were told by [`again`].
pub(crate) async fn drive<K, E>(
    looks: impl Stream<Item = Result<(ObjectRef<K>, Action), E>>,
) -> Result<(), Error>
where
    K: kube::Resource<DynamicType = ()> + Debug,
    E: std::error::Error,
{
    looks
        .for_each(|look| async move {
            if let Err(error) = look {
                tracing::debug!(%error, "a look failed");
            }
        })
        .await;
    Ok(())
}
