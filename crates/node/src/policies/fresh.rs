//! When the rules for files of a Pod are known: a Pod gets those of every policy that was stored before it was.
//!
//! They are enforced once, when its containers start, and watches may lag behind. So the versions of what is stored are read
//! once for all Pods that have come since the last time, and the Pods wait until the watches have reported these versions.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::try_join_all;
use hutch_api::{Sandbox, SandboxTemplate, owner};
use hutch_attach::{policies_of_kind, version};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{ObjectList, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::known::Known;

/// Pause before the versions are read again, because the watches have not reported them or the server did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Latest version of the objects of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Versions {
    policies: u64,
    cluster_policies: u64,
    templates: u64,
    namespaces: u64,
    sandboxes: u64,
}

impl Versions {
    /// Returns true if the watches have reported these versions.
    fn are_known(self, known: &Known) -> bool {
        known.objects.policies.seen >= self.policies
            && known.objects.cluster_policies.seen >= self.cluster_policies
            && known.objects.templates.seen >= self.templates
            && known.objects.namespaces.seen >= self.namespaces
            && known.objects.sandboxes.seen >= self.sandboxes
    }
}

/// A Pod that waits.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    namespace: String,
    uid: String,
    /// Name of the Sandbox that owns it.
    sandbox: Option<String>,
}

/// Pods that wait for their rules.
#[derive(Default)]
pub(super) struct Fresh {
    /// Those that have come since the versions were read.
    next: BTreeSet<Waiting>,
    /// Those that wait for the versions.
    waiting: BTreeSet<Waiting>,
    reads: JoinSet<kube::Result<Versions>>,
    versions: Option<Versions>,
    again: Option<Instant>,
}

impl Fresh {
    /// Adds a Pod.
    pub(super) fn add(&mut self, client: &Client, pod: &Pod, uid: &str) {
        let sandbox = owner::sandbox(pod).map(|owner| owner.name.clone());
        let namespace = pod.namespace().unwrap_or_default();
        self.next.insert(Waiting { namespace, uid: uid.to_owned(), sandbox });
        self.read(client);
    }

    /// Reads the versions, unless that is in progress.
    fn read(&mut self, client: &Client) {
        if self.waiting.is_empty() && !self.next.is_empty() {
            self.waiting = std::mem::take(&mut self.next);
            self.begin(client);
        }
    }

    fn begin(&mut self, client: &Client) {
        let namespaces = self.waiting.iter().map(|pod| pod.namespace.clone()).collect();
        let sandboxes =
            self.waiting.iter().filter_map(|pod| Some((pod.namespace.clone(), pod.sandbox.clone()?)));
        let sandboxes = sandboxes.collect();
        (self.versions, self.again) = (None, None);
        self.reads.spawn(versions(client.clone(), namespaces, sandboxes));
    }

    /// Waits for the next step, which is then taken.
    pub(super) async fn step(&mut self, client: &Client) {
        let again = self.again;
        tokio::select! {
            Some(read) = self.reads.join_next() => {
                let read = read.map_err(|error| error.to_string());
                let read = read.and_then(|read| read.map_err(|error| error.to_string()));
                self.versions = read
                    .inspect_err(|error| tracing::warn!(error, "failed to read the versions of policies; trying again"))
                    .ok();
                self.again = Some(Instant::now() + AGAIN);
            }
            () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                self.begin(client);
            }
            else => std::future::pending().await,
        }
    }

    /// Returns the uids of the Pods whose rules are known now.
    pub(super) fn settled(&mut self, client: &Client, known: &Known) -> Vec<String> {
        if !self.versions.is_some_and(|versions| versions.are_known(known)) {
            return Vec::new();
        }
        (self.versions, self.again) = (None, None);
        let settled = std::mem::take(&mut self.waiting);
        self.read(client);
        settled.into_iter().map(|pod| pod.uid).collect()
    }
}

/// Reads the versions of all policies, of the templates and labels of these namespaces, and of these Sandboxes.
async fn versions(
    client: Client,
    namespaces: BTreeSet<String>,
    sandboxes: BTreeSet<(String, String)>,
) -> kube::Result<Versions> {
    let all = ListParams::default();
    let policies = |kind: &str| {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &policies_of_kind(kind));
        let all = all.clone();
        async move { api.list_metadata(&all).await }
    };
    let templates = try_join_all(namespaces.iter().map(|namespace| {
        let kind = ApiResource::erase::<SandboxTemplate>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        let all = all.clone();
        async move { api.list_metadata(&all).await }
    }));
    let labels = try_join_all(namespaces.iter().map(|namespace| {
        let api: Api<Namespace> = Api::all(client.clone());
        let this = ListParams::default().fields(&format!("metadata.name={namespace}"));
        async move { api.list_metadata(&this).await }
    }));
    let sandboxes = try_join_all(sandboxes.iter().map(|(namespace, name)| {
        let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
        // One that is gone has no policies.
        async move { Ok(api.get_metadata_opt(name).await?.as_ref().map(version).unwrap_or_default()) }
    }));
    let (own, cluster) = (policies("SandboxPolicy"), policies("ClusterSandboxPolicy"));
    let (own, cluster, templates, sandboxes, namespaces) =
        tokio::try_join!(own, cluster, templates, sandboxes, labels)?;
    Ok(Versions {
        policies: newest(&own),
        cluster_policies: newest(&cluster),
        templates: templates.iter().map(newest).max().unwrap_or_default(),
        namespaces: namespaces.iter().map(newest).max().unwrap_or_default(),
        sandboxes: sandboxes.into_iter().max().unwrap_or_default(),
    })
}

/// Returns the latest version in a list.
fn newest<K: Clone>(list: &ObjectList<PartialObjectMeta<K>>) -> u64
where
    PartialObjectMeta<K>: ResourceExt,
{
    list.items.iter().map(version).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_when_every_watch_has_reported_them() {
        let versions =
            Versions { policies: 5, cluster_policies: 0, templates: 7, namespaces: 2, sandboxes: 8 };
        let mut known = Known::default();
        assert!(!versions.are_known(&known));
        (known.objects.policies.seen, known.objects.namespaces.seen) = (5, 9);
        assert!(!versions.are_known(&known), "templates");
        known.objects.templates.seen = 7;
        assert!(!versions.are_known(&known), "Sandboxes, whose labels say which policies apply");
        known.objects.sandboxes.seen = 8;
        assert!(versions.are_known(&known));
        assert!(Versions::default().are_known(&Known::default()), "nothing is stored");
    }
}
