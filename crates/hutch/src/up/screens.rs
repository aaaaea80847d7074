//! Scanners of policies for the output of Pods that passes the front: of commands, and in answers of the router.
//!
//! Only policies are followed as long as none of them scans output here. A Pod of which nothing is known yet gives none.

mod kubelet;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use futures::StreamExt;
use futures::future::BoxFuture;
use hutch_api::{Sandbox, SandboxTemplate};
use hutch_attach::{
    Events, Mirror, Objects, SandboxFacts, TemplateFacts, policies_of_kind, watch, watch_metadata,
};
use hutch_kubelet::PodId;
use hutch_policy::{Door, Policies};
use hutch_router::Screens as RouterScreens;
use hutch_screen::Screen;
use hutch_serve::Shutdown;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use tokio::sync::watch::{Sender, channel};
use tokio::sync::{RwLock, RwLockReadGuard};

pub(super) use kubelet::ScreenedKubelet;

use super::audit::{FrontFindings, FrontLog};

/// Doors of the front.
pub(super) const DOORS: [Door; 2] = [Door::Exec, Door::Downloads];
/// Maximum time until a Pod and its policies are known.
const KNOWN: Duration = Duration::from_secs(10);

/// The policies, and what they refer to.
#[derive(Default)]
struct Known {
    objects: Objects,
    pods: Mirror<Pod>,
}

/// Says what is scanned.
pub(super) struct Screens {
    known: RwLock<Known>,
    /// For each door, `false` if no policy scans there.
    scans: [AtomicBool; DOORS.len()],
    changed: Sender<()>,
    /// Audit log, if there is one.
    log: Option<Arc<FrontLog>>,
}

/// Watches of what policies refer to.
struct Others {
    namespaces: Events<PartialObjectMeta<Namespace>>,
    templates: Events<DynamicObject>,
    sandboxes: Events<PartialObjectMeta<Sandbox>>,
    pods: Events<PartialObjectMeta<Pod>>,
}

impl Others {
    fn new(client: &Client) -> Others {
        Others {
            namespaces: watch_metadata::<Namespace>(client),
            templates: watch(client, &ApiResource::erase::<SandboxTemplate>(&())),
            sandboxes: watch_metadata::<Sandbox>(client),
            pods: watch_metadata::<Pod>(client),
        }
    }
}

impl Screens {
    /// Follows the policies until the shutdown.
    pub(super) fn start(client: Client, log: Option<Arc<FrontLog>>, shutdown: &Shutdown) -> Arc<Screens> {
        // Until the policies are known, they may scan.
        let scans = [(); DOORS.len()].map(|()| AtomicBool::new(true));
        let screens = Arc::new(Screens { known: RwLock::default(), scans, changed: channel(()).0, log });
        let (this, stop) = (screens.clone(), shutdown.wait());
        tokio::spawn(async move {
            tokio::select! {
                () = stop => {}
                () = this.follow(client) => {}
            }
        });
        screens
    }

    async fn follow(&self, client: Client) {
        let mut own = watch(&client, &policies_of_kind("SandboxPolicy"));
        let mut cluster = watch(&client, &policies_of_kind("ClusterSandboxPolicy"));
        let mut others = None;
        loop {
            tokio::select! {
                Some(event) = own.next() => {
                    self.known.write().await.objects.policies.take_policy(event);
                }
                Some(event) = cluster.next() => {
                    self.known.write().await.objects.cluster_policies.take_policy(event);
                }
                () = self.follow_others(&mut others) => {}
            }
            let mut known = self.known.write().await;
            if !known.objects.policies.complete || !known.objects.cluster_policies.complete {
                continue;
            }
            for (door, scans) in DOORS.iter().zip(&self.scans) {
                let policies = [&known.objects.policies.objects, &known.objects.cluster_policies.objects];
                scans.store(policies.iter().any(|all| any_scans(all, *door)), Ordering::Release);
            }
            match (DOORS.iter().any(|door| self.scans(*door)), &others) {
                (true, None) => others = Some(Others::new(&client)),
                (false, Some(_)) => {
                    others = None;
                    forget(&mut known);
                }
                _ => {}
            }
            drop(known);
            self.changed.send_replace(());
        }
    }

    /// Takes the next event about what policies refer to.
    async fn follow_others(&self, others: &mut Option<Others>) {
        let Some(others) = others else { return std::future::pending().await };
        tokio::select! {
            Some(event) = others.namespaces.next() => {
                let objects = &mut self.known.write().await.objects;
                objects.namespaces.take(event, |object| object.labels().clone());
            }
            Some(event) = others.templates.next() => {
                self.known.write().await.objects.templates.take(event, TemplateFacts::of);
            }
            Some(event) = others.sandboxes.next() => {
                self.known.write().await.objects.sandboxes.take(event, |object| SandboxFacts::of(&object));
            }
            Some(event) = others.pods.next() => {
                self.known.write().await.pods.take(event, reduced);
            }
            else => std::future::pending().await,
        }
    }

    fn scans(&self, door: Door) -> bool {
        let place = DOORS.iter().position(|one| *one == door);
        place.is_some_and(|place| self.scans[place].load(Ordering::Acquire))
    }

    /// Returns what is scanned of a Pod; `None` if nothing is.
    pub(super) async fn of(&self, pod: &PodId, door: Door) -> anyhow::Result<Option<Screen>> {
        if !self.scans(door) {
            return Ok(None);
        }
        let mut changes = self.changed.subscribe();
        let found = async {
            loop {
                changes.borrow_and_update();
                if !self.scans(door) {
                    return None;
                }
                if let Some(found) = self.screen(&self.known.read().await, pod, door) {
                    return found;
                }
                // The sender is in this object.
                let _ = changes.changed().await;
            }
        };
        match tokio::time::timeout(KNOWN, found).await {
            Ok(found) => Ok(found),
            Err(_) => bail!("the policies of pod {} are not known", pod.name),
        }
    }

    /// Returns what is scanned of a Pod, once it is known.
    fn screen(&self, known: &RwLockReadGuard<'_, Known>, pod: &PodId, door: Door) -> Option<Option<Screen>> {
        let found = known.pods.objects.get(&(pod.namespace.clone(), pod.name.clone()))?;
        if found.metadata.uid.as_ref() != Some(&pod.uid) {
            return None;
        }
        let screen = Screen::of(&known.objects.scanning(found, Timestamp::now())?, door);
        Some(match &self.log {
            Some(log) => {
                screen.map(|screen| screen.recorded(Arc::new(FrontFindings::new(log.clone(), found))))
            }
            None => screen,
        })
    }
}

/// Returns true if a policy scans at a door. One that cannot be read scans nothing.
fn any_scans(policies: &Policies, door: Door) -> bool {
    let mut scanners = policies.values().filter_map(|policy| policy.object()?.scanner());
    scanners.any(|scanner| scanner.at(door).is_some())
}

/// Forgets what is not followed any more.
fn forget(known: &mut Known) {
    known.objects.namespaces = Mirror::default();
    known.objects.templates = Mirror::default();
    known.objects.sandboxes = Mirror::default();
    known.pods = Mirror::default();
}

/// Returns what decides which policies apply to a Pod.
fn reduced(pod: PartialObjectMeta<Pod>) -> Pod {
    let mut metadata = pod.metadata;
    (metadata.managed_fields, metadata.annotations, metadata.resource_version) = (None, None, None);
    Pod { metadata, ..Pod::default() }
}

impl RouterScreens for Screens {
    fn of<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Option<Screen>, String>> {
        Box::pin(
            async move { Screens::of(self, pod, Door::Downloads).await.map_err(|error| error.to_string()) },
        )
    }

    fn is_idle(&self) -> bool {
        !self.scans(Door::Downloads)
    }
}
