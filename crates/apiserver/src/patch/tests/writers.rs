//! Ownership by ordinary writes.

use super::*;
use crate::patch::managers::MAX_UPDATERS;

#[test]
fn writers_own_what_they_change() {
    let kind = deployments();
    let mut first = deployment(json!({"replicas": 1, "paused": false}));
    track_update(None, &mut first, updater("creator", 0), kind.shape());
    assert_eq!(owners(&first), ["creator Update .spec .spec.paused .spec.replicas"]);

    let mut scaled = first.clone();
    scaled["spec"]["replicas"] = 3.into();
    track_update(Some(&first), &mut scaled, updater("scaler", 1), kind.shape());
    assert_eq!(owners(&scaled), ["creator Update .spec .spec.paused", "scaler Update .spec.replicas"]);

    let mut same = scaled.clone();
    track_update(Some(&scaled), &mut same, updater("other", 2), kind.shape());
    assert_eq!(same, scaled);

    let mut removed = scaled.clone();
    removed["spec"].as_object_mut().expect("a spec").remove("replicas");
    removed["metadata"]["labels"] = json!({"a": "b"});
    removed["metadata"]["resourceVersion"] = "9".into();
    track_update(Some(&scaled), &mut removed, updater("creator", 3), kind.shape());
    assert_eq!(owners(&removed), ["creator Update .metadata.labels .metadata.labels.a .spec .spec.paused"]);

    let mut reset = removed.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    track_update(Some(&removed), &mut reset, updater("creator", 4), kind.shape());
    assert_eq!(reset["metadata"].get("managedFields"), None);
}

#[test]
fn an_update_takes_fields_from_an_applier() {
    let kind = deployments();
    let applied = apply(None, &deployment(json!({"replicas": 1, "paused": true})), applier("me", 0), &kind)
        .expect("an object");
    let mut updated = applied.clone();
    updated["spec"]["replicas"] = 5.into();
    track_update(Some(&applied), &mut updated, updater("edit", 1), kind.shape());
    assert_eq!(owners(&updated), ["me Apply .spec.paused", "edit Update .spec.replicas"]);
}

#[test]
fn a_writer_can_hand_fields_to_another_manager() {
    let kind = deployments();
    let mut stored = deployment(json!({"replicas": 1}));
    track_update(None, &mut stored, updater("kubectl-client-side-apply", 0), kind.shape());
    let mut moved = stored.clone();
    moved["metadata"]["managedFields"][0]["manager"] = "kubectl".into();
    moved["metadata"]["managedFields"][0]["operation"] = "Apply".into();
    track_update(Some(&stored), &mut moved, updater("kubectl", 1), kind.shape());
    assert_eq!(owners(&moved), ["kubectl Apply .spec .spec.replicas"]);
    // A writer that sends none does not mean to forget them.
    let mut bare = stored.clone();
    bare["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    track_update(Some(&stored), &mut bare, updater("other", 1), kind.shape());
    assert_eq!(bare, stored);
}

#[test]
fn the_oldest_of_too_many_writers_become_one() {
    let kind = deployments();
    let mut object = deployment(json!({}));
    for second in 0..15 {
        let before = object.clone();
        object["metadata"]["annotations"][format!("k{second:02}")] = "v".into();
        let name = format!("writer-{second:02}");
        track_update(Some(&before), &mut object, updater(&name, second), kind.shape());
    }
    let owners = owners(&object);
    assert_eq!(owners.len(), MAX_UPDATERS);
    assert!(
        owners[0].starts_with("ancient-changes Update .metadata.annotations .metadata.annotations.k00"),
        "{owners:?}"
    );
    assert!(owners[0].ends_with(".metadata.annotations.k05"), "{owners:?}");
    assert!(owners[9].starts_with("writer-14 "));
}
