//! Authorization with tokens that the Kubernetes API reviews, and with tokens for one Sandbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_router::{Access, Claims, ReviewConfig, Reviewer, TokenKey};
use serde_json::{Value, json};

use crate::routed::{Routed, backend, head, routed, send};

async fn answering() -> String {
    let (port, _) = backend(|mut stream| async move {
        let head = head(&mut stream).await.to_lowercase();
        let leaked = head.contains("authorization") || head.contains("good-token");
        let body = if leaked { "leaked" } else { "inside" };
        send(
            &mut stream,
            &format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\n{body}"),
        )
        .await;
    })
    .await;
    port.to_string()
}

/// API that reviews tokens, and the number of its reviews.
fn reviewer(config: ReviewConfig) -> (Access, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let review = async move |Json(review): Json<Value>| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Long enough that concurrent requests find the review in flight.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let token = review["spec"]["token"].as_str().unwrap();
        if token == "broken-token" {
            return (StatusCode::INTERNAL_SERVER_ERROR, "no").into_response();
        }
        let known = token == "good-token";
        let mut answer = review.clone();
        answer["status"] =
            json!({"authenticated": known, "user": {"username": "u"}, "audiences": ["router"]});
        (StatusCode::CREATED, Json(answer)).into_response()
    };
    let app = axum::Router::new().route("/apis/authentication.k8s.io/v1/tokenreviews", post(review));
    let client = hutch_serve::memory::client(app, "default");
    (Access::Reviewed(Arc::new(Reviewer::new(client, config))), asked)
}

async fn get(routed: &Routed, port: &str, authorization: &str) -> (u16, String) {
    let base = [("x-sandbox-id", "a"), ("x-sandbox-port", port), ("authorization", authorization)];
    routed.get("/", if authorization.is_empty() { &base[..2] } else { &base }).await
}

#[tokio::test]
async fn a_token_is_reviewed_once_and_cached() {
    let (access, asked) = reviewer(ReviewConfig::default());
    let (routed, port) = (routed(access).await, answering().await);
    assert_eq!(get(&routed, &port, "").await.0, 401, "a token is always wanted");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let together = (0..20).map(|_| get(&routed, &port, "Bearer good-token"));
    for answer in futures::future::join_all(together).await {
        assert_eq!(answer, (200, "inside".into()));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let basic = format!("Basic {}", STANDARD.encode("x:good-token"));
    assert_eq!(get(&routed, &port, &basic).await, (200, "inside".into()));
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the longer half is tried first");
    for _ in 0..2 {
        assert_eq!(get(&routed, &port, "Bearer bad-token").await.0, 401);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let failed = |how: &str| (500, format!(r#"{{"detail":"tokenreview{how}: the API answered 500"}}"#));
    assert_eq!(get(&routed, &port, "Bearer broken-token").await, failed(""));
    assert_eq!(get(&routed, &port, "Bearer broken-token").await, failed(" (cached)"));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn reviews_are_cached_within_ttl_and_size() {
    let config = ReviewConfig { ttl: Duration::from_millis(200), cache_size: 2, ..ReviewConfig::default() };
    let (access, asked) = reviewer(config);
    let (routed, port) = (routed(access).await, answering().await);
    for token in ["good-token", "one", "two", "good-token"] {
        get(&routed, &port, &format!("Bearer {token}")).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 4, "the first was forgotten for the third");
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(get(&routed, &port, "Bearer good-token").await.0, 200);
    assert_eq!(asked.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_token_for_another_audience_is_refused() {
    for (audiences, status) in [(vec![], 200), (vec!["x", "router"], 200), (vec!["x"], 401)] {
        let audiences: Vec<String> = audiences.into_iter().map(str::to_owned).collect();
        let (access, _) = reviewer(ReviewConfig { audiences: audiences.clone(), ..ReviewConfig::default() });
        let (routed, port) = (routed(access).await, answering().await);
        assert_eq!(get(&routed, &port, "Bearer good-token").await.0, status, "{audiences:?}");
    }
}

#[tokio::test]
async fn a_scoped_token_admits_one_sandbox_uid() {
    let key = TokenKey::new(&[b'k'; 32]).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mint = |ns: &str, name: &str, uid: Option<&str>, exp: u64| {
        let claims = Claims { ns: ns.into(), name: name.into(), exp, uid: uid.map(str::to_owned) };
        format!("Bearer {}", key.mint(&claims).unwrap())
    };
    let tokens = [
        (mint("default", "a", None, now + 60), 200),
        (mint("default", "a", Some("uid-of-a"), now + 60), 200),
        (mint("default", "a", Some("uid-of-an-earlier-a"), now + 60), 403),
        (mint("default", "b", None, now + 60), 403),
        (mint("other", "a", None, now + 60), 403),
        (mint("default", "a", None, now), 401),
        ("Bearer v1.e30.AAAA".to_owned(), 401),
    ];
    let routed = routed(Access::Scoped(Arc::new(key))).await;
    let port = answering().await;
    for (token, status) in &tokens {
        let (given, body) = get(&routed, &port, token).await;
        let expected = match status {
            200 => "inside",
            401 => r#"{"detail":"unauthenticated"}"#,
            _ => r#"{"detail":"forbidden"}"#,
        };
        assert_eq!((given, body.as_str()), (*status, expected), "{token}");
    }
    // Headers that upstream clients also send are checked and do not extend the grant.
    let headers = [
        ("x-sandbox-id", "a"),
        ("x-sandbox-port", port.as_str()),
        ("x-sandbox-pod-ip", "10.89.0.7"),
        ("authorization", tokens[0].0.as_str()),
    ];
    assert_eq!(routed.get("/", &headers).await.0, 200);
}
