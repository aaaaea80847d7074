//! Metrics of the router. Names and labels match those of the upstream router, for existing dashboards.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use http::Method;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Maximum number of namespaces with a label of their own; further ones are counted under `-`. Clients choose
/// this label, and it must not fill the memory of the monitoring system.
const NAMESPACES: usize = 1000;
/// Label of namespaces without a label of their own.
pub(crate) const OTHER_NAMESPACES: &str = "-";
/// Upper bounds of the duration buckets, in seconds.
const BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0];

/// Metrics of one router. Clones share them.
#[derive(Clone)]
pub struct Metrics(pub(crate) Arc<Counters>);

pub(crate) struct Counters {
    registry: Registry,
    pub(crate) requests: IntCounterVec,
    pub(crate) duration: HistogramVec,
    pub(crate) inflight: IntGauge,
    pub(crate) upstream_errors: IntCounterVec,
    pub(crate) cert_reloads: IntCounterVec,
    pub(crate) upstream_retries: IntCounterVec,
    pub(crate) cache_invalidations: IntCounterVec,
    pub(crate) authz_decisions: IntCounterVec,
    namespaces: RwLock<HashSet<Arc<str>>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new().expect("the names and labels of the metrics are valid and differ")
    }
}

impl Metrics {
    fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(format!("sandbox_router_{name}"), help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let requests = ["method", "code", "sandbox_namespace"];
        let options =
            HistogramOpts::new("sandbox_router_request_duration_seconds", "Time to the end of an answer.")
                .buckets(BUCKETS.to_vec());
        let duration = HistogramVec::new(options, &requests)?;
        registry.register(Box::new(duration.clone()))?;
        let inflight = IntGauge::new("sandbox_router_inflight_requests", "Requests in progress.")?;
        registry.register(Box::new(inflight.clone()))?;
        let metrics = Counters {
            requests: counter("requests_total", "Requests answered.", &requests)?,
            duration,
            inflight,
            upstream_errors: counter(
                "upstream_errors_total",
                "Requests that a sandbox did not answer.",
                &["sandbox_namespace", "reason"],
            )?,
            cert_reloads: counter("cert_reloads_total", "Certificates read anew.", &["outcome"])?,
            upstream_retries: counter(
                "upstream_retries_total",
                "Further tries to connect to a sandbox.",
                &["sandbox_namespace"],
            )?,
            cache_invalidations: counter(
                "cache_invalidations_total",
                "Known Pods that could not be reached any more.",
                &["sandbox_namespace"],
            )?,
            authz_decisions: counter(
                "authz_decisions_total",
                "Requests let in and turned away.",
                &["sandbox_namespace", "decision"],
            )?,
            namespaces: RwLock::default(),
            registry: registry.clone(),
        };
        // Both outcomes start at zero, so that a first failure is visible as an increase.
        for outcome in ["success", "failure"] {
            metrics.cert_reloads.with_label_values(&[outcome]);
        }
        build_info(&registry)?;
        Ok(Metrics(Arc::new(metrics)))
    }

    /// Returns all metrics in the text format of Prometheus (0.0.4).
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory cannot fail; the families come from the registry and are well-formed.
        let _ = TextEncoder::new().encode(&self.0.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// Returns the label of a namespace: its name once a Sandbox in it was reached.
    pub(crate) fn label<'a>(&self, namespace: &'a str) -> &'a str {
        let known = self.0.namespaces.read().unwrap_or_else(PoisonError::into_inner).contains(namespace);
        if known { namespace } else { OTHER_NAMESPACES }
    }

    /// Gives a namespace a label of its own.
    pub(crate) fn learn(&self, namespace: &str) {
        if self.label(namespace) == OTHER_NAMESPACES {
            let mut namespaces = self.0.namespaces.write().unwrap_or_else(PoisonError::into_inner);
            if namespaces.len() < NAMESPACES {
                namespaces.insert(namespace.into());
            }
        }
    }
}

fn build_info(registry: &Registry) -> prometheus::Result<()> {
    let labels = ["git_version", "git_commit", "build_date", "go_version", "compiler", "platform"];
    let options = Opts::new("sandbox_router_build_info", "What this router is.");
    let info = GaugeVec::new(options, &labels)?;
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), "unknown", "unknown", "none", "rustc", &platform])
        .set(1.0);
    registry.register(Box::new(info))
}

/// Returns a method as a label: a method that HTTP defines, else `other`.
pub(crate) fn method(method: &Method) -> &str {
    let known = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
        Method::PATCH,
        Method::TRACE,
        Method::CONNECT,
    ];
    if known.contains(method) { method.as_str() } else { "other" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reached_namespaces_have_labels_up_to_the_limit() {
        let metrics = Metrics::default();
        assert_eq!(metrics.label("a"), OTHER_NAMESPACES);
        metrics.learn("a");
        assert_eq!(metrics.label("a"), "a");
        for number in 0..NAMESPACES {
            metrics.learn(&number.to_string());
        }
        assert_eq!((metrics.label("998"), metrics.label("999")), ("998", OTHER_NAMESPACES));
    }

    #[test]
    fn unknown_methods_are_labeled_other() {
        assert_eq!(method(&Method::GET), "GET");
        assert_eq!(method(&"BREW".parse().unwrap()), "other");
    }
}
