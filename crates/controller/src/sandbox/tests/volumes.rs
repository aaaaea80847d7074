//! The volumes of a Sandbox.

use super::*;

#[test]
fn volumes_are_created_adopted_or_refused() {
    let more = json!({"spec": {"volumeClaimTemplates": [
        {"metadata": {"name": "v", "labels": {"l": "1"}}, "spec": {"accessModes": ["ReadWriteOnce"]}},
        {"metadata": {"name": "w"}, "spec": {}},
    ]}});
    let claim =
        |more: Value| -> Arc<PersistentVolumeClaim> { object("v1", "PersistentVolumeClaim", "v-s", more) };
    let with = |more_claim: Option<Value>| {
        let mut observed = observed(sandbox(more.clone()), &[], None);
        observed.volumes[0] = more_claim.map(claim);
        steps(&observed).into_iter().filter(|step| step.to_lowercase().contains("volume")).collect::<Vec<_>>()
    };
    assert_eq!(with(None), ["create volume v-s", "create volume w-s"]);
    assert_eq!(with(Some(json!({"metadata": {"ownerReferences": mine()}}))), ["create volume w-s"]);
    let offered = json!({"metadata": {"labels": {"agents.x-k8s.io/adoptable": "true"}}});
    assert_eq!(with(Some(offered)), ["adopt volume v-s", "create volume w-s"]);
    let owned_by_other =
        "Volumes: PVC \"v-s\" is owned by ReplicaSet/r (UID: ReplicaSet-r), not by sandbox \"s\"";
    assert_eq!(with(Some(json!({"metadata": {"ownerReferences": theirs()}}))), [owned_by_other]);
    assert!(with(Some(json!({})))[0].contains("cannot adopt unowned PVC \"v-s\""));
}
