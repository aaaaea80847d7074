//! Counts the uses of a sandbox, for everything that suspends or freezes it when it is idle.
//!
//! The node counts operations in a Pod, the router counts requests through it, and sandboxd counts requests of clients
//! that bypass the router. Each has an [`Activity`]. sandboxd reports its own to the router as a [`Report`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Uses of one sandbox: those in progress, and the time of the last one. The time is monotonic, so setting the system
/// clock does not suspend a sandbox.
#[derive(Debug)]
pub struct Activity {
    begun: Instant,
    in_use: AtomicUsize,
    /// Milliseconds from `begun` to the last activity.
    last: AtomicU64,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity { begun: Instant::now(), in_use: AtomicUsize::new(0), last: AtomicU64::new(0) }
    }
}

impl Activity {
    /// Records activity now.
    pub fn touch(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Starts a use, which lasts until the guard is dropped.
    pub fn begin(self: &Arc<Activity>) -> Use {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Use(self.clone())
    }

    /// Returns the time since the last activity: zero during a use, and the time since creation when there was none.
    pub fn idle(&self) -> Duration {
        if self.in_use.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(last)
    }

    /// Returns the current activity for a response.
    pub fn report(&self) -> Report {
        Report { idle_seconds: self.idle().as_secs(), requests: self.in_use.load(Ordering::Relaxed) }
    }
}

/// Use in progress.
#[derive(Debug)]
pub struct Use(Arc<Activity>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Response of sandboxd to `GET /v1/activity`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whole seconds since the last activity; 0 during a request.
    pub idle_seconds: u64,
    /// Number of requests in progress.
    #[serde(default)]
    pub requests: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Activity that was created so long ago.
    fn created(ago: Duration) -> Arc<Activity> {
        let begun = Instant::now().checked_sub(ago).unwrap();
        Arc::new(Activity { begun, ..Activity::default() })
    }

    #[test]
    fn use_is_activity_from_its_start_to_its_end() {
        let hour = Duration::from_secs(3600);
        let activity = created(hour);
        assert!(activity.idle() >= hour, "no use yet");
        assert_eq!(activity.report().requests, 0);
        let (first, second) = (activity.begin(), activity.begin());
        drop(first);
        assert_eq!(activity.report(), Report { idle_seconds: 0, requests: 1 });
        activity.last.store(0, Ordering::Relaxed);
        assert_eq!(activity.idle(), Duration::ZERO, "one use is in progress");
        drop(second);
        assert!(activity.idle() < hour && activity.report().requests == 0);
        let touched = created(hour);
        touched.touch();
        assert!(touched.idle() < hour);
    }

    #[test]
    fn report_of_another_program_may_omit_the_requests() {
        let report: Report = serde_json::from_str(r#"{"idle_seconds": 7}"#).unwrap();
        assert_eq!(report, Report { idle_seconds: 7, requests: 0 });
        assert_eq!(serde_json::to_string(&report).unwrap(), r#"{"idle_seconds":7,"requests":0}"#);
    }
}
