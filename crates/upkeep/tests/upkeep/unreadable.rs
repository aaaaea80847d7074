//! One object that cannot be read keeps no other from being looked after. A server takes none such; here they were stored by
//! another program.

use std::collections::HashSet;
use std::path::Path;

use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_store::Store;
use hutch_testkit::wait::eventually;
use hutch_upkeep::Settings;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// An object as it is stored.
struct Stored(Vec<u8>);

impl hutch_store::Value for Stored {
    type Draft = Value;

    fn seal(mut draft: Value, revision: u64) -> Self {
        draft["metadata"]["resourceVersion"] = revision.to_string().into();
        let fields = draft.as_object_mut().unwrap();
        // These come first.
        let [kind, version] = ["kind", "apiVersion"].map(|field| fields.remove(field).unwrap());
        let rest = draft.to_string();
        Stored(format!("{{\"kind\":{kind},\"apiVersion\":{version},{}", &rest[1..]).into_bytes())
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn open(bytes: &[u8]) -> Result<Self, String> {
        Ok(Stored(bytes.to_vec()))
    }
}

fn object(version: &str, kind: &str, name: &str, more: Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind,
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{kind}-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z"}});
    merge(&mut object, more);
    object
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (field, value) in more {
                merge(into.entry(field).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn template(grace: Value) -> Value {
    json!({"metadata": {"labels": {"app": "x"}}, "spec": {"terminationGracePeriodSeconds": grace,
        "containers": [{"name": "c", "image": "i"}]}})
}

fn workload(grace: Value) -> Value {
    json!({"spec": {"replicas": 1, "serviceName": "s", "selector": {"matchLabels": {"app": "x"}}, "template": template(grace)}})
}

/// Stores one object of each kind of which a field is wrong.
async fn store(folder: &Path) {
    let store: Store<Stored> = Store::open(&folder.join("store")).unwrap();
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("uid-{kind}-{name}"), "controller": true}]);
    let odd = || json!("soon");
    let set = json!({"metadata": {"ownerReferences": owner("Deployment", "held")}});
    let mut owned_set = workload(odd());
    merge(&mut owned_set, set);
    let owned_pod = json!({"metadata": {"labels": {"app": "x"}, "ownerReferences": owner("ReplicaSet", "held")},
        "spec": template(odd())["spec"]});
    let namespace = json!({"metadata": {"namespace": null}, "spec": {"finalizers": "kubernetes"}});
    for (collection, object) in [
        ("deployments.apps", object("apps/v1", "Deployment", "odd", workload(odd()))),
        ("deployments.apps", object("apps/v1", "Deployment", "held", workload(json!(1)))),
        ("replicasets.apps", object("apps/v1", "ReplicaSet", "odd", workload(odd()))),
        ("replicasets.apps", object("apps/v1", "ReplicaSet", "held", workload(json!(1)))),
        ("replicasets.apps", object("apps/v1", "ReplicaSet", "of-held", owned_set)),
        ("statefulsets.apps", object("apps/v1", "StatefulSet", "odd", workload(odd()))),
        (
            "services",
            object("v1", "Service", "odd", json!({"spec": {"selector": {"app": "x"}, "ports": "none"}})),
        ),
        ("pods", object("v1", "Pod", "odd", owned_pod)),
        ("configmaps", object("v1", "ConfigMap", "kube-root-ca.crt", json!({"data": {"ca.crt": 1}}))),
        ("events", object("v1", "Event", "odd", json!({"involvedObject": {}, "count": "many"}))),
    ] {
        let name = format!("default/{}", object["metadata"]["name"].as_str().unwrap());
        store.create(collection, &name, object).await.unwrap();
    }
    store.create("namespaces", "odd", object("v1", "Namespace", "odd", namespace)).await.unwrap();
    store.close().await;
}

async fn create<K>(client: &Client, object: Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Serialize,
{
    let api: Api<K> = Api::default_namespaced(client.clone());
    let object = serde_json::from_value(object).expect("a valid object");
    api.create(&PostParams::default(), &object).await.expect("it is created")
}

fn named(name: &str, more: Value) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    merge(&mut object, more);
    object
}

/// Every kind of reconciler does its work for another object.
async fn all_others_are_looked_after(client: &Client) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    create::<Deployment>(client, named("good", workload(json!(1)))).await;
    create::<StatefulSet>(client, named("steady", workload(json!(1)))).await;
    create::<Service>(
        client,
        named("good", json!({"spec": {"selector": {"app": "x"}, "ports": [{"port": 80}]}})),
    )
    .await;
    let of_deployment = async || {
        let sets: Api<ReplicaSet> = Api::default_namespaced(client.clone());
        // The list has others in it, which have no such name.
        let names = sets.list_metadata(&ListParams::default()).await.unwrap().items;
        names.into_iter().find_map(|set| set.metadata.name.filter(|name| name.starts_with("good-")))
    };
    let set = eventually("the ReplicaSet of a Deployment", of_deployment).await;
    let pod = eventually("the Pod of a ReplicaSet", async || {
        let all = pods.list_metadata(&ListParams::default()).await.unwrap().items;
        all.into_iter().find_map(|pod| pod.metadata.name.filter(|name| name.starts_with(&set)))
    });
    let pod = pod.await;
    eventually("the Pod of a StatefulSet", async || pods.get_opt("steady-0").await.unwrap()).await;
    let ready = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    eventually("an endpoint of a Service", async || {
        let slice = slices.get_opt("good-pods").await.unwrap()?;
        slice.endpoints?.iter().any(|endpoint| endpoint.addresses == ["10.0.0.1"]).then_some(())
    })
    .await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(named("n", json!({}))).unwrap())
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "n");
    eventually("a namespace is furnished", async || maps.get_opt("kube-root-ca.crt").await.unwrap()).await;
    namespaces.delete("n", &DeleteParams::default()).await.unwrap();
    eventually("a namespace is emptied", async || {
        namespaces.get_metadata_opt("n").await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_is_reported_and_all_others_continue() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path()).await;
    let config = Config { data: Some(folder.path().to_owned()), ..Config::default() };
    let server = ApiServer::open(config).await.expect("an API server");
    let client = server.client(Identity::admin(), "default");
    let settings = Settings { root_ca: "a certificate".into(), ..Settings::default() };
    let upkeep = tokio::spawn(hutch_upkeep::run(client.clone(), settings, std::future::pending()));
    all_others_are_looked_after(&client).await;

    let events: Api<Event> = Api::default_namespaced(client.clone());
    let wanted: HashSet<(String, String, &str)> = [
        ("Deployment", "odd", "spec.template.spec.terminationGracePeriodSeconds: "),
        ("ReplicaSet", "odd", "spec.template.spec.terminationGracePeriodSeconds: "),
        ("ReplicaSet", "of-held", "spec.template.spec.terminationGracePeriodSeconds: "),
        ("StatefulSet", "odd", "spec.template.spec.terminationGracePeriodSeconds: "),
        ("Service", "odd", "spec.ports: "),
        ("Pod", "odd", "spec.terminationGracePeriodSeconds: "),
        ("Namespace", "odd", "spec.finalizers: "),
    ]
    .map(|(kind, name, field)| (kind.to_owned(), name.to_owned(), field))
    .into();
    let reports = async || {
        let all = events.list(&ListParams::default().fields("reason=Unreadable")).await.ok()?.items;
        let reports = |(kind, name, field): &(String, String, &str)| {
            all.iter().any(|event| {
                let regarding = event.regarding.clone().unwrap_or_default();
                let note = event.note.as_deref().unwrap_or_default();
                regarding.kind.as_ref() == Some(kind)
                    && regarding.name.as_ref() == Some(name)
                    && note.starts_with("Cannot be read and is left as it is: ")
                    && note.contains(field)
            })
        };
        wanted.iter().all(reports).then_some(all)
    };
    let all = eventually("an event reports each", reports).await;
    let of_pod = all
        .iter()
        .filter(|event| event.regarding.as_ref().is_some_and(|about| about.kind.as_deref() == Some("Pod")));
    assert_eq!(of_pod.count(), 1, "it is reported once, whichever controller reads it");

    // What owns something that cannot be read is left as it is too.
    let sets: Api<ReplicaSet> = Api::default_namespaced(client.clone());
    let sets = sets.list_metadata(&ListParams::default()).await.unwrap().items;
    let names = || sets.iter().filter_map(|set| set.metadata.name.as_deref());
    assert_eq!(names().filter(|name| name.starts_with("held")).collect::<Vec<_>>(), ["held"]);
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pods_of_held = async || {
        let all = pods.list_metadata(&ListParams::default()).await.unwrap().items;
        all.into_iter().find_map(|pod| pod.metadata.name.filter(|name| name.starts_with("held-")))
    };
    assert_eq!(pods_of_held().await, None);
    pods.delete("odd", &DeleteParams::default().grace_period(0)).await.ok();
    eventually("then it is looked after", pods_of_held).await;
    assert!(!upkeep.is_finished());
}
