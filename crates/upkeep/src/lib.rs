//! Controllers of kube-controller-manager, as far as Agent Sandbox and its clients need them on one machine: garbage
//! collection by owner references, namespaces, Deployments, ReplicaSets, ReplicationControllers, StatefulSets,
//! PodDisruptionBudgets, EndpointSlices, default ServiceAccounts, the age of Events.
//!
//! It speaks to the API server only through [`kube::Client`], and acts on events; nothing is polled but the age of
//! Events and a namespace that is being emptied. Every reconciler observes, plans (a pure function) and applies. An object
//! that cannot be read is reported by an Event and left as it is, with its dependents; the others continue.
//!
//! It refuses to delete on a stale view: owners are read live and compared by UID before a dependent goes, and the
//! deletion holds only for the state that was read. It schedules nothing and runs nothing. On a cluster it is not
//! needed: Kubernetes does all this itself.

mod disruption;
mod endpoints;
mod error;
mod events;
mod garbage;
mod kinds;
mod members;
mod namespace;
mod reader;
mod workload;

use std::future;
use std::sync::Arc;

use hutch_reconcile::record;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use error::Error;

use crate::kinds::Kinds;
use crate::reader::Reader;

/// Component that the Events name.
const REPORTER: &str = "hutch-upkeep";

/// Settings of the operator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Certificate of the cluster's authority in PEM, given to every namespace as ConfigMap `kube-root-ca.crt`.
    pub root_ca: String,
    /// Events that happened last before so long are deleted.
    pub event_age: std::time::Duration,
}

impl Default for Settings {
    /// No certificate, and one hour for Events, as in Kubernetes.
    fn default() -> Self {
        Self { root_ca: String::new(), event_age: std::time::Duration::from_secs(3600) }
    }
}

/// Reconciles until `shutdown` resolves.
///
/// # Errors
///
/// When the API server does not list its kinds at the start, or a reconciler breaks. Failures on single
/// objects are logged and tried again.
pub async fn run(
    client: Client,
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let (kinds, latest) = watch::channel(Arc::new(Kinds::discover(&client).await?));
    let mut tasks = JoinSet::new();
    tasks.spawn(garbage::run(client.clone(), kinds));
    let Settings { root_ca, event_age } = settings;
    let (recorder, writer) = record::recorder(client.clone(), REPORTER);
    let write_events = writer.run(|| future::ready(()), future::pending());
    let reader = Arc::new(Reader::new(client, recorder));
    tasks.spawn(namespace::run(namespace::Context { reader: reader.clone(), kinds: latest, root_ca }));
    tasks.spawn(workload::deployment::run(reader.clone()));
    tasks.spawn(workload::replica_set::run::<ReplicaSet>(reader.clone()));
    tasks.spawn(workload::replica_set::run::<ReplicationController>(reader.clone()));
    tasks.spawn(workload::stateful_set::run(reader.clone()));
    tasks.spawn(disruption::run(reader.clone()));
    tasks.spawn(endpoints::run(reader.clone()));
    tasks.spawn(events::run(reader, event_age));
    tokio::select! {
        () = shutdown => Ok(()),
        () = write_events => Ok(()),
        Some(ended) = tasks.join_next() => ended.map_err(Error::Broken)?,
    }
}
