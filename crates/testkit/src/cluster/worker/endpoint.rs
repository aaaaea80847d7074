//! The kubelet's HTTPS port: what kube-apiserver asks of it for the streams of Pods.
//!
//! A client of it could run anything, so it serves only a client with the API server's certificate.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path as Segments, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::{StatusCode, Uri};
use hutch_kubelet::PodId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::pods::Pods;

/// Namespace, Pod, container.
type Names = Segments<(String, String, String)>;

/// Proves itself with the certificate of the API server, and wants to see that from who connects.
pub(super) fn tls(folder: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let certificate = CertificateDer::from_pem_file(folder.join("server.crt")).context("server.crt")?;
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).context("server.key")?;
    let mut clients = RootCertStore::empty();
    clients.add(certificate.clone())?;
    let clients = WebPkiClientVerifier::builder(Arc::new(clients)).build()?;
    let mut config = ServerConfig::builder()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate], key)?;
    // Streams need an upgrade of the connection.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

pub(super) fn routes(pods: Arc<Pods>) -> Router {
    Router::new()
        .route("/exec/{namespace}/{pod}/{container}", any(exec))
        .route("/attach/{namespace}/{pod}/{container}", any(attach))
        .route("/portForward/{namespace}/{pod}", any(port_forward))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
        .with_state(pods)
}

async fn exec(State(pods): State<Arc<Pods>>, names: Names, request: Request) -> Response {
    match found(&pods, names, request) {
        Ok((request, id)) => hutch_remote::exec(request, pods, id).await,
        Err(refused) => refused,
    }
}

async fn attach(State(pods): State<Arc<Pods>>, names: Names, request: Request) -> Response {
    match found(&pods, names, request) {
        Ok((request, id)) => hutch_remote::attach(request, pods, id).await,
        Err(refused) => refused,
    }
}

async fn logs(State(pods): State<Arc<Pods>>, names: Names, request: Request) -> Response {
    match found(&pods, names, request) {
        Ok((request, id)) => hutch_remote::logs(request, pods, id).await,
        Err(refused) => refused,
    }
}

async fn port_forward(
    State(pods): State<Arc<Pods>>,
    Segments((namespace, pod)): Segments<(String, String)>,
    request: Request,
) -> Response {
    match found(&pods, Segments((namespace, pod, String::new())), request) {
        Ok((request, id)) => hutch_remote::port_forward(request, pods, id).await,
        Err(refused) => refused,
    }
}

/// The request as [`hutch_remote`] reads it, and the Pod that it is about.
#[expect(clippy::result_large_err, reason = "it is the answer")]
fn found(
    pods: &Pods,
    Segments((namespace, pod, container)): Names,
    request: Request,
) -> Result<(Request, PodId), Response> {
    let Some(id) = pods.named(&namespace, &pod) else {
        return Err((StatusCode::NOT_FOUND, "pod does not exist").into_response());
    };
    let (mut parts, body): (_, Body) = request.into_parts();
    let query = public(parts.uri.query().unwrap_or_default(), &container);
    parts.uri = format!("{}?{query}", parts.uri.path())
        .parse::<Uri>()
        .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()).into_response())?;
    Ok((Request::from_parts(parts, body), id))
}

/// A query to a kubelet in the words of the public API, which has other names for some parameters and the container among them.
fn public(query: &str, container: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in query.split('&').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let name = match name {
            "input" => "stdin",
            "output" => "stdout",
            "error" => "stderr",
            "port" => "ports",
            other => other,
        };
        words.push(format!("{name}={value}"));
    }
    if !container.is_empty() {
        words.push(format!("container={container}"));
    }
    words.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_words_are_put_into_those_of_the_api() {
        let said = public("command=echo&command=a%26b&input=1&output=1&error=1&tty=1", "main");
        assert_eq!(said, "command=echo&command=a%26b&stdin=1&stdout=1&stderr=1&tty=1&container=main");
        assert_eq!(public("port=80&port=81", ""), "ports=80&ports=81");
        assert_eq!(public("", "main"), "container=main");
    }
}
