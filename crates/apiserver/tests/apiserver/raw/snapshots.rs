//! Rights of snapshots: every way to restore from one needs the verb `restore`.

use super::*;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const NAMESPACE: &str = "/namespaces/default";
pub(super) const SNAPSHOTS: &str = "/apis/hutch.dev/v1alpha1/namespaces/default/sandboxsnapshots";
const FORKS: &str = "/apis/hutch.dev/v1alpha1/namespaces/default/sandboxforks";
const RESTORE: &str = "hutch.dev/restore-from";
const KEEPS: &str = "hutch.dev/suspend-keeps";

pub(super) struct Site {
    pub(super) server: ApiServer,
    pub(super) admin: Router,
    outside: Router,
}

impl Site {
    /// A server with users who may do everything but restore, and one who may restore from `image` besides.
    pub(super) async fn start() -> Site {
        let server = server().await;
        let admin = server.router_as(Identity::admin());
        let site = Site { outside: server.authenticated(), admin, server };
        let usual = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["create", "get", "update", "patch", "delete"]});
        let restore = json!({"apiGroups": ["hutch.dev"], "resources": ["sandboxsnapshots"], "verbs": ["restore"],
            "resourceNames": ["image"]});
        site.allow("alice", &json!([usual])).await;
        site.allow("bob", &json!([usual, restore])).await;
        site
    }

    pub(super) async fn allow(&self, user: &str, rules: &Value) {
        self.server.accept_token(&format!("token-of-{user}"), Identity::new(user, &[]));
        let of = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": user}});
        let (mut role, mut binding) = (of("Role"), of("RoleBinding"));
        role["rules"] = rules.clone();
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user});
        binding["subjects"] =
            json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]);
        for (plural, object) in [("roles", role), ("rolebindings", binding)] {
            let path = format!("{RBAC}{NAMESPACE}/{plural}");
            let (code, made) = call(&self.admin, "POST", &path, &object.to_string()).await;
            assert_eq!(code, 201, "{made}");
        }
    }

    pub(super) async fn request(
        &self,
        user: &str,
        method: &str,
        path: &str,
        media: &str,
        body: &Value,
    ) -> (u16, Value) {
        let token = format!("Bearer token-of-{user}");
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.header("authorization", token).body(Body::from(body.to_string())).unwrap();
        let (code, text) = text(send(&self.outside, request).await).await;
        (code.as_u16(), serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)))
    }

    pub(super) async fn post(&self, user: &str, path: &str, body: &Value) -> (u16, Value) {
        self.request(user, "POST", path, "application/json", body).await
    }
}

pub(super) fn object(version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut object = rest;
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    object["metadata"]["name"] = name.into();
    object
}

/// Kinds from which Pods are made: path, an object, and where the annotations of its Pods stand.
pub(super) fn carriers() -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let pod = json!({"containers": [{"name": "main", "image": "hutch/host"}]});
    let labels = json!({"app": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let selected = json!({"selector": {"matchLabels": labels}, "template": template, "serviceName": "s"});
    let mut plain = selected.clone();
    plain.as_object_mut().unwrap().remove("serviceName");
    let mut once = pod.clone();
    once["restartPolicy"] = "Never".into();
    let job = json!({"template": {"spec": once}});
    let agents = "agents.x-k8s.io/v1beta1";
    let extensions = "extensions.agents.x-k8s.io/v1beta1";
    let in_spec = vec!["/metadata", "/spec/template/metadata"];
    vec![
        (
            "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes",
            object(agents, "Sandbox", "x", json!({"spec": {"podTemplate": {"spec": pod}}})),
            vec!["/metadata", "/spec/podTemplate/metadata"],
        ),
        (
            "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes",
            object(
                "agents.x-k8s.io/v1alpha1",
                "Sandbox",
                "old",
                json!({"spec": {"podTemplate": {"spec": pod}}}),
            ),
            vec!["/metadata", "/spec/podTemplate/metadata"],
        ),
        (
            "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxtemplates",
            object(extensions, "SandboxTemplate", "x", json!({"spec": {"podTemplate": {"spec": pod}}})),
            vec!["/metadata", "/spec/podTemplate/metadata"],
        ),
        (
            "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims",
            object(extensions, "SandboxClaim", "x", json!({"spec": {"warmPoolRef": {"name": "p"}}})),
            vec!["/metadata", "/spec/additionalPodMetadata"],
        ),
        (
            "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxwarmpools",
            object(
                extensions,
                "SandboxWarmPool",
                "x",
                json!({"spec": {"replicas": 0, "sandboxTemplateRef": {"name": "t"}}}),
            ),
            vec!["/metadata"],
        ),
        (PODS, object("v1", "Pod", "x", json!({"spec": pod})), vec!["/metadata"]),
        (
            "/api/v1/namespaces/default/podtemplates",
            object("v1", "PodTemplate", "x", json!({"template": template})),
            vec!["/metadata", "/template/metadata"],
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            object("apps/v1", "Deployment", "x", json!({"spec": plain})),
            in_spec.clone(),
        ),
        (
            "/apis/apps/v1/namespaces/default/replicasets",
            object("apps/v1", "ReplicaSet", "x", json!({"spec": plain})),
            in_spec.clone(),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            object("apps/v1", "StatefulSet", "x", json!({"spec": selected})),
            in_spec.clone(),
        ),
        (
            "/apis/apps/v1/namespaces/default/controllerrevisions",
            object(
                "apps/v1",
                "ControllerRevision",
                "x",
                json!({"revision": 1, "data": {"spec": {"template": template}}}),
            ),
            vec!["/data/spec/template/metadata"],
        ),
        (
            "/apis/batch/v1/namespaces/default/jobs",
            object("batch/v1", "Job", "x", json!({"spec": job})),
            in_spec,
        ),
    ]
}

pub(super) fn marked(object: &Value, place: &str, key: &str, value: &Value) -> Value {
    let mut marked = object.clone();
    let (parent, field) = place.rsplit_once('/').unwrap();
    marked.pointer_mut(parent).unwrap()[field]["annotations"][key] = value.clone();
    marked
}

fn is_refused(what: &str, answer: &(u16, Value), user: &str) {
    let message = answer.1["message"].as_str().unwrap_or_default();
    let why = format!(
        "User \"{user}\" cannot restore resource \"sandboxsnapshots\" in API group \"hutch.dev\" in the namespace \"default\""
    );
    assert_eq!((answer.0, &answer.1["reason"]), (403, &json!("Forbidden")), "{what}: {}", answer.1);
    assert!(
        message.contains(&why) && message.contains(&format!("annotations[{RESTORE}]")),
        "{what}: {message}"
    );
}

#[tokio::test]
async fn annotation_that_restores_needs_the_right_in_every_object_and_by_every_verb() {
    let site = Site::start().await;
    let mut served = 0;
    for (path, plain, places) in carriers() {
        let name = plain["metadata"]["name"].as_str().unwrap().to_owned();
        let (one, of_kind) = (format!("{path}/{name}"), plain["kind"].as_str().unwrap().to_owned());
        for place in &places {
            let what = format!("{of_kind} {place}");
            let mark = |snapshot: &str| marked(&plain, place, RESTORE, &snapshot.into());
            let created = site.post("alice", path, &mark("image")).await;
            if created.0 == 404 {
                assert!(of_kind == "Job", "{what}: {}", created.1);
                continue;
            }
            served += 1;
            is_refused(&format!("create {what}"), &created, "alice");
            let apply = format!("{one}?fieldManager=a&force=true");
            let applied =
                site.request("alice", "PATCH", &apply, "application/apply-patch+yaml", &mark("image")).await;
            is_refused(&format!("apply anew {what}"), &applied, "alice");

            let (code, made) = site.post("alice", path, &plain).await;
            assert_eq!(code, 201, "{what}: {made}");
            let changed = marked(&made, place, RESTORE, &"image".into());
            let put = site.request("alice", "PUT", &one, "application/json", &changed).await;
            // The data of a ControllerRevision cannot be changed at all.
            if of_kind != "ControllerRevision" {
                is_refused(&format!("update {what}"), &put, "alice");
                let (parent, _) = place.rsplit_once('/').unwrap();
                let mut merge = json!({"metadata": {"annotations": {RESTORE: "image"}}});
                for field in parent.rsplit('/').filter(|field| !field.is_empty()) {
                    merge = json!({field: merge});
                }
                if *place == "/spec/additionalPodMetadata" {
                    merge = json!({"spec": {"additionalPodMetadata": {"annotations": {RESTORE: "image"}}}});
                }
                let patched =
                    site.request("alice", "PATCH", &one, "application/merge-patch+json", &merge).await;
                is_refused(&format!("patch {what}"), &patched, "alice");
                let applied = site
                    .request("alice", "PATCH", &apply, "application/apply-patch+yaml", &mark("image"))
                    .await;
                is_refused(&format!("apply {what}"), &applied, "alice");
            }
            // Control: with the right, for the one snapshot.
            is_refused(&what, &site.post("bob", path, &mark("other")).await, "bob");
            assert!(
                call(&site.admin, "DELETE", &format!("{one}?gracePeriodSeconds=0"), "").await.0.is_success()
            );
            let (code, made) = site.post("bob", path, &mark("image")).await;
            assert_eq!(code, 201, "{what}: {made}");
            // What stands there already is no restore of who changes something else.
            let labeled = json!({"metadata": {"labels": {"b": "c"}}});
            let (code, other) =
                site.request("alice", "PATCH", &one, "application/merge-patch+json", &labeled).await;
            assert_eq!(code, 200, "{what}: {other}");
            assert!(
                call(&site.admin, "DELETE", &format!("{one}?gracePeriodSeconds=0"), "").await.0.is_success()
            );
        }
    }
    assert!(served >= 18, "{served}");
}

#[tokio::test]
async fn snapshot_whose_name_an_object_has_already_needs_the_right_to_restore() {
    let site = Site::start().await;
    let named = |name: &str| {
        let spec = json!({"source": {"sandbox": "a"}, "content": "Full"});
        object("hutch.dev/v1alpha1", "SandboxSnapshot", name, json!({"spec": spec}))
    };
    let remove = async |path: String| {
        assert!(
            call(&site.admin, "DELETE", &format!("{path}?gracePeriodSeconds=0"), "").await.0.is_success()
        );
    };
    let spec = json!({"source": {"snapshot": "image"}, "replicas": 1});
    let fork = object("hutch.dev/v1alpha1", "SandboxFork", "x", json!({"spec": spec}));
    let mut all = vec![(FORKS, fork)];
    for (path, plain, places) in carriers() {
        let keys = [RESTORE, "podsnapshot.gke.io/ps-name"];
        let keys = keys.iter().filter(|key| **key == RESTORE || path.contains("agents.x-k8s.io"));
        let marked =
            keys.flat_map(|key| places.iter().map(|place| marked(&plain, place, key, &"image".into())));
        all.extend(marked.map(|object| (path, object)));
    }
    let mut served = 0;
    for (path, object) in all {
        let what = object.to_string();
        let (code, made) = site.post("bob", path, &object).await;
        if code == 404 {
            continue;
        }
        assert_eq!(code, 201, "{what}: {made}");
        served += 1;
        let (code, refused) = site.post("alice", SNAPSHOTS, &named("image")).await;
        let why = "metadata.name: User \"alice\" cannot restore resource \"sandboxsnapshots\"";
        assert!(code == 403 && refused["message"].as_str().unwrap().contains(why), "{what}: {refused}");
        // Controls: another name, and the right.
        for (user, name) in [("alice", "other"), ("bob", "image")] {
            let (code, made) = site.post(user, SNAPSHOTS, &named(name)).await;
            assert_eq!(code, 201, "{user} {name}, {what}: {made}");
            remove(format!("{SNAPSHOTS}/{name}")).await;
        }
        remove(format!("{path}/{}", made["metadata"]["name"].as_str().unwrap())).await;
    }
    assert!(served >= 20, "{served}");
}

#[tokio::test]
async fn annotation_that_restores_needs_the_right_in_the_status_of_a_pod() {
    let site = Site::start().await;
    let pod =
        object("v1", "Pod", "x", json!({"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}));
    assert_eq!(site.post("alice", PODS, &pod).await.0, 201);
    let patch = json!({"metadata": {"annotations": {RESTORE: "image"}}});
    let path = format!("{PODS}/x/status");
    for media in ["application/merge-patch+json", "application/strategic-merge-patch+json"] {
        is_refused(media, &site.request("alice", "PATCH", &path, media, &patch).await, "alice");
    }
}

#[tokio::test]
async fn invalid_values_and_names_of_the_server_are_refused_by_their_field() {
    let site = Site::start().await;
    let (path, plain, places) = carriers().remove(0);
    for place in places {
        let field = format!("{}.annotations", place.trim_start_matches('/').replace('/', "."));
        for bad in ["A", "a/b", "../x", "a_b"] {
            let (code, refused) = site.post("bob", path, &marked(&plain, place, RESTORE, &bad.into())).await;
            let message = refused["message"].as_str().unwrap();
            assert!(
                code == 422 && message.contains(&format!("{field}[{RESTORE}]: Invalid value")),
                "{message}"
            );
        }
        for bad in ["", "Memory", "disk", "memory,files"] {
            let (code, refused) = site.post("bob", path, &marked(&plain, place, KEEPS, &bad.into())).await;
            let message = refused["message"].as_str().unwrap();
            let words = [&format!("{field}[{KEEPS}]"), "`memory`", "`files`"];
            assert!(code == 422 && words.iter().all(|word| message.contains(*word)), "{code} {message}");
        }
        for (key, bad) in [
            ("hutch.dev/shares-generators", "yes"),
            ("hutch.dev/after-restore", "reseed"),
            ("hutch.dev/after-restore", "[]"),
            ("hutch.dev/after-restore", "[\"reseed\"]"),
        ] {
            let (code, refused) = site.post("bob", path, &marked(&plain, place, key, &bad.into())).await;
            let message = refused["message"].as_str().unwrap();
            assert!(code == 422 && message.contains(&format!("{field}[{key}]: Invalid value")), "{message}");
        }
        for good in ["memory", "files"] {
            let dry = format!("{path}?dryRun=All");
            assert_eq!(site.post("alice", &dry, &marked(&plain, place, KEEPS, &good.into())).await.0, 201);
        }
        // Of the server, whatever rights a user has.
        site.server.accept_token("token-of-root", Identity::admin());
        let own = marked(&plain, place, RESTORE, &"suspend-1-2".into());
        let (code, refused) = site.post("root", path, &own).await;
        let message = refused["message"].as_str().unwrap();
        assert!(
            code == 403 && message.contains("the server's own") && message.contains(RESTORE),
            "{message}"
        );
        let controller = site.server.router_as(Identity::service_account("agent-sandbox-system", "c"));
        let (code, denied) = call(&controller, "POST", path, &own.to_string()).await;
        assert_eq!(code, 403, "the controller has no role here: {denied}");
        let (code, made) = call(&site.admin, "POST", &format!("{path}?dryRun=All"), &own.to_string()).await;
        assert_eq!(code, 201, "a component copies it: {made}");
    }
}

#[tokio::test]
async fn snapshots_and_forks_need_the_rights_on_what_they_restore() {
    let site = Site::start().await;
    let version = "hutch.dev/v1alpha1";
    let snapshot = |name: &str, rest: Value| {
        let mut spec = json!({"source": {"sandbox": "a"}, "content": "Full"});
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object(version, "SandboxSnapshot", name, json!({"spec": spec}))
    };
    let fork = |name: &str, source: Value| {
        object(version, "SandboxFork", name, json!({"spec": {"source": source, "replicas": 1}}))
    };
    let creator = json!([{"apiGroups": ["hutch.dev"], "resources": ["sandboxsnapshots", "sandboxforks"], "verbs": ["create"]}]);
    site.allow("carol", &creator).await;
    let forker = json!([{"apiGroups": ["hutch.dev"], "resources": ["sandboxforks"], "verbs": ["create"]},
        {"apiGroups": ["hutch.dev"], "resources": ["sandboxsnapshots"], "verbs": ["restore"]}]);
    site.allow("dave", &forker).await;
    site.server.accept_token("token-of-root", Identity::admin());
    let plain = snapshot("s", json!({}));
    let stop = snapshot("t", json!({"afterwards": "Stop"}));
    let own = snapshot("suspend-1", json!({}));
    let mut generated = snapshot("x", json!({}));
    generated["metadata"] = json!({"generateName": "suspend-"});
    let of_snapshot = |name: &str| fork("f", json!({"snapshot": name}));
    let of_sandbox = |name: &str| fork(name, json!({"sandbox": "a"}));
    for (user, path, made, code, words) in [
        ("carol", SNAPSHOTS, &plain, 201, &[][..]),
        ("carol", SNAPSHOTS, &stop, 403, &["spec.afterwards", "cannot update", "sandboxes", "\"a\""]),
        ("alice", SNAPSHOTS, &stop, 201, &[]),
        ("root", SNAPSHOTS, &own, 403, &["metadata.name", "the server's own"]),
        ("root", SNAPSHOTS, &generated, 403, &["metadata.name", "the server's own"]),
        (
            "carol",
            FORKS,
            &of_snapshot("image"),
            403,
            &["spec.source.snapshot", "cannot restore", "\"image\""],
        ),
        ("bob", FORKS, &of_snapshot("other"), 403, &["spec.source.snapshot", "cannot restore", "\"other\""]),
        ("bob", FORKS, &of_snapshot("image"), 201, &[]),
        ("root", FORKS, &of_snapshot("suspend-1"), 403, &["the server's own"]),
        ("carol", FORKS, &of_sandbox("g"), 403, &["spec.source.sandbox", "cannot restore", "\"g\""]),
        ("dave", FORKS, &of_sandbox("g"), 403, &["spec.source.sandbox", "cannot create", "sandboxsnapshots"]),
        ("bob", FORKS, &of_sandbox("g"), 403, &["cannot restore"]),
        ("bob", FORKS, &of_sandbox("image"), 201, &[]),
        // Its snapshot would have that name.
        ("root", FORKS, &of_sandbox("suspend-x"), 403, &["the server's own"]),
    ] {
        let (got, answer) = site.post(user, path, made).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(got, code, "{user} {made}: {answer}");
        assert!(words.iter().all(|word| message.contains(word)), "{user} {made}: {message}");
    }
    let (code, made) = call(&site.admin, "POST", SNAPSHOTS, &own.to_string()).await;
    assert_eq!(code, 201, "a component suspends: {made}");
    // A status or a label needs no right to restore.
    let labeled = json!({"metadata": {"labels": {"a": "b"}}});
    let path = format!("{FORKS}/f");
    assert_eq!(site.request("alice", "PATCH", &path, "application/merge-patch+json", &labeled).await.0, 200);
    for path in [format!("{FORKS}/f"), format!("{SNAPSHOTS}/s")] {
        let patch = json!({"spec": {"source": {"sandbox": "b", "snapshot": null}}});
        let (code, refused) =
            site.request("root", "PATCH", &path, "application/merge-patch+json", &patch).await;
        assert!(
            code == 422 && refused["message"].as_str().unwrap().contains("cannot be changed"),
            "{refused}"
        );
    }
}
