//! Metadata watches of every kind, feeding one queue of changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use kube::Client;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::graph::Object;
use crate::kinds::{Kind, Kinds};

/// News of a watch.
#[derive(Debug)]
pub(crate) enum Change {
    /// An object is there, new or changed.
    There(Object),
    /// The object of this UID is gone.
    Gone(String),
    /// A complete list of a kind: its UIDs.
    Listed(Arc<Kind>, HashSet<String>),
    /// Other kinds may be served now.
    Kinds,
}

/// `apiVersion` and plural name of a kind.
pub(crate) fn name(kind: &Kind) -> (String, String) {
    (kind.resource.api_version.clone(), kind.resource.plural.clone())
}

/// The running watches. Dropping it ends them.
pub(crate) struct Watches {
    client: Client,
    changes: mpsc::Sender<Change>,
    running: HashMap<(String, String), (Arc<Kind>, JoinHandle<()>)>,
}

impl Watches {
    pub(crate) fn new(client: Client, changes: mpsc::Sender<Change>) -> Self {
        Self { client, changes, running: HashMap::new() }
    }

    /// Watches these kinds and no others; returns those that are no longer served.
    pub(crate) fn follow(&mut self, kinds: &Kinds) -> Vec<Arc<Kind>> {
        let wanted: HashSet<_> = kinds.preferred.iter().map(|kind| name(kind)).collect();
        let dropped: Vec<_> = self.running.keys().filter(|name| !wanted.contains(*name)).cloned().collect();
        for kind in &kinds.preferred {
            let (client, changes) = (self.client.clone(), self.changes.clone());
            let kind = Arc::clone(kind);
            self.running
                .entry(name(&kind))
                .or_insert_with(|| (Arc::clone(&kind), tokio::spawn(watch(client, kind, changes))));
        }
        let end = |name| {
            let (kind, task) = self.running.remove(&name)?;
            task.abort();
            Some(kind)
        };
        dropped.into_iter().filter_map(end).collect()
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.running.values().for_each(|(_, task)| task.abort());
    }
}

async fn watch(client: Client, kind: Arc<Kind>, changes: mpsc::Sender<Change>) {
    let config = watcher::Config::default().any_semantic();
    let mut events = watcher(kind.metadata_api(&client), config).default_backoff().boxed();
    let defines_kinds = kind.resource.kind == "CustomResourceDefinition";
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        let mut more = None;
        let change = match event {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(found)) => {
                let Some(object) = Object::of(&kind, &found.metadata) else { continue };
                listed.insert(object.uid.clone());
                Change::There(object)
            }
            Ok(Event::InitDone) => {
                // A definition that came between the discovery and this list shows in the list alone.
                more = defines_kinds.then_some(Change::Kinds);
                Change::Listed(Arc::clone(&kind), std::mem::take(&mut listed))
            }
            Ok(Event::Apply(found)) => {
                more = defines_kinds.then_some(Change::Kinds);
                let Some(object) = Object::of(&kind, &found.metadata) else { continue };
                Change::There(object)
            }
            Ok(Event::Delete(found)) => {
                more = defines_kinds.then_some(Change::Kinds);
                let Some(uid) = found.metadata.uid else { continue };
                Change::Gone(uid)
            }
            Err(error) => {
                tracing::debug!(%error, kind = kind.resource.kind, "a watch will be opened again");
                continue;
            }
        };
        for change in std::iter::once(change).chain(more) {
            if changes.send(change).await.is_err() {
                return;
            }
        }
    }
}
