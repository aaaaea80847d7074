//! The watches of policies and of the objects by which they are attached.

use std::fmt::Debug;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};

/// Objects of a page of a list: one has up to a megabyte, and all of a page are in memory at once.
const PAGE: u32 = 50;

/// Returns the way to list and watch objects that can be large.
pub fn in_small_pages() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Group and version of the policies.
const GROUP_VERSION: (&str, &str) = ("policy.hutch.dev", "v1alpha1");

/// Events of a watch, without failures, which are logged: it tries again by itself, also where nothing else happens meanwhile.
pub type Events<K> = BoxStream<'static, watcher::Event<K>>;

/// Returns the events of a watch.
pub fn logged<K: Send + 'static>(
    watch: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
) -> Events<K> {
    let logged = |event: watcher::Result<_>| {
        let event = event.inspect_err(|error| tracing::warn!(%error, "a watch failed and is tried again"));
        std::future::ready(event.ok())
    };
    watch.default_backoff().filter_map(logged).boxed()
}

/// Returns the resource of a kind of policies.
pub fn policies_of_kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP_VERSION.0, GROUP_VERSION.1, kind))
}

/// Watches a kind in all namespaces.
pub fn watch(client: &Client, kind: &ApiResource) -> Events<DynamicObject> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    logged(watcher(api, in_small_pages()))
}

/// Watches the metadata of a kind in all namespaces.
pub fn watch_metadata<K>(client: &Client) -> Events<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    logged(watcher(api, in_small_pages()))
}
