//! Recorder of Events: a reconcile never waits for the write of an Event.

use std::future::Future;

use hutch_api::Unreadable;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt};
use tokio::sync::mpsc;

/// Maximum number of Events that wait to be written. Further ones are dropped: the state is in the objects.
const WAITING_EVENTS: usize = 1024;
/// Maximum length of a note in Kubernetes, in bytes.
const NOTE_BYTES: usize = 1024;
/// Namespace of the Events about cluster-wide objects.
const CLUSTER_WIDE: &str = "default";

/// Content of an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// True for the type `Warning`, false for `Normal`.
    pub warning: bool,
    /// Reason, in CamelCase.
    pub reason: &'static str,
    /// Action, in CamelCase.
    pub action: &'static str,
    /// Message. It is cut to the length that Kubernetes accepts.
    pub text: String,
}

impl Note {
    /// Returns the note about an undecodable object with this `problem`.
    pub fn undecodable(problem: &str) -> Self {
        let text = Unreadable::note(problem);
        Note { warning: true, reason: "Unreadable", action: "Reconciling", text }
    }
}

/// Queues Events for [`Writer`].
#[derive(Debug, Clone)]
pub struct Recorder {
    reporter: &'static str,
    waiting: mpsc::Sender<Event>,
}

/// Writes the Events of [`Recorder`], one after the other.
pub struct Writer {
    client: Client,
    waiting: mpsc::Receiver<Event>,
}

/// Returns the two halves of a recorder. `reporter` is the component that the Events name.
pub fn recorder(client: Client, reporter: &'static str) -> (Recorder, Writer) {
    let (sender, waiting) = mpsc::channel(WAITING_EVENTS);
    (Recorder { reporter, waiting: sender }, Writer { client, waiting })
}

impl Recorder {
    /// Queues an Event about `object`. `number` distinguishes the names of Events of the same moment.
    pub fn record<K: Resource<DynamicType = ()>>(&self, object: &K, note: Note, now: Timestamp, number: u64) {
        if self.waiting.try_send(event(object, note, self.reporter, now, number)).is_err() {
            tracing::debug!("too many Events wait to be written; dropped one");
        }
    }
}

impl Writer {
    /// Writes Events until `over` resolves, and then those that wait. Each write waits for the future of `idle`, unless so
    /// many Events wait that some could be dropped.
    pub async fn run<F: Future<Output = ()>>(mut self, idle: impl Fn() -> F, over: impl Future<Output = ()>) {
        let mut over = std::pin::pin!(over);
        loop {
            let next = async {
                if self.waiting.len() < WAITING_EVENTS / 2 {
                    idle().await;
                }
                self.waiting.recv().await
            };
            let event = tokio::select! {
                event = next => event,
                () = &mut over => break,
            };
            let Some(event) = event else { return };
            self.write(&event).await;
        }
        self.waiting.close();
        while let Some(event) = self.waiting.recv().await {
            self.write(&event).await;
        }
    }

    async fn write(&self, event: &Event) {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), event).await {
            tracing::debug!(%error, "failed to write an Event");
        }
    }
}

fn event<K: Resource<DynamicType = ()>>(
    object: &K,
    note: Note,
    reporter: &str,
    now: Timestamp,
    number: u64,
) -> Event {
    let mut text = note.text;
    text.truncate(text.floor_char_boundary(NOTE_BYTES));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}{:04x}", object.name_any(), now.as_nanosecond(), number & 0xffff)),
            namespace: Some(object.namespace().unwrap_or_else(|| CLUSTER_WIDE.into())),
            ..ObjectMeta::default()
        },
        action: Some(note.action.into()),
        event_time: Some(MicroTime(now)),
        note: Some(text),
        reason: Some(note.reason.into()),
        regarding: Some(ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            name: object.meta().name.clone(),
            namespace: object.namespace(),
            uid: object.uid(),
            resource_version: object.resource_version(),
            field_path: None,
        }),
        reporting_controller: Some(reporter.into()),
        reporting_instance: Some(reporter.into()),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    }
}
