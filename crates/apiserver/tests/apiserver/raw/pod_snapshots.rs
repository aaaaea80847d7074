//! GKE's API of Pod snapshots: a right on it gives none on the SandboxSnapshots that it shows.

use super::snapshots::{SNAPSHOTS, Site, carriers, marked, object};
use super::*;

const VERSION: &str = "podsnapshot.gke.io/v1";
const VIEWS: &str = "/apis/podsnapshot.gke.io/v1/namespaces/default/podsnapshots";
const TRIGGERS: &str = "/apis/podsnapshot.gke.io/v1/namespaces/default/podsnapshotmanualtriggers";
const NAME: &str = "podsnapshot.gke.io/ps-name";
const ORIGIN: &str = "podsnapshot.gke.io/origin-pod";
const MERGE: &str = "application/merge-patch+json";

fn trigger(name: &str, spec: Value) -> Value {
    object(VERSION, "PodSnapshotManualTrigger", name, json!({"spec": spec}))
}

#[track_caller]
fn is_refused(answer: &(u16, Value), words: &[&str]) {
    let message = answer.1["message"].as_str().unwrap_or_default();
    assert_eq!((answer.0, &answer.1["reason"]), (403, &json!("Forbidden")), "{}", answer.1);
    assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
}

/// A user with every right on the view, and these on SandboxSnapshots.
async fn user(site: &Site, name: &str, verbs: &[&str]) {
    let view = json!({"apiGroups": ["podsnapshot.gke.io"], "resources": ["*"], "verbs": ["*"]});
    let own = json!({"apiGroups": ["hutch.dev"], "resources": ["sandboxsnapshots"], "verbs": verbs});
    let rules = if verbs.is_empty() { json!([view]) } else { json!([view, own]) };
    site.allow(name, &rules).await;
}

#[tokio::test]
async fn trigger_needs_the_right_to_create_a_snapshot() {
    let site = Site::start().await;
    user(&site, "carol", &[]).await;
    user(&site, "dave", &["create"]).await;
    let wanted = trigger("t", json!({"targetPod": "p"}));
    let refused = site.post("carol", TRIGGERS, &wanted).await;
    is_refused(&refused, &["spec.targetPod", "cannot create", "sandboxsnapshots", "hutch.dev"]);
    let (code, made) = site.post("dave", TRIGGERS, &wanted).await;
    assert_eq!(code, 201, "{made}");
    // It is immutable, and a label needs no right.
    let path = format!("{TRIGGERS}/t");
    let changed = json!({"spec": {"targetPod": "q"}});
    let (code, answer) = site.request("dave", "PATCH", &path, MERGE, &changed).await;
    assert!(code == 422 && answer["message"].as_str().unwrap().contains("cannot be changed"), "{answer}");
    let labeled = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(site.request("carol", "PATCH", &path, MERGE, &labeled).await.0, 200);
    for (spec, word) in [
        (json!({}), "spec.targetPod"),
        (json!({"targetPod": ""}), "spec.targetPod"),
        (json!({"targetPod": "a/b"}), "spec.targetPod"),
    ] {
        let (code, answer) = site.post("dave", TRIGGERS, &trigger("bad", spec)).await;
        assert!(code == 422 && answer["message"].as_str().unwrap().contains(word), "{answer}");
    }
    let unknown = trigger("bad", json!({"targetPod": "p", "deadline": "1m"}));
    let strict = format!("{TRIGGERS}?fieldValidation=Strict");
    let (code, answer) = site.post("dave", &strict, &unknown).await;
    assert!(code == 400 && answer["message"].as_str().unwrap().contains("spec.deadline"), "{answer}");
    // GKE's other kinds are not served.
    for plural in ["podsnapshotpolicies", "podsnapshotstorageconfigs"] {
        assert_eq!(call(&site.admin, "GET", &VIEWS.replace("podsnapshots", plural), "").await.0, 404);
    }
}

#[tokio::test]
async fn view_is_made_by_the_server_alone_and_deleted_with_the_right_on_its_snapshot() {
    let site = Site::start().await;
    user(&site, "carol", &[]).await;
    user(&site, "dave", &["delete"]).await;
    site.server.accept_token("token-of-root", Identity::admin());
    let view = |name: &str| object(VERSION, "PodSnapshot", name, json!({"spec": {}}));
    is_refused(&site.post("root", VIEWS, &view("n")).await, &["no user changes it"]);
    for name in ["n", "m"] {
        assert_eq!(call(&site.admin, "POST", VIEWS, &view(name).to_string()).await.0, 201);
    }
    let path = format!("{VIEWS}/n");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Completed",
        "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
    for (path, change) in [
        (path.clone(), json!({"metadata": {"labels": {"a": "b"}}})),
        (path.clone(), json!({"metadata": {"finalizers": ["a.b/c"]}})),
        (format!("{path}/status"), ready),
    ] {
        is_refused(&site.request("root", "PATCH", &path, MERGE, &change).await, &["no user changes it"]);
    }
    let delete = async |user: &str, path: &str| {
        site.request(user, "DELETE", path, "application/json", &json!({})).await
    };
    for path in [path.as_str(), VIEWS] {
        let refused = delete("carol", path).await;
        is_refused(&refused, &["cannot delete", "sandboxsnapshots", "hutch.dev"]);
    }
    assert_eq!(call(&site.admin, "GET", &path, "").await.0, 200);
    assert_eq!(delete("dave", &path).await.0, 200);
    assert_eq!(delete("dave", VIEWS).await.0, 200);
    assert_eq!(call(&site.admin, "GET", &format!("{VIEWS}/m"), "").await.0, 404);
}

#[tokio::test]
async fn name_of_a_snapshot_needs_the_right_to_restore_wherever_a_sandbox_is_made_from_it() {
    let site = Site::start().await;
    let mut of_sandboxes = 0;
    for (path, plain, places) in carriers() {
        for place in &places {
            let mark = |name: &str| marked(&plain, place, NAME, &name.into());
            let dry = format!("{path}?dryRun=All");
            let field = format!("{}.annotations[{NAME}]", place.trim_start_matches('/').replace('/', "."));
            let refused = site.post("alice", &dry, &mark("image")).await;
            if refused.0 == 404 {
                continue;
            }
            if !path.contains("agents.x-k8s.io") {
                // The node does not read it.
                let (code, answer) = site.post("bob", &dry, &mark("image")).await;
                let message = answer["message"].as_str().unwrap();
                assert!(
                    code == 422 && message.contains(&field) && message.contains("restore-from"),
                    "{message}"
                );
                continue;
            }
            of_sandboxes += 1;
            is_refused(&refused, &[&field, "cannot restore", "sandboxsnapshots"]);
            is_refused(&site.post("bob", &dry, &mark("other")).await, &[&field, "cannot restore"]);
            let (code, made) = site.post("bob", &dry, &mark("image")).await;
            assert_eq!(code, 201, "{made}");
            for bad in ["", "A", "../x"] {
                let (code, answer) = site.post("bob", &dry, &mark(bad)).await;
                assert!(
                    code == 422 && answer["message"].as_str().unwrap().contains(&field),
                    "{bad:?}: {answer}"
                );
            }
            let own = site.post("bob", &dry, &mark("suspend-1")).await;
            is_refused(&own, &[&field, "the server's own"]);
        }
    }
    assert!(of_sandboxes >= 9, "{of_sandboxes}");
}

#[tokio::test]
async fn snapshot_of_a_user_does_not_count_as_that_of_a_trigger() {
    let site = Site::start().await;
    site.server.accept_token("token-of-root", Identity::admin());
    let spec = json!({"spec": {"source": {"sandbox": "a"}, "content": "Full"}});
    let plain = object("hutch.dev/v1alpha1", "SandboxSnapshot", "s", spec);
    let of_trigger = marked(&plain, "/metadata", ORIGIN, &"a".into());
    is_refused(&site.post("root", SNAPSHOTS, &of_trigger).await, &[ORIGIN, "set by the server"]);
    assert_eq!(site.post("root", SNAPSHOTS, &plain).await.0, 201);
    let path = format!("{SNAPSHOTS}/s");
    let patch = |origin: Value| json!({"metadata": {"annotations": {ORIGIN: origin}}});
    is_refused(&site.request("root", "PATCH", &path, MERGE, &patch("a".into())).await, &[ORIGIN]);
    let (code, _) = typed(&site.admin, "PATCH", &path, MERGE, &patch("a".into()).to_string()).await;
    assert_eq!(code, 200);
    is_refused(&site.request("root", "PATCH", &path, MERGE, &patch(Value::Null)).await, &[ORIGIN]);
}
