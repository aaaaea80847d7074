//! A kubelet without processes.

use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Says at once that every Pod runs, each at an address of its own, and ends those that are to go.
pub async fn kubelet(client: Client) {
    static NEXT_ADDRESS: AtomicU32 = AtomicU32::new(1);
    let mut events =
        std::pin::pin!(watcher::watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()));
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else { continue };
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            api.delete(&pod.name_any(), &now).await.ok();
            continue;
        }
        if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running") {
            continue;
        }
        let n = NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed);
        let address = format!("10.89.{}.{}", (n >> 8) & 255, n & 255);
        let time = jiff::Timestamp::now().to_string();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time});
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [condition("PodScheduled"), condition("Ready")],
        }});
        api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await.ok();
    }
}
