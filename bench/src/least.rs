//! A minimal controller: it creates the Pod of each Sandbox, and writes the whole status when the Pod is ready. The load
//! tool's result with it is the upper bound that the control plane sets for every controller.

use std::collections::HashSet;

use anyhow::Context;
use futures::TryStreamExt;
use hutch_api::condition::{FALSE, POD_SCHEDULED, READY, SUSPENDED, TRUE, message, reason};
use hutch_api::{Sandbox, label, name_hash, owner};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

/// Argument that runs this program as that controller; `--kubeconfig=FILE` and others follow.
pub(crate) const ARGUMENT: &str = "least-controller";

/// Runs the controller until it is killed.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let file = arguments.iter().find_map(|argument| argument.strip_prefix("--kubeconfig="));
    let config = kube::config::Kubeconfig::read_from(file.context("--kubeconfig is missing")?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await?;
        let client = Client::try_from(config)?;
        tokio::try_join!(pods(client.clone()), statuses(client))?;
        Ok(())
    })
}

/// Creates the Pods.
async fn pods(client: Client) -> anyhow::Result<()> {
    let made = &std::sync::Mutex::new(HashSet::new());
    let events = watcher(Api::<Sandbox>::all(client.clone()), watcher::Config::default()).applied_objects();
    let each = events.map_err(anyhow::Error::from).try_for_each_concurrent(None, |sandbox| {
        let client = client.clone();
        async move {
            let new = sandbox.metadata.deletion_timestamp.is_none();
            if !new || !made.lock().expect("no panic").insert(sandbox.uid()) {
                return Ok(());
            }
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {
                    "name": sandbox.name_any(),
                    "labels": {label::SANDBOX_NAME_HASH: name_hash(&sandbox.name_any())},
                    "ownerReferences": [sandbox.controller_owner_ref(&())],
                },
                "spec": *sandbox.spec.pod_template.spec,
            }))?;
            let api = Api::namespaced(client, &sandbox.namespace().unwrap_or_default());
            // One that is gone again needs none.
            let _ = api.create(&PostParams::default(), &pod).await;
            Ok(())
        }
    });
    each.await
}

/// Writes the statuses.
async fn statuses(client: Client) -> anyhow::Result<()> {
    let told = &std::sync::Mutex::new(HashSet::new());
    let labelled = watcher::Config::default().labels(label::SANDBOX_NAME_HASH);
    let events = watcher(Api::<Pod>::all(client.clone()), labelled).applied_objects();
    let each = events.map_err(anyhow::Error::from).try_for_each_concurrent(None, |pod| {
        let client = client.clone();
        async move {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
            let Some(owner) = owner::controller(&pod).filter(|_| ready) else { return Ok(()) };
            if !told.lock().expect("no panic").insert(pod.uid()) {
                return Ok(());
            }
            let condition = |kind: &str, status: &str, reason: &str, message: &str| {
                json!({"type": kind, "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": Timestamp::now(), "observedGeneration": 1})
            };
            let conditions = [
                condition(SUSPENDED, FALSE, reason::NOT_SUSPENDED, message::NOT_SUSPENDED),
                condition(POD_SCHEDULED, TRUE, reason::POD_SCHEDULED, ""),
                condition(READY, TRUE, reason::DEPENDENCIES_READY, message::POD_READY),
            ];
            let change = json!({"status": {
                "conditions": conditions,
                "nodeName": pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()),
                "podIPs": pod.status.iter().flat_map(|it| it.pod_ips.iter().flatten()).map(|it| &it.ip).collect::<Vec<_>>(),
                "selector": format!("{}={}", label::SANDBOX_NAME_HASH, name_hash(&pod.name_any())),
            }});
            let api = Api::<Sandbox>::namespaced(client, &pod.namespace().unwrap_or_default());
            let _ = api.patch_status(&owner.name, &PatchParams::default(), &Patch::Merge(change)).await;
            Ok(())
        }
    });
    each.await
}
