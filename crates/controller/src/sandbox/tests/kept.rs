//! Suspends that keep memory, and what follows.

use super::*;

fn keeping(mode: &str, keeps: &str) -> Arc<Sandbox> {
    sandbox(json!({
        "metadata": {"annotations": {"hutch.dev/suspend-keeps": keeps, "agents.x-k8s.io/pod-name": "s"}},
        "spec": {"operatingMode": mode},
    }))
}

/// The snapshot with which the first Pod of a Sandbox begins, when these are named.
fn beginning(
    own: Option<&str>,
    of_gke: Option<&str>,
    newest: bool,
    template: Option<&str>,
    here: bool,
) -> Option<String> {
    let sandbox = sandbox(json!({
        "metadata": {"annotations": {"hutch.dev/restore-from": own}},
        "spec": {"podTemplate": {"metadata": {"annotations": {
            "hutch.dev/restore-from": template, "podsnapshot.gke.io/ps-name": of_gke}}}},
    }));
    let newest = newest.then(|| {
        let spec = json!({"spec": {"source": {"sandbox": "s"}, "content": "Full"}});
        object("hutch.dev/v1alpha1", "SandboxSnapshot", "newest", spec)
    });
    let observed = Observed { newest, snapshots: here, ..observed(sandbox, &[], None) };
    let Plan { actions, .. } = plan(&observed, now());
    let Some(Action::CreatePod(made)) = actions.first() else { panic!("{actions:?}") };
    made.annotations().get("hutch.dev/restore-from").cloned()
}

#[test]
fn pod_begins_with_the_snapshot_that_is_named_nearest_to_its_sandbox() {
    for (own, of_gke, newest, template, expected) in [
        (None, None, false, None, None),
        (None, None, false, Some("t"), Some("t")),
        (None, None, true, Some("t"), Some("newest")),
        (None, Some("g"), true, Some("t"), Some("g")),
        (Some("o"), Some("g"), true, Some("t"), Some("o")),
        (Some(""), Some("g"), true, Some("t"), None),
    ] {
        let begins = beginning(own, of_gke, newest, template, true);
        assert_eq!(begins.as_deref(), expected, "{own:?} {of_gke:?} {newest} {template:?}");
    }
    // On a cluster GKE reads its own annotation.
    assert_eq!(beginning(None, Some("g"), false, None, false), None);
}

/// A Pod of this uid, which has begun with the snapshot `n` or not.
fn ready(uid: &str, restored: bool) -> Arc<PodView> {
    let mut more = running();
    more["metadata"] = json!({"uid": uid});
    if restored {
        let begun = json!({"type": "PodRestored", "status": "True", "message": "n suspend-Sandbox-s"});
        more["status"]["conditions"].as_array_mut().unwrap().push(begun);
    }
    pod("s", more)
}

/// The snapshot with this reason; `of` is the uid of its Pod.
fn snapshot(why: &str, of: &str) -> Option<Arc<hutch_api::state::SandboxSnapshot>> {
    snapshot_since(why, of, "2026-01-01T00:09:30Z")
}

fn snapshot_since(why: &str, of: &str, since: &str) -> Option<Arc<hutch_api::state::SandboxSnapshot>> {
    let condition = json!({"type": "Ready", "status": if why == "Completed" { "True" } else { "False" }, "reason": why,
        "message": "no room", "lastTransitionTime": since});
    let body = json!({
        "metadata": {"uid": "n", "ownerReferences": owned_by(API, "Sandbox", "s")},
        "spec": {"source": {"sandbox": "s", "uid": "Sandbox-s"}, "content": "Full", "afterwards": "Stop"},
        "status": {"podUid": of, "conditions": [condition]},
    });
    Some(object("hutch.dev/v1alpha1", "SandboxSnapshot", "suspend-Sandbox-s", body))
}

/// A Pod of this uid that was to begin with the snapshot of a suspend: it waits for it, or has begun without.
fn without(uid: &str, reason: &str) -> Arc<PodView> {
    let mut more = running();
    more["metadata"] = json!({"uid": uid, "annotations": {"hutch.dev/restore-from": "suspend-Sandbox-s"}});
    let condition =
        json!({"type": "PodRestored", "status": "False", "reason": reason, "message": "runsc: no"});
    more["status"]["conditions"].as_array_mut().unwrap().push(condition);
    pod("s", more)
}

#[test]
fn memory_without_which_a_pod_has_begun_is_removed_and_that_of_a_pod_that_waits_is_kept() {
    for (mode, after) in [
        ("Running", &["delete snapshot suspend-Sandbox-s"][..]),
        ("Suspended", &["delete snapshot suspend-Sandbox-s"]),
    ] {
        let at = |reason: &str| {
            let pods = [without("q", reason)];
            let observed = observed(keeping(mode, "memory"), &pods, None);
            steps(&Observed { snapshot: snapshot("Completed", "p"), ..observed })
        };
        assert_eq!(dropping(at("StartedAnew")), after, "{mode}");
        assert!(!at("RestoreFailed").iter().any(|step| step.starts_with("delete snapshot")), "{mode}");
    }
    // Afterwards the Pod lives on.
    let alone = observed(keeping("Running", "memory"), &[without("q", "StartedAnew")], None);
    assert!(!steps(&alone).iter().any(|step| step.starts_with("delete")), "{:?}", steps(&alone));
}

fn dropping(mut steps: Vec<String>) -> Vec<String> {
    steps.retain(|step| step.starts_with("delete"));
    steps
}

#[test]
fn pod_of_a_suspend_with_memory_ends_after_its_snapshot() {
    let own = || [ready("p", false)];
    let at = |snapshot| Observed { snapshot, ..observed(keeping("Suspended", "memory"), &own(), None) };
    assert_eq!(steps(&at(None)), ["create snapshot suspend-Sandbox-s"]);
    assert!(steps(&at(snapshot("InProgress", ""))).is_empty());
    assert_eq!(steps(&at(snapshot("Completed", "p"))), ["delete pod s"]);
    let failed = steps(&at(snapshot("Failed", "")));
    assert_eq!(failed, ["Pod: its memory cannot be kept, so it is not suspended: no room"]);
    // It is tried again after a minute.
    let again = steps(&at(snapshot_since("Failed", "", "2026-01-01T00:08:59Z")));
    assert_eq!(again, ["delete snapshot suspend-Sandbox-s", &failed[0]]);
    let given_up = Observed {
        snapshot: snapshot("Failed", ""),
        ..observed(keeping("Suspended", "files"), &own(), None)
    };
    assert_eq!(steps(&given_up), ["delete snapshot suspend-Sandbox-s", "delete pod s"]);
    let files = observed(keeping("Suspended", "files"), &own(), None);
    assert_eq!(steps(&files), ["delete pod s"]);
}

#[test]
fn snapshot_is_used_once_and_outlives_a_pod_that_could_not_begin_with_it() {
    let suspended = |pod| Observed {
        snapshot: snapshot("Completed", "earlier"),
        ..observed(keeping("Suspended", "memory"), &[pod], None)
    };
    assert_eq!(steps(&suspended(ready("p", true))), ["delete snapshot suspend-Sandbox-s"]);
    assert_eq!(steps(&suspended(ready("p", false))), ["delete pod s"]);
    let given_up = Observed {
        snapshot: snapshot("Completed", "earlier"),
        ..observed(keeping("Suspended", "files"), &[ready("p", false)], None)
    };
    assert_eq!(steps(&given_up), ["delete snapshot suspend-Sandbox-s", "delete pod s"]);
    let woken = |pod: &[Arc<PodView>], why: &str, of: &str| Observed {
        snapshot: snapshot(why, of),
        ..observed(keeping("Running", "memory"), pod, None)
    };
    let acts = |observed: &Observed| -> Vec<String> {
        steps(observed).into_iter().filter(|step| !step.starts_with("sync")).collect()
    };
    assert_eq!(
        acts(&woken(&[ready("p", true)], "Completed", "earlier")),
        ["delete snapshot suspend-Sandbox-s"]
    );
    assert!(acts(&woken(&[ready("p", false)], "Completed", "earlier")).is_empty());
    assert_eq!(acts(&woken(&[ready("p", false)], "Completed", "p")), ["delete pod s"]);
    assert!(acts(&woken(&[ready("p", false)], "InProgress", "")).is_empty());
    assert_eq!(acts(&woken(&[ready("p", false)], "Failed", "")), ["delete snapshot suspend-Sandbox-s"]);
    // The image may be lost: the node refuses the Pod then, and does not start it without memory.
    for why in ["Completed", "Lost"] {
        let observed = woken(&[], why, "earlier");
        let Plan { actions, .. } = plan(&observed, now());
        let Some(Action::CreatePod(made)) = actions.first() else { panic!("{actions:?}") };
        assert_eq!(made.annotations()["hutch.dev/restore-from"], "suspend-Sandbox-s");
    }
    // The memory may be complete, and not reported yet.
    assert!(acts(&woken(&[], "InProgress", "")).is_empty());
    assert_eq!(acts(&woken(&[], "Failed", "")), ["delete snapshot suspend-Sandbox-s", "create pod s"]);
}

#[test]
fn processes_that_are_not_ready_have_begun_all_the_same() {
    let mut unready = ready("p", true).as_ref().clone();
    let conditions = unready.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.iter_mut().find(|one| one.type_ == "Ready").unwrap().status = "False".into();
    let observed = Observed {
        snapshot: snapshot("Completed", "earlier"),
        ..observed(keeping("Suspended", "memory"), &[Arc::new(unready)], None)
    };
    // What they have done since is in their memory only: it is saved anew.
    assert_eq!(steps(&observed), ["delete snapshot suspend-Sandbox-s"]);
}

#[test]
fn memory_that_cannot_be_restored_is_given_up_in_two_ways() {
    let mut waiting =
        pod("s", json!({"metadata": {"uid": "p"}, "status": {"phase": "Pending"}})).as_ref().clone();
    waiting.metadata.annotations =
        Some([("hutch.dev/restore-from".to_owned(), "suspend-Sandbox-s".to_owned())].into());
    let waiting = [Arc::new(waiting)];
    let files = Observed {
        snapshot: snapshot("Completed", "earlier"),
        ..observed(keeping("Suspended", "files"), &waiting, None)
    };
    assert_eq!(steps(&files), ["delete snapshot suspend-Sandbox-s", "delete pod s"]);
    let deleted = observed(keeping("Running", "memory"), &waiting, None);
    assert_eq!(steps(&deleted), ["delete pod s"]);
}

#[test]
fn suspend_with_memory_is_refused_on_a_cluster() {
    let observed =
        Observed { snapshots: false, ..observed(keeping("Suspended", "memory"), &[ready("p", false)], None) };
    let [problem] = &steps(&observed)[..] else { panic!() };
    assert!(problem.contains("hutch.dev/suspend-keeps") && problem.contains("NotSupportedHere"), "{problem}");
}

#[test]
fn container_that_does_not_run_has_no_memory_to_keep() {
    let waiting = pod("s", json!({"metadata": {"uid": "p"}, "status": {"phase": "Pending"}}));
    assert_eq!(steps(&observed(keeping("Suspended", "memory"), &[waiting], None)), ["delete pod s"]);
}

#[test]
fn memory_is_removed_when_it_was_kept_for_long_enough() {
    let at = |after: &str, since: &str| {
        let mut sandbox = keeping("Suspended", "memory").as_ref().clone();
        sandbox.annotations_mut().insert("hutch.dev/drop-memory-after".into(), after.into());
        sandbox.annotations_mut().remove("agents.x-k8s.io/pod-name");
        Observed {
            snapshot: snapshot_since("Completed", "p", since),
            ..observed(Arc::new(sandbox), &[], None)
        }
    };
    let (early, due) = (at("1m", "2026-01-01T00:09:30Z"), at("1m", "2026-01-01T00:09:00Z"));
    assert!(steps(&early).is_empty());
    assert_eq!(super::sleep::remaining(&early, now()), Some(std::time::Duration::from_secs(30)));
    assert_eq!(steps(&due), ["drop memory suspend-Sandbox-s"]);
    // A Pod that still ends has its memory there.
    let ending = Observed { labelled: vec![ready("p", false)], tracked: Some(ready("p", false)), ..due };
    assert_eq!(steps(&ending), ["delete pod s"]);
}

#[test]
fn suspended_sandbox_without_the_memory_that_it_keeps_says_that_it_begins_anew() {
    let says = |keeps: &str, snapshot| {
        let observed = Observed { snapshot, ..observed(keeping("Suspended", keeps), &[], None) };
        says(&observed, Stage::Live, &[], "Suspended")
    };
    let anew =
        "True/MemoryNotKept/Sandbox is suspended without the memory of its processes. It will begin anew";
    assert_eq!(says("memory", None), anew);
    assert_eq!(says("memory", snapshot("Failed", "")), anew);
    // Its processes may still be written to the disk.
    assert!(says("memory", snapshot("InProgress", "")).starts_with("False/PodTerminating/"));
    for kept in [says("memory", snapshot("Completed", "p")), says("files", None)] {
        assert!(kept.starts_with("True/PodTerminated/"), "{kept}");
    } // One event when it happens, and none while it lasts or for one that never ran.
    let status = |says: &[(&str, &str)]| {
        let conditions: Vec<_> = says
            .iter()
            .map(|(status, reason)| {
                json!({"type": "Suspended", "status": status,
            "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        serde_json::from_value::<SandboxStatus>(json!({"conditions": conditions})).unwrap()
    };
    let lost = status(&[("True", "MemoryNotKept")]);
    for (before, wanted, noted) in [
        (Some(status(&[("False", "NotSuspended")])), &lost, true),
        (Some(status(&[("False", "NotSuspended")])), &status(&[("True", "PodTerminated")]), false),
        (Some(status(&[("True", "PodTerminated")])), &lost, false),
        (Some(lost.clone()), &lost, false),
        (None, &lost, false),
    ] {
        assert_eq!(super::apply::is_lost(before.as_ref(), wanted), noted, "{before:?}");
    }
}
