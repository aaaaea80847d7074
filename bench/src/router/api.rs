//! As much of a Kubernetes API as a router asks for: one Sandbox and its Pod, at 127.0.0.1.

use std::path::PathBuf;

use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};

/// Name of the Sandbox.
pub(crate) const SANDBOX: &str = "bench";

/// Where the API is.
pub(crate) struct Api {
    /// Holds the kubeconfig.
    _folder: tempfile::TempDir,
    pub(crate) kubeconfig: PathBuf,
}

/// Serves it on a free port, for as long as the process lives.
pub(crate) async fn start() -> anyhow::Result<Api> {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?;
    let app = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(socket, app).await });
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, text.to_string())?;
    Ok(Api { _folder: folder, kubeconfig })
}

async fn answer(uri: Uri, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    if query.contains("watch=true") {
        // Nothing changes.
        return Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>())
            .into_response();
    }
    let item = if uri.path().contains("/sandboxes") { sandbox() } else { pod() };
    Json(json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": [item],
    }))
    .into_response()
}

fn sandbox() -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": SANDBOX, "namespace": "default", "uid": "s", "resourceVersion": "1"},
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": SANDBOX, "namespace": "default", "uid": "p", "resourceVersion": "1",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "00000000"},
            "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": SANDBOX,
                "uid": "s", "controller": true}]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}
