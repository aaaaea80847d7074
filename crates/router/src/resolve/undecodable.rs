//! Drops undecodable Pods from a watch.

use hutch_api::{Read, Unreadable};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;

/// Returns the event, unless its Pod is undecodable: only that Pod is then unreachable.
pub(crate) fn decodable(event: watcher::Event<Read<Pod>>) -> Option<watcher::Event<Pod>> {
    let decoded = |read: Read<Pod>| match read {
        Read::Object(pod) => Some(pod),
        Read::Unreadable(unreadable) => {
            let Unreadable { metadata, problem } = *unreadable;
            let (namespace, name) = (metadata.namespace, metadata.name);
            tracing::warn!(namespace, name, problem, "a Pod cannot be decoded");
            None
        }
    };
    Some(match event {
        watcher::Event::Apply(pod) => watcher::Event::Apply(decoded(pod)?),
        watcher::Event::Delete(Read::Object(pod)) => watcher::Event::Delete(pod),
        watcher::Event::Delete(Read::Unreadable(unreadable)) => {
            watcher::Event::Delete(Pod { metadata: unreadable.metadata, ..Pod::default() })
        }
        watcher::Event::InitApply(pod) => watcher::Event::InitApply(decoded(pod)?),
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitDone => watcher::Event::InitDone,
    })
}
