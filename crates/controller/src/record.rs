//! Events on objects, written beside the work and never in its way.

use hutch_serve::Shutdown;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt};
use tokio::sync::mpsc;

use crate::rush::Rush;

/// Events that wait to be written; more are dropped, since events are for people and the state is in the objects.
const WAITING_EVENTS: usize = 1024;
/// What writes the events.
const REPORTER: &str = "sandbox-controller";
/// Longest note that Kubernetes takes, in bytes.
const NOTE_BYTES: usize = 1024;

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) text: String,
}

/// Takes events for [`Writer`].
#[derive(Debug, Clone)]
pub(crate) struct Recorder(mpsc::Sender<Event>);

/// Writes what [`Recorder`] took, one after the other.
pub(crate) struct Writer {
    client: Client,
    waiting: mpsc::Receiver<Event>,
}

pub(crate) fn recorder(client: Client) -> (Recorder, Writer) {
    let (sender, waiting) = mpsc::channel(WAITING_EVENTS);
    (Recorder(sender), Writer { client, waiting })
}

impl Recorder {
    /// `number` makes the event's name different from those of the same moment.
    pub(crate) fn record<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        note: Note,
        now: Timestamp,
        number: u64,
    ) {
        if self.0.try_send(event(object, note, now, number)).is_err() {
            tracing::debug!("too many events wait to be written; one was dropped");
        }
    }
}

impl Writer {
    /// Until the shutdown, and then what waits. While claims are being met, only so many that none is dropped.
    pub(crate) async fn run(mut self, rush: Rush, over: Shutdown) {
        let mut over = std::pin::pin!(over.wait());
        loop {
            let next = async {
                if self.waiting.len() < WAITING_EVENTS / 2 {
                    rush.over().await;
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
            tracing::debug!(%error, "an event could not be written");
        }
    }
}

fn event<K: Resource<DynamicType = ()>>(object: &K, note: Note, now: Timestamp, number: u64) -> Event {
    let mut text = note.text;
    text.truncate(text.floor_char_boundary(NOTE_BYTES));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}{:04x}", object.name_any(), now.as_nanosecond(), number & 0xffff)),
            namespace: object.namespace(),
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
        reporting_controller: Some(REPORTER.into()),
        reporting_instance: Some(REPORTER.into()),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    }
}
