//! Metrics of each work queue and its controller, in the families of controller-runtime and of client-go's work queues.

use std::time::Duration;

use hutch_reconcile::outcome::Outcome;
use hutch_reconcile::queue;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

use super::{buckets, options, registered};

/// Buckets of the duration of a reconcile, in seconds.
const RECONCILE: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// Buckets of the time in a queue and of the work on its keys, in seconds.
const WAIT: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];
/// Priority of all objects: the queues have no priorities.
const PRIORITY: &str = "0";

pub(super) struct Families {
    total: IntCounterVec,
    errors: IntCounterVec,
    time: HistogramVec,
    active: IntGaugeVec,
    most: IntGaugeVec,
    depth: IntGaugeVec,
    adds: IntCounterVec,
    waited: HistogramVec,
    worked: HistogramVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    retries: IntCounterVec,
    never: [IntCounterVec; 3],
}

/// Metrics of one queue.
#[derive(Clone)]
pub(crate) struct QueueMetrics {
    success: IntCounter,
    again: IntCounter,
    error: IntCounter,
    errors: IntCounter,
    time: Histogram,
    active: IntGauge,
    depth: IntGauge,
    adds: IntCounter,
    waited: Histogram,
    worked: Histogram,
    unfinished: Gauge,
    longest: Gauge,
    retries: IntCounter,
}

impl Families {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(options(name, help), labels))
        };
        let whole = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(options(name, help), labels))
        };
        let gauge = |name: &str, help: &str| {
            registered(registry, GaugeVec::new(options(name, help), &["name", "controller"]))
        };
        let histogram = |name: &str, help: &str, bounds: &[f64], labels: &[&str]| {
            registered(registry, HistogramVec::new(buckets(name, help, bounds), labels))
        };
        let (of, by) = (["controller"], ["name", "controller"]);
        let never = |name: &str, help: &str| counter(&format!("controller_runtime_{name}_total"), help, &of);
        Families {
            total: counter(
                "controller_runtime_reconcile_total",
                "Reconciles, by controller and outcome",
                &["controller", "result"],
            ),
            errors: counter(
                "controller_runtime_reconcile_errors_total",
                "Failed reconciles, by controller",
                &of,
            ),
            time: histogram(
                "controller_runtime_reconcile_time_seconds",
                "Time of a reconcile",
                &RECONCILE,
                &of,
            ),
            active: whole("controller_runtime_active_workers", "Reconciles in progress", &of),
            most: whole(
                "controller_runtime_max_concurrent_reconciles",
                "Maximum number of concurrent reconciles",
                &of,
            ),
            depth: whole(
                "workqueue_depth",
                "Objects that wait for a reconcile",
                &["name", "controller", "priority"],
            ),
            adds: counter("workqueue_adds_total", "Requests of reconciles, without repeated ones", &by),
            waited: histogram("workqueue_queue_duration_seconds", "Time that an object waited", &WAIT, &by),
            worked: histogram("workqueue_work_duration_seconds", "Time of a reconcile", &WAIT, &by),
            unfinished: gauge("workqueue_unfinished_work_seconds", "Sum of the current reconciles' ages"),
            longest: gauge("workqueue_longest_running_processor_seconds", "Age of the oldest reconcile"),
            retries: counter("workqueue_retries_total", "Reconciles requested after a failure", &by),
            never: [
                never("terminal_reconcile_errors", "Failures that are not retried; always 0"),
                never("reconcile_panics", "Panics; always 0: one ends the process"),
                never("reconcile_timeouts", "Reconciles that were cut off; always 0"),
            ],
        }
    }

    pub(super) fn of(&self, controller: &str, workers: usize) -> QueueMetrics {
        let of = [controller];
        let by = [controller, controller];
        for family in &self.never {
            family.with_label_values(&of);
        }
        self.most.with_label_values(&of).set(i64::try_from(workers).unwrap_or(i64::MAX));
        // No reconcile has this outcome, but dashboards sum all of them.
        self.total.with_label_values(&[controller, "requeue"]);
        QueueMetrics {
            success: self.total.with_label_values(&[controller, "success"]),
            again: self.total.with_label_values(&[controller, "requeue_after"]),
            error: self.total.with_label_values(&[controller, "error"]),
            errors: self.errors.with_label_values(&of),
            time: self.time.with_label_values(&of),
            active: self.active.with_label_values(&of),
            depth: self.depth.with_label_values(&[controller, controller, PRIORITY]),
            adds: self.adds.with_label_values(&by),
            waited: self.waited.with_label_values(&by),
            worked: self.worked.with_label_values(&by),
            unfinished: self.unfinished.with_label_values(&by),
            longest: self.longest.with_label_values(&by),
            retries: self.retries.with_label_values(&by),
        }
    }
}

impl queue::Metrics for QueueMetrics {
    fn added(&self) {
        self.adds.inc();
    }

    fn waiting(&self, count: usize) {
        self.depth.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn began(&self, waited: Duration) {
        self.waited.observe(waited.as_secs_f64());
        self.active.inc();
    }

    fn ended(&self, outcome: Outcome, took: Duration) {
        self.active.dec();
        self.time.observe(took.as_secs_f64());
        self.worked.observe(took.as_secs_f64());
        match outcome {
            Outcome::Settled => self.success.inc(),
            Outcome::Again(_) => self.again.inc(),
            Outcome::Failed => {
                self.error.inc();
                self.errors.inc();
                self.retries.inc();
            }
        }
    }

    fn in_progress(&self, ages: impl Iterator<Item = Duration>) {
        let (mut sum, mut longest) = (0.0, 0.0_f64);
        for age in ages {
            sum += age.as_secs_f64();
            longest = longest.max(age.as_secs_f64());
        }
        self.unfinished.set(sum);
        self.longest.set(longest);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use hutch_reconcile::key::Key;
    use hutch_reconcile::queue::{Backoff, Queue};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn queue_reports_metrics() {
        let metrics = crate::metrics::Metrics::new();
        let queue = Queue::new(1, Backoff::default(), metrics.queue("test", 1));
        for name in ["a", "b", "b", "c"] {
            queue.add(Key::new("d", name));
        }
        queue.measure();
        let shows = |line: &str| {
            let text = metrics.text();
            assert!(text.contains(line), "{line} is not in\n{text}");
        };
        shows(r#"workqueue_depth{controller="test",name="test",priority="0"} 3"#);
        let (done, mut runs) = mpsc::unbounded_channel();
        queue.start(move |key| {
            done.send(()).ok();
            async move {
                match key.name.as_str() {
                    "a" => Outcome::Failed,
                    "b" => Outcome::Again(Duration::from_secs(3600)),
                    _ => Outcome::Settled,
                }
            }
            .boxed()
        });
        for _ in 0..4 {
            runs.recv().await.unwrap();
        }
        queue.stop().await;
        queue.measure();
        for line in [
            r#"workqueue_depth{controller="test",name="test",priority="0"} 0"#,
            r#"controller_runtime_reconcile_total{controller="test",result="success"} 1"#,
            r#"controller_runtime_reconcile_total{controller="test",result="requeue_after"} 1"#,
            r#"controller_runtime_reconcile_total{controller="test",result="error"} 2"#,
            r#"controller_runtime_reconcile_errors_total{controller="test"} 2"#,
            r#"controller_runtime_active_workers{controller="test"} 0"#,
            r#"controller_runtime_max_concurrent_reconciles{controller="test"} 1"#,
            r#"workqueue_adds_total{controller="test",name="test"} 4"#,
            r#"workqueue_retries_total{controller="test",name="test"} 2"#,
            r#"workqueue_queue_duration_seconds_count{controller="test",name="test"} 4"#,
            r#"workqueue_work_duration_seconds_count{controller="test",name="test"} 4"#,
        ] {
            shows(line);
        }
    }
}
