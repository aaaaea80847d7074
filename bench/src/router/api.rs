//! The part of a Kubernetes API that a router needs: two Sandboxes and their Pods, at 127.0.0.1.

use std::path::PathBuf;

use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};

/// Name of the Sandbox.
pub(crate) const SANDBOX: &str = "bench";
/// Namespace and name of that Sandbox, and of the one that agent-sandbox's load tool requests.
const SANDBOXES: [(&str, &str); 2] = [("default", SANDBOX), ("loadtest", "loadtest")];

/// A running API.
pub(crate) struct Api {
    /// Holds the kubeconfig.
    _folder: tempfile::TempDir,
    pub(crate) kubeconfig: PathBuf,
}

/// Serves the API on a free port until the process ends.
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
    let item = if uri.path().contains("/sandboxes") { sandbox } else { pod };
    let items = SANDBOXES.map(|(namespace, name)| item(namespace, name));
    Json(json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items,
    }))
    .into_response()
}

fn sandbox(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("s-{name}"), "resourceVersion": "1"},
    })
}

fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("p-{name}"), "resourceVersion": "1",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "00000000"},
            "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name,
                "uid": format!("s-{name}"), "controller": true}]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}
