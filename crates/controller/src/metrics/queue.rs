//! One queue and the controller behind it: the families of controller-runtime and of its work queues.

use std::time::Duration;

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

use super::{buckets, options, registered};
use crate::outcome::Outcome;

/// Seconds of one look.
const LOOK: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// Seconds in and around a queue.
const WAIT: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];
/// The queues here know no priorities; this is the ordinary one.
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

/// Those of one queue.
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
                "Looks at an object, by controller and outcome",
                &["controller", "result"],
            ),
            errors: counter(
                "controller_runtime_reconcile_errors_total",
                "Looks that failed, by controller",
                &of,
            ),
            time: histogram("controller_runtime_reconcile_time_seconds", "How long a look took", &LOOK, &of),
            active: whole("controller_runtime_active_workers", "Objects being looked at", &of),
            most: whole(
                "controller_runtime_max_concurrent_reconciles",
                "Objects looked at at a time at most",
                &of,
            ),
            depth: whole(
                "workqueue_depth",
                "Objects that wait for a look",
                &["name", "controller", "priority"],
            ),
            adds: counter("workqueue_adds_total", "Requests for a look that were not waiting already", &by),
            waited: histogram("workqueue_queue_duration_seconds", "How long an object waited", &WAIT, &by),
            worked: histogram(
                "workqueue_work_duration_seconds",
                "How long the work on an object took",
                &WAIT,
                &by,
            ),
            unfinished: gauge("workqueue_unfinished_work_seconds", "Age of all work under way, added up"),
            longest: gauge("workqueue_longest_running_processor_seconds", "Age of the oldest work under way"),
            retries: counter("workqueue_retries_total", "Looks asked for because one failed", &by),
            never: [
                never("terminal_reconcile_errors", "Failures that are not tried again: there are none"),
                never("reconcile_panics", "Panics during a look: one ends the process"),
                never("reconcile_timeouts", "Looks that were cut off: none is"),
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
        // An outcome that a queue here does not have; dashboards add them up.
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

impl QueueMetrics {
    pub(crate) fn added(&self) {
        self.adds.inc();
    }

    pub(crate) fn waiting(&self, count: usize) {
        self.depth.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn began(&self, waited: Duration) {
        self.waited.observe(waited.as_secs_f64());
        self.active.inc();
    }

    pub(crate) fn ended(&self, outcome: Outcome, took: Duration) {
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

    pub(crate) fn under_way(&self, ages: impl Iterator<Item = Duration>) {
        let (mut sum, mut longest) = (0.0, 0.0_f64);
        for age in ages {
            sum += age.as_secs_f64();
            longest = longest.max(age.as_secs_f64());
        }
        self.unfinished.set(sum);
        self.longest.set(longest);
    }
}
