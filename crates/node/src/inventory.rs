//! Which Pods are bound here: each gets a task of its own.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use hutch_api::{Read, Unreadable, owner};
use hutch_image::PathSegment;
use hutch_kubelet::PodId;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::task::JoinSet;

use crate::live::{Live, Update};
use crate::pod;
use crate::shared::{PolicyNews, Shared};

/// Follows the Pods of this node until it stops, and then waits for their tasks.
pub(crate) async fn run(node: Arc<Shared>) {
    let api: Api<Read<Pod>> = Api::all(node.client.clone());
    let chosen = watcher::Config::default().fields(&format!("spec.nodeName={}", node.config.node_name));
    let stream = watcher(api, chosen).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut tasks = JoinSet::new();
    let mut listed: HashSet<String> = HashSet::new();
    loop {
        let event = tokio::select! {
            () = node.shutdown.wait() => break,
            event = stream.next() => event,
            // Only to release ended tasks.
            Some(_) = tasks.join_next() => continue,
        };
        match event {
            Some(Ok(watcher::Event::Init)) => listed.clear(),
            Some(Ok(watcher::Event::InitApply(pod))) => {
                listed.insert(pod.uid().unwrap_or_default());
                take(&node, pod, &mut tasks);
            }
            Some(Ok(watcher::Event::InitDone)) => {
                for live in node.all().into_iter().filter(|live| !listed.contains(&live.id.uid)) {
                    live.update(Update::Gone);
                }
                sweep(&node, &listed).await;
                if let Some(policies) = &node.policies {
                    // Without the task there is nothing to forget.
                    let _ = policies.send(PolicyNews::Listed);
                }
            }
            Some(Ok(watcher::Event::Apply(pod))) => take(&node, pod, &mut tasks),
            Some(Ok(watcher::Event::Delete(pod))) => {
                if let Some(live) = node.find(&pod.uid().unwrap_or_default()) {
                    live.update(Update::Gone);
                }
            }
            Some(Err(error)) => tracing::debug!(%error, "watching Pods is retried"),
            None => break,
        }
    }
    while tasks.join_next().await.is_some() {}
}

fn take(node: &Arc<Shared>, pod: Read<Pod>, tasks: &mut JoinSet<()>) {
    let pod = match pod {
        Read::Object(pod) => pod,
        Read::Unreadable(unreadable) => {
            let Unreadable { metadata, problem } = *unreadable;
            let (namespace, name) = (metadata.namespace, metadata.name);
            tracing::warn!(namespace, name, problem, "a Pod cannot be read and is left as it is");
            return;
        }
    };
    let (Some(uid), Some(namespace), Some(name)) =
        (pod.metadata.uid.clone(), pod.metadata.namespace.clone(), pod.metadata.name.clone())
    else {
        return;
    };
    // The uid names folders; the API server makes it, but nothing is gained by trust.
    let plain = !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let Some(segment) = PathSegment::new(&*uid).filter(|_| plain) else {
        tracing::warn!(namespace, name, "a Pod with an unusable uid is not run");
        return;
    };
    let pod = Arc::new(pod);
    if let Some(live) = node.find(&uid) {
        // Its policies are those of its labels and of its Sandbox.
        let of =
            |pod: &Pod| (pod.metadata.labels.clone(), owner::sandbox(pod).map(|owner| owner.uid.clone()));
        let changed = of(&live.pod()) != of(&pod);
        live.update(Update::Present(pod));
        if changed {
            node.tell_policies(PolicyNews::Changed(live));
        }
        return;
    }
    let live = Arc::new(Live::new(PodId { namespace, name, uid }, segment, pod, &node.shutdown));
    node.add(live.clone());
    tasks.spawn(pod::run(node.clone(), live));
}

/// Removes the folders of Pods that vanished while the node was not there.
async fn sweep(node: &Arc<Shared>, listed: &HashSet<String>) {
    let roots = [node.places.pods.clone(), node.places.memory.clone()];
    let names = tokio::task::spawn_blocking(move || {
        let entries = roots.iter().flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten());
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(PathSegment::new).collect::<HashSet<_>>()
    });
    for name in names.await.unwrap_or_default() {
        if !listed.contains(name.as_str()) && node.find(name.as_str()).is_none() {
            node.remove_folders(&name).await;
        }
    }
}
