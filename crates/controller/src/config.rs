use std::sync::Arc;
use std::time::Duration;

use opentelemetry::global::BoxedTracer;

use crate::metrics::Metrics;
use hutch_serve::Ambient;

/// How the controllers behave. The defaults are those of Agent Sandbox.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whether claims, pools and templates are looked after, and not Sandboxes alone.
    pub extensions: bool,
    /// End of the DNS name of a Sandbox's Service.
    pub cluster_domain: String,
    /// Sandboxes looked at at a time.
    pub sandbox_workers: usize,
    /// Claims looked at at a time.
    pub claim_workers: usize,
    /// Pools looked at at a time.
    pub pool_workers: usize,
    /// Templates looked at at a time.
    pub template_workers: usize,
    /// Most members that one look at a pool creates or deletes.
    pub pool_batch: usize,
    /// How long after a pool has lost members none are made in their place; zero is not at all.
    pub replenish_delay: Duration,
    /// Most members a second that a pool makes, on average; zero is no limit.
    pub refill_rate: f64,
    /// How long a pool member may take to become Ready before it is replaced.
    pub readiness_grace: Duration,
    /// Pause between two looks at a pool whose members find no node.
    pub unschedulable_recheck: Duration,
    /// Whether pooled Pods are marked as safe to evict.
    pub pool_eviction: bool,
    /// How long a change of a Pod's labels and annotations may wait for others of the same Pod; a second at most, zero
    /// is not at all.
    pub write_behind: Duration,
    /// How long the refill of pools may wait while claims are being met. Zero is not at all.
    pub give_way: Duration,
    /// How long the status of a Sandbox that is on its way to Ready may leave out a step of that way.
    pub progress_delay: Duration,
    /// Whether only Pods and Services with the label of a Sandbox's name are watched. Saves memory where a cluster runs
    /// many others; one that is to be taken over then needs that label too.
    pub watch_labelled_only: bool,
    /// Whether claims get events.
    pub claim_events: bool,
    /// Whether claims get annotations with the times at which they were seen and became Ready.
    pub claim_times: bool,
    /// Whether the nodes can give a running Pod the environment variables of a claim. Where they cannot, as on a cluster,
    /// a claim with variables starts cold.
    pub late_env: bool,
    /// Domains, and with them their subdomains, that labels of a claim's `additionalPodMetadata` may have.
    pub label_domains: Vec<String>,
    /// What is counted and measured.
    pub metrics: Metrics,
    /// Where spans go; nowhere without one.
    pub tracer: Option<Arc<BoxedTracer>>,
    /// Where the time of day and chance come from.
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
            claim_events: true,
            claim_times: true,
            late_env: false,
            label_domains: vec!["sandbox.users.io".into()],
            metrics: Metrics::new(),
            tracer: None,
            ambient: Ambient::default(),
        }
    }
}
