//! Polls for last activity: a Sandbox that will soon be suspended receives a poll with the token of its own
//! Pod, and the response can only report activity.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::{Json, Router as App};
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::PodId;
use hutch_router::{
    Access, Backend, Direct, IdleTimeout, Past, PodKey, Reporting, Resolve, Target, Unresolved,
};
use hutch_serve::Shutdown;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::routed::{backend as server, head, quick, send, with, within};

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Sandboxes, with the port of the poll.
struct Known(Vec<Arc<Backend>>);

impl Resolve for Known {
    fn resolve<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, Result<Arc<Backend>, Unresolved>> {
        async { Err(Unresolved::Unknown) }.boxed()
    }

    fn past(&self, _: &str, _: IpAddr) -> Past {
        Past::Unknown
    }

    fn forget(&self, _: &Target) {}

    fn polled_before_suspend(&self) -> Vec<Arc<Backend>> {
        self.0.clone()
    }

    fn ready(&self) -> bool {
        true
    }
}

/// Sandbox with an idle timeout of one hour and a last activity that many seconds ago.
fn sandbox(name: &str, port: u16, used: Option<i64>) -> Arc<Backend> {
    let reported = used.map(|ago| Timestamp::now() - jiff::SignedDuration::from_secs(ago));
    let after = Duration::from_secs(3600);
    Arc::new(Backend {
        sandbox: format!("uid-of-{name}"),
        pod: PodId { namespace: "n".into(), name: name.into(), uid: format!("pod-of-{name}") },
        ips: vec!["127.0.0.1".parse().unwrap()],
        idle_timeout: Some(IdleTimeout {
            name: name.into(),
            after,
            reported,
            activity_port: Some(port),
            version: Some("7".into()),
        }),
    })
}

type Patches = Arc<Mutex<Vec<(String, Value)>>>;

/// Polls these Sandboxes; returns the patches.
fn asking(known: Vec<Arc<Backend>>) -> (Patches, Shutdown) {
    let (patches, shutdown) = (Patches::default(), Shutdown::new());
    let answer = async |State(patches): State<Patches>, uri: http::Uri, body: axum::body::Bytes| {
        let name = uri.path().rsplit('/').next().unwrap().to_owned();
        patches.lock().unwrap().push((name, serde_json::from_slice(&body).unwrap()));
        Json(json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a"},
            "spec": {"podTemplate": {"spec": {"containers": []}}}}))
    };
    let client = hutch_serve::memory::client(App::new().fallback(answer).with_state(patches.clone()), "n");
    let reporting = Reporting::start(Direct { allow_loopback: true }, client, shutdown.clone());
    reporting.poll_activity(Arc::new(Known(known)), Some(Arc::new(PodKey::new(KEY).unwrap())));
    (patches, shutdown)
}

/// Responds to every poll with these bytes and records its head.
async fn inside(answer: String) -> (u16, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let noted = heads.clone();
    let (port, _) = server(move |mut stream| {
        let (answer, noted) = (answer.clone(), noted.clone());
        async move {
            let asked = head(&mut stream).await;
            noted.lock().unwrap().push(asked);
            send(&mut stream, &answer).await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    })
    .await;
    (port, heads)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

async fn until(holds: impl Fn() -> bool) {
    within(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn polled_activity_is_reported_before_the_suspend() {
    let (used, heads) = inside(ok(r#"{"idle_seconds":7,"requests":0,"more":"x"}"#)).await;
    let (fresh, fresh_heads) = inside(ok(r#"{"idle_seconds":0,"requests":1}"#)).await;
    let known = vec![
        sandbox("used", used, Some(3000)),
        sandbox("never-reported", used, None),
        sandbox("used-lately", fresh, Some(60)),
    ];
    let (patches, _shutdown) = asking(known);
    until(|| patches.lock().unwrap().len() >= 2).await;
    let patches = patches.lock().unwrap();
    let mut names: Vec<_> = patches.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["never-reported", "used"]);
    for (name, patch) in patches.iter() {
        assert_eq!(patch["metadata"]["uid"], format!("uid-of-{name}"));
        assert_eq!(
            patch["metadata"]["resourceVersion"], "7",
            "a later report of another client is not overwritten"
        );
        let said = patch["metadata"]["annotations"]["hutch.dev/last-activity"].as_str().unwrap();
        let ago = Timestamp::now().duration_since(said.parse().unwrap()).as_secs();
        assert!((7..60).contains(&ago), "{ago} s ago");
    }
    let heads = heads.lock().unwrap();
    let token = PodKey::new(KEY).unwrap().token("pod-of-used");
    assert!(heads.iter().all(|head| head.starts_with("GET /v1/activity HTTP/1.1\r\n")), "{heads:?}");
    assert!(
        heads.iter().any(|head| head.contains(&format!("authorization: Bearer {token}\r\n"))),
        "{heads:?}"
    );
    assert_eq!(fresh_heads.lock().unwrap().len(), 0, "no poll without need");
}

#[tokio::test]
async fn invalid_or_slow_poll_responses_are_ignored() {
    let long = format!(r#"{{"idle_seconds":0,"x":"{}"}}"#, "x".repeat(2000));
    let mut known = Vec::new();
    let mut asked = Vec::new();
    for (number, answer) in [
        ok("[]"),
        ok(r#"{"idle_seconds":-5}"#),
        ok(r#"{"idle_seconds":"0"}"#),
        // Earlier than the reported activity: already known.
        ok(r#"{"idle_seconds":3500}"#),
        ok(r#"{"idle_seconds":18446744073709551615}"#),
        ok(&long),
        format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(20_000)),
        "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{".into(),
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 18\r\n\r\n{\"idle_seconds\":0}".into(),
        "HTTP/1.1 302 Found\r\nlocation: /v1/activity\r\ncontent-length: 0\r\n\r\n".into(),
        "220 smtp\r\n".into(),
        String::new(),
    ]
    .into_iter()
    .enumerate()
    {
        let (port, heads) = inside(answer).await;
        known.push(sandbox(&format!("s{number}"), port, Some(3000)));
        asked.push(heads);
    }
    known.push(sandbox("nobody-listens", 1, Some(3000)));
    let (port, _) = inside(ok(r#"{"idle_seconds":0}"#)).await;
    known.push(sandbox("honest", port, Some(3000)));
    let (patches, _shutdown) = asking(known);
    until(|| asked.iter().all(|heads| !heads.lock().unwrap().is_empty())).await;
    until(|| !patches.lock().unwrap().is_empty()).await;
    // Longer than the limit of a poll.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let patches = patches.lock().unwrap();
    assert!(patches.iter().all(|(name, _)| name == "honest"), "{patches:?}");
}

#[tokio::test]
async fn each_pod_receives_its_own_token() {
    let (port, heads) = inside(ok("hello")).await;
    let config = hutch_router::Config { pod_key: Some(Arc::new(PodKey::new(KEY).unwrap())), ..quick() };
    let routed = with(config, Access::Anyone, None, None).await;
    for id in ["a", "b"] {
        let port = port.to_string();
        let headers =
            [("x-sandbox-id", id), ("x-sandbox-port", &port), ("authorization", "Bearer of-the-client")];
        assert_eq!(routed.get("/", &headers).await.0, 200);
        let pod = routed.cluster.sandboxes.lock().unwrap()[id].pod.uid.clone();
        let token = PodKey::new(KEY).unwrap().token(&pod);
        let head = heads.lock().unwrap().last().unwrap().clone();
        assert!(head.contains(&format!("authorization: Bearer {token}\r\n")), "{head}");
        assert!(!head.contains("of-the-client"), "{head}");
    }
}
