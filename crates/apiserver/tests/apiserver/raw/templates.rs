//! The template of a Sandbox, by which policies apply: who may name it.

use super::snapshots::{SNAPSHOTS, Site, object};
use super::*;

const TEMPLATE: &str = "agents.x-k8s.io/sandbox-template-ref";
/// Name of a snapshot, as GKE writes it.
const SNAPSHOT: &str = "podsnapshot.gke.io/ps-name";

/// A Sandbox with this template, which starts from this snapshot.
fn sandbox(version: &str, name: &str, template: Option<&str>, snapshot: Option<&str>) -> Value {
    let pod = json!({"containers": [{"name": "main", "image": "hutch/host"}]});
    let mut made = object(
        &format!("agents.x-k8s.io/{version}"),
        "Sandbox",
        name,
        json!({"metadata": {"annotations": {}}, "spec": {"podTemplate": {"metadata": {"annotations": {}}, "spec": pod}}}),
    );
    if let Some(template) = template {
        made["metadata"]["annotations"][TEMPLATE] = template.into();
    }
    if let Some(snapshot) = snapshot {
        made["spec"]["podTemplate"]["metadata"]["annotations"]["hutch.dev/restore-from"] = snapshot.into();
    }
    made
}

/// Regression: everyone who wrote Sandboxes named the template whose policies applied, or none.
#[tokio::test]
async fn only_administrators_name_the_template_of_a_sandbox() {
    let site = Site::start().await;
    let path = |version: &str| format!("/apis/agents.x-k8s.io/{version}/namespaces/default/sandboxes");
    let template = |made: &Value| made["metadata"]["annotations"][TEMPLATE].as_str().map(str::to_owned);
    let of_t = sandbox("v1beta1", "source", Some("t"), None).to_string();
    let (code, made) = call(&site.admin, "POST", &path("v1beta1"), &of_t).await;
    assert_eq!((code.as_u16(), template(&made).as_deref()), (201, Some("t")), "{made}");
    let snapshot = json!({"spec": {"source": {"sandbox": "source"}, "content": "Full"}});
    let snapshot = object("hutch.dev/v1alpha1", "SandboxSnapshot", "image", snapshot).to_string();
    let (code, made) = call(&site.admin, "POST", SNAPSHOTS, &snapshot).await;
    assert_eq!(code, 201, "{made}");
    for version in ["v1beta1", "v1alpha1"] {
        for (number, (named, from, expected)) in [
            (None, None, Ok(None)),
            (Some("t"), None, Err(())),
            // A copy has the template of its source.
            (Some("t"), Some("image"), Ok(Some("t"))),
            (None, Some("image"), Ok(Some("t"))),
            (Some("other"), Some("image"), Err(())),
        ]
        .into_iter()
        .enumerate()
        {
            let body = sandbox(version, &format!("{version}-{number}"), named, from);
            let (code, made) = site.post("bob", &path(version), &body).await;
            match expected {
                Ok(expected) => {
                    assert_eq!((code, template(&made).as_deref()), (201, expected), "{body}: {made}")
                }
                Err(()) => {
                    let field = format!("metadata.annotations[{TEMPLATE}]");
                    assert_eq!(
                        (code, &made["details"]["causes"][0]["field"]),
                        (422, &field.into()),
                        "{made}"
                    );
                }
            }
        }
        let one = format!("{}/source", path(version));
        for (value, code) in [(json!("other"), 422), (Value::Null, 200)] {
            let patch = json!({"metadata": {"annotations": {TEMPLATE: value}}});
            let media = "application/merge-patch+json";
            let (found, made) = site.request("bob", "PATCH", &one, media, &patch).await;
            assert_eq!(found, code, "{made}");
            let (_, stored) = call(&site.admin, "GET", &one, "").await;
            assert_eq!(template(&stored).as_deref(), Some("t"), "{patch}");
        }
    }
    // By each annotation that names a snapshot, also later, and after its source has gone.
    let (code, gone) = call(&site.admin, "DELETE", &format!("{}/source", path("v1beta1")), "").await;
    assert_eq!(code, 200, "{gone}");
    for (number, (at, key)) in [
        ("/metadata/annotations", "hutch.dev/restore-from"),
        ("/metadata/annotations", SNAPSHOT),
        ("/spec/podTemplate/metadata/annotations", SNAPSHOT),
        ("/spec/podTemplate/metadata/annotations", "hutch.dev/restore-from"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = sandbox("v1beta1", &format!("plain-{number}"), None, None);
        let (code, made) = site.post("bob", &path("v1beta1"), &body).await;
        assert_eq!((code, template(&made)), (201, None), "{made}");
        let patch = json!([{"op": "add", "path": at, "value": {key: "image"}}]);
        let one = format!("{}/plain-{number}", path("v1beta1"));
        let (code, made) = site.request("bob", "PATCH", &one, "application/json-patch+json", &patch).await;
        assert_eq!((code, template(&made).as_deref()), (200, Some("t")), "{patch}: {made}");
        body["metadata"]["name"] = format!("copy-{number}").into();
        body.pointer_mut(at).unwrap()[key] = "image".into();
        let (code, made) = site.post("bob", &path("v1beta1"), &body).await;
        assert_eq!((code, template(&made).as_deref()), (201, Some("t")), "{body}: {made}");
    }
}

/// Regression: who may only create Sandboxes got the policies and credentials of a template for a program of their own, by naming
/// a snapshot that fails.
#[tokio::test]
async fn snapshot_gives_its_template_only_to_who_may_update_the_source() {
    let site = Site::start().await;
    let path = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
    let of_t = sandbox("v1beta1", "source", Some("t"), None).to_string();
    let (code, made) = call(&site.admin, "POST", path, &of_t).await;
    assert_eq!(code, 201, "{made}");
    let rules = |of_sandboxes: Value| {
        json!([
            {"apiGroups": ["hutch.dev"], "resources": ["sandboxsnapshots"], "verbs": ["create", "restore"]},
            {"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["create"]},
            of_sandboxes,
        ])
    };
    let updates = |name: &str| {
        json!({"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["update", "patch"],
            "resourceNames": [name]})
    };
    for (user, rules, expected) in
        [("creates", rules(updates("other")), None), ("updates", rules(updates("source")), Some("t"))]
    {
        site.allow(user, &rules).await;
        let snapshot = json!({"spec": {"source": {"sandbox": "source"}, "content": "Filesystem",
            "volumes": {"include": ["absent"]}}});
        let snapshot = object("hutch.dev/v1alpha1", "SandboxSnapshot", user, snapshot);
        let (code, made) = site.post(user, SNAPSHOTS, &snapshot).await;
        assert_eq!(code, 201, "{made}");
        let body = sandbox("v1beta1", &format!("of-{user}"), None, Some(user));
        let (code, made) = site.post(user, path, &body).await;
        let template = made["metadata"]["annotations"][TEMPLATE].as_str();
        assert_eq!((code, template), (201, expected), "{user}: {made}");
        let body = sandbox("v1beta1", &format!("named-{user}"), Some("t"), Some(user));
        let (code, made) = site.post(user, path, &body).await;
        assert_eq!(code, if expected.is_some() { 201 } else { 422 }, "{user}: {made}");
    }
}
