//! State that all handlers share.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hutch_kubelet::Kubelet;
use hutch_serve::{Ambient, Authority};
use hutch_store::Store;
use serde_json::{Value, json};

use crate::access::Access;
use crate::bounds::Bound;
use crate::certificates::Certificates;
use crate::credentials::Credentials;
use crate::hooks::{Connector, Hooks};
use crate::journal::{Audit, Refusals};
use crate::kinds::Kind;
use crate::locks::NamespaceLocks;
use crate::meta;
use crate::object::Object;
use crate::registry::Registry;
use crate::service_token::Signer;

/// Collection of CustomResourceDefinitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// State of the API server, which all handlers share.
pub(crate) struct Core {
    /// Held while the definitions are listed and served.
    pub(crate) reloading: Mutex<()>,
    pub(crate) store: Store<Object>,
    pub(crate) registry: Registry,
    pub(crate) credentials: Credentials,
    pub(crate) access: Access,
    /// Held while an object is created under a quota.
    pub(crate) creates: NamespaceLocks,
    pub(crate) signer: Signer,
    pub(crate) default_node: Option<String>,
    pub(crate) authority: Option<Arc<Authority>>,
    pub(crate) certificates: Certificates,
    pub(crate) address: OnceLock<String>,
    pub(crate) kubelet: OnceLock<Arc<dyn Kubelet>>,
    pub(crate) connector: OnceLock<Arc<dyn Connector>>,
    pub(crate) hooks: Hooks,
    pub(crate) audit: OnceLock<Arc<dyn Audit>>,
    pub(crate) refusals: Refusals,
    pub(crate) ambient: Ambient,
    pub(crate) watches: Arc<Bound>,
    pub(crate) streams: Arc<Bound>,
    pub(crate) requests: Arc<Bound>,
}

impl Core {
    /// A stored object, as the next write finds it.
    pub(crate) fn read(&self, collection: &str, key: &str) -> Option<Value> {
        self.store.latest(collection, key).map(|entry| entry.value.value())
    }

    /// Serves the CustomResourceDefinitions that are stored now.
    pub(crate) fn reload_definitions(&self) {
        // What is listed first must not be served last.
        let _turn = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let list = self.store.list(DEFINITIONS, hutch_store::Page::default());
        let mut kinds = Vec::new();
        for entry in list.entries {
            match Kind::from_crd(&entry.value.value()) {
                Ok(versions) => {
                    kinds.extend(versions.into_iter().map(|kind| Kind { defined: entry.revision, ..kind }));
                }
                Err(problem) => tracing::warn!(name = %entry.name, %problem, "a definition cannot be served"),
            }
        }
        self.registry.serve(kinds);
    }

    /// An object with the metadata that the server gives.
    pub(crate) fn new_object(
        &self,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Value {
        let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name } });
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        self.fill_metadata(&mut object);
        object
    }

    /// Sets the identifier and the creation time of an object.
    pub(crate) fn fill_metadata(&self, object: &mut Value) {
        let metadata = meta::metadata(object);
        metadata.insert("uid".into(), self.ambient.uuid().to_string().into());
        metadata.insert("creationTimestamp".into(), meta::seconds(self.ambient.now()).into());
    }
}
