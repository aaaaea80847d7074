//! Directory against an in-memory API that lists, watches and reads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use hutch_router::{Directory, Past, Resolve, Scope, Target, Unresolved};
use hutch_serve::Shutdown;
use hutch_testkit::wait::eventually;
use serde_json::{Value, json};
use tokio::sync::broadcast;

const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1";

struct Api {
    objects: Mutex<Vec<Value>>,
    events: broadcast::Sender<Value>,
    questions: AtomicUsize,
    broken: AtomicBool,
}

impl Api {
    /// Stores an object; `tell` also sends a watch event.
    fn put(&self, object: Value, tell: bool) {
        let mut objects = self.objects.lock().unwrap();
        objects.retain(|old| {
            old["kind"] != object["kind"] || old["metadata"]["name"] != object["metadata"]["name"]
        });
        objects.push(object.clone());
        if tell {
            let _ = self.events.send(object);
        }
    }
}

async fn answer(State(api): State<Arc<Api>>, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let kind = if uri.path().contains("/sandboxes") { "Sandbox" } else { "Pod" };
    let query = query.unwrap_or_default();
    if query.contains("watch=true") {
        let events = api.events.subscribe();
        let lines = futures::stream::unfold(events, move |mut events| async move {
            loop {
                let object = events.recv().await.ok()?;
                if object["kind"] == kind {
                    // In the field order of API servers.
                    let line = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n");
                    return Some((Ok::<_, std::io::Error>(line), events));
                }
            }
        });
        return Body::from_stream(lines).into_response();
    }
    let of_kind: Vec<Value> =
        api.objects.lock().unwrap().iter().filter(|o| o["kind"] == kind).cloned().collect();
    let lists = [format!("{SANDBOXES}/sandboxes"), "/api/v1/pods".into()];
    if lists.iter().any(|list| list == uri.path()) {
        assert!(
            kind == "Sandbox" || query.contains("labelSelector=agents.x-k8s.io%2Fsandbox-name-hash"),
            "{query}"
        );
        return Json(json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": of_kind}))
            .into_response();
    }
    api.questions.fetch_add(1, Ordering::SeqCst);
    if api.broken.load(Ordering::SeqCst) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let name = uri.path().rsplit('/').next().unwrap();
    match of_kind.into_iter().find(|object| object["metadata"]["name"] == name) {
        Some(object) => Json(object).into_response(),
        None => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                "message": "not found", "metadata": {}, "details": {}});
            (StatusCode::NOT_FOUND, Json(status)).into_response()
        }
    }
}

fn sandbox(name: &str) -> Value {
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "2"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn pod(name: &str, ready: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "n", "uid": format!("pod-{name}"), "resourceVersion": "3", "ownerReferences": [
            {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": format!("uid-{name}"), "controller": true}]},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"podIP": "10.89.0.7", "conditions": [{"type": "Ready", "status": ready}]}})
}

fn target(id: &str) -> Target {
    Target { namespace: "n".into(), id: id.into(), port: 1, pod_ip: None, uid: None, timeout: None }
}

#[tokio::test]
async fn the_directory_reads_the_api_on_cache_misses() {
    let api = Arc::new(Api {
        objects: Mutex::default(),
        events: broadcast::channel(16).0,
        questions: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    });
    let client = hutch_serve::memory::client(Router::new().fallback(answer).with_state(api.clone()), "n");
    let shutdown = Shutdown::new();
    let directory = Directory::start(client, Scope::default(), &shutdown);
    eventually("it is ready", async || directory.ready().then_some(())).await;
    assert!(matches!(directory.resolve(&target("a")).await, Err(Unresolved::Unknown)));
    // The client is faster than the watch.
    api.put(sandbox("a"), false);
    assert!(matches!(directory.resolve(&target("a")).await, Err(Unresolved::NotReady)));
    api.put(pod("a", "True"), false);
    let backend = directory.resolve(&target("a")).await.unwrap();
    assert_eq!((backend.sandbox.as_str(), backend.pod.uid.as_str()), ("uid-a", "pod-a"));
    assert!(api.questions.load(Ordering::SeqCst) >= 5);
    // After the watch event no API request is sent.
    eventually("both watches have begun", async || (api.events.receiver_count() == 2).then_some(())).await;
    api.put(sandbox("a"), true);
    api.put(pod("a", "True"), true);
    eventually("it knows without asking", async || {
        let before = api.questions.load(Ordering::SeqCst);
        let known = directory.resolve(&target("a")).await.is_ok();
        (known && api.questions.load(Ordering::SeqCst) == before).then_some(())
    })
    .await;
    // A request that waits for a Pod is notified by the watch alone.
    api.put(pod("a", "False"), true);
    eventually("it is not ready", async || directory.resolve(&target("a")).await.is_err().then_some(()))
        .await;
    let asked = api.questions.load(Ordering::SeqCst);
    let a = target("a");
    let reachable = directory.reachable(&a);
    futures::pin_mut!(reachable);
    assert!(futures::poll!(reachable.as_mut()).is_pending());
    api.put(pod("a", "True"), true);
    reachable.await;
    assert_eq!(api.questions.load(Ordering::SeqCst), asked);
    // The Pod's address changes: the earlier one is remembered with its owner.
    let mut moved = pod("a", "True");
    moved["status"]["podIP"] = json!("10.89.0.8");
    api.put(moved, true);
    let (earlier, nobodys) = ("10.89.0.7".parse().unwrap(), "10.89.0.9".parse().unwrap());
    eventually("it has moved", async || {
        directory
            .resolve(&target("a"))
            .await
            .is_ok_and(|backend| !backend.ips.contains(&earlier))
            .then_some(())
    })
    .await;
    assert_eq!(directory.past("uid-a", earlier), Past::Its);
    assert_eq!(directory.past("uid-b", earlier), Past::Another);
    assert_eq!(directory.past("uid-a", nobodys), Past::Unknown);
    api.put(pod("a", "False"), true);
    eventually("it is not ready any more", async || {
        matches!(directory.resolve(&target("a")).await, Err(Unresolved::NotReady)).then_some(())
    })
    .await;
    api.broken.store(true, Ordering::SeqCst);
    assert!(matches!(directory.resolve(&target("b")).await, Err(Unresolved::Api(_))));
    shutdown.trigger();
}

#[tokio::test]
async fn without_watches_every_resolve_reads_the_api() {
    let api = Arc::new(Api {
        objects: Mutex::new(vec![sandbox("a"), pod("a", "True"), pod("b", "True")]),
        events: broadcast::channel(16).0,
        questions: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    });
    let forbidden = Router::new()
        .route(&format!("{SANDBOXES}/sandboxes"), axum::routing::get(async || StatusCode::FORBIDDEN))
        .fallback(answer)
        .with_state(api.clone());
    let shutdown = Shutdown::new();
    let client = hutch_serve::memory::client(Router::new().fallback(answer).with_state(api.clone()), "n");
    let asking = Scope { without_watches: true, ..Scope::default() }.find_out(&client).await.unwrap();
    assert!(!asking.pods_alone);
    let directory = Directory::start(client, asking, &shutdown);
    assert!(directory.ready());
    for round in 1..=3 {
        assert!(directory.resolve(&target("a")).await.is_ok());
        assert_eq!(api.questions.load(Ordering::SeqCst), 2 * round);
    }
    assert!(
        matches!(directory.resolve(&target("b")).await, Err(Unresolved::Unknown)),
        "a Pod without its Sandbox"
    );
    let client = hutch_serve::memory::client(forbidden, "n");
    let scope = Scope::default().find_out(&client).await.unwrap();
    assert!(scope.pods_alone);
    let directory = Directory::start(client, scope, &shutdown);
    eventually("it is ready", async || directory.ready().then_some(())).await;
    assert_eq!(directory.resolve(&target("b")).await.unwrap().sandbox, "uid-b");
    shutdown.trigger();
}
