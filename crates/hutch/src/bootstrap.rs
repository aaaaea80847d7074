//! Objects of a new `hutch up` that represent its services, as on a cluster: the controller's StatefulSet and Deployment (a
//! release of Agent Sandbox brings one or the other), the router's Deployment and Service. This process serves them.

use anyhow::Context;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "agent-sandbox-system";

/// Creates the objects that do not exist. Changed objects stay as they are.
pub(crate) async fn run(client: &kube::Client) -> anyhow::Result<()> {
    for object in objects() {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let (group, version) = match object["apiVersion"].as_str().unwrap_or_default().split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), "v1".to_owned()),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, &version, &kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
        let object: DynamicObject = serde_json::from_value(object).context("an object of our own")?;
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the {kind} of {NAMESPACE}"));
            }
        }
    }
    Ok(())
}

fn objects() -> [Value; 5] {
    let controller = json!({"app": "agent-sandbox-controller"});
    let router = json!({"app": "sandbox-router"});
    let template = json!({"metadata": {"labels": controller}, "spec": {
        "serviceAccountName": "agent-sandbox-controller",
        "containers": [{"name": "agent-sandbox-controller",
            "image": "registry.k8s.io/agent-sandbox/agent-sandbox-controller:v0.1.0"}]}});
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "agent-sandbox-controller", "labels": controller}}),
        // Equal to the published manifest, so that applying it changes nothing.
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "agent-sandbox-controller", "labels": controller},
            "spec": {"serviceName": "agent-sandbox-controller", "replicas": 1,
                "selector": {"matchLabels": controller}, "template": template}}),
        // That of later releases, which clients look for.
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "agent-sandbox-controller", "labels": controller},
            "spec": {"replicas": 1, "selector": {"matchLabels": controller}, "template": template}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "sandbox-router", "labels": router},
            "spec": {"replicas": 1, "selector": {"matchLabels": router},
                "template": {"metadata": {"labels": router}, "spec": {"containers": [{"name": "router",
                    "image": "hutch/router", "ports": [{"containerPort": 8080}]}]}}}}),
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "sandbox-router-svc", "labels": router},
            "spec": {"selector": router, "ports": [{"name": "http", "port": 8080, "targetPort": 8080}]}}),
    ]
}
