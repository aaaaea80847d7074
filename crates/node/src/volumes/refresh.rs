//! Refreshes volumes of ConfigMaps, Secrets, the downward API and projections in running Pods.

use std::sync::Arc;
use std::time::Duration;

use hutch_image::PathSegment;
use k8s_openapi::api::core::v1::{Pod, Volume};

use super::given::{Given, Sources};
use super::{given_folder, publish};
use crate::environment::Facts;
use crate::live::Live;
use crate::security;
use crate::shared::{HOST_IP, Shared};

/// How often the objects of each Pod's volumes are read.
const EVERY: Duration = Duration::from_secs(10);

/// Refreshes volumes until the node stops.
pub(crate) async fn watch(node: Arc<Shared>) {
    loop {
        tokio::select! {
            () = node.shutdown.wait() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        for live in node.all() {
            if !is_over(&live) {
                refresh(&node, &live).await;
            }
        }
    }
}

fn is_over(live: &Live) -> bool {
    live.has_ended() || live.is_evicted() || live.pod().metadata.deletion_timestamp.is_some()
}

async fn refresh(node: &Shared, live: &Live) {
    let written = live.given();
    if written.is_empty() {
        return;
    }
    let (pod, Some(address)) = (live.pod(), live.address()) else { return };
    let address = address.to_string();
    let facts = facts(node, &pod, &address);
    let sources =
        Sources { client: &node.client, namespace: &live.id.namespace, facts: &facts, tokens: &live.tokens };
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let Some(before) = written.get(&volume.name) else { continue };
        match sources.given(volume).await {
            Ok(Some(given)) if publish::digest(&given.items) != *before => match live.closed_files() {
                None => replace(node, live, volume, given).await,
                Some(closed) => withhold(node, live, &pod, volume, &given, &closed),
            },
            Ok(_) => {}
            Err(message) => {
                let message = format!("MountVolume.SetUp failed for volume {:?} : {message}", volume.name);
                node.events.warning(&pod, "FailedMount", message);
            }
        }
    }
}

/// Reports that a volume is not refreshed. A rule for files closes a file by a mount over it, and a link may lead from the path
/// of the rule into any volume, so a file that takes its place could be open.
fn withhold(node: &Shared, live: &Live, pod: &Pod, volume: &Volume, given: &Given, closed: &str) {
    if live.withhold(&volume.name, publish::digest(&given.items)) {
        let message = format!(
            "volume {:?} has changed, and its files stay as they are until the Pod is recreated, because policies close \
             files of the Pod ({closed})",
            volume.name
        );
        node.events.warning(pod, "VolumeNotRefreshed", message);
    }
}

async fn replace(node: &Shared, live: &Live, volume: &Volume, given: Given) {
    let Some(name) = PathSegment::label(&volume.name) else { return };
    let path = given_folder(&node.places.pod(&live.uid), &name, given.secret);
    let digest = publish::digest(&given.items);
    // A Pod whose group is wrong was not started.
    let group = live.pod().spec.as_ref().and_then(|spec| security::fs_group(spec).ok()).flatten();
    let done = tokio::task::spawn_blocking(move || publish::publish(&path, &given.items, group)).await;
    match done {
        Ok(Ok(())) => live.set_given(&volume.name, digest),
        Ok(Err(error)) => {
            tracing::debug!(pod = live.id.name, volume = volume.name, %error, "failed to refresh a volume");
        }
        Err(_) => {}
    }
}

/// Returns the facts about a Pod to which its volumes refer.
pub(crate) fn facts<'a>(node: &'a Shared, pod: &'a Pod, pod_ip: &'a str) -> Facts<'a> {
    Facts {
        pod,
        pod_ip,
        host_ip: HOST_IP,
        node_name: &node.config.node_name,
        defaults: node.config.defaults,
        allocatable: node.capacity.total(),
    }
}
