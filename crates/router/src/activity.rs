//! Tracks which Sandboxes are in use and reports their last activity, for Sandboxes with an idle timeout.
//!
//! Use is counted in memory and reported rarely. A request waits for its own report if the last one is old:
//! the controller suspends with the resourceVersion that it observed, so one of the two writes detects the
//! other.

mod asking;
mod touched;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_api::sleep::report_every;
use hutch_api::{OperatingMode, Sandbox, annotation};
use hutch_kubelet::{Duplex, Hold};
use hutch_serve::Shutdown;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Semaphore;

use self::asking::Asking;
use self::touched::Touched;
use crate::{Backend, Dial, DialError, PodKey, Resolve};

/// Maximum number of tracked Sandboxes. Activity of further ones is reported at each request.
const FOLLOWED: usize = 65_536;
/// Interval between checks for due reports.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum number of concurrent reports.
const WRITERS: usize = 16;
/// Maximum time that a request waits for its report. Then it continues without.
const REPORT_LIMIT: Duration = Duration::from_secs(10);

/// Connects like the wrapped [`Dial`] and reports activity.
pub struct Reporting<D> {
    dial: Arc<D>,
    activity: Arc<Activity>,
    shutdown: Shutdown,
}

/// Sandboxes in use, and the client that reports them.
pub(crate) struct Activity {
    client: Client,
    followed: Mutex<HashMap<String, Arc<Followed>>>,
    writers: Semaphore,
    /// Set once a failed report has been logged as a warning.
    warned: AtomicBool,
}

/// Sandbox in use.
pub(crate) struct Followed {
    namespace: String,
    name: String,
    uid: String,
    after: Duration,
    inside: AtomicU32,
    /// Milliseconds since 1970.
    active: AtomicI64,
    reported: AtomicI64,
    writing: tokio::sync::Mutex<()>,
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Followed {
    /// Records activity now.
    pub(crate) fn touch(&self) {
        self.active.fetch_max(now(), Ordering::Relaxed);
    }

    /// Returns the activity that is not reported yet, in milliseconds.
    fn behind(&self) -> i64 {
        if self.inside.load(Ordering::Relaxed) > 0 {
            self.touch();
        }
        self.active.load(Ordering::Relaxed).saturating_sub(self.reported.load(Ordering::Relaxed))
    }
}

/// Request in progress.
struct Use(Arc<Followed>);

impl Use {
    fn begin(followed: Arc<Followed>) -> Use {
        followed.inside.fetch_add(1, Ordering::Relaxed);
        followed.touch();
        Use(followed)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<D: Dial> Reporting<D> {
    /// Starts reporting with this client, which needs permission to patch Sandboxes, until the shutdown.
    ///
    /// Must be called inside a tokio runtime.
    pub fn start(dial: D, client: Client, shutdown: Shutdown) -> Reporting<D> {
        let (followed, writers) = (Mutex::default(), Semaphore::new(WRITERS));
        let activity = Arc::new(Activity { client, followed, writers, warned: AtomicBool::new(false) });
        let (looking, end) = (activity.clone(), shutdown.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = end.wait() => return,
                    () = tokio::time::sleep(LOOK) => looking.look(),
                }
            }
        });
        Reporting { dial: Arc::new(dial), activity, shutdown }
    }

    /// Starts to poll each Sandbox that will soon be suspended for its last activity. Requests carry the
    /// token that `key` makes for the Pod.
    ///
    /// Must be called inside a tokio runtime.
    pub fn ask_inside(&self, resolver: Arc<dyn Resolve>, key: Option<Arc<PodKey>>) {
        let asking = Asking::new(self.dial.clone(), resolver, key, self.activity.clone());
        tokio::spawn(asking.run(self.shutdown.clone()));
    }
}

impl<D: Dial> Dial for Reporting<D> {
    fn dial<'a>(
        &'a self,
        backend: &'a Backend,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        let Some(followed) = self.activity.follow(backend) else { return self.dial.dial(backend, port) };
        let dialled = self.dial.dial(backend, port);
        async move { Ok(Box::new(Touched::new(dialled.await?, followed)) as Box<dyn Duplex>) }.boxed()
    }

    fn hold<'a>(&'a self, backend: &'a Backend) -> BoxFuture<'a, Result<Hold, DialError>> {
        let Some(followed) = self.activity.follow(backend) else { return self.dial.hold(backend) };
        async move {
            let inner = self.dial.hold(backend).await?;
            let used = Use::begin(followed.clone());
            let behind = followed.behind();
            // The periodic check writes later reports.
            if behind >= millis(followed.after / 2) {
                self.activity.report(&followed).await?;
            }
            Ok(Box::new((used, inner)) as Hold)
        }
        .boxed()
    }
}

impl Activity {
    /// Returns the tracked Sandbox of that Pod, if it has an idle timeout.
    fn follow(&self, backend: &Backend) -> Option<Arc<Followed>> {
        let sleeps = backend.sleeps.as_ref()?;
        let mut all = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let told = sleeps.reported.map_or(0, Timestamp::as_millisecond);
        if let Some(known) = all.get(&backend.sandbox).filter(|known| known.after == sleeps.after) {
            known.reported.fetch_max(told, Ordering::Relaxed);
            return Some(known.clone());
        }
        let followed = Arc::new(Followed {
            namespace: backend.pod.namespace.clone(),
            name: sleeps.name.clone(),
            uid: backend.sandbox.clone(),
            after: sleeps.after,
            inside: AtomicU32::new(0),
            active: AtomicI64::new(0),
            reported: AtomicI64::new(told),
            writing: tokio::sync::Mutex::default(),
        });
        if all.len() < FOLLOWED || all.contains_key(&backend.sandbox) {
            all.insert(backend.sandbox.clone(), followed.clone());
        }
        Some(followed)
    }

    /// Starts the reports that are due, and drops Sandboxes that were idle for their whole idle timeout.
    fn look(self: &Arc<Activity>) {
        let mut all = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, followed| {
            let behind = followed.behind();
            if behind >= millis(report_every(followed.after)) && followed.writing.try_lock().is_ok() {
                let (activity, followed) = (self.clone(), followed.clone());
                tokio::spawn(async move { activity.report(&followed).await });
            }
            // The unreported rest is too short to matter, and such a Sandbox is suspended by now.
            let lately = now() - followed.active.load(Ordering::Relaxed) < millis(followed.after);
            lately || Arc::strong_count(followed) > 1
        });
    }

    /// Writes the current time as last activity. Concurrent requests share the write.
    async fn report(&self, followed: &Followed) -> Result<(), DialError> {
        let asked = now();
        let write = async {
            let _one = followed.writing.lock().await;
            // A report that was written while this one waited serves as well.
            if asked - followed.reported.load(Ordering::Relaxed) < millis(report_every(followed.after)) {
                return Ok(false);
            }
            let at = Timestamp::now();
            let sandbox = self.write(&followed.namespace, &followed.name, &followed.uid, at, None).await?;
            let at = at.as_millisecond();
            followed.reported.fetch_max(at, Ordering::Relaxed);
            Ok(sandbox.spec.operating_mode == Some(OperatingMode::Suspended))
        };
        let written: Result<Result<bool, kube::Error>, _> = tokio::time::timeout(REPORT_LIMIT, write).await;
        let (sandbox, namespace) = (&followed.name, &followed.namespace);
        match written {
            Ok(Ok(false)) => {}
            // The suspend came first: the Pod must receive no more requests, and the Sandbox can be woken.
            Ok(Ok(true)) => return Err(DialError::Gone("the Sandbox was just suspended".into())),
            Ok(Err(error)) => self.complain(namespace, sandbox, &error),
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
    pub(crate) fn complain(&self, namespace: &str, sandbox: &str, error: &kube::Error) {
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(sandbox, namespace, %error, "activity is not reported");
        } else {
            tracing::warn!(sandbox, namespace, %error, "activity is not reported; Sandboxes may be suspended in use");
        }
    }
}
