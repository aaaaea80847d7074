//! The watches of policies and of the objects by which they are attached.

use std::fmt::Debug;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};

/// Group and version of the policies.
const GROUP_VERSION: (&str, &str) = ("policy.hutch.dev", "v1alpha1");

/// Events of a watch.
pub type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<K>>>;

/// Returns the resource of a kind of policies.
pub fn policies_of_kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP_VERSION.0, GROUP_VERSION.1, kind))
}

/// Watches a kind in all namespaces.
pub fn watch(client: &Client, kind: &ApiResource) -> Events<DynamicObject> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    watcher(api, watcher::Config::default()).default_backoff().boxed()
}

/// Watches the metadata of a kind in all namespaces.
pub fn watch_metadata<K>(client: &Client) -> Events<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    watcher(api, watcher::Config::default()).default_backoff().boxed()
}
