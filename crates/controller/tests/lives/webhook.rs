//! The way of the API server to a conversion webhook on this machine.

use std::net::IpAddr;

use anyhow::Context;
use hutch_testkit::cluster::Cluster;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::kind;

/// Where the published definitions look for it.
const NAMESPACE: &str = "agent-sandbox-system";
const SERVICE: &str = "agent-sandbox-webhook-service";

/// A Service without a selector, and behind it that port of this machine.
pub(crate) async fn lead_to(cluster: &Cluster, address: IpAddr, port: u16) -> anyhow::Result<()> {
    let client = cluster.client("life").await?;
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    let ports = json!([{"name": "webhook", "port": 443, "targetPort": port}]);
    let service = json!({"metadata": {"name": SERVICE}, "spec": {"ports": ports}});
    let slice = json!({
        "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": family,
        "ports": [{"name": "webhook", "port": port}],
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
    });
    for (group, version, kind, object) in [
        ("", "v1", "Namespace", namespace),
        ("", "v1", "Service", service),
        ("discovery.k8s.io", "v1", "EndpointSlice", slice),
    ] {
        create(&client, &GroupVersionKind::gvk(group, version, kind), object).await.context(kind)?;
    }
    Ok(())
}

async fn create(client: &Client, kind: &GroupVersionKind, mut object: Value) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(kind);
    object["apiVersion"] = resource.api_version.clone().into();
    object["kind"] = resource.kind.clone().into();
    let object: DynamicObject = serde_json::from_value(object)?;
    let api: Api<DynamicObject> = if kind.kind == "Namespace" {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    };
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Returns whether an object of each kind of the older version could be created. The API server learns a webhook's
/// certificate by a watch.
pub(crate) async fn converts(client: &Client) -> bool {
    for name in kind::OLDER {
        let (Ok(resource), Ok(object)) = (kind::resource(name), kind::base(name)) else { return false };
        let Ok(mut object) = serde_json::from_value::<DynamicObject>(object) else { return false };
        object.metadata.name = Some("converted".into());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        if api.create(&params, &object).await.is_err() || api.list(&ListParams::default()).await.is_err() {
            return false;
        }
    }
    true
}
