//! The kinds that the API server serves, asked anew whenever a CustomResourceDefinition changes.

use std::collections::HashMap;
use std::sync::Arc;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::discovery::{Discovery, Scope, verbs};

use crate::Error;

/// A kind that can be listed, watched and deleted.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
}

impl Kind {
    /// The API of the metadata of this kind in all namespaces.
    pub(crate) fn metadata_api(&self, client: &Client) -> Api<PartialObjectMeta<DynamicObject>> {
        Api::all_with(client.clone(), &self.resource)
    }

    /// The API of this kind in a namespace; cluster-wide kinds take none.
    pub(crate) fn api(&self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) if self.namespaced => {
                Api::namespaced_with(client.clone(), namespace, &self.resource)
            }
            _ => Api::all_with(client.clone(), &self.resource),
        }
    }
}

/// One snapshot of what is served.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    /// In one version each, the preferred one: what is watched.
    pub(crate) preferred: Vec<Arc<Kind>>,
    /// Events, which are many, own nothing and go by age: they are not watched.
    pub(crate) events: Vec<Arc<Kind>>,
    /// In all versions, for owner references may name any: by `apiVersion` and `kind`.
    by_name: HashMap<(String, String), Arc<Kind>>,
}

impl Kinds {
    pub(crate) async fn discover(client: &Client) -> Result<Self, Error> {
        let discovery = match Discovery::new(client.clone()).run_aggregated().await {
            Ok(discovery) => discovery,
            // A server without the aggregated form answers group by group.
            Err(_) => Discovery::new(client.clone()).run().await.map_err(Error::Discover)?,
        };
        let mut kinds = Self::default();
        for group in discovery.groups() {
            for version in group.versions() {
                for (resource, abilities) in group.versioned_resources(version) {
                    let namespaced = abilities.scope == Scope::Namespaced;
                    let name = (resource.api_version.clone(), resource.kind.clone());
                    kinds.by_name.insert(name, Arc::new(Kind { resource, namespaced }));
                }
            }
            for (resource, abilities) in group.recommended_resources() {
                let able = [verbs::LIST, verbs::WATCH, verbs::DELETE]
                    .iter()
                    .all(|v| abilities.supports_operation(v));
                if able {
                    let list =
                        if resource.kind == "Event" { &mut kinds.events } else { &mut kinds.preferred };
                    let namespaced = abilities.scope == Scope::Namespaced;
                    list.push(Arc::new(Kind { resource, namespaced }));
                }
            }
        }
        Ok(kinds)
    }

    /// The kind that an owner reference names.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.by_name.get(&(api_version.to_owned(), kind.to_owned())).cloned()
    }
}
