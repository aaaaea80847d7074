//! The Pod of a Sandbox has its policies: who may become that Pod, and what makes a Pod leave its Sandbox.

use super::snapshots::{Site, object};
use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
const ADOPTING: [(&str, &str); 2] =
    [("agents.x-k8s.io/adoptable", "true"), ("agents.x-k8s.io/sandbox-name-hash", "1")];
const MERGE: &str = "application/merge-patch+json";

fn pod(name: &str, labels: Value) -> Value {
    let spec = json!({"containers": [{"name": "main", "image": "hutch/host"}]});
    object("v1", "Pod", name, json!({"metadata": {"labels": labels}, "spec": spec}))
}

/// Each object whose labels, or the labels of what it makes, let a Sandbox adopt something.
fn adoptable(name: &str, key: &str, value: &str) -> Vec<(&'static str, Value)> {
    let labels = json!({"app": "a", key: value});
    let pod_spec = json!({"containers": [{"name": "main", "image": "hutch/host"}]});
    let template = json!({"metadata": {"labels": labels}, "spec": pod_spec});
    let selector = json!({"matchLabels": {"app": "a"}});
    let deployment = json!({"spec": {"selector": selector, "template": template}});
    let mut set = deployment.clone();
    set["spec"]["serviceName"] = "s".into();
    let storage = json!({"resources": {"requests": {"storage": "1Mi"}}, "accessModes": ["ReadWriteOnce"]});
    let mut of_claims = set.clone();
    of_claims["spec"]["template"]["metadata"]["labels"] = json!({"app": "a"});
    of_claims["spec"]["volumeClaimTemplates"] =
        json!([{"metadata": {"name": "v", "labels": {key: value}}, "spec": storage}]);
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = "Never".into();
    let job = json!({"spec": {"template": once}});
    let cron = json!({"spec": {"schedule": "0 0 * * *", "jobTemplate": job}});
    vec![
        (PODS, pod(name, labels.clone())),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            object(
                "v1",
                "PersistentVolumeClaim",
                name,
                json!({"metadata": {"labels": labels}, "spec": storage}),
            ),
        ),
        (
            "/api/v1/namespaces/default/podtemplates",
            object("v1", "PodTemplate", name, json!({"template": template})),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            object("apps/v1", "Deployment", name, deployment.clone()),
        ),
        ("/apis/apps/v1/namespaces/default/replicasets", object("apps/v1", "ReplicaSet", name, deployment)),
        ("/apis/apps/v1/namespaces/default/statefulsets", object("apps/v1", "StatefulSet", name, set)),
        ("/apis/apps/v1/namespaces/default/statefulsets", object("apps/v1", "StatefulSet", name, of_claims)),
        ("/apis/batch/v1/namespaces/default/jobs", object("batch/v1", "Job", name, job)),
        ("/apis/batch/v1/namespaces/default/cronjobs", object("batch/v1", "CronJob", name, cron)),
    ]
}

async fn site() -> Site {
    let site = Site::start().await;
    let all = json!(["create", "get", "update", "patch", "delete"]);
    let others = json!({"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": all});
    site.allow("dave", &json!([others])).await;
    site
}

/// Regression: who could only create Pods made one that a Sandbox adopted, with its policies and the name of its creator.
#[tokio::test]
async fn object_that_a_sandbox_could_adopt_needs_the_right_to_update_sandboxes() {
    let site = site().await;
    for (index, (key, value)) in ADOPTING.into_iter().enumerate() {
        for (number, (path, body)) in adoptable(&format!("x{index}"), key, value).into_iter().enumerate() {
            let (code, refused) = site.post("dave", path, &body).await;
            let message = refused["message"].to_string();
            assert!(code == 403 && message.contains(key) && message.contains("dave"), "{path}: {refused}");
            let mut allowed = body.clone();
            allowed["metadata"]["name"] = format!("y{index}-{number}").into();
            let (code, made) = site.post("alice", path, &allowed).await;
            assert_eq!(code, 201, "{path}: {made}");
        }
        let (code, made) = site.post("dave", PODS, &pod(&format!("later-{index}"), json!({}))).await;
        assert_eq!(code, 201, "{made}");
        let patch = json!({"metadata": {"labels": {key: value}}});
        let one = format!("{PODS}/later-{index}");
        assert_eq!(site.request("dave", "PATCH", &one, MERGE, &patch).await.0, 403);
        assert_eq!(site.request("alice", "PATCH", &one, MERGE, &patch).await.0, 200);
        // What has it may be changed otherwise.
        let other = json!({"metadata": {"labels": {"app": "b"}}});
        assert_eq!(site.request("dave", "PATCH", &one, MERGE, &other).await.0, 200);
    }
}

/// Regression: a Pod without its Sandbox had no policies for the template of the Sandbox, and others by its own labels.
#[tokio::test]
async fn pod_leaves_its_sandbox_only_by_an_administrator() {
    let site = site().await;
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}});
    let sandbox = object("agents.x-k8s.io/v1beta1", "Sandbox", "s", json!({"metadata": {}, "spec": spec}));
    let (code, made) = site.post("alice", SANDBOXES, &sandbox).await;
    assert_eq!(code, 201, "{made}");
    let mut owned = pod("s", json!({}));
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "name": "s", "uid": made["metadata"]["uid"], "controller": true}]);
    let (code, made) = site.post("alice", PODS, &owned).await;
    assert_eq!(code, 201, "{made}");
    let one = format!("{PODS}/s");
    // It runs as the Sandbox, so that who may not change that one changes nothing that it runs.
    for (patch, code) in [
        (json!({"spec": {"containers": [{"name": "main", "image": "hutch/pause"}]}}), 403),
        (json!({"metadata": {"annotations": {"hutch.dev/env": "[]"}}}), 403),
        (json!({"metadata": {"annotations": {"example.com/a": "b"}, "labels": {"a": "b"}}}), 200),
    ] {
        let strategic = "application/strategic-merge-patch+json";
        let (found, answer) = site.request("dave", "PATCH", &one, strategic, &patch).await;
        assert_eq!(found, code, "{patch}: {answer}");
        let (found, answer) = site.request("alice", "PATCH", &one, strategic, &patch).await;
        assert_eq!(found, 200, "{patch}: {answer}");
    }
    let mut kept = made["metadata"]["ownerReferences"].clone();
    kept[0]["controller"] = false.into();
    for owners in [Value::Null, json!([]), kept] {
        let patch = json!({"metadata": {"ownerReferences": owners}});
        for user in ["dave", "alice"] {
            let (code, refused) = site.request(user, "PATCH", &one, MERGE, &patch).await;
            let message = refused["message"].to_string();
            assert!(code == 403 && message.contains("must keep Sandbox"), "{user} {patch}: {refused}");
        }
    }
    let sandbox = format!("{SANDBOXES}/s");
    // The garbage collector would delete it so.
    let patch = json!({"metadata": {"finalizers": ["orphan"]}});
    let (code, refused) = site.request("alice", "PATCH", &sandbox, MERGE, &patch).await;
    assert_eq!(code, 403, "{refused}");
    for orphans in [json!({"propagationPolicy": "Orphan"}), json!({"orphanDependents": true})] {
        let (code, refused) = site.request("alice", "DELETE", &sandbox, "application/json", &orphans).await;
        assert_eq!(code, 403, "{refused}");
        let all = format!("{SANDBOXES}?labelSelector=a%3Db");
        assert_ne!(site.request("alice", "DELETE", &all, "application/json", &orphans).await.0, 200);
    }
    let query = format!("{sandbox}?propagationPolicy=Orphan");
    assert_eq!(site.request("alice", "DELETE", &query, "application/json", &json!({})).await.0, 403);
    let patch = json!({"metadata": {"ownerReferences": []}}).to_string();
    let request = Request::builder().method("PATCH").uri(&one).header("content-type", MERGE);
    let (code, text) = text(send(&site.admin, request.body(Body::from(patch)).unwrap()).await).await;
    assert_eq!(code, 200, "{text}");
}
