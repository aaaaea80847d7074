//! A node that says, after a while, that Pods run, lets some of them end, and clears away those that are to go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeSet;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::stage::Stage;

#[derive(Clone)]
struct Node {
    client: Client,
    stage: Arc<Stage>,
    dice: Dice,
    next: Arc<AtomicU32>,
}

pub(crate) async fn run(client: Client, stage: Arc<Stage>, dice: Dice) {
    let node = Node { client: client.clone(), stage, dice, next: Arc::default() };
    let mut events = std::pin::pin!(watcher::watcher(Api::<Pod>::all(client), watcher::Config::default()));
    let (mut begun, mut ending) = (BTreeSet::new(), BTreeSet::new());
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else { continue };
        let uid = pod.uid().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() {
            if ending.insert(uid) {
                tokio::spawn(node.clone().end(pod));
            }
        } else if begun.insert(uid) {
            tokio::spawn(node.clone().begin(pod));
        }
    }
}

impl Node {
    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default())
    }

    async fn begin(self, pod: Pod) {
        let slow = self.dice.chance(50);
        sleep(self.dice.ms(if slow { 5_000..40_000 } else { 10..3000 })).await;
        let n = self.next.fetch_add(1, Ordering::SeqCst);
        let address = format!("10.89.{}.{}", (n >> 8) & 255, n & 255);
        let time = self.stage.now().to_string();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time});
        let status = json!({"metadata": {"uid": pod.uid()}, "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [condition("PodScheduled"), condition("Ready")],
        }});
        self.tell(&pod, status).await;
        if self.stage.is_storm() && self.dice.chance(80) {
            sleep(self.dice.ms(1_000..40_000)).await;
            let phase = if self.dice.chance(500) { "Succeeded" } else { "Failed" };
            if self.stage.is_storm() {
                self.tell(&pod, json!({"metadata": {"uid": pod.uid()}, "status": {"phase": phase}})).await;
            }
        }
    }

    async fn tell(&self, pod: &Pod, status: serde_json::Value) {
        self.api(pod)
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await
            .ok();
    }

    async fn end(self, pod: Pod) {
        sleep(self.dice.ms(10..4000)).await;
        let only = Preconditions { uid: pod.uid(), resource_version: None };
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(only),
            ..DeleteParams::default()
        };
        self.api(&pod).delete(&pod.name_any(), &now).await.ok();
    }
}
