//! Metrics, under the names that dashboards of Agent Sandbox and of controller-runtime use.

mod claim;
mod queue;
mod sandbox;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{HistogramOpts, Opts, Registry, TextEncoder};

pub(crate) use claim::Created;
pub(crate) use queue::QueueMetrics;

/// One set of metrics. Clones share it.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    before: Mutex<Vec<Before>>,
    queues: queue::Families,
    claims: claim::Claims,
    sandboxes: sandbox::Sandboxes,
}

/// Brings gauges up to date before they are read.
type Before = Box<dyn Fn() + Send + Sync>;

impl Metrics {
    /// All at zero, in a registry of their own.
    pub fn new() -> Self {
        let registry = Registry::new();
        Metrics(Arc::new(Inner {
            queues: queue::Families::new(&registry),
            claims: claim::Claims::new(&registry),
            sandboxes: sandbox::Sandboxes::new(&registry),
            before: Mutex::default(),
            registry,
        }))
    }

    /// Where others of this process can put theirs.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// All of them in the text format of Prometheus.
    pub fn text(&self) -> String {
        for before in self.0.before.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            before();
        }
        // It fails for a family without a name or help, which a registry does not take.
        TextEncoder::new().encode_to_string(&self.0.registry.gather()).unwrap_or_default()
    }

    pub(crate) fn before_reading(&self, before: impl Fn() + Send + Sync + 'static) {
        self.0.before.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(before));
    }

    /// Nothing is brought up to date any more.
    pub(crate) fn stop_reading(&self) {
        self.0.before.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Those of one queue and its controller.
    pub(crate) fn queue(&self, controller: &str, workers: usize) -> QueueMetrics {
        self.0.queues.of(controller, workers)
    }

    pub(crate) fn claims(&self) -> &claim::Claims {
        &self.0.claims
    }

    pub(crate) fn sandboxes(&self) -> &sandbox::Sandboxes {
        &self.0.sandboxes
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

fn options(name: &str, help: &str) -> Opts {
    Opts::new(name, help)
}

fn buckets(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(buckets.to_vec())
}

/// The metric, once it is in the registry.
fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("names and labels are constants of these files");
    registry.register(Box::new(metric.clone())).expect("each is registered once");
    metric
}
