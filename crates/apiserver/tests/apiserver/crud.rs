//! The API through `kube::Client`, as the services of this process use it.

use futures::{StreamExt, TryStreamExt};
use hutch_apiserver::{ApiServer, Config, Identity};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

async fn server() -> ApiServer {
    let config = Config { default_node: Some("hutch".into()), ..Config::default() };
    ApiServer::open(config).await.unwrap()
}

async fn client() -> Client {
    server().await.client(Identity::admin(), "default")
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": value}})).unwrap()
}

fn sandboxes(client: &Client) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("agents.x-k8s.io", "v1beta1", "Sandbox"));
    Api::namespaced_with(client.clone(), "default", &ApiResource { plural: "sandboxes".into(), ..kind })
}

fn sandbox(name: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}},
    }))
    .unwrap()
}

fn code(error: kube::Error) -> (u16, String, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.reason.clone(), status.message.clone()),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn create_get_update_delete() {
    let api: Api<ConfigMap> = Api::default_namespaced(client().await);
    let made = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
    let again = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap_err();
    assert_eq!(code(again), (409, "AlreadyExists".into(), "configmaps \"a\" already exists".into()));

    let mut next = made.clone();
    next.data.as_mut().unwrap().insert("key".into(), "2".into());
    let updated = api.replace("a", &PostParams::default(), &next).await.unwrap();
    assert_ne!(updated.metadata.resource_version, made.metadata.resource_version);
    let stale = api.replace("a", &PostParams::default(), &next).await.unwrap_err();
    let text = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
    assert_eq!(code(stale), (409, "Conflict".into(), text.into()));

    // A write that changes nothing is no write.
    let same =
        api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"key": "2"}}))).await.unwrap();
    assert_eq!(same.metadata.resource_version, updated.metadata.resource_version);

    api.delete("a", &DeleteParams::default()).await.unwrap();
    let gone = api.get("a").await.unwrap_err();
    assert_eq!(code(gone), (404, "NotFound".into(), "configmaps \"a\" not found".into()));
}

#[tokio::test]
async fn watch_reports_every_change_after_a_list() {
    let api: Api<ConfigMap> = Api::default_namespaced(client().await);
    api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let list = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let revision = list.metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default(), &revision).await.unwrap().boxed();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let event = events.try_next().await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Modified(map) if map.metadata.labels.is_some()));
    let event = events.try_next().await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Deleted(map) if map.metadata.name.as_deref() == Some("a")));
}

#[tokio::test]
async fn pods_are_completed_and_bound() {
    let api: Api<Pod> = Api::default_namespaced(client().await);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"generateName": "p-"},
        "spec": {"containers": [{"name": "c", "image": "x:1", "ports": [{"containerPort": 80}],
                                 "readinessProbe": {"httpGet": {"port": 80}}}]},
    }))
    .unwrap();
    let made = api.create(&PostParams::default(), &pod).await.unwrap();
    let made = serde_json::to_value(made).unwrap();
    assert_eq!(made["metadata"]["name"].as_str().unwrap().len(), 7);
    let spec = &made["spec"];
    assert_eq!(spec["nodeName"], "hutch");
    assert_eq!(spec["restartPolicy"], "Always");
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    assert_eq!(spec["securityContext"], json!({}));
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(spec["containers"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(spec["containers"][0]["readinessProbe"]["failureThreshold"], 3);
    assert_eq!(
        (&made["status"]["phase"], &made["status"]["qosClass"]),
        (&json!("Pending"), &json!("BestEffort"))
    );
}

#[tokio::test]
async fn a_running_pod_stays_until_its_node_lets_go() {
    let api: Api<Pod> = Api::default_namespaced(client().await);
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}),
    )
    .unwrap();
    api.create(&PostParams::default(), &pod).await.unwrap();
    let running = json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}});
    api.patch_status("p", &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    let going = api.delete("p", &DeleteParams::default()).await.unwrap().left().expect("the Pod");
    assert!(going.metadata.deletion_timestamp.is_some());
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    assert!(api.get("p").await.is_ok());
    api.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(code(api.get("p").await.unwrap_err()).0, 404);
}

#[tokio::test]
async fn custom_kinds_are_defaulted_counted_and_isolated() {
    let api = sandboxes(&client().await);
    let made = api.create(&PostParams::default(), &sandbox("s")).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    assert_eq!(made.data["spec"]["operatingMode"], "Running");

    // The status is not the main resource's, and the spec is not the status'.
    let both = json!({"spec": {"operatingMode": "Suspended"}, "status": {"service": "x"}});
    let main = api.patch("s", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!((main.metadata.generation, main.data.get("status")), (Some(2), None));
    let both = json!({"spec": {"operatingMode": "Running"}, "status": {"service": "x"}});
    let status = api.patch_status("s", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!(status.data["spec"]["operatingMode"], "Suspended");
    assert_eq!((&status.data["status"]["service"], status.metadata.generation), (&json!("x"), Some(2)));

    let wrong = json!({"spec": {"operatingMode": "Off"}});
    let error = api.patch("s", &PatchParams::default(), &Patch::Merge(&wrong)).await.unwrap_err();
    let text = "Sandbox.agents.x-k8s.io \"s\" is invalid: spec.operatingMode: Unsupported value: \"Off\": supported values: \"Running\", \"Suspended\"";
    assert_eq!(code(error), (422, "Invalid".into(), text.into()));
    let volumes = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}});
    let error = api.patch("s", &PatchParams::default(), &Patch::Merge(&volumes)).await.unwrap_err();
    let (_, _, text) = code(error);
    assert!(text.ends_with("spec: Invalid value: \"object\": volumeClaimTemplates is immutable"), "{text}");
}

#[tokio::test]
async fn finalizers_hold_an_object() {
    let api = sandboxes(&client().await);
    let mut held = sandbox("s");
    held.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    let going = api.delete("s", &DeleteParams::foreground()).await.unwrap().left().unwrap();
    assert!(going.metadata.deletion_timestamp.is_some());
    assert_eq!(going.metadata.finalizers.unwrap(), ["example.com/hold", "foregroundDeletion"]);
    let none: Value = json!({"metadata": {"finalizers": null}});
    api.patch("s", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    assert_eq!(code(api.get("s").await.unwrap_err()).0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creates_do_not_exceed_a_quota() {
    let server = server().await;
    let client: Client = server.client(Identity::admin(), "default");
    let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> = Api::default_namespaced(client.clone());
    let quota =
        serde_json::from_value(json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}}))
            .unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let creates = (0..40).map(|number| {
        let maps = maps.clone();
        tokio::spawn(async move {
            let map = serde_json::from_value(json!({"metadata": {"name": format!("m{number}")}})).unwrap();
            maps.create(&PostParams::default(), &map).await.is_ok()
        })
    });
    let made = futures::future::join_all(creates).await;
    assert_eq!(made.into_iter().filter(|made| *made.as_ref().unwrap()).count(), 5);
    let status = quotas.get("q").await.unwrap().status.unwrap();
    assert_eq!(serde_json::to_value(&status.used).unwrap(), json!({"configmaps": "5"}));
    let deleted = maps.list(&Default::default()).await.unwrap().items[0].metadata.name.clone().unwrap();
    maps.delete(&deleted, &Default::default()).await.unwrap();
    let status = quotas.get("q").await.unwrap().status.unwrap();
    assert_eq!(serde_json::to_value(&status.used).unwrap(), json!({"configmaps": "4"}));
}
