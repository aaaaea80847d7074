//! Credentials and tokens, and the hosts that must not get them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use hutch_registry::{Error, Keychain, Puller};
use serde_json::json;

use crate::fixture::{Image, Registry, Reply, Seen, config, limits, pull, reply};

fn basic(user: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:pw")))
}

fn secrets(host: &str, users: &[(&str, &str)]) -> Keychain {
    let login = |user: &str| json!({"username": user, "password": "pw"});
    let auths: serde_json::Map<_, _> =
        users.iter().map(|(path, user)| (format!("{host}{path}"), login(user))).collect();
    Keychain::from_secrets([("s", json!({"auths": auths}).to_string().as_bytes())]).unwrap()
}

/// Answers only requests with that header; others get the challenge.
fn only(image: &Image, request: &Seen, authorization: &str, challenge: &str) -> Reply {
    match request.authorization.as_deref() == Some(authorization) {
        true => image.answer(request),
        false => reply(401, &[("www-authenticate", challenge)], ""),
    }
}

#[tokio::test]
async fn most_specific_credentials_that_are_accepted_are_used() {
    let image = Image::new(&[10]);
    let registry =
        Registry::serve(move |request| only(&image, request, &basic("right"), "Basic realm=\"r\"")).await;
    let store = tempfile::tempdir().unwrap();
    let puller = Puller::open(store.path(), config(&[&registry], ""), limits()).unwrap();
    let error = pull(&puller, &registry.name()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    let keychain = secrets(&registry.host, &[("/org/app", "wrong"), ("/org", "right"), ("/other", "other")]);
    puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap();
    let sent: Vec<_> =
        registry.requests("").into_iter().filter_map(|request| request.authorization).collect();
    assert_eq!(sent[..2], [basic("wrong"), basic("right")]);
    assert!(!sent.contains(&basic("other")));
    let keychain = secrets(&registry.host, &[("", "wrong")]);
    let error = puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("none of the credentials") && !error.contains("pw"), "{error}");
}

#[tokio::test]
async fn token_is_exchanged_and_a_new_one_after_it_expired() {
    let image = Image::new(&[10, 20, 30]);
    let expired = Arc::new(AtomicBool::new(false));
    let host = Arc::new(std::sync::OnceLock::<String>::new());
    let of_registry = host.clone();
    let registry = Registry::serve(move |request| {
        let challenge =
            format!("Bearer realm=\"http://{}/token?a=b\",service=\"s&x\"", of_registry.get().unwrap());
        if request.path == "/token" {
            assert_eq!(request.authorization, Some(basic("user")));
            assert_eq!(request.query, "a=b&scope=repository%3Aorg%2Fapp%3Apull&service=s%26x");
            let token = if expired.load(Ordering::SeqCst) { "second" } else { "first" };
            return reply(200, &[], json!({ "token": token }).to_string());
        }
        if request.path.contains("/blobs/") {
            expired.store(true, Ordering::SeqCst);
        }
        let token = if expired.load(Ordering::SeqCst) { "Bearer second" } else { "Bearer first" };
        only(&image, request, token, &challenge)
    })
    .await;
    host.set(registry.host.clone()).unwrap();
    let store = tempfile::tempdir().unwrap();
    let puller = Puller::open(store.path(), config(&[&registry], ""), limits()).unwrap();
    let keychain = secrets(&registry.host, &[("", "user")]);
    puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap();
    assert_eq!(registry.requests("/token").len(), 2);
}

#[tokio::test]
async fn redirect_to_another_host_gets_no_token() {
    let image = Image::new(&[1000]);
    let served = image.clone();
    let cdn = Registry::serve(move |request| served.answer(request)).await;
    let to = cdn.host.clone();
    let registry = Registry::serve(move |request| match &request.authorization {
        Some(_) if request.path.contains("/blobs/") => {
            reply(307, &[("location", &format!("http://{to}{}?signature=x", request.path))], "")
        }
        _ => only(&image, request, &basic("user"), "Basic"),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let puller = Puller::open(store.path(), config(&[&registry, &cdn], ""), limits()).unwrap();
    let keychain = secrets(&registry.host, &[("", "user")]);
    puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap();
    let seen = cdn.requests("");
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|request| request.authorization.is_none()), "{seen:?}");
}

#[tokio::test]
async fn other_host_that_wants_credentials_gets_none() {
    let image = Image::new(&[1000]);
    let thief = Registry::serve(|_| reply(401, &[("www-authenticate", "Basic")], "")).await;
    let to = thief.host.clone();
    let registry = Registry::serve(move |request| match request.path.contains("/blobs/") {
        true => reply(307, &[("location", &format!("http://{to}/x"))], ""),
        false => only(&image, request, &basic("user"), "Basic"),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let puller = Puller::open(store.path(), config(&[&registry, &thief], ""), limits()).unwrap();
    let keychain = secrets(&registry.host, &[("", "user")]);
    puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap_err();
    assert!(thief.requests("").iter().all(|request| request.authorization.is_none()));
}

#[tokio::test]
async fn realm_of_another_host_without_tls_gets_no_request() {
    let thief = Registry::serve(|_| reply(200, &[], "{\"token\":\"x\"}")).await;
    let challenge = format!("Bearer realm=\"http://{}/token\"", thief.host);
    let registry = Registry::serve(move |_| reply(401, &[("www-authenticate", &challenge)], "")).await;
    let store = tempfile::tempdir().unwrap();
    // Even where the other host is named as serving without TLS.
    let puller = Puller::open(store.path(), config(&[&registry, &thief], ""), limits()).unwrap();
    let keychain = secrets(&registry.host, &[("", "user")]);
    let error = puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("which has no TLS"), "{error}");
    assert_eq!(thief.requests("").len(), 0);
}

#[tokio::test]
async fn mirror_gets_no_credentials_of_the_registry() {
    let image = Image::new(&[10]);
    let mirror = Registry::serve(|_| reply(401, &[("www-authenticate", "Basic")], "")).await;
    let registry = Registry::serve(move |request| only(&image, request, &basic("user"), "Basic")).await;
    let store = tempfile::tempdir().unwrap();
    let more = format!("mirrors: {{'{}': ['{}']}}", registry.host, mirror.host);
    let puller = Puller::open(store.path(), config(&[&registry, &mirror], &more), limits()).unwrap();
    let keychain = secrets(&registry.host, &[("", "user")]);
    puller.pull(&registry.name(), &keychain, |_| {}).await.unwrap();
    let seen = mirror.requests("");
    assert!(!seen.is_empty() && seen.iter().all(|request| request.authorization.is_none()), "{seen:?}");
}

#[tokio::test]
async fn endless_answer_of_a_realm_is_refused() {
    let host = Arc::new(std::sync::OnceLock::<String>::new());
    let of_registry = host.clone();
    let registry = Registry::serve(move |request| match request.path.as_str() {
        "/token" => reply(200, &[], vec![b' '; 1 << 20]),
        _ => {
            let challenge = format!("Bearer realm=\"http://{}/token\"", of_registry.get().unwrap());
            reply(401, &[("www-authenticate", &challenge)], "")
        }
    })
    .await;
    host.set(registry.host.clone()).unwrap();
    let store = tempfile::tempdir().unwrap();
    let puller = Puller::open(store.path(), config(&[&registry], ""), limits()).unwrap();
    let error = pull(&puller, &registry.name()).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}
