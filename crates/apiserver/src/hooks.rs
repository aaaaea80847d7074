//! Webhooks and policies of admission: the stored objects, compiled; the reviews of webhooks, and their answers.
//!
//! Which webhooks a request concerns, and what their answers mean for it, is in [`admit`](crate::admit).

pub(crate) mod answer;
pub(crate) mod policy;
pub(crate) mod review;
pub(crate) mod room;
pub(crate) mod rule;
pub(crate) mod webhook;

use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures::future::BoxFuture;
use hutch_kubelet::Duplex;
use hutch_store::{Page, Store};
use serde_json::Value;
use tokio::sync::Semaphore;

use self::policy::Policy;
use self::room::Room;
use self::webhook::Webhook;
use crate::object::Object;

/// API group of the configurations.
pub(crate) const GROUP: &str = "admissionregistration.k8s.io";
/// Collections of the configurations.
pub(crate) const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
pub(crate) const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";
/// Maximum calls of all webhooks in progress. Each has a socket of this process; further ones wait, for as long as their
/// request may take.
const CALLS: usize = 128;

/// Connects to hosts outside the Pods of this server.
pub trait Connector: Send + Sync + 'static {
    /// Returns true if connections to this host and port are allowed.
    fn allows(&self, host: &str, port: u16) -> bool;
    /// Connects by TCP.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Duplex>>>;
}

/// The configurations that are stored now.
pub(crate) struct Hooks {
    store: Store<Object>,
    current: RwLock<Arc<Compiled>>,
    /// Held while the configurations are compiled, so that concurrent requests do not all do it.
    compiling: Mutex<()>,
    /// Places of calls in progress.
    pub(crate) calls: Arc<Semaphore>,
    /// Room for the objects of requests that wait for calls.
    pub(crate) room: Arc<Room>,
}

/// The webhooks of one revision, in the order in which they are called: by the names of their configurations.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    revision: u64,
    pub(crate) mutating: Vec<Webhook>,
    pub(crate) validating: Vec<Webhook>,
    /// Policies that have bindings.
    pub(crate) policies: Vec<Policy>,
}

impl Hooks {
    pub(crate) fn new(store: Store<Object>) -> Hooks {
        Hooks {
            store,
            current: RwLock::default(),
            compiling: Mutex::default(),
            calls: Arc::new(Semaphore::new(CALLS)),
            room: Arc::default(),
        }
    }

    /// The webhooks of what is stored now.
    pub(crate) fn compiled(&self) -> Arc<Compiled> {
        let current = || self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let changed = || self.store.changed(&[MUTATING, VALIDATING, policy::POLICIES, policy::BINDINGS]);
        let (compiled, revision) = (current(), changed());
        if compiled.revision == revision {
            return compiled;
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have compiled them meanwhile. The revision is read before the objects: an object that changes in
        // between makes the next request compile again.
        let (before, revision) = (current(), changed());
        if before.revision == revision {
            return before;
        }
        let [mutating, validating] = [MUTATING, VALIDATING].map(|collection| self.webhooks(collection));
        let policies = policy::read(&self.store);
        let compiled = Arc::new(Compiled { revision, mutating, validating, policies });
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = compiled.clone();
        compiled
    }

    fn webhooks(&self, collection: &str) -> Vec<Webhook> {
        let entries = self.store.list(collection, Page::default()).entries;
        let of = |configuration: &Value| {
            let webhooks = configuration["webhooks"].as_array().cloned().unwrap_or_default();
            webhooks.iter().map(Webhook::read).collect::<Vec<_>>()
        };
        entries.iter().flat_map(|entry| of(&entry.value.value())).collect()
    }

    /// Number of stored objects besides one.
    pub(crate) fn objects_besides(&self, collection: &str, name: &str) -> usize {
        self.store
            .list(collection, Page::default())
            .entries
            .iter()
            .filter(|entry| *entry.name != *name)
            .count()
    }

    /// Number of stored webhooks besides those of one configuration.
    pub(crate) fn count_besides(&self, collection: &str, name: &str) -> usize {
        let entries = self.store.list(collection, Page::default()).entries;
        let others = entries.iter().filter(|entry| *entry.name != *name);
        others.map(|entry| entry.value.value()["webhooks"].as_array().map_or(0, Vec::len)).sum()
    }
}
