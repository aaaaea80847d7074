//! Activity of Sandboxes with an idle timeout is reported rarely.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::{Json, Router};
use futures::future::join_all;
use hutch_kubelet::PodId;
use hutch_router::{Backend, Dial, DialError, Direct, IdleTimeout, Reporting};
use hutch_serve::Shutdown;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::routed::{backend as server, send, within};

#[derive(Default)]
struct Api {
    patches: Mutex<Vec<Value>>,
    suspended: AtomicBool,
}

impl Api {
    fn count(&self) -> usize {
        self.patches.lock().unwrap().len()
    }

    /// Waits until there are more than `count` reports.
    async fn more_than(&self, count: usize) {
        within(async {
            while self.count() <= count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

async fn answer(State(api): State<Arc<Api>>, body: axum::body::Bytes) -> Json<Value> {
    api.patches.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    let mode = if api.suspended.load(Ordering::SeqCst) { "Suspended" } else { "Running" };
    Json(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a", "namespace": "n"},
        "spec": {"operatingMode": mode, "podTemplate": {"spec": {"containers": []}}},
    }))
}

fn reporting() -> (Arc<Api>, Reporting<Direct>) {
    let api = Arc::new(Api::default());
    let client = hutch_serve::memory::client(Router::new().fallback(answer).with_state(api.clone()), "n");
    (api, Reporting::start(Direct { allow_loopback: true }, client, Shutdown::new()))
}

fn backend(after: Option<Duration>) -> Backend {
    Backend {
        sandbox: "u".into(),
        pod: PodId { namespace: "n".into(), name: "a".into(), uid: "p".into() },
        ips: vec!["127.0.0.1".parse().unwrap()],
        idle_timeout: after.map(|after| IdleTimeout {
            name: "a".into(),
            after,
            reported: None,
            activity_port: None,
            version: None,
        }),
    }
}

#[tokio::test]
async fn concurrent_requests_wait_for_one_shared_report() {
    let (api, reporting) = reporting();
    let asked = backend(Some(Duration::from_secs(3600)));
    let holds = join_all((0..1000).map(|_| reporting.hold(&asked))).await;
    assert!(holds.iter().all(Result::is_ok));
    assert_eq!(api.count(), 1);
    let report = api.patches.lock().unwrap()[0].clone();
    assert_eq!(report["metadata"]["uid"], "u");
    assert!(report["metadata"]["annotations"]["hutch.dev/last-activity"].is_string(), "{report}");
    assert_eq!(report.as_object().unwrap().len(), 1, "nothing else is written");
    drop(holds);
    assert!(reporting.hold(&asked).await.is_ok());
    assert_eq!(api.count(), 1, "not again for each request");
    assert!(reporting.hold(&backend(None)).await.is_ok());
    assert_eq!(api.count(), 1, "not without an idle timeout");
}

#[tokio::test]
async fn long_requests_and_traffic_count_as_activity() {
    let (api, reporting) = reporting();
    let asked = backend(Some(Duration::from_secs(2)));
    let hold = reporting.hold(&asked).await.ok().unwrap();
    api.more_than(2).await;
    drop(hold);

    let (port, _) = server(|mut stream| async move {
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() {
            send(&mut stream, "x").await;
        }
    })
    .await;
    let mut stream = reporting.dial(&asked, port).await.ok().unwrap();
    let before = api.count();
    within(async {
        while api.count() <= before + 1 {
            stream.write_all(b"x").await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    // A due report may still be written; afterwards the open connection is silent.
    tokio::time::sleep(Duration::from_millis(800)).await;
    let silent = api.count();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(api.count(), silent);
}

#[tokio::test]
async fn suspend_racing_a_request_fails_the_request() {
    let (api, reporting) = reporting();
    api.suspended.store(true, Ordering::SeqCst);
    let refused = reporting.hold(&backend(Some(Duration::from_secs(2)))).await.err();
    assert!(matches!(refused, Some(DialError::Gone(_))), "{refused:?}");
}
