//! A request to an overloaded server is retried after `Retry-After`, and no sooner. The clock of these tests
//! is paused except for the waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use http::header::RETRY_AFTER;
use hutch_serve::retry;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use tokio::time::Instant;

/// A server on a socket that refuses so often, and the times of the requests to it.
async fn busy(times: usize, status: u16, told: Option<&'static str>) -> (Client, Arc<Mutex<Vec<Instant>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let app = Router::new().fallback(move || {
        let mut asked = seen.lock().unwrap();
        asked.push(Instant::now());
        let refused = asked.len() <= times;
        async move {
            let code = http::StatusCode::from_u16(if refused { status } else { 201 }).unwrap();
            let body = if refused {
                format!(r#"{{"kind": "Status", "status": "Failure", "reason": "Busy", "code": {status}}}"#)
            } else {
                r#"{"kind": "ConfigMap", "metadata": {"name": "made"}}"#.to_owned()
            };
            let mut response = (code, body).into_response();
            if let Some(told) = told.filter(|_| refused) {
                response.headers_mut().insert(RETRY_AFTER, told.parse().unwrap());
            }
            response
        }
    });
    // It is there already when another test came first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = Config::new(format!("http://{}", socket.local_addr().unwrap()).parse().unwrap());
    // No other timer may exist: the paused clock would advance to it.
    (config.connect_timeout, config.read_timeout, config.write_timeout) = (None, None, None);
    tokio::spawn(async move { axum::serve(socket, app).await });
    (retry::client(config).unwrap(), asked)
}

async fn create(client: &Client) -> Result<ConfigMap, kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &ConfigMap::default()).await
}

/// Whole seconds between the requests.
fn waits(asked: &Mutex<Vec<Instant>>) -> Vec<u64> {
    let asked = asked.lock().unwrap();
    asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn overloaded_server_is_retried_after_its_retry_after() {
    for (status, told, waited) in [(429, "7", 7), (503, "3", 3), (429, "86400", 60)] {
        let (client, asked) = busy(2, status, Some(told)).await;
        let made = create(&client).await.expect("taken in the end");
        assert_eq!(made.metadata.name.as_deref(), Some("made"));
        assert_eq!(waits(&asked), [waited; 2], "{status} {told}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_many_requests_waits_and_none_comes_early() {
    let (client, asked) = busy(10, 429, Some("5")).await;
    let all = futures::future::join_all((0..10).map(|_| create(&client))).await;
    assert!(all.iter().all(Result::is_ok));
    let asked = asked.lock().unwrap();
    let early = asked.iter().filter(|at| **at - asked[0] < Duration::from_secs(5)).count();
    assert_eq!((early, asked.len()), (10, 20), "each once, and once again when it may");
}

#[tokio::test(start_paused = true)]
async fn who_asked_gets_the_answer_in_the_end() {
    let (client, asked) = busy(usize::MAX, 429, Some("1")).await;
    let refused = create(&client).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 429), "{refused}");
    assert_eq!(waits(&asked), [1; 5]);
    // What may have been done is not sent twice.
    let (client, asked) = busy(usize::MAX, 504, None).await;
    create(&client).await.unwrap_err();
    assert_eq!(asked.lock().unwrap().len(), 1);
}
