//! Events on Pods, worded as a kubelet words them.

use std::collections::VecDeque;

use hutch_api::state::SandboxSnapshot;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

/// Events that wait to be written. When full, further ones are dropped: they are news, not state.
const QUEUE: usize = 1024;
/// Events that are remembered, so that a repetition counts up instead of making a new object.
const REMEMBERED: usize = 2048;
/// A repetition within this time is not written.
const QUIET: SignedDuration = SignedDuration::from_secs(10);
/// A repetition after this time is a new event.
const FORGET: SignedDuration = SignedDuration::from_mins(10);
/// Longest message, as the API allows.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Where events are put; writing happens elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    queue: mpsc::Sender<News>,
}

#[derive(Debug)]
struct News {
    subject: ObjectReference,
    warning: bool,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

impl Events {
    /// Starts the writer, which ends with the last of the clones.
    pub(crate) fn start(client: Client, node_name: String) -> Events {
        let (queue, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(write(client, node_name, receiver));
        Events { queue }
    }

    pub(crate) fn warning(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.put(pod, None, true, reason, message.into());
    }

    /// About one container.
    pub(crate) fn container(
        &self,
        pod: &Pod,
        container: &str,
        warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let ephemeral = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        let list = match ephemeral.into_iter().any(|one| one.name == container) {
            true => "ephemeralContainers",
            false => "containers",
        };
        self.put(pod, Some(format!("spec.{list}{{{container}}}")), warning, reason, message.into());
    }

    /// About the Sandbox of a Pod, if it has one.
    pub(crate) fn of_sandbox(&self, pod: &Pod, reason: &'static str, message: String) {
        let Some(owner) = hutch_api::owner::sandbox(pod) else { return };
        let subject = ObjectReference {
            api_version: Some(owner.api_version.clone()),
            kind: Some(owner.kind.clone()),
            name: Some(owner.name.clone()),
            namespace: pod.metadata.namespace.clone(),
            uid: Some(owner.uid.clone()),
            ..ObjectReference::default()
        };
        self.send(subject, true, reason, message);
    }

    /// About the Sandbox of this uid, whose snapshots were deleted by a bound.
    pub(crate) fn of_deleted(&self, snapshot: &SandboxSnapshot, uid: String, message: String) {
        let subject = ObjectReference {
            api_version: Some(format!("{}/{}", hutch_api::GROUP, hutch_api::STORED_VERSION)),
            kind: Some("Sandbox".into()),
            name: Some(snapshot.spec.source.sandbox.clone()),
            namespace: snapshot.metadata.namespace.clone(),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        self.send(subject, false, "SnapshotDeleted", message);
    }

    /// About a claim.
    pub(crate) fn of_claim(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let metadata = &claim.metadata;
        let subject = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            field_path: None,
        };
        self.send(subject, true, reason, message.into());
    }

    fn put(
        &self,
        pod: &Pod,
        field_path: Option<String>,
        warning: bool,
        reason: &'static str,
        message: String,
    ) {
        let subject = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            field_path,
        };
        self.send(subject, warning, reason, message);
    }

    fn send(&self, subject: ObjectReference, warning: bool, reason: &'static str, mut message: String) {
        if message.len() > MAX_MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        }
        let news = News { subject, warning, reason, message, at: Timestamp::now() };
        if self.queue.try_send(news).is_err() {
            tracing::warn!(reason, "an event is dropped: too many wait to be written");
        }
    }
}

/// An event that was written.
struct Written {
    uid: Option<String>,
    reason: &'static str,
    message: String,
    name: String,
    count: i32,
    at: Timestamp,
}

async fn write(client: Client, node_name: String, mut queue: mpsc::Receiver<News>) {
    let mut written: VecDeque<Written> = VecDeque::new();
    while let Some(news) = queue.recv().await {
        let namespace = news.subject.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let same = written.iter_mut().find(|old| {
            old.uid == news.subject.uid
                && old.reason == news.reason
                && old.message == news.message
                && news.at.duration_since(old.at) < FORGET
        });
        if let Some(old) = same {
            if news.at.duration_since(old.at) < QUIET {
                continue;
            }
            let change = json!({"count": old.count + 1, "lastTimestamp": Time(news.at)});
            match api.patch(&old.name, &PatchParams::default(), &Patch::Merge(change)).await {
                Ok(_) => {
                    old.count += 1;
                    old.at = news.at;
                    continue;
                }
                // It was deleted, or has expired: the repetition is a new event.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    let name = old.name.clone();
                    written.retain(|old| old.name != name);
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to count an event up");
                    continue;
                }
            }
        }
        let event = event(&news, &node_name);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            // A repetition is created.
            tracing::debug!(%error, "failed to create an event");
            continue;
        }
        let name = event.metadata.name.unwrap_or_default();
        let (uid, reason, message) = (news.subject.uid, news.reason, news.message);
        written.push_back(Written { uid, reason, message, name, count: 1, at: news.at });
        if written.len() > REMEMBERED {
            written.pop_front();
        }
    }
}

fn event(news: &News, node_name: &str) -> Event {
    let mut event = Event {
        involved_object: news.subject.clone(),
        type_: Some(if news.warning { "Warning" } else { "Normal" }.into()),
        reason: Some(news.reason.into()),
        message: Some(news.message.clone()),
        count: Some(1),
        first_timestamp: Some(Time(news.at)),
        last_timestamp: Some(Time(news.at)),
        source: Some(EventSource { component: Some("kubelet".into()), host: Some(node_name.into()) }),
        reporting_component: Some("kubelet".into()),
        reporting_instance: Some(node_name.into()),
        ..Event::default()
    };
    // As in Kubernetes: the Pod's name and the time, unique per process.
    static LAST: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
    let nanos = i64::try_from(news.at.as_nanosecond()).unwrap_or(0);
    let order = std::sync::atomic::Ordering::Relaxed;
    let last = LAST.fetch_max(nanos, order);
    let unique = if last >= nanos { LAST.fetch_add(1, order) + 1 } else { nanos };
    let name = news.subject.name.as_deref().unwrap_or("pod");
    event.metadata.name = Some(format!("{name}.{unique:x}"));
    event.metadata.namespace = news.subject.namespace.clone();
    event
}
