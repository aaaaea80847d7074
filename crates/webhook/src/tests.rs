//! The webhook beside the embedded API server, called as an API server does: by the Service's name, with the bundle of
//! the definition. That server does not call webhooks; what a real one does is tested on a real one.

mod files;
mod managed;
mod migration;
mod renewal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::middleware::Next;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_serve::Shutdown;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

use crate::key_material::KeyMaterial;
use crate::rotator::SECRET;
use crate::webhook::Pace;
use crate::{Settings, Webhook, convert};

const WAIT_LIMIT: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "agent-sandbox-system";
const BRISK: Pace = Pace {
    cluster: Duration::from_millis(10),
    files: Duration::from_millis(10),
    hearing: Duration::from_millis(1),
};

/// An API server in memory.
async fn api_server() -> ApiServer {
    ApiServer::open(Config::default()).await.expect("an API server")
}

fn client(server: &ApiServer) -> Client {
    server.client(Identity::admin(), "default")
}

/// A client to which the API server says that status where the filter says so.
fn refusing(
    server: &ApiServer,
    status: StatusCode,
    filter: impl Fn(&Request<Body>) -> bool + Clone + Send + Sync + 'static,
) -> Client {
    let app: Router = server.router_as(Identity::admin());
    let app = app.layer(axum::middleware::from_fn(move |request: Request<Body>, next: Next| {
        let refused = filter(&request);
        async move {
            if !refused {
                return next.run(request).await;
            }
            let reason = match status {
                StatusCode::FORBIDDEN => "Forbidden",
                StatusCode::NOT_FOUND => "NotFound",
                _ => "ServiceUnavailable",
            };
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                "message": "refused by the test", "code": status.as_u16()});
            axum::response::IntoResponse::into_response((status, axum::Json(body)))
        }
    }));
    hutch_serve::memory::client(app, "default")
}

fn settings(folder: &tempfile::TempDir) -> Settings {
    Settings { port: 0, cert_dir: folder.path().join("certs"), ..Settings::default() }
}

async fn secret(client: &Client) -> Secret {
    Api::namespaced(client.clone(), NAMESPACE).get(SECRET).await.expect("the Secret")
}

async fn stored(client: &Client) -> KeyMaterial {
    KeyMaterial::read(&secret(client).await.data.expect("data")).expect("material")
}

/// The bundle of every definition, as the API server has it.
async fn bundles(client: &Client) -> Vec<String> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut bundles = Vec::new();
    for name in crate::definitions::NAMES {
        let conversion = api.get(name).await.expect("a definition").spec.conversion.expect("a conversion");
        let config = conversion.webhook.and_then(|webhook| webhook.client_config).expect("a client config");
        let bundle = config.ca_bundle.map(|bundle| String::from_utf8(bundle.0).expect("text"));
        bundles.push(bundle.unwrap_or_default());
    }
    bundles
}

/// A webhook that runs until it is dropped.
struct Running {
    address: std::net::SocketAddr,
    shutdown: Shutdown,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

fn run(mut webhook: Webhook) -> Running {
    webhook.pace = BRISK;
    let running = Running { address: webhook.address(), shutdown: Shutdown::new() };
    let shutdown = running.shutdown.clone();
    tokio::spawn(async move { webhook.run(shutdown).await.expect("the webhook runs") });
    running
}

/// Returns the certificate and the response that a client with that bundle and server name gets.
async fn dial(running: &Running, bundle: &str, name: &str) -> Result<(Vec<u8>, Value), String> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = (std::net::Ipv4Addr::LOCALHOST, running.address.port());
    let stream = tokio::net::TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    let shown = stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, String>(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let pool = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
        "metadata": {"name": "p", "namespace": "n"}, "spec": {"sandboxTemplateRef": {"name": "t"}}});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
        "uid": "u", "desiredAPIVersion": "extensions.agents.x-k8s.io/v1alpha1", "objects": [pool]}});
    let request = Request::post(convert::PATH)
        .header(header::HOST, "webhook")
        .header(header::CONTENT_TYPE, "application/json")
        .body(review.to_string())
        .expect("a request");
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok((shown, serde_json::from_slice(&body).map_err(|error| error.to_string())?))
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < WAIT_LIMIT, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn first_certificate(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate").to_vec()
}
