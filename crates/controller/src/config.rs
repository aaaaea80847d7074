use std::sync::Arc;
use std::time::Duration;

use hutch_reconcile::queue::Backoff;
use hutch_serve::Ambient;
use opentelemetry::global::BoxedTracer;

use crate::gateway::Gateway;
use crate::metrics::Metrics;

/// Configuration of the controllers. The defaults are those of Agent Sandbox.
#[derive(Debug, Clone)]
pub struct Config {
    /// Enables the controllers of claims, pools and templates besides that of Sandboxes.
    pub extensions: bool,
    /// DNS suffix of a Sandbox's Service.
    pub cluster_domain: String,
    /// Maximum number of concurrent Sandbox reconciles.
    pub sandbox_workers: usize,
    /// Maximum number of concurrent claim reconciles.
    pub claim_workers: usize,
    /// Maximum number of concurrent pool reconciles.
    pub pool_workers: usize,
    /// Maximum number of concurrent template reconciles.
    pub template_workers: usize,
    /// Maximum number of Sandboxes that one reconcile of a pool creates or deletes.
    pub pool_batch: usize,
    /// Delay of the refill after a pool has lost Sandboxes; zero disables it.
    pub replenish_delay: Duration,
    /// Maximum average number of Sandboxes per second that a pool creates; zero means no limit.
    pub refill_rate: f64,
    /// Time in which a pooled Sandbox must become Ready before it is replaced.
    pub readiness_grace: Duration,
    /// Time between two reconciles of a pool whose Pods are unschedulable.
    pub unschedulable_recheck: Duration,
    /// Marks pooled Pods as safe to evict.
    pub pool_eviction: bool,
    /// Time for which a change of a Pod's labels and annotations waits for others of the same Pod; at most one second,
    /// zero disables it.
    pub write_behind: Duration,
    /// Maximum delay of the writes that a burst of claims defers; zero disables it.
    pub give_way: Duration,
    /// Maximum delay for intermediate status updates of a Sandbox that is not Ready yet.
    pub progress_delay: Duration,
    /// Watches only Pods and Services with the label of a Sandbox's name. Saves memory on a cluster with many others. A Pod
    /// or Service to be adopted then needs that label too.
    pub watch_labelled_only: bool,
    /// Maximum pause before an object is reconciled again after a failure. On a cluster, that of controller-runtime.
    pub longest_backoff: Duration,
    /// Reconciles a claim that its template refused when the template changes. Agent Sandbox does so when the claim changes.
    pub retry_refused_claims: bool,
    /// Records events on claims.
    pub claim_events: bool,
    /// Annotates claims with the times at which they were first observed and became Ready.
    pub claim_times: bool,
    /// Declares that the nodes can pass the environment variables of a claim to a running Pod. Otherwise, as on a cluster,
    /// a claim with variables starts cold.
    pub late_env: bool,
    /// Declares that the nodes make snapshots, and enables the controller of forks. Otherwise, as on a cluster, snapshots
    /// and forks are answered with a condition.
    pub snapshots: bool,
    /// Domains, including their subdomains, that labels of a claim's `additionalPodMetadata` may have.
    pub label_domains: Vec<String>,
    /// Gateway through which all Sandboxes reach the network, if there is one.
    pub gateway: Option<Arc<Gateway>>,
    /// Metrics of the controllers.
    pub metrics: Metrics,
    /// Destination of spans, if any.
    pub tracer: Option<Arc<BoxedTracer>>,
    /// Source of time and randomness.
    pub ambient: Ambient,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            extensions: true,
            cluster_domain: "cluster.local".into(),
            sandbox_workers: 100,
            claim_workers: 50,
            pool_workers: 1,
            template_workers: 1,
            pool_batch: 300,
            replenish_delay: Duration::ZERO,
            refill_rate: 0.0,
            readiness_grace: Duration::from_secs(300),
            unschedulable_recheck: Duration::from_secs(60),
            pool_eviction: true,
            write_behind: Duration::ZERO,
            give_way: Duration::from_secs(2),
            progress_delay: Duration::from_millis(500),
            watch_labelled_only: false,
            longest_backoff: Backoff::default().longest,
            retry_refused_claims: false,
            claim_events: true,
            claim_times: true,
            late_env: false,
            snapshots: false,
            label_domains: vec!["sandbox.users.io".into()],
            gateway: None,
            metrics: Metrics::new(),
            tracer: None,
            ambient: Ambient::default(),
        }
    }
}
