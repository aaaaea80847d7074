//! Claims whose volumes hold more than their capacity.
//!
//! Such a claim has the condition `VolumeOverCapacity`, also across restarts of the node. Pods that write the volume continue to
//! run. A further one is refused until the volume holds less.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::persistent::{ClaimInUse, OVER_CAPACITY, capacity, is_over_capacity, message};
use crate::shared::Shared;

/// Sets or ends the condition of a claim whose volume holds so many bytes.
pub(super) async fn report(node: &Shared, used_by: &ClaimInUse, used: u64) {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), &used_by.namespace);
    let claim = match api.get_opt(&used_by.name).await {
        Ok(Some(claim)) if claim.metadata.uid.as_ref() == Some(&used_by.uid) => claim,
        Ok(_) => return,
        Err(error) => {
            tracing::debug!(claim = used_by.name, %error, "failed to read a claim");
            return;
        }
    };
    let over = capacity(&claim).filter(|capacity| used > *capacity);
    if over.is_some() == is_over_capacity(&claim) {
        return;
    }
    let text = over.map(|capacity| message(used, capacity));
    let conditions = with_condition(&claim, text.as_deref(), Timestamp::now());
    let change = json!({"metadata": {"uid": used_by.uid, "resourceVersion": claim.metadata.resource_version},
                        "status": {"conditions": conditions}});
    if let Err(error) = api.patch_status(&used_by.name, &PatchParams::default(), &Patch::Merge(change)).await
    {
        // The next measurement tries again.
        tracing::debug!(claim = used_by.name, %error, "failed to write the condition of a claim");
        return;
    }
    tracing::info!(
        claim = used_by.name,
        namespace = used_by.namespace,
        used,
        over = over.is_some(),
        "measured"
    );
    if let Some(text) = text {
        node.events.of_claim(&claim, OVER_CAPACITY, text);
    }
}

/// Returns the conditions of a claim with this one, or without it.
fn with_condition(
    claim: &PersistentVolumeClaim,
    message: Option<&str>,
    now: Timestamp,
) -> Vec<PersistentVolumeClaimCondition> {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut conditions: Vec<_> = conditions.filter(|one| one.type_ != OVER_CAPACITY).cloned().collect();
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    conditions.extend(message.map(|message| PersistentVolumeClaimCondition {
        type_: OVER_CAPACITY.into(),
        status: "True".into(),
        reason: Some("Measured".into()),
        message: Some(message.to_owned()),
        last_transition_time: Some(now),
        ..PersistentVolumeClaimCondition::default()
    }));
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_added_beside_others_and_removed_alone() {
        let mut claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {},
            "status": {"conditions": [{"type": "Resizing", "status": "True"}]}}))
            .unwrap();
        let conditions = with_condition(&claim, Some("full"), Timestamp::UNIX_EPOCH);
        assert_eq!(conditions.iter().map(|one| &*one.type_).collect::<Vec<_>>(), ["Resizing", OVER_CAPACITY]);
        claim.status.as_mut().unwrap().conditions = Some(conditions);
        assert!(is_over_capacity(&claim));
        assert_eq!(with_condition(&claim, None, Timestamp::UNIX_EPOCH).len(), 1);
    }
}
