//! Bounds of snapshots: of the node, of its disk, and of a namespace by its annotations.
//!
//! The memory of suspended Sandboxes is not counted and never deleted. Snapshots that a fork owns, and those that a Sandbox
//! or a template names, are not deleted either.

use std::sync::Arc;

use hutch_api::annotation::{ORIGIN_POD, POD_SNAPSHOT, RESTORE_FROM, SNAPSHOTS_KEEP_LAST};
use hutch_api::state::{Retention, SandboxSnapshot, is_suspend, reason};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use tokio::task::spawn_blocking;

use super::take::Failure;
use crate::saved::Needed;
use crate::shared::Shared;

/// Maximum images of snapshots on a node, without those of suspends.
const MAX_IMAGES: usize = 10_000;

/// Checks that a snapshot which needs so many bytes may be taken.
pub(super) async fn admit(
    node: &Arc<Shared>,
    snapshot: &SandboxSnapshot,
    needed: Needed,
) -> Result<(), Failure> {
    if is_suspend(&snapshot.name_any()) {
        return Ok(());
    }
    let shared = node.clone();
    spawn_blocking(move || admit_here(&shared, needed)).await??;
    check_bytes(node, snapshot, needed.own).await
}

/// Checks the bounds of the node. Blocks.
fn admit_here(node: &Shared, needed: Needed) -> Result<(), Failure> {
    let kept = node.snapshots.of_users()?;
    if kept >= MAX_IMAGES {
        let message = format!("this node keeps {kept} snapshots, and at most {MAX_IMAGES}: delete some");
        return Err(Failure { reason: reason::QUOTA_EXCEEDED, message });
    }
    let disk = rustix::fs::statvfs(&node.places.snapshots)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let used = bytes(disk.f_blocks.saturating_sub(disk.f_bfree));
    let (high, after) = (node.config.snapshot_disk_high, used.saturating_add(needed.all));
    let percent = percent(after, used.saturating_add(bytes(disk.f_bavail)));
    if percent > u64::from(high) {
        let message = format!(
            "the disk of the data folder would be used to {percent} %, and snapshots are taken up to {high} % \
             (`hutch up --snapshot-disk-high`): {} bytes are needed",
            needed.own
        );
        return Err(Failure { reason: reason::DISK_FULL, message });
    }
    Ok(())
}

/// Part of a whole in percent, rounded up.
fn percent(part: u64, whole: u64) -> u64 {
    let percent = (u128::from(part) * 100).div_ceil(u128::from(whole.max(1)));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// Checks that the namespace of a snapshot may keep so many bytes more.
pub(super) async fn check_bytes(
    node: &Shared,
    snapshot: &SandboxSnapshot,
    needed: u64,
) -> Result<(), Failure> {
    if is_suspend(&snapshot.name_any()) {
        return Ok(());
    }
    let Some(limit) = retention(node, snapshot).await?.bytes else { return Ok(()) };
    let others = snapshots(node, snapshot).list(&ListParams::default()).await?.items;
    let others = others.iter().filter(|other| is_complete(other) && other.uid() != snapshot.uid());
    let used = others.filter_map(|other| other.status.as_ref()?.sizes.as_ref());
    let used = used.fold(0_u64, |all, sizes| all.saturating_add(sizes.memory).saturating_add(sizes.files));
    if used.saturating_add(needed) <= limit {
        return Ok(());
    }
    let message = format!(
        "its namespace may keep {limit} bytes of snapshots (annotation {}), and keeps {used}: {needed} are needed",
        hutch_api::annotation::SNAPSHOTS_BYTES
    );
    Err(Failure { reason: reason::QUOTA_EXCEEDED, message })
}

/// Deletes the oldest snapshots of the Sandbox of a new one, beyond the number that the namespace keeps.
pub(super) async fn prune(node: &Shared, snapshot: &SandboxSnapshot, sandbox_uid: &str) {
    if let Err(error) = try_prune(node, snapshot, sandbox_uid).await {
        let (snapshot, error) = (snapshot.name_any(), error.message);
        tracing::warn!(snapshot, error, "older snapshots are not deleted");
    }
}

async fn try_prune(node: &Shared, new: &SandboxSnapshot, sandbox_uid: &str) -> Result<(), Failure> {
    let Some(kept) = retention(node, new).await?.keep_last.filter(|_| !is_suspend(&new.name_any())) else {
        return Ok(());
    };
    let api = snapshots(node, new);
    let mut older = api.list(&ListParams::default()).await?.items;
    older.retain(|one| {
        let of = one.status.as_ref().and_then(|status| status.sandbox_uid.as_deref());
        is_complete(one)
            && of == Some(sandbox_uid)
            && one.owner_references().is_empty()
            // The next Pod begins with the newest of those that triggers made.
            && !one.annotations().contains_key(ORIGIN_POD)
            && one.uid() != new.uid()
    });
    // The newest first. The new one is kept in any case.
    older.sort_by_key(|one| std::cmp::Reverse(completed(one)));
    let surplus: Vec<_> = older.into_iter().skip(kept.saturating_sub(1)).collect();
    if surplus.is_empty() {
        return Ok(());
    }
    let named = named(node, new).await?;
    let (mut deleted, mut failed) = (Vec::new(), None);
    for one in surplus.iter().filter(|one| !named.contains(&one.name_any())) {
        let preconditions = Preconditions { uid: one.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(&one.name_any(), &parameters).await {
            Ok(_) => {
                tracing::info!(snapshot = one.name_any(), kept, "deleted an older snapshot");
                deleted.push(format!("{:?}", one.name_any()));
            }
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {}
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if !deleted.is_empty() {
        let message = format!(
            "Deleted {}: the namespace keeps the last {kept} snapshots of a Sandbox (annotation {SNAPSHOTS_KEEP_LAST})",
            deleted.join(", ")
        );
        node.events.of_deleted(new, sandbox_uid.to_owned(), message);
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Time of the completion of a snapshot.
fn completed(snapshot: &SandboxSnapshot) -> Option<jiff::Timestamp> {
    super::follow::ready(snapshot).map(|ready| ready.last_transition_time.0)
}

fn is_complete(snapshot: &SandboxSnapshot) -> bool {
    let ready = super::follow::ready(snapshot);
    !is_suspend(&snapshot.name_any()) && ready.is_some_and(|ready| ready.reason == reason::COMPLETED)
}

fn snapshots(node: &Shared, snapshot: &SandboxSnapshot) -> Api<SandboxSnapshot> {
    Api::namespaced(node.client.clone(), &snapshot.namespace().unwrap_or_default())
}

async fn retention(node: &Shared, snapshot: &SandboxSnapshot) -> Result<Retention, Failure> {
    let api: Api<Namespace> = Api::all(node.client.clone());
    let namespace = api.get_opt(&snapshot.namespace().unwrap_or_default()).await?;
    let annotations = namespace.map(|namespace| namespace.annotations().clone()).unwrap_or_default();
    let read = Retention::of(&annotations);
    Ok(read.map_err(|(key, why)| format!("annotation {key} of the namespace: {why}"))?)
}

/// Returns the snapshots that Sandboxes and templates of the namespace name.
async fn named(node: &Shared, snapshot: &SandboxSnapshot) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for (group, kind) in [(hutch_api::GROUP, "Sandbox"), (hutch_api::EXTENSIONS_GROUP, "SandboxTemplate")] {
        let kind = GroupVersionKind::gvk(group, hutch_api::STORED_VERSION, kind);
        let namespace = snapshot.namespace().unwrap_or_default();
        let api: Api<DynamicObject> =
            Api::namespaced_with(node.client.clone(), &namespace, &ApiResource::from_gvk(&kind));
        for object in api.list(&ListParams::default()).await?.items {
            let of_template = object.data.pointer("/spec/podTemplate/metadata/annotations");
            for key in [RESTORE_FROM, POD_SNAPSHOT] {
                names.extend(of_template.and_then(|all| all.get(key)?.as_str()).map(str::to_owned));
                names.extend(object.annotations().get(key).cloned());
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_whole_is_rounded_up() {
        for (part, whole, expected) in [(0, 0, 0), (0, 10, 0), (1, 1000, 1), (80, 100, 80), (801, 1000, 81)] {
            assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        }
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
    }
}
