//! Which Sandboxes are in use, counted in memory and reported seldom, on those that are suspended when nobody uses them.
//!
//! A request that comes when the last report is old waits until its own report is written: the controller's suspend
//! carries the version of the Sandbox that it has seen, so one of the two writes comes first and the other notices.

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

use crate::asking::Asking;
use crate::touched::Touched;
use crate::{Backend, Dial, DialError, PodKey, Resolve};

/// Sandboxes that are followed at once. Uses of further ones are reported at each request.
const FOLLOWED: usize = 65_536;
/// Pause between looks whether something is to be reported.
const LOOK: Duration = Duration::from_millis(200);
/// Reports that are written at once.
const WRITERS: usize = 16;
/// How long a request waits for its report. Then it goes on without.
const REPORT_LIMIT: Duration = Duration::from_secs(10);

/// When a Sandbox goes to sleep by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sleeps {
    /// Name of the Sandbox.
    pub name: String,
    /// So long after it was last used.
    pub after: Duration,
    /// When it was last used, as somebody has reported.
    pub reported: Option<Timestamp>,
    /// Where its sandboxd can be asked when it was last used.
    pub activity_port: Option<u16>,
    /// The version of the Sandbox of which all this is.
    pub version: Option<String>,
}

/// Connects as another [`Dial`] does, and reports what is in use.
pub struct Reporting<D> {
    dial: Arc<D>,
    activity: Arc<Activity>,
    shutdown: Shutdown,
}

/// What is in use, and who tells the API.
pub(crate) struct Activity {
    client: Client,
    followed: Mutex<HashMap<String, Arc<Followed>>>,
    writers: Semaphore,
    /// It was said that reports are not allowed.
    warned: AtomicBool,
}

/// A Sandbox in use.
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
    /// Something was done just now.
    pub(crate) fn touch(&self) {
        self.active.fetch_max(now(), Ordering::Relaxed);
    }

    /// How much of what was done is not reported.
    fn behind(&self) -> i64 {
        if self.inside.load(Ordering::Relaxed) > 0 {
            self.touch();
        }
        self.active.load(Ordering::Relaxed).saturating_sub(self.reported.load(Ordering::Relaxed))
    }
}

/// A request that is in progress.
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
    /// Reports by this client, which must be allowed to patch Sandboxes, until the shutdown.
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

    /// From now on, asks what is inside a Sandbox that is about to fall asleep when it was last used, with the token that
    /// `key` makes for its Pod.
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
            // Later reports are the business of whoever looks now and then.
            if behind >= millis(followed.after / 2) {
                self.activity.report(&followed).await?;
            }
            Ok(Box::new((used, inner)) as Hold)
        }
        .boxed()
    }
}

impl Activity {
    /// The Sandbox of that Pod, if it sleeps when nobody uses it.
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

    /// Begins the reports that are due, and lets go of what nobody has used for as long as it takes to fall asleep.
    fn look(self: &Arc<Activity>) {
        let mut all = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, followed| {
            let behind = followed.behind();
            if behind >= millis(report_every(followed.after)) && followed.writing.try_lock().is_ok() {
                let (activity, followed) = (self.clone(), followed.clone());
                tokio::spawn(async move { activity.report(&followed).await });
            }
            // What was not reported is less than counts, and of no use to a Sandbox that sleeps by now.
            let lately = now() - followed.active.load(Ordering::Relaxed) < millis(followed.after);
            lately || Arc::strong_count(followed) > 1
        });
    }

    /// Writes when the Sandbox was last used: now, since somebody asks. Whoever asks meanwhile shares the write.
    async fn report(&self, followed: &Followed) -> Result<(), DialError> {
        let asked = now();
        let write = async {
            let _one = followed.writing.lock().await;
            // What was written meanwhile is as good.
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
            // The suspend came first: nothing is to be sent to the Pod any more, and the Sandbox can be woken.
            Ok(Ok(true)) => return Err(DialError::Gone("the Sandbox was just suspended".into())),
            Ok(Err(error)) => self.complain(namespace, sandbox, &error),
            Err(_) => tracing::warn!(sandbox, namespace, "activity is not reported in time"),
        }
        Ok(())
    }

    /// Writes when a Sandbox was last used, if it is of this version still; the Sandbox after that.
    pub(crate) async fn write(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        at: Timestamp,
        version: Option<&str>,
    ) -> Result<Sandbox, kube::Error> {
        let _writer = self.writers.acquire().await;
        // The uid makes the write fail for a namesake.
        let annotations = json!({annotation::LAST_ACTIVITY: format!("{at:.3}")});
        let mut patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        let api = Api::<Sandbox>::namespaced(self.client.clone(), namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
    }

    /// Says that a report was not written; loudly once.
    pub(crate) fn complain(&self, namespace: &str, sandbox: &str, error: &kube::Error) {
        if self.warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(sandbox, namespace, %error, "activity is not reported");
        } else {
            tracing::warn!(sandbox, namespace, %error, "activity is not reported; Sandboxes may be suspended in use");
        }
    }
}
