//! The Sandboxes and Pods of the cluster, kept by watches; what they do not know yet is asked for.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use hutch_api::{Sandbox, annotation, label};
use hutch_remote::PodId;
use hutch_serve::Shutdown;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;

use crate::{Backend, Resolve, Target, Unresolved};

/// Questions to the API at once. One is asked only when the watches do not show a Pod that can be reached.
const QUESTIONS: usize = 16;
/// How long a request waits for the answer to such a question.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// A Sandbox as far as the way to its Pod goes. Nothing else of it is read, so that nothing else can be misread.
type Named = PartialObjectMeta<Sandbox>;

/// Resolves by the Kubernetes API.
pub struct Directory {
    client: Client,
    sandboxes: Store<Named>,
    pods: Store<Pod>,
    questions: Semaphore,
    synced: Arc<AtomicBool>,
}

impl Directory {
    /// Begins to watch, until the shutdown. Only Pods that carry the hash of a Sandbox's name are held.
    ///
    /// Must be called inside a tokio runtime.
    pub fn start(client: Client, shutdown: &Shutdown) -> Arc<Directory> {
        let (sandboxes, sandbox_writer) = reflector::store();
        let (pods, pod_writer) = reflector::store();
        let sandbox_watch = watcher(Api::<Named>::all(client.clone()), watcher::Config::default())
            .modify(|sandbox| sandbox.metadata.managed_fields = None)
            .default_backoff()
            .reflect(sandbox_writer);
        let labelled = watcher::Config::default().labels(label::SANDBOX_NAME_HASH);
        let pod_watch = watcher(Api::<Pod>::all(client.clone()), labelled)
            .modify(|pod| {
                pod.metadata.managed_fields = None;
                pod.spec = None;
                if let Some(status) = &mut pod.status {
                    status.container_statuses = None;
                    status.init_container_statuses = None;
                }
            })
            .default_backoff()
            .reflect(pod_writer);
        tokio::spawn(drive("Sandboxes", sandbox_watch.boxed(), shutdown.clone()));
        tokio::spawn(drive("Pods", pod_watch.boxed(), shutdown.clone()));
        let synced = Arc::new(AtomicBool::new(false));
        let (known_sandboxes, known_pods, known) = (sandboxes.clone(), pods.clone(), synced.clone());
        tokio::spawn(async move {
            if known_sandboxes.wait_until_ready().await.is_ok() && known_pods.wait_until_ready().await.is_ok()
            {
                known.store(true, Ordering::Release);
            }
        });
        Arc::new(Directory { client, sandboxes, pods, questions: Semaphore::new(QUESTIONS), synced })
    }

    fn known(&self, target: &Target) -> Result<Backend, Unresolved> {
        let reference = ObjectRef::<Named>::new(&target.id).within(&target.namespace);
        let sandbox = self.sandboxes.get(&reference).ok_or(Unresolved::Unknown)?;
        let reference = ObjectRef::<Pod>::new(pod_name(&sandbox)).within(&target.namespace);
        backend(target, &sandbox, self.pods.get(&reference).as_deref())
    }

    async fn ask(&self, target: &Target) -> Result<Backend, Unresolved> {
        let ask = async {
            let _turn = self.questions.acquire().await;
            let sandboxes = Api::<Named>::namespaced(self.client.clone(), &target.namespace);
            let failed = |error: kube::Error| Unresolved::Api(error.to_string());
            let sandbox = sandboxes.get_opt(&target.id).await.map_err(failed)?.ok_or(Unresolved::Unknown)?;
            let pods = Api::<Pod>::namespaced(self.client.clone(), &target.namespace);
            let pod = pods.get_opt(pod_name(&sandbox)).await.map_err(failed)?;
            backend(target, &sandbox, pod.as_ref())
        };
        let answer = tokio::time::timeout(QUESTION_LIMIT, ask).await;
        answer.unwrap_or_else(|_| Err(Unresolved::Api(format!("no answer within {QUESTION_LIMIT:?}"))))
    }
}

impl Resolve for Directory {
    fn resolve<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Backend, Unresolved>> {
        async move {
            // A client may have seen a Sandbox become ready before the watch has told us.
            match self.known(target) {
                Ok(backend) => Ok(backend),
                Err(_) => self.ask(target).await,
            }
        }
        .boxed()
    }

    fn ready(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }
}

async fn drive<T>(
    what: &'static str,
    mut watch: futures::stream::BoxStream<'static, Result<T, watcher::Error>>,
    shutdown: Shutdown,
) {
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            event = watch.next() => match event {
                None => return,
                Some(Ok(_)) => {}
                // The watcher starts again by itself, after a pause.
                Some(Err(error)) => tracing::warn!(%error, what, "a watch was interrupted"),
            }
        }
    }
}

fn pod_name(sandbox: &Named) -> &str {
    let annotated = sandbox.annotations().get(annotation::POD_NAME).map(String::as_str);
    annotated.filter(|name| !name.is_empty()).or(sandbox.metadata.name.as_deref()).unwrap_or_default()
}

/// What can be reached, from a Sandbox and the Pod that has its Pod's name.
fn backend(target: &Target, sandbox: &Named, pod: Option<&Pod>) -> Result<Backend, Unresolved> {
    let uid = sandbox.metadata.uid.as_deref().ok_or(Unresolved::Unknown)?;
    if target.uid.as_deref().is_some_and(|wanted| wanted != uid) {
        return Err(Unresolved::Unknown);
    }
    let owner = sandbox.owner_references().iter().find(|owner| owner.controller == Some(true));
    if owner.is_some_and(|owner| {
        owner.kind == "SandboxWarmPool" && group(&owner.api_version) == hutch_api::EXTENSIONS_GROUP
    }) {
        return Err(Unresolved::Pooled);
    }
    let pod = pod.ok_or(Unresolved::NotReady)?;
    let owned = pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid);
    let status = pod.status.as_ref().ok_or(Unresolved::NotReady)?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if !owned || !ready || pod.metadata.deletion_timestamp.is_some() {
        return Err(Unresolved::NotReady);
    }
    let listed: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let listed = if listed.is_empty() { status.pod_ip.as_deref().into_iter().collect() } else { listed };
    let ips: Vec<IpAddr> = listed.into_iter().filter_map(|ip| ip.parse().ok()).collect();
    let (Some(name), Some(pod_uid), false) =
        (pod.metadata.name.clone(), pod.metadata.uid.clone(), ips.is_empty())
    else {
        return Err(Unresolved::NotReady);
    };
    let pod = PodId { namespace: target.namespace.clone(), name, uid: pod_uid };
    Ok(Backend { sandbox: uid.to_owned(), pod, ips })
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn target() -> Target {
        Target { namespace: "n".into(), id: "a".into(), port: 1, pod_ip: None, uid: None, timeout: None }
    }

    fn sandbox(metadata: Value) -> Named {
        let mut all = json!({"name": "a", "namespace": "n", "uid": "s"});
        all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": all,
            "spec": {"podTemplate": {"spec": {"containers": []}}}
        }))
        .unwrap()
    }

    fn pod() -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "ownerReferences": [
                {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "a", "uid": "s", "controller": true}]},
            "status": {"podIP": "10.89.0.7", "podIPs": [{"ip": "10.89.0.7"}, {"ip": "fd00::7"}],
                "conditions": [{"type": "Ready", "status": "True"}]}
        })
    }

    fn found(target: &Target, sandbox: &Named, pod: Value) -> Result<Backend, Unresolved> {
        backend(target, sandbox, Some(&serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn a_ready_pod_of_its_own_is_reached() {
        let backend = found(&target(), &sandbox(json!({})), pod()).unwrap();
        assert_eq!(backend.pod, PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() });
        assert_eq!(backend.ips, ["10.89.0.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]);
        let named = Target { uid: Some("s".into()), ..target() };
        assert!(found(&named, &sandbox(json!({})), pod()).is_ok());
    }

    #[test]
    fn what_is_not_its_own_ready_pod_is_not() {
        for (pointer, value) in [
            ("/metadata/ownerReferences/0/uid", json!("other")),
            ("/metadata/ownerReferences/0/controller", json!(false)),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("/status/conditions/0/status", json!("False")),
            ("/status/conditions/0/type", json!("Initialized")),
            ("/status", json!({"conditions": [{"type": "Ready", "status": "True"}]})),
        ] {
            let mut pod = pod();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = if parent.is_empty() { Some(&mut pod) } else { pod.pointer_mut(parent) };
            parent.unwrap()[key] = value;
            let result = found(&target(), &sandbox(json!({})), pod);
            assert!(matches!(result, Err(Unresolved::NotReady)), "{pointer}");
        }
        assert!(matches!(backend(&target(), &sandbox(json!({})), None), Err(Unresolved::NotReady)));
    }

    #[test]
    fn a_pooled_sandbox_and_a_namesake_are_not_reached() {
        let owner = |kind: &str, group: &str| json!({"ownerReferences": [{"apiVersion": format!("{group}/v1beta1"), "kind": kind, "name": "o", "uid": "o", "controller": true}]});
        let pooled = sandbox(owner("SandboxWarmPool", "extensions.agents.x-k8s.io"));
        assert!(matches!(found(&target(), &pooled, pod()), Err(Unresolved::Pooled)));
        for (kind, group) in
            [("SandboxClaim", "extensions.agents.x-k8s.io"), ("SandboxWarmPool", "else.example")]
        {
            assert!(found(&target(), &sandbox(owner(kind, group)), pod()).is_ok(), "{kind} {group}");
        }
        let other = Target { uid: Some("other".into()), ..target() };
        assert!(matches!(found(&other, &sandbox(json!({})), pod()), Err(Unresolved::Unknown)));
    }

    #[test]
    fn the_pod_is_annotated_or_has_the_sandboxs_name() {
        assert_eq!(pod_name(&sandbox(json!({}))), "a");
        assert_eq!(pod_name(&sandbox(json!({"annotations": {"agents.x-k8s.io/pod-name": "p"}}))), "p");
        assert_eq!(pod_name(&sandbox(json!({"annotations": {"agents.x-k8s.io/pod-name": ""}}))), "a");
    }
}
