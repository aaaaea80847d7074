//! The controllers of the four custom resources: Sandbox, SandboxTemplate, SandboxWarmPool and SandboxClaim; for `hutch up`
//! also of forks and of GKE's API of Pod snapshots.
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
mod claim;
mod clock;
mod collection;
mod condition;
mod config;
mod context;
mod error;
#[cfg(test)]
mod fixture;
mod fork;
mod gateway;
mod memory;
mod metrics;
mod network_policy;
mod owner;
mod patch;
mod pending;
mod pod_snapshot;
mod pool;
mod sandbox;
mod scheduler;
mod span;
mod template;
mod undecodable;
mod unsupported;
mod view;
mod wiring;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_reconcile::{cache, key, outcome, record};
use hutch_serve::Shutdown;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use config::Config;
pub use gateway::{Gateway, TokenKey};
pub use metrics::Metrics;

use crate::context::Context;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::wiring::{PodSnapshotQueues, Queue, Queues};

/// Component that the Events name.
const REPORTER: &str = "sandbox-controller";
/// Maximum time for writing the remaining events after the last reconcile.
const EVENTS_LIMIT: Duration = Duration::from_secs(2);

/// Runs the controllers until the shutdown is triggered; then finishes the reconciles in progress.
///
/// Starts when the first list of every kind is complete. Retries while the API server fails, without limit.
pub async fn run(client: kube::Client, config: Config, shutdown: Shutdown) {
    let (recorder, writer) = record::recorder(client.clone(), REPORTER);
    let queues = Arc::new(Queues::new(&config));
    let ctx = Arc::new(Context::new(&client, config, recorder));
    wiring::connect(&ctx, &queues);
    measure(&ctx, &queues);

    let (synced, mut ready) = watch::channel(0_usize);
    let mut background = JoinSet::new();
    let (over, mut events) = (Shutdown::new(), JoinSet::new());
    let burst = ctx.scheduler.claim_burst().clone();
    let no_burst = move || {
        let burst = burst.clone();
        async move { burst.over().await }
    };
    events.spawn(writer.run(no_burst, over.wait()));
    let kinds = feed(&ctx, &synced, &mut background);
    tokio::select! {
        biased;
        _ = ready.wait_for(|count| *count >= kinds) => {}
        () = shutdown.wait() => return,
    }
    start(&ctx, &queues.sandboxes, |ctx, key| async move { sandbox::reconcile(&ctx, &key).await });
    if ctx.config.extensions {
        start(&ctx, &queues.templates, |ctx, key| async move { template::reconcile(&ctx, &key).await });
        start(&ctx, &queues.pools, |ctx, key| async move { pool::reconcile(&ctx, &key).await });
        start(&ctx, &queues.claims, |ctx, key| async move { claim::reconcile(&ctx, &key).await });
    }
    if !ctx.config.snapshots {
        background.spawn(unsupported::answer(client, ctx.config.ambient.clone()));
    }
    if let Some(queue) = &queues.forks {
        start(&ctx, queue, |ctx, key| async move { fork::reconcile(&ctx, &key).await });
    }
    if let Some(PodSnapshotQueues { triggers, views }) = &queues.pod_snapshots {
        start(&ctx, triggers, |ctx, key| async move { pod_snapshot::reconcile_trigger(&ctx, &key).await });
        start(&ctx, views, |ctx, key| async move { pod_snapshot::reconcile_view(&ctx, &key).await });
    }
    tracing::info!("controllers run");

    shutdown.wait().await;
    futures::join!(
        queues.claims.stop(),
        queues.pools.stop(),
        queues.sandboxes.stop(),
        queues.templates.stop(),
        async {
            if let Some(queue) = &queues.forks {
                queue.stop().await;
            }
        },
        async {
            if let Some(PodSnapshotQueues { triggers, views }) = &queues.pod_snapshots {
                futures::join!(triggers.stop(), views.stop());
            }
        }
    );
    background.abort_all();
    ctx.config.metrics.stop_reading();
    over.trigger();
    if tokio::time::timeout(EVENTS_LIMIT, events.join_next()).await.is_err() {
        tracing::debug!("not all events were written");
    }
}

/// Updates the gauges whenever the metrics are read.
fn measure(ctx: &Arc<Context>, queues: &Arc<Queues>) {
    let (known, queues) = (Arc::downgrade(ctx), Arc::downgrade(queues));
    ctx.config.metrics.before_reading(move || {
        if let (Some(ctx), Some(queues)) = (known.upgrade(), queues.upgrade()) {
            queues.measure();
            ctx.config.metrics.sandboxes().count(ctx.sandboxes.all().iter().map(Arc::as_ref));
        }
    });
}

/// Starts the watches and returns their number.
fn feed(ctx: &Context, synced: &watch::Sender<usize>, tasks: &mut JoinSet<()>) -> usize {
    let (ambient, recorder) = (|| ctx.config.ambient.clone(), || ctx.recorder().clone());
    tasks.spawn(ctx.sandboxes.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(ctx.pods.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(ctx.services.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(ctx.volumes.clone().feed(synced.clone(), ambient(), recorder()));
    let mut kinds = 4;
    if ctx.config.extensions || ctx.config.gateway.is_some() {
        tasks.spawn(ctx.policies.clone().feed(synced.clone(), ambient(), recorder()));
        kinds += 1;
    }
    if ctx.config.snapshots {
        tasks.spawn(ctx.snapshots.clone().feed(synced.clone(), ambient(), recorder()));
        tasks.spawn(ctx.forks.clone().feed(synced.clone(), ambient(), recorder()));
        tasks.spawn(ctx.triggers.clone().feed(synced.clone(), ambient(), recorder()));
        tasks.spawn(ctx.pod_snapshots.clone().feed(synced.clone(), ambient(), recorder()));
        kinds += 4;
    }
    if !ctx.config.extensions {
        return kinds;
    }
    tasks.spawn(ctx.claims.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(ctx.pools.clone().feed(synced.clone(), ambient(), recorder()));
    tasks.spawn(ctx.templates.clone().feed(synced.clone(), ambient(), recorder()));
    kinds + 3
}

fn start<F>(
    ctx: &Arc<Context>,
    queue: &Arc<Queue>,
    reconcile: impl Fn(Arc<Context>, Key) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Outcome> + Send + 'static,
{
    let ctx = ctx.clone();
    queue.start(move |key| -> BoxFuture<'static, Outcome> { reconcile(ctx.clone(), key).boxed() });
}
