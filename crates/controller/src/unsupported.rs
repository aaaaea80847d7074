//! Snapshots and forks of a cluster, which makes none: each is answered with a condition.

use std::time::Duration;

use futures::StreamExt;
use hutch_api::condition::{FALSE, READY};
use hutch_api::state::{self, reason};
use hutch_serve::Ambient;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::collection::Pauses;
use crate::condition::{self, Verdict, whole_seconds};

/// Pause between two checks whether the kinds are installed.
const RECHECK: Duration = Duration::from_secs(60);
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Tries of one write. Later changes of the object have tries of their own.
const TRIES: usize = 5;
/// Kinds and their plurals.
const KINDS: [(&str, &str); 2] =
    [("SandboxSnapshot", state::SANDBOX_SNAPSHOTS), ("SandboxFork", state::SANDBOX_FORKS)];
const MESSAGE: &str = "Snapshots are made by `hutch up` alone";

/// Answers every object, until the future is dropped. Without the CRDs of the kinds, waits for them.
pub(crate) async fn answer(client: Client, ambient: Ambient) {
    futures::future::join_all(KINDS.iter().map(|kind| answer_kind(&client, *kind, &ambient))).await;
}

async fn answer_kind(client: &Client, (kind, plural): (&str, &str), ambient: &Ambient) {
    while !is_served(client, plural).await {
        tokio::time::sleep(RECHECK).await;
    }
    let gvk = GroupVersionKind::gvk(state::GROUP, state::VERSION, kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let objects =
        watcher(api, watcher::Config::default()).backoff(Pauses::new(ambient.clone())).applied_objects();
    let mut objects = std::pin::pin!(objects);
    let mut is_interrupted = false;
    while let Some(object) = objects.next().await {
        match object {
            Ok(object) => {
                is_interrupted = false;
                refuse(client, &resource, &object, ambient).await;
            }
            Err(error) if is_interrupted => tracing::debug!(kind, %error, "watch interrupted"),
            Err(error) => {
                is_interrupted = true;
                tracing::warn!(kind, %error, "watch interrupted, will be resumed; deploy/snapshots.yaml has its role");
            }
        }
    }
}

/// Returns true if the CRD of a kind is installed. Every account may read that.
async fn is_served(client: &Client, plural: &str) -> bool {
    let version = format!("{}/{}", state::GROUP, state::VERSION);
    let served = client.list_api_group_resources(&version).await;
    served.is_ok_and(|served| served.resources.iter().any(|resource| resource.name == plural))
}

/// Sets the condition of an object that does not have it.
async fn refuse(client: &Client, resource: &ApiResource, object: &DynamicObject, ambient: &Ambient) {
    let known = object.data.pointer("/status/conditions").cloned().unwrap_or_default();
    let mut conditions: Vec<Condition> = serde_json::from_value(known).unwrap_or_default();
    let is_answered =
        |ready: &Condition| ready.reason == reason::NOT_SUPPORTED_HERE && ready.message == MESSAGE;
    if condition::find(&conditions, READY).is_some_and(is_answered) {
        return;
    }
    let verdict = Verdict::new(FALSE, reason::NOT_SUPPORTED_HERE, MESSAGE);
    condition::set(&mut conditions, READY, verdict, object.metadata.generation, whole_seconds(ambient.now()));
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
    let patch = json!({"metadata": {"uid": object.metadata.uid}, "status": {"conditions": conditions}});
    for _ in 0..TRIES {
        match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
            Err(error) => {
                tracing::warn!(kind = resource.kind, name, %error, "failed to write a condition");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
