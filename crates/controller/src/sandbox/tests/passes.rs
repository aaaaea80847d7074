//! Passes one after the other come to rest.

use super::*;

/// Does what the API server and a kubelet would do.
fn simulate(observed: &Observed, actions: Vec<Action>) -> Observed {
    let mut next = observed.clone();
    let name_of = |pod: &Arc<PodView>| pod.name_any();
    let mut pods: Vec<Arc<PodView>> = observed.labelled.clone();
    pods.extend(
        observed
            .tracked
            .iter()
            .filter(|t| !observed.labelled.iter().any(|p| p.name_any() == t.name_any()))
            .cloned(),
    );
    for action in actions {
        match action {
            Action::CreatePod(new) => {
                let more = json!({"metadata": {"uid": "new"}, "status": running()["status"]});
                let made = patched(new.as_ref(), &more);
                pods.push(Arc::new(
                    serde_json::from_value(serde_json::to_value(made.as_ref()).unwrap()).unwrap(),
                ));
            }
            Action::PatchPod(name, patch) | Action::SyncPod(name, patch) => {
                for pod in pods.iter_mut().filter(|pod| name_of(pod) == name) {
                    *pod = patched(pod.as_ref(), &patch);
                }
            }
            Action::DeletePod(name) => pods.retain(|pod| name_of(pod) != name),
            Action::CreateService(new) => next.service = Some(Arc::new(*new)),
            Action::PatchService(patch) => {
                next.service = next.service.map(|service| patched(service.as_ref(), &patch))
            }
            Action::DeleteService => next.service = None,
            Action::NotePodName(_) | Action::NoteOwnName => {
                let name = if let Action::NotePodName(name) = action { name } else { Some("s".into()) };
                let patch = json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": name}}});
                next.sandbox = patched(next.sandbox.as_ref(), &patch);
            }
            Action::CreateVolume(claim) => {
                let at =
                    next.sandbox.spec.volumes().iter().position(|t| volume::name(t, "s") == claim.name_any());
                next.volumes[at.unwrap()] = Some(Arc::new(*claim));
            }
            Action::CreatePolicy(_) | Action::PatchPolicy(..) | Action::DeletePolicy(_) => {
                unreachable!("there is no gateway")
            }
            Action::CreateSnapshot(new) => {
                let ready = json!({"type": "Ready", "status": "True", "reason": "Completed", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"});
                let uid = pods.first().and_then(|pod| pod.uid());
                let more = json!({"metadata": {"uid": "snapshot"}, "status": {"podUid": uid, "conditions": [ready]}});
                next.snapshot = Some(patched(new.as_ref(), &more));
            }
            Action::DeleteSnapshot(_) | Action::DropMemory(_) => next.snapshot = None,
            Action::PatchVolume(..) | Action::DeleteSandbox | Action::Sleep(_) => {}
        }
    }
    let volumes = next.volumes.clone();
    let mut next = super::tests::observed(next.sandbox, &pods, next.service);
    next.volumes = volumes;
    next
}

fn any_pod() -> impl Strategy<Value = Option<Value>> {
    let labels = prop_oneof![Just(json!({})), Just(json!({"x": "old", "agents.x-k8s.io/adoptable": "true"}))];
    let owners = prop_oneof![Just(Value::Null), Just(mine()), Just(theirs())];
    let lists = prop_oneof![Just(json!({})), Just(json!({"agents.x-k8s.io/propagated-labels": "x"}))];
    prop::option::of((labels, owners, lists).prop_map(|(labels, owners, lists)| {
        json!({"metadata": {"labels": labels, "ownerReferences": owners, "annotations": lists}})
    }))
}

proptest! {
    /// From any state, two passes leave nothing to do, a written status is stable, and no foreign Pod is touched.
    #[test]
    fn passes_converge(
        pod_more in any_pod(), suspended: bool, wanted in prop::option::of(any::<bool>()), has_service: bool, labels in prop::collection::btree_map("[x-z]", "[12]", 0..3),
    ) {
        let mode = if suspended { "Suspended" } else { "Running" };
        let sandbox = sandbox(json!({"spec": {"operatingMode": mode, "service": wanted, "podTemplate": {"metadata": {"labels": labels}},
            "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}}));
        let pods: Vec<_> = pod_more.into_iter().map(|more| pod("s", more)).collect();
        let start = observed(sandbox, &pods, has_service.then(|| service(json!({}))));
        let first = plan(&start, now());
        let foreign = start.tracked.as_ref().is_some_and(|pod| crate::owner::controller(pod.as_ref()).is_some_and(|o| o.kind == "ReplicaSet"));
        let touched = first.actions.iter().any(|action| matches!(action, Action::PatchPod(..) | Action::SyncPod(..) | Action::DeletePod(_)));
        prop_assert!(!(foreign && touched));
        let mut now_seen = simulate(&start, first.actions);
        let second = plan(&now_seen, now());
        now_seen = simulate(&now_seen, second.actions);
        let third = plan(&now_seen, now());
        prop_assert_eq!(&third.actions, &vec![]);
        let written = status(&now_seen, Stage::Live, &third.problems, DOMAIN, now());
        let patch = json!({"status": serde_json::to_value(&written).unwrap()});
        now_seen.sandbox = patched(now_seen.sandbox.as_ref(), &patch);
        let later = "2026-01-01T00:20:00Z".parse().unwrap();
        prop_assert_eq!(status(&now_seen, Stage::Live, &third.problems, DOMAIN, later), written);
    }
}
