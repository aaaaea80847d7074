use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use hutch_kubelet::{PodId, StreamError};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, ResourceExt};
use rustix::process::Pid;
use serde_json::json;

use super::node::NAME;
use super::pod::Pod;
use super::volumes::{Volumes, has_volumes};
use crate::cluster::guardian::Guardian;

/// The Pods of the Node.
pub(super) struct Pods {
    client: Client,
    folder: PathBuf,
    runtime: PathBuf,
    minder: Arc<Minder>,
    known: Mutex<HashMap<String, Arc<Pod>>>,
    /// Uids of Pods with volumes that were started, or will be.
    waiting: Mutex<HashSet<Option<String>>>,
}

/// Ends what was started here, also when this program is killed.
pub(super) struct Minder(Mutex<Guardian>);

impl Minder {
    fn guardian(&self) -> MutexGuard<'_, Guardian> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // After its end there is nothing that could be watched.

    pub(super) fn watch(&self, group: Pid) {
        let _ = self.guardian().watch_group(group.as_raw_pid());
    }

    pub(super) fn forget(&self, group: Pid) {
        let _ = self.guardian().forget_group(group.as_raw_pid());
    }

    pub(super) fn watch_address(&self, address: Ipv4Addr) {
        let _ = self.guardian().watch_address(address);
    }
}

impl Pods {
    pub(super) fn new(client: Client, folder: PathBuf, runtime: PathBuf) -> anyhow::Result<Pods> {
        std::fs::create_dir_all(&folder)?;
        let minder = Arc::new(Minder(Mutex::new(Guardian::start(&folder)?)));
        Ok(Pods { client, folder, runtime, minder, known: Mutex::default(), waiting: Mutex::default() })
    }

    /// Ends all of them at once.
    pub(super) fn end(&self) {
        self.minder.guardian().end();
        self.known().clear();
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Pod>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Pod of that name that runs here.
    pub(super) fn named(&self, namespace: &str, name: &str) -> Option<PodId> {
        let known = self.known();
        let pod = known.values().find(|pod| pod.id.namespace == namespace && pod.id.name == name);
        pod.map(|pod| pod.id.clone())
    }

    pub(super) fn get(&self, id: &PodId) -> Result<Arc<Pod>, StreamError> {
        let known = self.known().get(&id.uid).cloned();
        known.ok_or_else(|| StreamError::NotFound("pod does not exist".into()))
    }

    /// Does what the API server says of Pods, without an end.
    pub(super) async fn follow(self: Arc<Pods>) {
        let mut events = std::pin::pin!(watcher(Api::<Object>::all(self.client.clone()), Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => self.clone().changed(object),
                Ok(Event::Delete(object)) => drop(self.known().remove(&object.uid().unwrap_or_default())),
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn changed(self: Arc<Pods>, object: Object) {
        let known = self.known().get(&object.uid().unwrap_or_default()).cloned();
        let node = object.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let phase = object.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let over = ["Succeeded", "Failed"].contains(&phase);
        match (known, object.metadata.deletion_timestamp.is_some()) {
            (None, false) if node.is_empty() => drop(tokio::spawn(async move { self.bind(&object).await })),
            (None, false) if node == NAME && !over => match has_volumes(&object) {
                true => drop(tokio::spawn(self.start_with_volumes(object))),
                false => self.start(&object, Ok(Volumes::default())),
            },
            (None, true) if node == NAME => drop(tokio::spawn(async move { self.delete(&object).await })),
            (Some(pod), true) if pod.ends() => drop(tokio::spawn(async move {
                let grace = object.metadata.deletion_grace_period_seconds.unwrap_or(0);
                pod.end(Duration::from_secs(grace.unsigned_abs())).await;
                self.delete(&object).await;
            })),
            _ => {}
        }
    }

    /// Binds a Pod, as a scheduler would.
    async fn bind(&self, object: &Object) {
        let name = object.name_any();
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NAME}});
        // It may be gone, or bound already.
        let _ = self
            .api(object)
            .create_subresource::<_, serde_json::Value>("binding", &name, &PostParams::default(), &binding)
            .await;
    }

    /// Starts a Pod once its volumes are there. Until then it may change, and is still started once.
    async fn start_with_volumes(self: Arc<Pods>, object: Object) {
        if self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(object.uid()) {
            let volumes = Volumes::read(&self.client, &object, &self.folder).await;
            self.start(&object, volumes);
        }
    }

    fn start(self: Arc<Pods>, object: &Object, volumes: anyhow::Result<Volumes>) {
        let started = volumes
            .and_then(|volumes| Pod::start(object, &self.folder, &self.runtime, &self.minder, &volumes));
        let object = object.clone();
        match started {
            Ok(pod) => {
                let pod = Arc::new(pod);
                self.known().insert(pod.id.uid.clone(), pod.clone());
                tokio::spawn(async move { self.report(&object, &pod).await });
            }
            Err(error) => {
                let status =
                    json!({"phase": "Failed", "reason": "StartError", "message": format!("{error:#}")});
                tokio::spawn(async move { self.write(&object, status).await });
            }
        }
    }

    /// Reports to the API server when it runs, when it is ready, and how it has ended by itself.
    async fn report(&self, object: &Object, pod: &Pod) {
        let time = || jiff::Timestamp::now().to_string();
        if pod.ready().await {
            self.write(object, pod.status(true, &time())).await;
        }
        pod.ended().await;
        self.write(object, pod.status(false, &time())).await;
    }

    async fn write(&self, object: &Object, status: serde_json::Value) {
        // With its UID, so that no namesake gets it. It may be gone by now.
        let patch = Patch::Merge(json!({"metadata": {"uid": object.uid()}, "status": status}));
        let _ = self.api(object).patch_status(&object.name_any(), &PatchParams::default(), &patch).await;
    }

    async fn delete(&self, object: &Object) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        // It may be gone already.
        let _ = self.api(object).delete(&object.name_any(), &now).await;
    }

    fn api(&self, object: &Object) -> Api<Object> {
        Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default())
    }
}
