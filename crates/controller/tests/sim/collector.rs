//! Collects what has lost its owners and empties namespaces, as a cluster does: in a fixed order, at certain times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::stage::Stage;

/// Dependents before their owners: an owner that is not in the later list is gone.
pub(crate) const KINDS: [(&str, &str); 8] = [
    ("/api/v1", "pods"),
    ("/api/v1", "services"),
    ("/api/v1", "persistentvolumeclaims"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ("/apis/agents.x-k8s.io/v1beta1", "sandboxes"),
    ("/apis/extensions.agents.x-k8s.io/v1beta1", "sandboxclaims"),
    ("/apis/extensions.agents.x-k8s.io/v1beta1", "sandboxwarmpools"),
    ("/apis/extensions.agents.x-k8s.io/v1beta1", "sandboxtemplates"),
];
/// Kinds of owners that are looked for here.
const OWNERS: [&str; 4] = ["Sandbox", "SandboxClaim", "SandboxWarmPool", "SandboxTemplate"];
const FOREGROUND: &str = "foregroundDeletion";

/// An object and the path under which it is found.
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) object: Value,
}

impl Found {
    fn text(&self, field: &str) -> &str {
        self.object["metadata"][field].as_str().unwrap_or_default()
    }

    fn is_going(&self) -> bool {
        !self.object["metadata"]["deletionTimestamp"].is_null()
    }

    fn owners(&self) -> impl Iterator<Item = &Value> {
        self.object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
    }

    fn waits(&self) -> bool {
        let finalizers = self.object["metadata"]["finalizers"].as_array();
        self.is_going() && finalizers.into_iter().flatten().any(|finalizer| finalizer == FOREGROUND)
    }
}

pub(crate) async fn run(client: Client, stage: Arc<Stage>, dice: Dice) {
    let mut seen = u64::MAX;
    loop {
        sleep(dice.ms(100..800)).await;
        let writes = stage.writes();
        if writes != seen {
            collect(&client).await;
            seen = writes;
        }
    }
}

/// Every object of the kinds above, in all namespaces.
pub(crate) async fn list(client: &Client) -> Vec<Found> {
    let mut all = Vec::new();
    for (group, plural) in KINDS {
        let list = send(client, "GET", &format!("{group}/{plural}"), Value::Null).await.unwrap_or_default();
        for object in list["items"].as_array().cloned().unwrap_or_default() {
            let metadata = &object["metadata"];
            let (namespace, name) = (metadata["namespace"].as_str(), metadata["name"].as_str());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            all.push(Found { path: format!("{group}/namespaces/{namespace}/{plural}/{name}"), object });
        }
    }
    all
}

async fn collect(client: &Client) {
    let all = list(client).await;
    let by_uid: BTreeMap<&str, &Found> = all.iter().map(|found| (found.text("uid"), found)).collect();
    let going = namespaces_on_their_way_out(client).await;
    for found in &all {
        let kept = found.owners().any(|owner| {
            let known = owner["kind"].as_str().is_some_and(|kind| OWNERS.contains(&kind));
            !known
                || by_uid.get(owner["uid"].as_str().unwrap_or_default()).is_some_and(|owner| !owner.waits())
        });
        let lost = found.owners().next().is_some() && !kept;
        if !found.is_going() && (lost || going.contains(found.text("namespace"))) {
            let only = json!({"uid": found.text("uid"), "resourceVersion": found.text("resourceVersion")});
            let body = json!({"propagationPolicy": "Background", "preconditions": only});
            send(client, "DELETE", &found.path, body).await;
        }
        let blocks =
            |other: &Found| other.owners().any(|owner| owner["uid"] == found.object["metadata"]["uid"]);
        if found.waits() && !all.iter().any(blocks) {
            let patch = json!({"metadata": {"finalizers": null, "uid": found.text("uid")}});
            send(client, "PATCH", &found.path, patch).await;
        }
    }
    for namespace in going {
        if !all.iter().any(|found| found.text("namespace") == namespace) {
            let path = format!("/api/v1/namespaces/{namespace}");
            if let Some(mut object) = send(client, "GET", &path, Value::Null).await {
                object["spec"]["finalizers"] = json!([]);
                send(client, "PUT", &format!("{path}/finalize"), object).await;
            }
        }
    }
}

async fn namespaces_on_their_way_out(client: &Client) -> BTreeSet<String> {
    let list = send(client, "GET", "/api/v1/namespaces", Value::Null).await.unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let going = items.iter().filter(|item| !item["metadata"]["deletionTimestamp"].is_null());
    going.filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned())).collect()
}

pub(crate) async fn send(client: &Client, method: &str, path: &str, body: Value) -> Option<Value> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(&body).ok()? };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind).body(bytes);
    client.request(request.ok()?).await.ok()
}
