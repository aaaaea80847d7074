//! Everything that the controllers and the webhook ever write, once.

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::confined::{Admin, until};

const CORE: &str = "agents.x-k8s.io/v1beta1";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";

fn pod_template(label: &str) -> Value {
    json!({"metadata": {"labels": {"example.com/l": label}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}})
}

fn ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

pub(crate) async fn on_sandboxes(admin: &Admin) {
    let adoptable = json!({"labels": {"agents.x-k8s.io/adoptable": "true"}});
    let storage = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    admin
        .create("v1", "PersistentVolumeClaim", "old-a", json!({"metadata": adoptable, "spec": storage}))
        .await;
    // Without a selector Kubernetes would make it one of two address families, which no selector may be added to later.
    let headless = json!({"clusterIP": "None", "selector": {"example.com/l": "1"}, "ports": [{"name": "other", "port": 1}]});
    admin.create("v1", "Service", "a", json!({"metadata": adoptable, "spec": headless})).await;
    let volumes = json!([{"metadata": {"name": "old"}, "spec": storage}, {"metadata": {"name": "new"}, "spec": storage}]);
    let spec = json!({"podTemplate": pod_template("1"), "service": true, "volumeClaimTemplates": volumes});
    admin.create(CORE, "Sandbox", "a", json!({ "spec": spec })).await;
    admin
        .until("v1", "PersistentVolumeClaim", "old-a", |claim| {
            !claim["metadata"]["ownerReferences"].is_null()
        })
        .await;
    admin.until("v1", "PersistentVolumeClaim", "new-a", |claim| !claim.is_null()).await;
    admin.until("v1", "Service", "a", |service| service["spec"]["ports"][0]["port"] == 80).await;

    let spec = json!({"podTemplate": pod_template("1"), "service": true});
    admin.create(CORE, "Sandbox", "b", json!({ "spec": spec })).await;
    admin.until(CORE, "Sandbox", "b", ready).await;
    admin
        .patch(CORE, "Sandbox", "b", json!({"spec": {"service": false, "podTemplate": pod_template("2")}}))
        .await;
    admin.until("v1", "Service", "b", Value::is_null).await;
    admin.until("v1", "Pod", "b", |pod| pod["metadata"]["labels"]["example.com/l"] == "2").await;
    admin.patch(CORE, "Sandbox", "b", json!({"spec": {"operatingMode": "Suspended"}})).await;
    admin.until("v1", "Pod", "b", Value::is_null).await;
    let past = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(60)).to_string();
    admin
        .patch(CORE, "Sandbox", "b", json!({"spec": {"shutdownTime": past, "shutdownPolicy": "Delete"}}))
        .await;
    admin.until(CORE, "Sandbox", "b", Value::is_null).await;
}

pub(crate) async fn on_snapshots(admin: &Admin) {
    let version = "hutch.dev/v1alpha1";
    for (kind, spec) in [
        ("SandboxSnapshot", json!({"source": {"sandbox": "a"}, "content": "Full"})),
        ("SandboxFork", json!({"source": {"sandbox": "a"}, "replicas": 1})),
    ] {
        admin.create(version, kind, "s", json!({ "spec": spec })).await;
        let is_answered = |object: &Value| object["status"]["conditions"][0]["reason"] == "NotSupportedHere";
        admin.until(version, kind, "s", is_answered).await;
    }
}

pub(crate) async fn on_extensions(admin: &Admin) {
    let policy = "t-network-policy";
    admin
        .create(EXTENSIONS, "SandboxTemplate", "t", json!({"spec": {"podTemplate": pod_template("1")}}))
        .await;
    admin
        .until("networking.k8s.io/v1", "NetworkPolicy", policy, |policy| !policy["spec"]["ingress"].is_null())
        .await;
    admin.patch(EXTENSIONS, "SandboxTemplate", "t", json!({"spec": {"networkPolicy": {"egress": []}}})).await;
    admin
        .until("networking.k8s.io/v1", "NetworkPolicy", policy, |policy| policy["spec"]["ingress"].is_null())
        .await;
    admin
        .patch(EXTENSIONS, "SandboxTemplate", "t", json!({"spec": {"networkPolicyManagement": "Unmanaged"}}))
        .await;
    admin.until("networking.k8s.io/v1", "NetworkPolicy", policy, Value::is_null).await;

    let pool = json!({"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}});
    admin.create(EXTENSIONS, "SandboxWarmPool", "p", pool).await;
    admin.until(EXTENSIONS, "SandboxWarmPool", "p", |pool| pool["status"]["readyReplicas"] == 1).await;
    let claim = json!({"spec": {"warmPoolRef": {"name": "p"}}});
    admin.create(EXTENSIONS, "SandboxClaim", "c", claim).await;
    admin.until(EXTENSIONS, "SandboxClaim", "c", ready).await;
    let marked = |claim: &Value| {
        let annotations = claim["metadata"]["annotations"].as_object();
        annotations.is_some_and(|a| a.contains_key("agents.x-k8s.io/claim-first-ready-at"))
    };
    admin.until(EXTENSIONS, "SandboxClaim", "c", marked).await;
    let past = (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(60)).to_string();
    let lifecycle = json!({"spec": {"lifecycle": {"shutdownTime": past, "shutdownPolicy": "Delete"}}});
    admin.patch(EXTENSIONS, "SandboxClaim", "c", lifecycle).await;
    admin.until(EXTENSIONS, "SandboxClaim", "c", Value::is_null).await;
    let events = admin.api("v1", "Event");
    let told = until(async || !events.list(&Default::default()).await.expect("events").items.is_empty());
    assert!(told.await, "no event");
}

pub(crate) async fn on_certificates(admin: &Admin, client: Client) {
    let folder = tempfile::tempdir().expect("tempdir");
    let settings =
        hutch_webhook::Settings { port: 0, cert_dir: folder.path().to_owned(), ..Default::default() };
    drop(hutch_webhook::start(client.clone(), settings.clone()).await.expect("the webhook starts"));
    let secrets = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
    let secrets: Api<DynamicObject> =
        Api::namespaced_with(admin.client.clone(), &settings.namespace, &secrets);
    let name = "agent-sandbox-webhook-certs";
    let made = secrets.get(name).await.expect("the Secret");
    // One that cannot be used is replaced.
    let broken = Patch::Merge(json!({"data": {"tls.key": ""}}));
    secrets.patch(name, &PatchParams::default(), &broken).await.expect("broken");
    drop(hutch_webhook::start(client, settings).await.expect("the webhook starts again"));
    let renewed = secrets.get(name).await.expect("the Secret");
    assert_ne!(renewed.data["data"]["tls.crt"], made.data["data"]["tls.crt"]);
}
