//! Tracks which Sandboxes are in use and reports their last activity, for Sandboxes with an idle timeout.
//!
//! Use is counted in memory and reported rarely. A request waits for its own report if the last one is old:
//! the controller suspends with the resourceVersion that it observed, so one of the two writes detects the
//! other.

mod poll;
mod stream;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_activity::Activity;
use hutch_api::sleep::report_every;
use hutch_api::{OperatingMode, Sandbox, annotation};
use hutch_kubelet::{Duplex, Hold};
use hutch_serve::Shutdown;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Semaphore;

use self::poll::Poller;
use self::stream::ActivityStream;
use crate::{Backend, Dial, DialError, PodKey, Resolve};

/// Maximum number of tracked Sandboxes. Activity of further ones is reported at each request.
const TRACKED: usize = 65_536;
/// Interval between checks for due reports.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of concurrent reports.
const WRITERS: usize = 16;
/// Maximum time that a request waits for its report. Then it continues without.
const REPORT_LIMIT: Duration = Duration::from_secs(10);

/// Connects like the wrapped [`Dial`] and reports activity.
pub struct Reporting<D> {
    dial: Arc<D>,
    reporter: Arc<Reporter>,
    shutdown: Shutdown,
}

/// Sandboxes in use, and the client that reports them.
pub(crate) struct Reporter {
    client: Client,
    tracked: Mutex<HashMap<String, Arc<Tracked>>>,
    writers: Semaphore,
    /// Set once a failed report has been logged as a warning.
    warned: AtomicBool,
}

/// Sandbox in use.
pub(crate) struct Tracked {
    namespace: String,
    name: String,
    uid: String,
    after: Duration,
    activity: Arc<Activity>,
    /// Last report, in milliseconds since 1970.
    reported: AtomicI64,
    writing: tokio::sync::Mutex<()>,
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Tracked {
    /// Records activity now.
    pub(crate) fn touch(&self) {
        self.activity.touch();
    }

    /// Returns the activity that is not reported yet, in milliseconds.
    fn unreported(&self) -> i64 {
        let active = now().saturating_sub(millis(self.activity.idle()));
        active.saturating_sub(self.reported.load(Ordering::Relaxed))
    }
}

impl<D: Dial> Reporting<D> {
    /// Starts reporting with this client, which needs permission to patch Sandboxes, until the shutdown.
    ///
    /// Must be called inside a tokio runtime.
    pub fn start(dial: D, client: Client, shutdown: Shutdown) -> Reporting<D> {
        let (tracked, writers) = (Mutex::default(), Semaphore::new(WRITERS));
        let reporter = Arc::new(Reporter { client, tracked, writers, warned: AtomicBool::new(false) });
        let (checking, end) = (reporter.clone(), shutdown.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = end.wait() => return,
                    () = tokio::time::sleep(CHECK_INTERVAL) => checking.check(),
                }
            }
        });
        Reporting { dial: Arc::new(dial), reporter, shutdown }
    }

    /// Starts to poll each Sandbox that will soon be suspended for its last activity. Requests carry the
    /// token that `key` makes for the Pod.
    ///
    /// Must be called inside a tokio runtime.
    pub fn poll_activity(&self, resolver: Arc<dyn Resolve>, key: Option<Arc<PodKey>>) {
        let poller = Poller::new(self.dial.clone(), resolver, key, self.reporter.clone());
        tokio::spawn(poller.run(self.shutdown.clone()));
    }
}

impl<D: Dial> Dial for Reporting<D> {
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        let Some(tracked) = self.reporter.track(backend) else { return self.dial.dial(backend, port) };
        let dialled = self.dial.dial(backend, port);
        async move { Ok(Box::new(ActivityStream::new(dialled.await?, tracked)) as Box<dyn Duplex>) }.boxed()
    }

    fn hold<'a>(&'a self, backend: &'a Backend) -> BoxFuture<'a, Result<Hold, DialError>> {
        let Some(tracked) = self.reporter.track(backend) else { return self.dial.hold(backend) };
        async move {
            let inner = self.dial.hold(backend).await?;
            let used = tracked.activity.begin();
            let unreported = tracked.unreported();
            // The periodic check writes later reports.
            if unreported >= millis(tracked.after / 2) {
                self.reporter.report(&tracked).await?;
            }
            Ok(Box::new((used, inner)) as Hold)
        }
        .boxed()
    }
}

impl Reporter {
    /// Returns the tracked Sandbox of that Pod, if it has an idle timeout.
    fn track(&self, backend: &Backend) -> Option<Arc<Tracked>> {
        let timeout = backend.idle_timeout.as_ref()?;
        let mut all = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = timeout.reported.map_or(0, Timestamp::as_millisecond);
        if let Some(known) = all.get(&backend.sandbox).filter(|known| known.after == timeout.after) {
            known.reported.fetch_max(reported, Ordering::Relaxed);
            return Some(known.clone());
        }
        let tracked = Arc::new(Tracked {
            namespace: backend.pod.namespace.clone(),
            name: timeout.name.clone(),
            uid: backend.sandbox.clone(),
            after: timeout.after,
            activity: Arc::default(),
            reported: AtomicI64::new(reported),
            writing: tokio::sync::Mutex::default(),
        });
        if all.len() < TRACKED || all.contains_key(&backend.sandbox) {
            all.insert(backend.sandbox.clone(), tracked.clone());
        }
        Some(tracked)
    }

    /// Starts due reports, and drops Sandboxes that were idle for their whole idle timeout.
    fn check(self: &Arc<Reporter>) {
        let mut all = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, tracked| {
            let unreported = tracked.unreported();
            if unreported >= millis(report_every(tracked.after)) && tracked.writing.try_lock().is_ok() {
                let (reporter, tracked) = (self.clone(), tracked.clone());
                tokio::spawn(async move { reporter.report(&tracked).await });
            }
            // The unreported rest is too short to matter, and such a Sandbox is suspended by now.
            tracked.activity.idle() < tracked.after || Arc::strong_count(tracked) > 1
        });
    }

    /// Writes the current time as last activity. Concurrent requests share the write.
    async fn report(&self, tracked: &Tracked) -> Result<(), DialError> {
        let requested = now();
        let write = async {
            let _one = tracked.writing.lock().await;
            // A report that was written while this one waited serves as well.
            if requested - tracked.reported.load(Ordering::Relaxed) < millis(report_every(tracked.after)) {
                return Ok(false);
            }
            let at = Timestamp::now();
            let sandbox = self.write(&tracked.namespace, &tracked.name, &tracked.uid, at, None).await?;
            let at = at.as_millisecond();
            tracked.reported.fetch_max(at, Ordering::Relaxed);
            Ok(sandbox.spec.operating_mode == Some(OperatingMode::Suspended))
        };
        let written: Result<Result<bool, kube::Error>, _> = tokio::time::timeout(REPORT_LIMIT, write).await;
        let (sandbox, namespace) = (&tracked.name, &tracked.namespace);
        match written {
            Ok(Ok(false)) => {}
            // The suspend came first: the Pod must receive no more requests, and the Sandbox can be woken.
            Ok(Ok(true)) => return Err(DialError::Gone("the Sandbox was just suspended".into())),
            Ok(Err(error)) => self.log_failure(namespace, sandbox, &error),
            Err(_) => tracing::warn!(sandbox, namespace, "activity is not reported in time"),
        }
        Ok(())
    }

    /// Writes the last activity of a Sandbox, only at this resourceVersion if one is given. Returns the new
    /// Sandbox.
    pub(crate) async fn write(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        at: Timestamp,
        version: Option<&str>,
    ) -> Result<Sandbox, kube::Error> {
        let _writer = self.writers.acquire().await;
        // The UID makes the write fail for another Sandbox of the same name.
        let annotations = json!({annotation::LAST_ACTIVITY: format!("{at:.3}")});
        let mut patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        let api = Api::<Sandbox>::namespaced(self.client.clone(), namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
    }

    /// Logs that a report failed: a warning the first time, debug afterwards.
    pub(crate) fn log_failure(&self, namespace: &str, sandbox: &str, error: &kube::Error) {
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(sandbox, namespace, %error, "activity is not reported");
        } else {
            tracing::warn!(sandbox, namespace, %error, "activity is not reported; Sandboxes may be suspended in use");
        }
    }
}
