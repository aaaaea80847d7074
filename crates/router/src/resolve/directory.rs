//! Finds Sandboxes and Pods in informer caches, and requests from the API what the caches do not have yet.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use hutch_api::condition::is_pod_ready;
use hutch_api::sleep::IdleTimes;
use hutch_api::{Read, Sandbox, annotation, label, owner, pod_name};
use hutch_kubelet::PodId;
use hutch_serve::Shutdown;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Notify, Semaphore};

use crate::resolve::history::History;
use crate::resolve::undecodable::decodable;
use crate::{Backend, IdleTimeout, Past, Resolve, Target, Unresolved};

/// Maximum number of concurrent API requests. One is sent only if the caches show no reachable Pod.
const QUESTIONS: usize = 16;
/// Maximum time that a request waits for the API.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of cached backends; further ones are built from the informer caches at each request.
const PREPARED: usize = 65_536;

/// Metadata of a Sandbox. The rest is not decoded, so an invalid spec or status cannot fail decoding.
type Named = PartialObjectMeta<Sandbox>;

/// Part of the API that the directory uses.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Watches only this namespace; Sandboxes of others are read from the API at every request.
    pub namespace: Option<String>,
    /// Watches nothing and reads from the API at every request.
    pub without_watches: bool,
    /// Reads only Pods, without permission to read Sandboxes: uses the Pod named like the Sandbox, unless
    /// pooled.
    pub pods_alone: bool,
}

impl Scope {
    /// Detects whether Sandboxes may be read.
    ///
    /// # Errors
    /// The API request fails.
    pub async fn find_out(self, client: &Client) -> Result<Scope, kube::Error> {
        let sandboxes = match &self.namespace {
            Some(namespace) => Api::<Named>::namespaced(client.clone(), namespace),
            None => Api::<Named>::all(client.clone()),
        };
        match sandboxes.list(&ListParams::default().limit(1)).await {
            Ok(_) => Ok(Scope { pods_alone: false, ..self }),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Scope { pods_alone: true, ..self }),
            Err(error) => Err(error),
        }
    }
}

/// Backends built from the informer caches. An event of a Sandbox or its Pod removes its backend.
#[derive(Default)]
struct Prepared {
    answers: HashMap<String, HashMap<String, Arc<Backend>>>,
    count: usize,
    /// Counts removals: a backend built from state before a removal is not cached.
    changes: u64,
}

#[derive(Default)]
struct Shared {
    prepared: RwLock<Prepared>,
    /// Notified when a watched object changes.
    changed: Notify,
    history: History,
    synced: AtomicBool,
}

/// Resolves Sandboxes with the Kubernetes API.
pub struct Directory {
    client: Client,
    scope: Scope,
    sandboxes: Store<Named>,
    pods: Store<Pod>,
    questions: Semaphore,
    shared: Arc<Shared>,
}

impl Directory {
    /// Starts to watch, until the shutdown. Only Pods with the label of a Sandbox name's hash are cached.
    ///
    /// Must be called inside a tokio runtime.
    pub fn start(client: Client, scope: Scope, shutdown: &Shutdown) -> Arc<Directory> {
        let (sandboxes, sandbox_writer) = reflector::store();
        let (pods, pod_writer) = reflector::store();
        let shared = Arc::new(Shared::default());
        let directory =
            Directory { client, scope, sandboxes, pods, questions: Semaphore::new(QUESTIONS), shared };
        let directory = Arc::new(directory);
        if directory.scope.without_watches {
            directory.shared.synced.store(true, Ordering::Release);
            return directory;
        }
        directory.watch_pods(pod_writer, shutdown.clone());
        if !directory.scope.pods_alone {
            directory.watch_sandboxes(sandbox_writer, shutdown.clone());
        }
        let (own, pods_alone) = (directory.clone(), directory.scope.pods_alone);
        let stop = shutdown.wait();
        tokio::spawn(async move {
            let known = async {
                own.pods.wait_until_ready().await.is_ok()
                    && (pods_alone || own.sandboxes.wait_until_ready().await.is_ok())
            };
            tokio::select! {
                known = known => own.shared.synced.store(known, Ordering::Release),
                () = stop => {}
            }
        });
        directory
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match &self.scope.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn watch_sandboxes(&self, writer: reflector::store::Writer<Named>, shutdown: Shutdown) {
        let watch = watcher(self.api::<Named>(), watcher::Config::default())
            .modify(|sandbox| sandbox.metadata.managed_fields = None)
            .default_backoff()
            .reflect(writer);
        let shared = self.shared.clone();
        let note = move |event: watcher::Event<Named>| match event {
            watcher::Event::Apply(sandbox) | watcher::Event::Delete(sandbox) => {
                shared.take_away(sandbox.metadata.namespace.as_deref(), sandbox.metadata.name.as_deref());
            }
            watcher::Event::InitDone => shared.take_all_away(),
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
        };
        tokio::spawn(drive("Sandboxes", watch.boxed(), note, shutdown));
    }

    fn watch_pods(&self, writer: reflector::store::Writer<Pod>, shutdown: Shutdown) {
        let labelled = watcher::Config::default().labels(label::SANDBOX_NAME_HASH);
        let watch = watcher(self.api::<Read<Pod>>(), labelled)
            .filter_map(|event| std::future::ready(event.map(decodable).transpose()))
            .modify(|pod| {
                pod.metadata.managed_fields = None;
                pod.spec = None;
                if let Some(status) = &mut pod.status {
                    status.container_statuses = None;
                    status.init_container_statuses = None;
                }
            })
            .default_backoff()
            .reflect(writer);
        let shared = self.shared.clone();
        let note = move |event: watcher::Event<Pod>| match event {
            watcher::Event::Apply(pod) | watcher::Event::Delete(pod) => {
                shared.remember(&pod);
                let owner = owner::controller(&pod).map(|owner| owner.name.as_str());
                shared.take_away(pod.metadata.namespace.as_deref(), owner);
            }
            watcher::Event::InitApply(pod) => shared.remember(&pod),
            watcher::Event::InitDone => shared.take_all_away(),
            watcher::Event::Init => {}
        };
        tokio::spawn(drive("Pods", watch.boxed(), note, shutdown));
    }

    fn known(&self, target: &Target) -> Result<Arc<Backend>, Unresolved> {
        let changes = {
            let prepared = self.shared.prepared.read().unwrap_or_else(PoisonError::into_inner);
            let answer = prepared.answers.get(&target.namespace).and_then(|names| names.get(&target.id));
            if let Some(backend) = answer {
                return match &target.uid {
                    Some(wanted) if *wanted != backend.sandbox => Err(Unresolved::Unknown),
                    _ => Ok(backend.clone()),
                };
            }
            prepared.changes
        };
        let pod = |name: &str| self.pods.get(&ObjectRef::<Pod>::new(name).within(&target.namespace));
        let backend = if self.scope.pods_alone {
            alone(target, pod(&target.id).as_deref())?
        } else {
            let reference = ObjectRef::<Named>::new(&target.id).within(&target.namespace);
            let sandbox = self.sandboxes.get(&reference).ok_or(Unresolved::Unknown)?;
            backend(target, &sandbox, pod(pod_name(&*sandbox)).as_deref())?
        };
        let backend = Arc::new(backend);
        self.shared.prepare(target, &backend, changes);
        Ok(backend)
    }

    async fn ask(&self, target: &Target) -> Result<Arc<Backend>, Unresolved> {
        let ask = async {
            let _turn = self.questions.acquire().await;
            let failed = |error: kube::Error| Unresolved::Api(error.to_string());
            let pods = Api::<Pod>::namespaced(self.client.clone(), &target.namespace);
            if self.scope.pods_alone {
                return alone(target, pods.get_opt(&target.id).await.map_err(failed)?.as_ref());
            }
            let sandboxes = Api::<Named>::namespaced(self.client.clone(), &target.namespace);
            let sandbox = sandboxes.get_opt(&target.id).await.map_err(failed)?;
            let sandbox = sandbox.ok_or(Unresolved::Unknown)?;
            let pod = pods.get_opt(pod_name(&sandbox)).await.map_err(failed)?;
            backend(target, &sandbox, pod.as_ref())
        };
        let answer = tokio::time::timeout(QUESTION_LIMIT, ask).await;
        let backend = answer
            .unwrap_or_else(|_| Err(Unresolved::Api(format!("no answer within {QUESTION_LIMIT:?}"))))?;
        self.shared.history.note(&backend.sandbox, &backend.ips);
        Ok(Arc::new(backend))
    }
}

impl Resolve for Directory {
    fn resolve<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Arc<Backend>, Unresolved>> {
        // A client may see that a Sandbox is ready before the informer cache does.
        match self.known(target) {
            Ok(backend) => futures::future::ready(Ok(backend)).boxed(),
            Err(_) => self.ask(target).boxed(),
        }
    }

    fn reachable<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, ()> {
        async move {
            loop {
                let changed = self.shared.changed.notified();
                if self.known(target).is_ok() {
                    return;
                }
                changed.await;
            }
        }
        .boxed()
    }

    fn past(&self, sandbox: &str, address: IpAddr) -> Past {
        self.shared.history.past(sandbox, address)
    }

    fn forget(&self, target: &Target) {
        self.shared.take_away(Some(&target.namespace), Some(&target.id));
    }

    fn polled_before_suspend(&self) -> Vec<Arc<Backend>> {
        let known = self.sandboxes.state().into_iter().filter_map(|sandbox| {
            let (namespace, id) = (sandbox.namespace()?, sandbox.name_any());
            let target = Target { namespace, id, port: 1, pod_ip: None, uid: None, timeout: None };
            self.known(&target).ok()
        });
        known
            .filter(|backend| backend.idle_timeout.as_ref().is_some_and(|s| s.activity_port.is_some()))
            .collect()
    }

    fn ready(&self) -> bool {
        self.shared.synced.load(Ordering::Acquire)
    }
}

impl Shared {
    fn prepare(&self, target: &Target, backend: &Arc<Backend>, changes: u64) {
        let mut prepared = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        if prepared.changes != changes || prepared.count >= PREPARED {
            return;
        }
        let names = prepared.answers.entry(target.namespace.clone()).or_default();
        if names.insert(target.id.clone(), backend.clone()).is_none() {
            prepared.count += 1;
        }
    }

    fn take_away(&self, namespace: Option<&str>, name: Option<&str>) {
        self.changed.notify_waiters();
        let mut prepared = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        prepared.changes += 1;
        let (Some(namespace), Some(name)) = (namespace, name) else { return };
        let Some(names) = prepared.answers.get_mut(namespace) else { return };
        let removed = names.remove(name).is_some();
        if names.is_empty() {
            prepared.answers.remove(namespace);
        }
        prepared.count -= usize::from(removed);
    }

    fn take_all_away(&self) {
        self.changed.notify_waiters();
        let mut prepared = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        prepared.changes += 1;
        prepared.answers.clear();
        prepared.count = 0;
    }

    fn remember(&self, pod: &Pod) {
        if let Some(owner) = owner::sandbox(pod) {
            self.history.note(&owner.uid, &addresses(pod));
        }
    }
}

async fn drive<T>(
    what: &'static str,
    mut watch: futures::stream::BoxStream<'static, Result<T, watcher::Error>>,
    note: impl Fn(T),
    shutdown: Shutdown,
) {
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            event = watch.next() => match event {
                None => return,
                Some(Ok(event)) => note(event),
                // The watcher restarts itself after a backoff.
                Some(Err(error)) => tracing::warn!(%error, what, "watch was interrupted"),
            }
        }
    }
}

/// Builds the backend from a Sandbox and the Pod with the name of its Pod.
fn backend(target: &Target, sandbox: &Named, pod: Option<&Pod>) -> Result<Backend, Unresolved> {
    let uid = sandbox.metadata.uid.as_deref().ok_or(Unresolved::Unknown)?;
    if target.uid.as_deref().is_some_and(|wanted| wanted != uid) {
        return Err(Unresolved::Unknown);
    }
    if owner::extension(sandbox, "SandboxWarmPool").is_some() {
        return Err(Unresolved::Pooled);
    }
    let pod = pod.ok_or(Unresolved::NotReady)?;
    if owner::controller(pod).is_none_or(|owner| owner.uid != uid) {
        return Err(Unresolved::NotReady);
    }
    Ok(Backend { idle_timeout: idle_timeout(sandbox, pod), ..reachable(target, uid, pod)? })
}

/// Returns the idle timeout of the Sandbox, if it has one. The Pod carries the annotations of the Pod
/// template.
fn idle_timeout(sandbox: &Named, pod: &Pod) -> Option<IdleTimeout> {
    let times = IdleTimes::read([sandbox.annotations(), pod.annotations()]).ok()?;
    let reported = sandbox.annotations().get(annotation::LAST_ACTIVITY);
    Some(IdleTimeout {
        name: sandbox.name_any(),
        after: times.suspend_after?,
        reported: reported.and_then(|time| time.parse().ok()),
        activity_port: times.activity_port,
        version: sandbox.metadata.resource_version.clone(),
    })
}

/// Builds the backend from the Pod named like the Sandbox.
fn alone(target: &Target, pod: Option<&Pod>) -> Result<Backend, Unresolved> {
    let pod = pod.ok_or(Unresolved::Unknown)?;
    let owner = owner::sandbox(pod).filter(|owner| owner.name == target.id);
    let uid = &owner.ok_or(Unresolved::Unknown)?.uid;
    if target.uid.as_ref().is_some_and(|wanted| wanted != uid) {
        return Err(Unresolved::Unknown);
    }
    if pod.labels().contains_key(label::WARM_POOL_SANDBOX) {
        return Err(Unresolved::Pooled);
    }
    reachable(target, uid, pod)
}

fn reachable(target: &Target, sandbox: &str, pod: &Pod) -> Result<Backend, Unresolved> {
    let ready = is_pod_ready(pod);
    let ips = addresses(pod);
    match (&pod.metadata.name, &pod.metadata.uid) {
        (Some(name), Some(uid)) if ready && pod.metadata.deletion_timestamp.is_none() && !ips.is_empty() => {
            let pod = PodId { namespace: target.namespace.clone(), name: name.clone(), uid: uid.clone() };
            Ok(Backend { sandbox: sandbox.to_owned(), pod, ips, idle_timeout: None })
        }
        _ => Err(Unresolved::NotReady),
    }
}

fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    let listed: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let listed = if listed.is_empty() { status.pod_ip.as_deref().into_iter().collect() } else { listed };
    listed.into_iter().filter_map(|ip| ip.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
