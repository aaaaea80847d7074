//! The controllers beside the embedded API server. There is no node here: the tests say when a Pod is ready.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_testkit::wait::eventually;
use hutch_upkeep::Settings;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, PersistentVolumeClaim, Pod, ReplicationController, Secret,
    Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Long enough for the collector to have acted, had it been going to.
const CALM: Duration = Duration::from_millis(300);

async fn start() -> Client {
    let server = ApiServer::open(Config::default()).await.expect("an API server");
    let client = server.client(Identity::admin(), "default");
    let settings = Settings { root_ca: "a certificate".into(), event_age: Duration::from_secs(1) };
    let upkeep = hutch_upkeep::run(client.clone(), settings, std::future::pending());
    tokio::spawn(async move {
        let _server = server;
        upkeep.await.expect("the controllers continue");
    });
    client
}

trait Object: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug {}
impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug> Object for K {}

async fn create<K: Object>(api: &Api<K>, object: Value) -> K {
    let object = serde_json::from_value(object).expect("a valid object");
    api.create(&PostParams::default(), &object).await.expect("it is created")
}

async fn gone<K: Object>(api: &Api<K>, name: &str) {
    eventually(&format!("{name} gone"), async || api.get_opt(name).await.unwrap().is_none().then_some(()))
        .await;
}

fn owned_by(name: &str, kind: &str, owner: &impl ResourceExt, blocks: bool) -> Value {
    json!({"name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": kind, "name": owner.name_any(), "uid": owner.uid(), "blockOwnerDeletion": blocks,
    }]})
}

#[tokio::test]
async fn what_lost_its_owner_goes_within_milliseconds_and_what_has_one_stays() {
    let client = start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let (one, two) = (
        create(&maps, json!({"metadata": {"name": "one"}})).await,
        create(&maps, json!({"metadata": {"name": "two"}})).await,
    );
    let child = create(&secrets, json!({"metadata": owned_by("child", "ConfigMap", &one, true)})).await;
    create(&maps, json!({"metadata": owned_by("grandchild", "Secret", &child, true)})).await;
    create(&secrets, json!({"metadata": owned_by("other", "ConfigMap", &two, true)})).await;
    let mut both = owned_by("both", "ConfigMap", &one, true);
    let second = owned_by("both", "ConfigMap", &two, true)["ownerReferences"][0].clone();
    both["ownerReferences"].as_array_mut().unwrap().push(second);
    create(&secrets, json!({"metadata": both})).await;
    tokio::time::sleep(CALM).await;

    let start = Instant::now();
    maps.delete("one", &DeleteParams::default()).await.unwrap();
    gone(&secrets, "child").await;
    gone(&maps, "grandchild").await;
    let took = start.elapsed();
    println!("two generations gone after {took:?}");
    assert!(took < Duration::from_millis(500), "{took:?}");
    eventually("the lost reference is trimmed", async || {
        (secrets.get("both").await.unwrap().owner_references().len() == 1).then_some(())
    })
    .await;
    assert!(secrets.get_opt("other").await.unwrap().is_some());
}

#[tokio::test]
async fn a_namesake_of_the_owner_does_not_count_and_a_kind_unknown_holds() {
    let client = start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let owner = create(&maps, json!({"metadata": {"name": "owner"}})).await;
    let mut namesake = owned_by("of-another-life", "ConfigMap", &owner, true);
    namesake["ownerReferences"][0]["uid"] = json!("no such uid");
    let mut unknown = owned_by("of-unknown-kind", "Nothing", &owner, true);
    unknown["ownerReferences"][0]["apiVersion"] = json!("nowhere.example/v1");
    create(&maps, json!({"metadata": unknown})).await;
    create(&maps, json!({"metadata": namesake})).await;
    gone(&maps, "of-another-life").await;
    tokio::time::sleep(CALM).await;
    assert!(maps.get_opt("of-unknown-kind").await.unwrap().is_some());
}

#[tokio::test]
async fn owner_name_that_would_be_another_path_names_no_owner() {
    let client = start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let owner = create(&maps, json!({"metadata": {"name": "owner"}})).await;
    for (number, name) in ["a\0b", "a\nb", "..", "owner?watch=1"].into_iter().enumerate() {
        let own = format!("dependent-{number}");
        let mut dependent = owned_by(&own, "ConfigMap", &owner, true);
        dependent["ownerReferences"][0]["name"] = json!(name);
        dependent["ownerReferences"][0]["uid"] = json!("no such uid");
        create(&maps, json!({"metadata": dependent})).await;
        gone(&maps, &own).await;
    }
}

#[tokio::test]
async fn kinds_that_are_defined_later_own_and_are_owned() {
    let client = start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let spec = json!({"group": "example.com", "scope": "Namespaced", "versions": [version],
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"}});
    create(&definitions, json!({"metadata": {"name": "things.example.com"}, "spec": spec})).await;
    let thing = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Thing"));
    let things: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &thing);
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let object = DynamicObject::new("t", &thing);
    let owner =
        eventually("a thing", async || things.create(&PostParams::default(), &object).await.ok()).await;
    let mut child = owned_by("child", "Thing", &owner, true);
    child["ownerReferences"][0]["apiVersion"] = json!("example.com/v1");
    create(&maps, json!({"metadata": child})).await;
    tokio::time::sleep(CALM).await;
    assert!(maps.get_opt("child").await.unwrap().is_some());
    things.delete("t", &DeleteParams::default()).await.unwrap();
    gone(&maps, "child").await;
}

#[tokio::test]
async fn foreground_deletion_waits_for_what_blocks() {
    let client = start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let owner = create(&maps, json!({"metadata": {"name": "owner"}})).await;
    let mut held = owned_by("held", "ConfigMap", &owner, true);
    held["finalizers"] = json!(["example.com/held"]);
    let held = create(&maps, json!({"metadata": held})).await;
    create(&maps, json!({"metadata": owned_by("below", "ConfigMap", &held, true)})).await;
    let mut free = owned_by("free", "ConfigMap", &owner, false);
    free["finalizers"] = json!(["example.com/held"]);
    create(&maps, json!({"metadata": free})).await;
    tokio::time::sleep(CALM).await;
    maps.delete("owner", &DeleteParams::foreground()).await.unwrap();
    gone(&maps, "below").await;
    tokio::time::sleep(CALM).await;
    assert!(maps.get("owner").await.unwrap().metadata.deletion_timestamp.is_some(), "the owner waits");
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &release).await.unwrap();
    gone(&maps, "held").await;
    gone(&maps, "owner").await;
    assert!(maps.get_opt("free").await.unwrap().is_some(), "what does not block is not waited for");
}

#[tokio::test]
async fn orphans_stay_without_their_owner() {
    let client = start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let owner = create(&maps, json!({"metadata": {"name": "owner"}})).await;
    create(&maps, json!({"metadata": owned_by("child", "ConfigMap", &owner, true)})).await;
    tokio::time::sleep(CALM).await;
    maps.delete("owner", &DeleteParams::orphan()).await.unwrap();
    gone(&maps, "owner").await;
    tokio::time::sleep(CALM).await;
    assert!(maps.get("child").await.unwrap().owner_references().is_empty());
}

#[tokio::test]
async fn a_claim_takes_its_sandbox_and_pod_with_it() {
    let client = start().await;
    let kind =
        |group: &str, kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta1", kind));
    let (claim, sandbox) = (
        kind("extensions.agents.x-k8s.io", "SandboxClaim"),
        ApiResource { plural: "sandboxes".into(), ..kind("agents.x-k8s.io", "Sandbox") },
    );
    let claims: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &claim);
    let sandboxes: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &sandbox);
    let pods: Api<Pod> = Api::default_namespaced(client);
    let dynamic = |value: Value| serde_json::from_value::<DynamicObject>(value).unwrap();
    let reference = |resource: &ApiResource, object: &DynamicObject| {
        json!([{"apiVersion": resource.api_version, "kind": resource.kind, "name": object.name_any(),
            "uid": object.uid(), "controller": true, "blockOwnerDeletion": true}])
    };
    for foreground in [false, true] {
        let claim_object = dynamic(json!({
            "apiVersion": claim.api_version, "kind": claim.kind, "metadata": {"name": "c"},
            "spec": {"warmPoolRef": {"name": "pool"}},
        }));
        let claim_object = claims.create(&PostParams::default(), &claim_object).await.unwrap();
        let pod_spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let sandbox_object = dynamic(json!({
            "apiVersion": sandbox.api_version, "kind": sandbox.kind,
            "metadata": {"name": "s", "ownerReferences": reference(&claim, &claim_object)},
            "spec": {"podTemplate": {"spec": pod_spec}},
        }));
        let sandbox_object = sandboxes.create(&PostParams::default(), &sandbox_object).await.unwrap();
        let metadata = json!({"name": "s", "ownerReferences": reference(&sandbox, &sandbox_object)});
        create(&pods, json!({"metadata": metadata, "spec": pod_spec})).await;
        tokio::time::sleep(CALM).await;
        let start = Instant::now();
        let parameters = if foreground { DeleteParams::foreground() } else { DeleteParams::default() };
        claims.delete("c", &parameters).await.unwrap();
        gone(&pods, "s").await;
        println!("Pod gone {:?} after its claim, foreground {foreground}", start.elapsed());
        eventually("claim and Sandbox gone", async || {
            let left = claims.get_opt("c").await.unwrap().is_some()
                || sandboxes.get_opt("s").await.unwrap().is_some();
            (!left).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_namespace_is_furnished_and_emptied() {
    let client = start().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create(&namespaces, json!({"metadata": {"name": "n"}})).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "n");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "n");
    let account = async || accounts.get_opt("default").await.unwrap();
    eventually("an account", account).await;
    let root =
        eventually("the root certificate", async || maps.get_opt("kube-root-ca.crt").await.unwrap()).await;
    assert_eq!(root.data.unwrap()["ca.crt"], "a certificate");
    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    eventually("an account again", account).await;
    create(&maps, json!({"metadata": {"name": "m", "finalizers": ["example.com/held"]}})).await;
    namespaces.delete("n", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(CALM).await;
    let held = namespaces.get("n").await.unwrap();
    let conditions = held.status.unwrap().conditions.unwrap();
    let message = |kind: &str| conditions.iter().find(|c| c.type_ == kind).unwrap().message.clone().unwrap();
    assert_eq!(
        message("NamespaceContentRemaining"),
        "Some resources are remaining: configmaps. has 1 resource instances"
    );
    assert_eq!(
        message("NamespaceFinalizersRemaining"),
        "Some content in the namespace has finalizers remaining: example.com/held in 1 resource instances"
    );
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("m", &PatchParams::default(), &release).await.unwrap();
    gone(&namespaces, "n").await;
    assert!(maps.list(&ListParams::default()).await.unwrap().items.is_empty());
}

fn template(version: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": format!("image:{version}"), "ports": [{"containerPort": 80}]}]},
    })
}

/// Does what a node would: every Pod gets an address and becomes ready.
fn make_pods_ready(client: &Client) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    tokio::spawn(async move {
        let mut address = 0;
        loop {
            for pod in pods.list(&ListParams::default()).await.unwrap().items {
                if pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) {
                    address += 1;
                    let ready = json!({"status": {"phase": "Running", "podIP": format!("10.0.0.{address}"),
                        "conditions": [{"type": "Ready", "status": "True"}]}});
                    // It may be gone by now.
                    let _ = pods
                        .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(ready))
                        .await;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// As `kubectl rollout status` decides.
fn rolled_out(deployment: &Deployment) -> bool {
    let (spec, status) = (deployment.spec.clone().unwrap(), deployment.status.clone().unwrap_or_default());
    let wanted = spec.replicas;
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
}

#[tokio::test]
async fn a_deployment_rolls_out_scales_and_changes() {
    let client = start().await;
    make_pods_ready(&client);
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let sets: Api<ReplicaSet> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let selector = json!({"matchLabels": {"app": "x"}});
    let spec = json!({"replicas": 2, "selector": selector, "template": template("1")});
    create(&deployments, json!({"metadata": {"name": "d"}, "spec": spec})).await;
    let done = async || Some(deployments.get("d").await.unwrap()).filter(rolled_out);
    eventually("the first rollout", done).await;
    let images = async || {
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        pods.iter()
            .map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(images().await, ["image:1"; 2]);

    let patch = Patch::Merge(json!({"spec": {"template": template("2")}}));
    deployments.patch("d", &PatchParams::default(), &patch).await.unwrap();
    let changed = eventually("the second rollout", done).await;
    assert_eq!(images().await, ["image:2"; 2]);
    assert_eq!(
        sets.list(&ListParams::default()).await.unwrap().items.len(),
        2,
        "the old one stays for a rollback"
    );
    let revision = eventually("a revision", async || {
        deployments.get("d").await.unwrap().annotations().get("deployment.kubernetes.io/revision").cloned()
    });
    assert_eq!((revision.await.as_str(), changed.status.unwrap().unavailable_replicas), ("2", Some(0)));

    for replicas in [4, 1] {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("d", &PatchParams::default(), &patch).await.unwrap();
        eventually("scaled", async || Some(deployments.get("d").await.unwrap()).filter(rolled_out)).await;
        assert_eq!(images().await.len(), replicas);
    }
    deployments.delete("d", &DeleteParams::default()).await.unwrap();
    eventually("all gone", async || images().await.is_empty().then_some(())).await;
    assert!(sets.list(&ListParams::default()).await.unwrap().items.is_empty());
}

fn controller_of(object: &impl ResourceExt) -> Option<String> {
    object
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.name.clone())
}

#[tokio::test]
async fn replica_sets_and_replication_controllers_adopt_and_release_pods() {
    let client = start().await;
    make_pods_ready(&client);
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let sets: Api<ReplicaSet> = Api::default_namespaced(client.clone());
    let controllers: Api<ReplicationController> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let owner = create(&maps, json!({"metadata": {"name": "other"}})).await;
    for (kind, app) in [("ReplicaSet", "set"), ("ReplicationController", "controller")] {
        let labels = json!({"app": app});
        let orphan = json!({"metadata": {"name": format!("orphan-{app}"), "labels": labels}, "spec": template("1")["spec"]});
        create(&pods, orphan).await;
        // It has a controller, as a Pod of a Sandbox does.
        let mut held = owned_by(&format!("held-{app}"), "ConfigMap", &owner, false);
        held["ownerReferences"][0]["controller"] = json!(true);
        held["labels"] = labels.clone();
        create(&pods, json!({"metadata": held, "spec": template("1")["spec"]})).await;
        let mut template = template("1");
        template["metadata"]["labels"] = labels.clone();
        if kind == "ReplicaSet" {
            let spec = json!({"replicas": 2, "selector": {"matchLabels": labels}, "template": template});
            create(&sets, json!({"metadata": {"name": "s"}, "spec": spec})).await;
        } else {
            let spec = json!({"replicas": 2, "selector": labels, "template": template});
            create(&controllers, json!({"metadata": {"name": "s"}, "spec": spec})).await;
        }
        let of_kind = ListParams::default().labels(&format!("app={app}"));
        let owned = async |wanted: usize| {
            eventually("the Pods of the set", async || {
                let all = pods.list(&of_kind).await.unwrap().items;
                let own: Vec<_> = all
                    .iter()
                    .filter(|pod| controller_of(*pod).as_deref() == Some("s"))
                    .map(ResourceExt::name_any)
                    .collect();
                (own.len() == wanted).then_some(own)
            })
            .await
        };
        assert!(owned(2).await.contains(&format!("orphan-{app}")));
        let held = pods.get(&format!("held-{app}")).await.unwrap();
        assert_eq!(controller_of(&held).as_deref(), Some("other"));

        let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "none"}}}));
        pods.patch(&format!("orphan-{app}"), &PatchParams::default(), &patch).await.unwrap();
        eventually("the Pod is released", async || {
            controller_of(&pods.get(&format!("orphan-{app}")).await.unwrap()).is_none().then_some(())
        })
        .await;
        assert!(!owned(2).await.contains(&format!("orphan-{app}")), "another Pod takes its place");
    }
}

#[tokio::test]
async fn deployment_adopts_the_replica_sets_that_an_earlier_one_left() {
    let client = start().await;
    make_pods_ready(&client);
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let sets: Api<ReplicaSet> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client);
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template("1")});
    let first = create(&deployments, json!({"metadata": {"name": "d"}, "spec": spec})).await;
    let done = async || Some(deployments.get("d").await.ok()?).filter(rolled_out);
    eventually("the rollout", done).await;
    let names = async || {
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    let before = names().await;
    deployments.delete("d", &DeleteParams::orphan()).await.unwrap();
    gone(&deployments, "d").await;
    let second = create(&deployments, json!({"metadata": {"name": "d"}, "spec": spec})).await;
    assert_ne!(first.uid(), second.uid());
    eventually("the second rollout", done).await;
    let all = sets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].owner_references()[0].uid, second.uid().unwrap());
    assert_eq!(names().await, before, "no Pod is replaced");

    let labels = Patch::Merge(json!({"metadata": {"labels": {"app": "none"}}}));
    sets.patch(&all[0].name_any(), &PatchParams::default(), &labels).await.unwrap();
    eventually("the ReplicaSet is released", async || {
        sets.get(&all[0].name_any()).await.unwrap().owner_references().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn disruption_budget_bounds_evictions() {
    let client = start().await;
    make_pods_ready(&client);
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client);
    let selector = json!({"matchLabels": {"app": "x"}});
    let spec = json!({"replicas": 3, "selector": selector, "template": template("1")});
    create(&deployments, json!({"metadata": {"name": "d"}, "spec": spec})).await;
    eventually("the rollout", async || Some(deployments.get("d").await.ok()?).filter(rolled_out)).await;
    create(&budgets, json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": selector}}))
        .await;
    let allowed = async |wanted: i32| {
        eventually("the budget is counted", async || {
            let status = budgets.get("b").await.unwrap().status?;
            let counted = status.observed_generation >= Some(1) && status.expected_pods == Some(3);
            (counted && status.disruptions_allowed == Some(wanted)).then_some(status)
        })
        .await
    };
    let status = allowed(1).await;
    assert_eq!((status.current_healthy, status.desired_healthy), (Some(3), Some(2)));
    let names: Vec<_> =
        pods.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let dry = EvictParams { post_options: dry_run, ..EvictParams::default() };
    pods.evict(&names[0], &dry).await.unwrap();
    assert!(pods.get(&names[0]).await.unwrap().metadata.deletion_timestamp.is_none());
    pods.evict(&names[0], &EvictParams::default()).await.unwrap();
    gone(&pods, &names[0]).await;
    let all = Patch::Merge(json!({"spec": {"minAvailable": 3}}));
    budgets.patch("b", &PatchParams::default(), &all).await.unwrap();
    let refused = pods.evict(&names[1], &EvictParams::default()).await.unwrap_err();
    let kube::Error::Api(refused) = refused else { panic!("{refused}") };
    assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(refused.message, "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(refused.details.unwrap().causes[0].reason, "DisruptionBudget");
    budgets.delete("b", &DeleteParams::default()).await.unwrap();
    pods.evict(&names[1], &EvictParams::default()).await.unwrap();
    gone(&pods, &names[1]).await;
}

#[tokio::test]
async fn stateful_set_recreates_a_pod_below_its_partition_with_the_earlier_template() {
    let client = start().await;
    make_pods_ready(&client);
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let revisions: Api<ControllerRevision> = Api::default_namespaced(client);
    create(
        &sets,
        json!({"metadata": {"name": "s"}, "spec": {"replicas": 2, "serviceName": "s", "revisionHistoryLimit": 0,
            "selector": {"matchLabels": {"app": "x"}}, "template": template("1"),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}}),
    )
    .await;
    let images = async |wanted: [&str; 2]| {
        eventually("the images", async || {
            let all = pods.list(&ListParams::default()).await.unwrap().items;
            let image = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
            let is_ready = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
            (all.iter().map(image).collect::<Vec<_>>() == wanted && all.iter().all(is_ready)).then_some(())
        })
        .await;
    };
    images(["image:1", "image:1"]).await;
    let patch = |version: &str, partition: i32| {
        Patch::Merge(
            json!({"spec": {"template": template(version), "updateStrategy": {"rollingUpdate": {"partition": partition}}}}),
        )
    };
    sets.patch("s", &PatchParams::default(), &patch("2", 1)).await.unwrap();
    images(["image:1", "image:2"]).await;
    let uid = pods.get("s-0").await.unwrap().uid();
    pods.delete("s-0", &DeleteParams::default()).await.unwrap();
    eventually("a new Pod", async || (pods.get_opt("s-0").await.unwrap()?.uid() != uid).then_some(())).await;
    images(["image:1", "image:2"]).await;
    let mut numbers: Vec<i64> =
        revisions.list(&ListParams::default()).await.unwrap().items.iter().map(|one| one.revision).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);

    sets.patch("s", &PatchParams::default(), &patch("2", 0)).await.unwrap();
    images(["image:2", "image:2"]).await;
    eventually("the earlier revision is deleted", async || {
        (revisions.list(&ListParams::default()).await.unwrap().items.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stateful_set_has_numbered_pods_with_volumes_of_their_own() {
    let client = start().await;
    make_pods_ready(&client);
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client);
    let resources = json!({"requests": {"storage": "1Mi"}});
    let volumes = json!([{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}}]);
    create(
        &sets,
        json!({"metadata": {"name": "s"}, "spec": {"replicas": 2, "serviceName": "s",
            "selector": {"matchLabels": {"app": "x"}}, "template": template("1"), "volumeClaimTemplates": volumes}}),
    )
    .await;
    let status = async |wanted: i32, image: &str| {
        eventually("the set", async || {
            let set = sets.get("s").await.unwrap();
            let status = set.status.filter(|status| status.observed_generation == set.metadata.generation)?;
            let found = pods.list(&ListParams::default()).await.unwrap().items;
            let image = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image);
            let done = status.ready_replicas == Some(wanted) && status.updated_replicas == Some(wanted);
            (done && found.len() == wanted as usize && found.iter().all(image)).then_some(found)
        })
        .await
    };
    let names = |pods: Vec<Pod>| pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    assert_eq!(names(status(2, "image:1").await), ["s-0", "s-1"]);
    assert!(claims.get_opt("v-s-1").await.unwrap().is_some());
    let patch = Patch::Merge(json!({"spec": {"template": template("2")}}));
    sets.patch("s", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(names(status(2, "image:2").await), ["s-0", "s-1"]);
    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    sets.patch("s", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(names(status(1, "image:2").await), ["s-0"]);
    assert!(claims.get_opt("v-s-1").await.unwrap().is_some(), "volumes outlive their Pod");
}

#[tokio::test]
async fn a_service_knows_where_its_ready_pods_are() {
    let client = start().await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    let endpoints: Api<Endpoints> = Api::default_namespaced(client.clone());
    let ports = json!([{"port": 80}]);
    create(&services, json!({"metadata": {"name": "s"}, "spec": {"selector": {"app": "x"}, "ports": ports}}))
        .await;
    let metadata = json!({"name": "p", "labels": {"app": "x"}});
    create(&pods, json!({"metadata": metadata, "spec": template("1")["spec"]})).await;
    make_pods_ready(&client);
    let of_service = ListParams::default().labels("kubernetes.io/service-name=s");
    let addresses = async || {
        let slices = slices.list(&of_service).await.unwrap().items;
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let ready = endpoints.filter(|e| e.conditions.as_ref().unwrap().ready == Some(true));
        ready.map(|endpoint| endpoint.addresses[0].clone()).collect::<Vec<_>>()
    };
    eventually("an endpoint", async || (addresses().await == ["10.0.0.1"]).then_some(())).await;
    eventually("the old form", async || {
        let found = endpoints.get_opt("s").await.unwrap()?.subsets?;
        (found[0].addresses.as_ref()?[0].ip == "10.0.0.1").then_some(())
    })
    .await;
    // It is selected no more.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "y"}}}));
    pods.patch("p", &PatchParams::default(), &patch).await.unwrap();
    eventually("no endpoint", async || addresses().await.is_empty().then_some(())).await;
    services.delete("s", &DeleteParams::default()).await.unwrap();
    eventually("no slice", async || slices.list(&of_service).await.unwrap().items.is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn old_events_go() {
    let client = start().await;
    let events: Api<Event> = Api::default_namespaced(client);
    let about = json!({"kind": "Pod", "namespace": "default", "name": "p"});
    let event = |name: &str, time: &str| json!({"metadata": {"name": name}, "involvedObject": about, "lastTimestamp": time});
    create(&events, event("coming", "2100-01-01T00:00:00Z")).await;
    create(&events, event("past", "2020-01-01T00:00:00Z")).await;
    gone(&events, "past").await;
    assert!(events.get_opt("coming").await.unwrap().is_some());
}
