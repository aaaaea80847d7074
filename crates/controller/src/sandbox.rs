//! `Sandbox`: a Pod with its volumes and, optionally, a Service, under one name.

mod apply;
mod expiry;
mod memory;
mod network;
mod plan;
mod pod;
mod service;
mod sleep;
mod status;
mod volume;

use std::sync::Arc;

use hutch_api::state::{SandboxSnapshot, suspend_name};
use hutch_api::{OperatingMode, Sandbox, annotation, name_hash, pod_name};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;

use crate::context::Context;
use crate::gateway::Gateway;
use crate::key::Key;
use crate::owner;
use crate::pod_snapshot;
use crate::template;
use crate::view::PodView;

pub(crate) use apply::reconcile;

/// State on which a decision about one Sandbox rests.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    sandbox: Arc<Sandbox>,
    /// Pods of the namespace with the label of the Sandbox's name.
    labelled: Vec<Arc<PodView>>,
    /// Pod that the Sandbox's annotation names, else the one of the Sandbox's own name.
    tracked: Option<Arc<PodView>>,
    service: Option<Arc<Service>>,
    /// Volume claims, in the order of their templates.
    volumes: Vec<Option<Arc<PersistentVolumeClaim>>>,
    /// Snapshot of its memory, with which its next Pod begins.
    snapshot: Option<Arc<SandboxSnapshot>>,
    /// Newest snapshot that a trigger of GKE's API has made of it.
    newest: Option<Arc<SandboxSnapshot>>,
    /// Snapshots are made here.
    snapshots: bool,
    /// NetworkPolicy of the Sandbox's own.
    policy: Option<Arc<NetworkPolicy>>,
    /// The template of the Sandbox has its NetworkPolicy, if it should have one.
    template_closes: bool,
    /// Marks the Pods of pools as safe to evict.
    pool_eviction: bool,
    /// Gateway through which the Pod reaches the network.
    gateway: Option<Arc<Gateway>>,
}

/// Pod of a Sandbox, as far as it is known.
#[derive(Debug, Clone)]
enum Located {
    /// The Sandbox has no Pod.
    Missing,
    /// The Sandbox owns this Pod.
    Owned(Arc<PodView>),
    /// A Pod of the right name with another owner, or without one.
    Foreign(Arc<PodView>),
    /// The Sandbox owns several Pods.
    Several(usize),
}

impl Observed {
    pub(super) fn observe(ctx: &Context, sandbox: Arc<Sandbox>) -> Self {
        let key = Key::of(sandbox.as_ref());
        let labelled = ctx.pods.find(&crate::context::name_hash_term(&key.namespace, &name_hash(&key.name)));
        let tracked = ctx.pods.get(&key.beside(pod_name(sandbox.as_ref())));
        let service = ctx.services.get(&key);
        let policy = ctx.policies.get(&key.beside(&network::name(&key.name)));
        let template = sandbox.annotations().get(annotation::TEMPLATE_REF);
        let template_closes = template.is_some_and(|name| template::closes(ctx, &key.beside(name)));
        let volumes = sandbox.spec.volumes().iter();
        let volumes =
            volumes.map(|template| ctx.volumes.get(&key.beside(&volume::name(template, &key.name))));
        let pool_eviction = ctx.config.pool_eviction;
        let snapshot = sandbox.uid().map(|uid| suspend_name(&uid));
        let snapshot = snapshot.and_then(|name| ctx.snapshots.get(&key.beside(&name)));
        // By name alone: users create none with such a name, and change none.
        let snapshots = ctx.config.snapshots;
        let newest = pod_snapshot::newest(ctx, &sandbox);
        let (volumes, gateway) = (volumes.collect(), ctx.config.gateway.clone());
        Observed {
            labelled,
            tracked,
            service,
            volumes,
            snapshot,
            newest,
            snapshots,
            policy,
            template_closes,
            sandbox,
            pool_eviction,
            gateway,
        }
    }

    /// Returns the Pods that the Sandbox controls, of any name.
    fn owned_pods(&self) -> Vec<&Arc<PodView>> {
        let is_owned = |pod: &&Arc<PodView>| owner::is_controlled_by(pod.as_ref(), self.sandbox.as_ref());
        let mut owned: Vec<_> = self.labelled.iter().filter(is_owned).collect();
        if let Some(tracked) = self.tracked.as_ref().filter(is_owned)
            && !owned.iter().any(|pod| pod.uid() == tracked.uid())
        {
            owned.push(tracked);
        }
        owned
    }

    fn locate(&self) -> Located {
        match (self.owned_pods().as_slice(), &self.tracked) {
            ([], None) => Located::Missing,
            ([], Some(tracked)) => Located::Foreign(tracked.clone()),
            ([only], _) => Located::Owned((*only).clone()),
            (several, _) => Located::Several(several.len()),
        }
    }

    /// Returns the Service if the Sandbox owns it.
    fn owned_service(&self) -> Option<&Arc<Service>> {
        self.service
            .as_ref()
            .filter(|service| owner::is_controlled_by(service.as_ref(), self.sandbox.as_ref()))
    }

    fn is_suspended(&self) -> bool {
        self.sandbox.spec.operating_mode == Some(OperatingMode::Suspended)
    }
}

#[cfg(test)]
mod tests;
