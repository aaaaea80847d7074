//! Requests for suspended Sandboxes: held, woken once for all of them, then sent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::Method;
use axum::{Json, Router};
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_router::{Access, ApiWake, Target, Wake};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::routed::{Cluster, backend, head, quick, send, with, within};

/// Wakes Sandboxes by adding them to the cluster after a delay.
#[derive(Default)]
struct Alarm {
    cluster: Mutex<Option<Arc<Cluster>>>,
    rung: AtomicUsize,
    broken: AtomicBool,
}

impl Wake for Alarm {
    fn wake<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<bool, String>> {
        async move {
            self.rung.fetch_add(1, Ordering::SeqCst);
            if self.broken.load(Ordering::SeqCst) {
                return Err("broken".into());
            }
            // Suspended again before it is ready, the first time.
            let anew = target.id == "asleep-again";
            if target.id != "asleep" && !(anew && self.rung.load(Ordering::SeqCst) > 1) {
                return Ok(anew || target.id == "asleep-for-ever");
            }
            let name = target.id.clone();
            let cluster = self.cluster.lock().unwrap().clone().unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(200)).await;
                cluster.add(&name, &["10.89.0.9"]);
            });
            Ok(true)
        }
        .boxed()
    }
}

#[tokio::test]
async fn concurrent_requests_wake_a_sandbox_once() {
    let alarm = Arc::new(Alarm::default());
    let routed = with(quick(), Access::Anyone, None, Some(alarm.clone())).await;
    *alarm.cluster.lock().unwrap() = Some(routed.cluster.clone());
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nawake").await;
    })
    .await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "asleep"), ("x-sandbox-port", port.as_str())];
    let answers = within(futures::future::join_all((0..100).map(|_| routed.get("/", &headers)))).await;
    assert!(answers.iter().all(|answer| *answer == (200, "awake".into())), "{answers:?}");
    assert_eq!(alarm.rung.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn sandbox_that_is_suspended_again_before_it_is_ready_is_woken_again() {
    let alarm = Arc::new(Alarm::default());
    let routed = with(quick(), Access::Anyone, None, Some(alarm.clone())).await;
    *alarm.cluster.lock().unwrap() = Some(routed.cluster.clone());
    let (port, _) = backend(|mut stream| async move {
        head(&mut stream).await;
        send(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nawake").await;
    })
    .await;
    let port = port.to_string();
    let headers = [("x-sandbox-id", "asleep-again"), ("x-sandbox-port", port.as_str())];
    assert_eq!(within(routed.get("/", &headers)).await, (200, "awake".into()));
    assert_eq!(alarm.rung.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_wake_timeout_returns_retry_after() {
    let alarm = Arc::new(Alarm::default());
    let routed = with(quick(), Access::Anyone, None, Some(alarm.clone())).await;
    let ask = async |id: &str| {
        let request = format!(
            "GET / HTTP/1.1\r\nx-sandbox-id: {id}\r\nx-sandbox-timeout: 0.3\r\nconnection: close\r\n\r\n"
        );
        within(routed.exchange(&request)).await
    };
    let late = ask("asleep-for-ever").await;
    assert!(
        late.starts_with("HTTP/1.1 503 ") && late.to_lowercase().contains("\r\nretry-after: 2\r\n"),
        "{late}"
    );
    assert!(late.ends_with(r#"{"detail":"The backend sandbox is waking up: asleep-for-ever"}"#), "{late}");
    // A Sandbox that may not be woken is like an absent one.
    assert!(ask("asleep-by-its-user").await.starts_with("HTTP/1.1 502 "));
    assert!(ask("absent").await.starts_with("HTTP/1.1 502 "));
    alarm.broken.store(true, Ordering::SeqCst);
    assert!(ask("asleep-for-ever").await.starts_with("HTTP/1.1 503 "));
}

async fn answer(
    State(patches): State<Arc<Mutex<Vec<Value>>>>,
    method: Method,
    body: axum::body::Bytes,
) -> Json<Value> {
    if method == Method::PATCH {
        patches.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    }
    Json(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 3, "resourceVersion": "9",
            "annotations": {"hutch.dev/wake-on-connect": "true", "hutch.dev/asleep-generation": "3"}},
        "spec": {"operatingMode": "Suspended", "podTemplate": {"spec": {"containers": []}}},
    }))
}

#[tokio::test]
async fn waking_patches_once_with_resource_version() {
    let patches = Arc::new(Mutex::new(Vec::new()));
    let client = hutch_serve::memory::client(Router::new().fallback(answer).with_state(patches.clone()), "n");
    let wake = ApiWake::new(client);
    let target = |uid: Option<&str>| Target {
        namespace: "n".into(),
        id: "a".into(),
        port: 1,
        pod_ip: None,
        uid: uid.map(str::to_owned),
        timeout: None,
    };
    assert_eq!(wake.wake(&target(Some("another"))).await, Ok(false));
    assert!(patches.lock().unwrap().is_empty());
    let before = Timestamp::now();
    assert_eq!(wake.wake(&target(None)).await, Ok(true));
    let mut patches = std::mem::take(&mut *patches.lock().unwrap());
    // Otherwise a Sandbox that still counts as ready would be suspended again at once.
    let active = patches[0]["metadata"]["annotations"]["hutch.dev/last-activity"].take();
    let active: Timestamp = active.as_str().unwrap().parse().unwrap();
    assert!(active.as_millisecond() >= before.as_millisecond());
    let annotations = json!({"hutch.dev/asleep-generation": null, "hutch.dev/last-activity": null});
    let expected = json!({
        "metadata": {"resourceVersion": "9", "annotations": annotations},
        "spec": {"operatingMode": "Running"},
    });
    assert_eq!(patches, [expected]);
}
