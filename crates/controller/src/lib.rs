//! The controllers of the four custom resources: Sandbox, SandboxTemplate, SandboxWarmPool and SandboxClaim.
//!
//! They use only `kube::Client`, for Kubernetes as for Hutch's own API server. Each has three steps: *observe* reads the
//! caches that the watches fill, *plan* is a pure function from that and a time to actions, *apply* carries them out. A
//! decision that two controllers could take at once does not rely on the caches: the server compares the
//! resourceVersion.
//!
//! Running Pods, scheduling, garbage collection and conversion between versions are the tasks of kubelet, scheduler and
//! API server.

mod binding;
mod blueprint;
mod cache;
mod claim;
mod clock;
mod collection;
mod condition;
mod config;
mod error;
#[cfg(test)]
mod fixture;
mod key;
mod memory;
mod metrics;
mod outcome;
mod owner;
mod patch;
mod pending;
mod pool;
mod queue;
mod record;
mod rush {
    //! Name of the burst of claims, which defers events, in [`crate::record`].
    pub(crate) use crate::scheduler::ClaimBurst as Rush;
}
mod sandbox;
mod scheduler;
mod span;
mod template;
mod undecodable;
mod view;
mod wiring;
mod world;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_serve::Shutdown;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use config::Config;
pub use metrics::Metrics;

use crate::key::Key;
use crate::outcome::Outcome;
use crate::queue::Queue;
use crate::wiring::Queues;
use crate::world::World;

/// Maximum time for writing the remaining events after the last reconcile.
const EVENTS_LIMIT: Duration = Duration::from_secs(2);

/// Runs the controllers until the shutdown is triggered; then finishes the reconciles in progress.
///
/// Starts when the first list of every kind is complete. Retries while the API server fails, without limit.
pub async fn run(client: kube::Client, config: Config, shutdown: Shutdown) {
    let (recorder, writer) = record::recorder(client.clone());
    let queues = Arc::new(Queues::new(&config));
    let world = Arc::new(World::new(&client, config, recorder));
    wiring::connect(&world, &queues);
    measure(&world, &queues);

    let (synced, mut ready) = watch::channel(0_usize);
    let mut background = JoinSet::new();
    let (over, mut events) = (Shutdown::new(), JoinSet::new());
    events.spawn(writer.run(world.scheduler.claim_burst().clone(), over.clone()));
    let kinds = feed(&world, &synced, &mut background);
    tokio::select! {
        biased;
        _ = ready.wait_for(|count| *count >= kinds) => {}
        () = shutdown.wait() => return,
    }
    start(&world, &queues.sandboxes, |world, key| async move { sandbox::reconcile(&world, &key).await });
    if world.config.extensions {
        start(&world, &queues.templates, |world, key| async move { template::reconcile(&world, &key).await });
        start(&world, &queues.pools, |world, key| async move { pool::reconcile(&world, &key).await });
        start(&world, &queues.claims, |world, key| async move { claim::reconcile(&world, &key).await });
    }
    tracing::info!("controllers run");

    shutdown.wait().await;
    futures::join!(
        queues.claims.stop(),
        queues.pools.stop(),
        queues.sandboxes.stop(),
        queues.templates.stop()
    );
    background.abort_all();
    world.config.metrics.stop_reading();
    over.trigger();
    if tokio::time::timeout(EVENTS_LIMIT, events.join_next()).await.is_err() {
        tracing::debug!("not all events were written");
    }
}

/// Updates the gauges whenever the metrics are read.
fn measure(world: &Arc<World>, queues: &Arc<Queues>) {
    let (known, queues) = (Arc::downgrade(world), Arc::downgrade(queues));
    world.config.metrics.before_reading(move || {
        if let (Some(world), Some(queues)) = (known.upgrade(), queues.upgrade()) {
            queues.measure();
            world.config.metrics.sandboxes().count(world.sandboxes.all().iter().map(Arc::as_ref));
        }
    });
}

/// Starts the watches and returns their number.
fn feed(world: &World, synced: &watch::Sender<usize>, tasks: &mut JoinSet<()>) -> usize {
    let (ambient, recorder) = (|| world.config.ambient.clone(), || world.recorder().clone());
    tasks.spawn(world.sandboxes.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(world.pods.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(world.services.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(world.volumes.clone().feed(synced.clone(), ambient(), recorder()));
    if !world.config.extensions {
        return 4;
    }
    tasks.spawn(world.claims.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(world.pools.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(world.templates.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(world.policies.clone().feed(synced.clone(), ambient(), recorder()));
    8
}

fn start<F>(
    world: &Arc<World>,
    queue: &Arc<Queue>,
    reconcile: impl Fn(Arc<World>, Key) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Outcome> + Send + 'static,
{
    let world = world.clone();
    queue.start(move |key| -> BoxFuture<'static, Outcome> { reconcile(world.clone(), key).boxed() });
}
