//! The API as bytes: what clients of other languages see.

use axum::Router;
use axum::body::Body;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, BODY_BYTES, Config, Identity};
use serde_json::{Value, json};
use tower::ServiceExt;

const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn server() -> ApiServer {
    ApiServer::open(Config { default_node: Some("hutch".into()), ..Config::default() }).await.unwrap()
}

async fn app() -> Router {
    server().await.router_as(Identity::admin())
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> (StatusCode, String) {
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

async fn call(app: &Router, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
    typed(app, method, path, "application/json", body).await
}

async fn typed(app: &Router, method: &str, path: &str, media: &str, body: &str) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let response = send(app, request.body(Body::from(body.to_owned())).unwrap()).await;
    let (code, text) = text(response).await;
    (code, serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)))
}

async fn get_as(app: &Router, path: &str, accept: &str) -> (StatusCode, Value) {
    let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
    let (code, text) = text(send(app, request).await).await;
    (code, serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text)))
}

fn config_map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
        .to_string()
}

fn sandbox(name: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}},
    })
}

/// The next line of a watch.
async fn line(
    body: &mut (impl futures::Stream<Item = Result<bytes::Bytes, axum::Error>> + Unpin),
    rest: &mut Vec<u8>,
) -> Value {
    loop {
        if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            return serde_json::from_slice(&line).unwrap();
        }
        let more = tokio::time::timeout(std::time::Duration::from_secs(5), body.next());
        rest.extend_from_slice(&more.await.expect("an event in time").expect("the watch goes on").unwrap());
    }
}

struct Events {
    body: axum::body::BodyDataStream,
    rest: Vec<u8>,
}

impl Events {
    async fn of(app: &Router, path: &str, accept: &str) -> Events {
        let request = Request::get(path).header("accept", accept).body(Body::empty()).unwrap();
        let response = send(app, request).await;
        assert_eq!(response.status(), 200);
        Events { body: response.into_body().into_data_stream(), rest: Vec::new() }
    }

    async fn next(&mut self) -> Value {
        line(&mut self.body, &mut self.rest).await
    }

    /// Type, name.
    async fn brief(&mut self) -> (String, String) {
        let event = self.next().await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

#[tokio::test]
async fn nobody_passes_without_a_credential() {
    let server = server().await;
    server.accept_token("a-good-token", Identity::admin()).unwrap();
    let app = server.authenticated();
    let with = |header: Option<&str>, path: &str| {
        let mut request = Request::get(path);
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        request.body(Body::empty()).unwrap()
    };
    for path in ["/api", "/version", "/readyz", "/openapi/v3", PODS, "/nonsense"] {
        for header in [None, Some("Bearer wrong"), Some("Bearer "), Some("Basic YWRtaW46YWRtaW4=")] {
            let (code, body) = text(send(&app, with(header, path)).await).await;
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (code.as_u16(), &status["reason"]),
                (401, &json!("Unauthorized")),
                "{path} {header:?}"
            );
        }
    }
    let (code, _) = text(send(&app, with(Some("Bearer a-good-token"), PODS)).await).await;
    assert_eq!(code, 200);
    let certificate = hutch_serve::PeerCertificate(vec![1, 2, 3].into());
    let mut request = with(None, PODS);
    request.extensions_mut().insert(certificate.clone());
    assert_eq!(send(&app, request).await.status(), 401);
    server.accept_certificate(&certificate.0, Identity::admin()).unwrap();
    let mut request = with(None, PODS);
    request.extensions_mut().insert(certificate);
    assert_eq!(send(&app, request).await.status(), 200);
}

#[tokio::test]
async fn credentials_survive_a_restart_and_are_not_kept_in_clear() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().into()), ..Config::default() };
    let server = ApiServer::open(config.clone()).await.unwrap();
    server.accept_token("a-good-token", Identity::admin()).unwrap();
    server.close().await;
    drop(server);
    let file = std::fs::read_to_string(folder.path().join("ca/credentials.json")).unwrap();
    assert!(!file.contains("a-good-token"), "{file}");
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let server = ApiServer::open(config).await.unwrap();
    assert_eq!(server.identify_token("a-good-token"), Some(Identity::admin()));
    assert_eq!(server.identify_token("a-good-toke"), None);
}

#[tokio::test]
async fn refusals_have_the_words_of_a_real_server() {
    let app = app().await;
    let cases = [
        ("GET", format!("{PODS}/x"), "", 404, "NotFound", "pods \"x\" not found"),
        (
            "GET",
            "/apis/none/v1/x".into(),
            "",
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        (
            "POST",
            "/api/v1/pods".into(),
            "{}",
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            "POST",
            SANDBOXES.into(),
            "{\"kind\":\"Sandbox\"}",
            400,
            "BadRequest",
            "Object 'apiVersion' is missing in '{\"kind\":\"Sandbox\"}'",
        ),
        (
            "POST",
            "/api/v1/namespaces/none/configmaps".into(),
            &config_map("a"),
            404,
            "NotFound",
            "namespaces \"none\" not found",
        ),
        (
            "DELETE",
            "/api/v1/namespaces/default".into(),
            "",
            403,
            "Forbidden",
            "namespaces \"default\" is forbidden: this namespace may not be deleted",
        ),
        (
            "POST",
            CONFIG_MAPS.into(),
            &config_map("A b"),
            422,
            "Invalid",
            "ConfigMap \"A b\" is invalid: metadata.name: Invalid value: \"A b\": a lowercase RFC 1123 subdomain",
        ),
        (
            "GET",
            format!("{PODS}?limit=x"),
            "",
            400,
            "BadRequest",
            "strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            "PUT",
            format!("{SANDBOXES}/s"),
            &sandbox("t").to_string(),
            400,
            "BadRequest",
            "the name of the object (t) does not match the name on the URL (s)",
        ),
        (
            "PUT",
            format!("{SANDBOXES}/s"),
            &sandbox("s").to_string(),
            422,
            "Invalid",
            "Sandbox.agents.x-k8s.io \"s\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        ),
    ];
    for (method, path, body, code, reason, message) in cases {
        let (got, status) = call(&app, method, &path, body).await;
        assert_eq!(
            (got.as_u16(), &status["reason"], &status["kind"]),
            (code, &json!(reason), &json!("Status")),
            "{method} {path}: {status}"
        );
        assert!(status["message"].as_str().unwrap().starts_with(message), "{method} {path}: {status}");
        assert_eq!(status["code"], code);
    }
    let (code, status) = call(&app, "GET", &format!("{SANDBOXES}/s"), "").await;
    let details = json!({"name": "s", "group": "agents.x-k8s.io", "kind": "sandboxes"});
    assert_eq!((code.as_u16(), &status["details"]), (404, &details));
}

#[tokio::test]
async fn a_body_of_a_built_in_kind_need_not_name_it() {
    let app = app().await;
    let (code, made) =
        call(&app, "POST", CONFIG_MAPS, r#"{"metadata": {"name": "bare"}, "data": {"a": "b"}}"#).await;
    assert_eq!(
        (code.as_u16(), &made["kind"], &made["apiVersion"]),
        (201, &json!("ConfigMap"), &json!("v1")),
        "{made}"
    );
    let path = format!("{CONFIG_MAPS}/bare");
    let (code, _) = call(&app, "PUT", &path, r#"{"kind": "", "metadata": {"name": "bare"}}"#).await;
    assert_eq!(code, 200);
    let (code, status) =
        call(&app, "PUT", &path, r#"{"kind": "Secret", "metadata": {"name": "bare"}}"#).await;
    assert_eq!(code, 400, "{status}");
}

#[tokio::test]
async fn bodies_of_all_kinds_and_their_faults() {
    let app = app().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata: {a: b}\n";
    let (code, made) = typed(&app, "POST", CONFIG_MAPS, "application/yaml", yaml).await;
    assert_eq!((code.as_u16(), &made["data"]["a"]), (201, &json!("b")), "{made}");
    let (code, status) = typed(&app, "POST", CONFIG_MAPS, "application/yaml", "a: [1\nb: }").await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().contains("line"), "{status}");
    let (code, status) = typed(&app, "POST", CONFIG_MAPS, "text/plain", "x").await;
    assert_eq!((code.as_u16(), &status["reason"]), (415, &json!("UnsupportedMediaType")));
    let (code, _) = get_as(&app, PODS, "application/vnd.kubernetes.protobuf").await;
    assert_eq!(code, 406);
    let big = format!("{{\"a\":\"{}\"}}", "x".repeat(BODY_BYTES));
    let (code, status) = call(&app, "POST", CONFIG_MAPS, &big).await;
    assert_eq!((code.as_u16(), &status["reason"]), (413, &json!("RequestEntityTooLarge")));
    let (code, status) = call(&app, "POST", CONFIG_MAPS, "{\"a\":").await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().contains("line 1 column"), "{status}");
}

#[tokio::test]
async fn unknown_and_duplicate_fields() {
    let app = app().await;
    let mut unknown = sandbox("s");
    unknown["spec"]["foo"] = 1.into();
    unknown["spec"]["podTemplate"]["spec"]["containers"][0]["imagee"] = 1.into();
    let path = |validation: &str| format!("{SANDBOXES}?fieldValidation={validation}");
    let (code, status) = call(&app, "POST", &path("Strict"), &unknown.to_string()).await;
    assert_eq!(code, 400);
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "Sandbox in version \"v1beta1\" cannot be handled as a Sandbox: strict decoding error: "
        ),
        "{message}"
    );
    assert!(message.contains("unknown field \"spec.foo\""), "{message}");
    assert!(message.contains("unknown field \"spec.podTemplate.spec.containers[0].imagee\""), "{message}");

    let twice = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d"},"data":{"a":"1","a":"2"}}"#;
    let (code, status) = call(&app, "POST", &format!("{CONFIG_MAPS}?fieldValidation=Strict"), twice).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().ends_with("duplicate field \"data.a\""), "{status}");

    let request = Request::post(path("Warn")).header("content-type", "application/json");
    let response = send(&app, request.body(Body::from(unknown.to_string())).unwrap()).await;
    let warnings: Vec<_> =
        response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
    assert!(warnings.contains(&"299 - \"unknown field \\\"spec.foo\\\"\"".to_owned()), "{warnings:?}");
    let (code, made) = text(response).await;
    assert_eq!(code, 201);
    assert!(!made.contains("foo") && !made.contains("imagee"), "unknown fields are not kept: {made}");
    let (code, status) = call(&app, "POST", &path("Maybe"), &unknown.to_string()).await;
    assert_eq!((code.as_u16(), &status["reason"]), (422, &json!("Invalid")));
}

#[tokio::test]
async fn watches_from_every_revision() {
    let app = app().await;
    for name in ["a", "b"] {
        assert_eq!(call(&app, "POST", CONFIG_MAPS, &config_map(name)).await.0, 201);
    }
    let (_, list) = call(&app, "GET", CONFIG_MAPS, "").await;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // Unset and 0 show what is there.
    for query in ["watch=1", "watch=true&resourceVersion=0"] {
        let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?{query}"), "").await;
        assert_eq!(events.brief().await, ("ADDED".into(), "a".into()));
        assert_eq!(events.brief().await, ("ADDED".into(), "b".into()));
    }
    // A revision shows what came after, even before the watch.
    call(&app, "DELETE", &format!("{CONFIG_MAPS}/a"), "").await;
    let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&resourceVersion={revision}"), "").await;
    let event = events.next().await;
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("a")));
    let gone: u64 = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(gone > revision.parse().unwrap());
    // Initial events, then the bookmark that ends them.
    let path = format!(
        "{CONFIG_MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut events = Events::of(&app, &path, "").await;
    assert_eq!(events.brief().await, ("ADDED".into(), "b".into()));
    let end = events.next().await;
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["kind"], "ConfigMap");
    // A time limit ends it.
    let mut events =
        Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion={gone}"), "").await;
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(3), events.body.next()).await.unwrap().is_none()
    );
    let path = format!("{CONFIG_MAPS}?watch=1&sendInitialEvents=true");
    assert_eq!(call(&app, "GET", &path, "").await.0, 422);
}

#[tokio::test]
async fn a_revision_that_is_too_old_is_told_in_the_watch() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().into()), ..Config::default() };
    let server = ApiServer::open(config.clone()).await.unwrap();
    let router = server.router_as(Identity::admin());
    call(&router, "POST", CONFIG_MAPS, &config_map("a")).await;
    server.close().await;
    drop((server, router));
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let app = ApiServer::open(config).await.unwrap().router_as(Identity::admin());
    let (_, map) = call(&app, "GET", &format!("{CONFIG_MAPS}/a"), "").await;
    assert_eq!(map["data"]["a"], "b", "what was acknowledged is there after a restart");
    let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&resourceVersion=1"), "").await;
    let event = events.next().await;
    assert_eq!(
        (&event["type"], &event["object"]["code"], &event["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    let (code, status) = call(&app, "GET", &format!("{CONFIG_MAPS}?resourceVersion=99999"), "").await;
    assert_eq!((code.as_u16(), &status["reason"]), (504, &json!("Timeout")));
}

#[tokio::test]
async fn selectors_in_lists_and_watches() {
    let app = app().await;
    let mut events = Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&labelSelector=app%3Dx"), "").await;
    let mut one =
        Events::of(&app, &format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Db"), "").await;
    let labelled = |name: &str, app: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": app}}})
            .to_string()
    };
    call(&app, "POST", CONFIG_MAPS, &labelled("a", "x")).await;
    call(&app, "POST", CONFIG_MAPS, &labelled("b", "y")).await;
    let patch = |label: &str| json!({"metadata": {"labels": {"app": label}}}).to_string();
    typed(&app, "PATCH", &format!("{CONFIG_MAPS}/b"), "application/merge-patch+json", &patch("x")).await;
    typed(&app, "PATCH", &format!("{CONFIG_MAPS}/a"), "application/merge-patch+json", &patch("z")).await;
    assert_eq!(events.brief().await, ("ADDED".into(), "a".into()));
    assert_eq!(events.brief().await, ("ADDED".into(), "b".into()));
    assert_eq!(events.brief().await, ("DELETED".into(), "a".into()));
    assert_eq!(one.brief().await, ("ADDED".into(), "b".into()));
    assert_eq!(one.brief().await, ("MODIFIED".into(), "b".into()));
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let (_, list) = call(&app, "GET", &format!("{CONFIG_MAPS}?labelSelector=app+in+(x,q)"), "").await;
    assert_eq!(names(&list), ["b"]);
    let (_, list) = call(&app, "GET", &format!("{CONFIG_MAPS}?fieldSelector=metadata.name!%3Db"), "").await;
    assert_eq!(names(&list), ["a"]);
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}?fieldSelector=data.a%3Db"), "").await.0, 400);
}

#[tokio::test]
async fn pages() {
    let app = app().await;
    for n in 0..5 {
        call(&app, "POST", CONFIG_MAPS, &config_map(&format!("c{n}"))).await;
    }
    let (_, first) = call(&app, "GET", &format!("{CONFIG_MAPS}?limit=2"), "").await;
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    call(&app, "POST", CONFIG_MAPS, &config_map("c9")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = call(&app, "GET", &format!("{CONFIG_MAPS}?limit=2&continue={token}"), "").await;
    assert_eq!(second["items"][0]["metadata"]["name"], "c2");
    assert_eq!(
        second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"],
        "nothing since is missed"
    );
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}?continue=x"), "").await.0, 400);
}

#[tokio::test]
async fn tables_and_bare_metadata() {
    let app = app().await;
    let (code, _) = call(&app, "POST", SANDBOXES, &sandbox("s").to_string()).await;
    assert_eq!(code, 201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (_, list) = get_as(&app, SANDBOXES, table).await;
    assert_eq!(list["kind"], "Table");
    assert_eq!(list["rows"][0]["cells"][0], "s");
    let columns: Vec<_> =
        list["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "Ready", "Reason", "Age"]);
    assert!(list["metadata"]["resourceVersion"].is_string());
    let mut events = Events::of(&app, &format!("{SANDBOXES}?watch=1"), table).await;
    let event = events.next().await;
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert!(event["object"]["columnDefinitions"].is_array());
    call(&app, "DELETE", &format!("{SANDBOXES}/s"), "").await;
    let event = events.next().await;
    assert_eq!((&event["type"], &event["object"]["columnDefinitions"]), (&json!("DELETED"), &Value::Null));
    call(&app, "POST", CONFIG_MAPS, &config_map("m")).await;
    let bare = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (_, object) = get_as(&app, &format!("{CONFIG_MAPS}/m"), bare).await;
    assert_eq!((&object["kind"], object.get("data")), (&json!("PartialObjectMetadata"), None));
}

#[tokio::test]
async fn both_versions_show_the_same_object() {
    let app = app().await;
    let old = "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes";
    let mut object = sandbox("s");
    object["apiVersion"] = "agents.x-k8s.io/v1alpha1".into();
    object["spec"]["replicas"] = 0.into();
    let request = Request::post(old).header("content-type", "application/json");
    let response = send(&app, request.body(Body::from(object.to_string())).unwrap()).await;
    let warning = response.headers()["warning"].to_str().unwrap().to_owned();
    assert_eq!(
        warning,
        "299 - \"agents.x-k8s.io/v1alpha1 Sandbox is deprecated; use agents.x-k8s.io/v1beta1 Sandbox instead\""
    );
    assert_eq!(response.status(), 201);
    let (_, new) = call(&app, "GET", &format!("{SANDBOXES}/s"), "").await;
    assert_eq!(new["spec"]["operatingMode"], "Suspended");
    let (_, scale) = call(&app, "GET", &format!("{old}/s/scale"), "").await;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(0)));
    let patch = json!({"spec": {"replicas": 1}}).to_string();
    let (code, scale) =
        typed(&app, "PATCH", &format!("{old}/s/scale"), "application/merge-patch+json", &patch).await;
    assert_eq!((code.as_u16(), &scale["spec"]["replicas"]), (200, &json!(1)), "{scale}");
    let (_, new) = call(&app, "GET", &format!("{SANDBOXES}/s"), "").await;
    assert_eq!(
        (&new["spec"]["operatingMode"], &new["metadata"]["generation"]),
        (&json!("Running"), &json!(2))
    );
    let mut events = Events::of(&app, &format!("{old}?watch=1"), "").await;
    let event = events.next().await;
    assert_eq!(event["object"]["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(event["object"]["spec"]["replicas"], 1);
}

#[tokio::test]
async fn older_definitions_change_nothing_and_new_ones_are_served() {
    let app = app().await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let name = format!("{crds}/sandboxes.agents.x-k8s.io");
    let (_, before) = call(&app, "GET", &name, "").await;
    let versions = json!({"spec": {"versions": [{"name": "v1alpha1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let (code, after) =
        typed(&app, "PATCH", &name, "application/merge-patch+json", &versions.to_string()).await;
    assert_eq!((code.as_u16(), &after["spec"]), (200, &before["spec"]));
    assert_eq!(call(&app, "DELETE", &name, "").await.0, 403);
    assert_eq!(call(&app, "POST", SANDBOXES, &sandbox("s").to_string()).await.0, 201);

    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "snapshots.podsnapshot.gke.io"},
        "spec": {"group": "podsnapshot.gke.io", "scope": "Namespaced",
                 "names": {"plural": "snapshots", "kind": "Snapshot"},
                 "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                     "type": "object", "properties": {"spec": {"type": "object", "properties": {
                         "n": {"type": "integer", "default": 3}}}}}}}]},
    });
    let (code, made) = call(&app, "POST", crds, &definition.to_string()).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["status"]["conditions"][1]["type"], "Established");
    let path = "/apis/podsnapshot.gke.io/v1/namespaces/default/snapshots";
    let object = json!({"apiVersion": "podsnapshot.gke.io/v1", "kind": "Snapshot", "metadata": {"name": "x"}, "spec": {"y": 1}});
    let (code, made) = call(&app, "POST", path, &object.to_string()).await;
    assert_eq!((code.as_u16(), &made["spec"]), (201, &json!({"n": 3})));
    assert_eq!(call(&app, "GET", "/apis/podsnapshot.gke.io/v1", "").await.0, 200);
    assert_eq!(call(&app, "DELETE", &format!("{crds}/snapshots.podsnapshot.gke.io"), "").await.0, 200);
    assert_eq!(call(&app, "GET", path, "").await.0, 404);
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let app = app().await;
    let (code, made) = call(&app, "POST", &format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await;
    assert_eq!(code, 201);
    assert!(
        made["metadata"]["uid"].is_string() && made["metadata"].get("resourceVersion").is_none(),
        "{made}"
    );
    assert_eq!(call(&app, "GET", &format!("{CONFIG_MAPS}/a"), "").await.0, 404);
    call(&app, "POST", CONFIG_MAPS, &config_map("a")).await;
    let (code, _) = call(&app, "DELETE", &format!("{CONFIG_MAPS}/a?dryRun=All"), "").await;
    assert_eq!(code, 200);
    let patch = "{\"data\":{\"a\":\"c\"}}";
    let path = format!("{CONFIG_MAPS}/a?dryRun=All");
    let (_, shown) = typed(&app, "PATCH", &path, "application/merge-patch+json", patch).await;
    assert_eq!(shown["data"]["a"], "c");
    let (_, kept) = call(&app, "GET", &format!("{CONFIG_MAPS}/a"), "").await;
    assert_eq!(kept["data"]["a"], "b");
    assert_eq!(call(&app, "POST", &format!("{CONFIG_MAPS}?dryRun=x"), &config_map("b")).await.0, 422);
}

#[tokio::test]
async fn deletes_keep_to_their_preconditions() {
    let app = app().await;
    let (_, made) = call(&app, "POST", CONFIG_MAPS, &config_map("a")).await;
    let path = format!("{CONFIG_MAPS}/a");
    let other = json!({"preconditions": {"uid": "other"}}).to_string();
    let (code, status) = call(&app, "DELETE", &path, &other).await;
    assert_eq!((code.as_u16(), &status["reason"]), (409, &json!("Conflict")));
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("Precondition failed: UID in precondition: other, UID in object meta: "),
        "{message}"
    );
    let own = json!({"preconditions": {"uid": made["metadata"]["uid"]}}).to_string();
    let (code, status) = call(&app, "DELETE", &path, &own).await;
    assert_eq!((code.as_u16(), &status["status"]), (200, &json!("Success")));
    let stale = json!({"metadata": {"resourceVersion": "1"}, "data": {}}).to_string();
    call(&app, "POST", CONFIG_MAPS, &config_map("a")).await;
    let (code, _) = typed(&app, "PATCH", &path, "application/merge-patch+json", &stale).await;
    assert_eq!(code, 409);
    let (code, deleted) = call(&app, "DELETE", CONFIG_MAPS, "").await;
    assert_eq!((code.as_u16(), deleted["items"].as_array().unwrap().len()), (200, 1));
    assert_eq!(call(&app, "GET", &path, "").await.0, 404);
}

#[tokio::test]
async fn a_namespace_goes_when_its_finalizer_is_taken() {
    let app = app().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    let (_, made) = call(&app, "POST", "/api/v1/namespaces", &namespace.to_string()).await;
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "n");
    assert_eq!(
        (&made["status"]["phase"], &made["spec"]["finalizers"]),
        (&json!("Active"), &json!(["kubernetes"]))
    );
    assert_eq!(call(&app, "GET", "/api/v1/namespaces/n/serviceaccounts/default", "").await.0, 200);
    let (_, going) = call(&app, "DELETE", "/api/v1/namespaces/n", "").await;
    assert_eq!(going["status"]["phase"], "Terminating");
    let (code, status) = call(&app, "POST", "/api/v1/namespaces/n/configmaps", &config_map("a")).await;
    assert_eq!(code, 403);
    assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut last = going.clone();
    last["spec"]["finalizers"] = json!([]);
    let (code, _) = call(&app, "PUT", "/api/v1/namespaces/n/finalize", &last.to_string()).await;
    assert_eq!(code, 200);
    assert_eq!(call(&app, "GET", "/api/v1/namespaces/n", "").await.0, 404);
}

#[tokio::test]
async fn events_have_two_faces() {
    let app = app().await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "x", "reportingInstance": "x", "action": "A",
        "reason": "R", "note": "hello", "type": "Normal",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default", "apiVersion": "v1"},
    });
    let (code, made) =
        call(&app, "POST", "/apis/events.k8s.io/v1/namespaces/default/events", &event.to_string()).await;
    assert_eq!((code.as_u16(), &made["note"]), (201, &json!("hello")), "{made}");
    let path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp";
    let (_, list) = call(&app, "GET", path, "").await;
    assert_eq!(list["items"][0]["message"], "hello");
    assert_eq!(list["kind"], "EventList");
}

#[tokio::test]
async fn server_side_apply_owns_and_conflicts() {
    let app = app().await;
    let path = |manager: &str, more: &str| format!("{CONFIG_MAPS}/a?fieldManager={manager}{more}");
    let apply = "application/apply-patch+yaml";
    let (code, made) = typed(&app, "PATCH", &path("one", ""), apply, &config_map("a")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "one");
    let (code, again) = typed(&app, "PATCH", &path("one", ""), apply, &config_map("a")).await;
    assert_eq!(
        (code.as_u16(), &again["metadata"]["resourceVersion"]),
        (200, &made["metadata"]["resourceVersion"])
    );
    let other = config_map("a").replace("\"b\"", "\"c\"");
    let (code, status) = typed(&app, "PATCH", &path("two", ""), apply, &other).await;
    assert_eq!(
        (code.as_u16(), &status["details"]["causes"][0]["reason"]),
        (409, &json!("FieldManagerConflict")),
        "{status}"
    );
    let (code, forced) = typed(&app, "PATCH", &path("two", "&force=true"), apply, &other).await;
    assert_eq!((code.as_u16(), &forced["data"]["a"]), (200, &json!("c")));
    let (code, _) = typed(&app, "PATCH", &format!("{CONFIG_MAPS}/a"), apply, &other).await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn reviews_tokens_and_the_server_itself() {
    let server = server().await;
    let app = server.router_as(Identity::admin());
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).to_string();
    let (code, made) =
        call(&app, "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", &token).await;
    assert_eq!(code, 201, "{made}");
    let token = made["status"]["token"].as_str().unwrap();
    let review = |token: &str| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}})
            .to_string()
    };
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (_, good) = call(&app, "POST", path, &review(token)).await;
    assert_eq!(good["status"]["user"]["username"], "system:serviceaccount:default:default");
    let (_, bad) = call(&app, "POST", path, &review("guess")).await;
    assert_eq!(bad["status"]["authenticated"], false);
    assert!(!bad.to_string().contains("guess"));
    assert_eq!(
        call(&app, "GET", "/version", "").await.1["gitVersion"].as_str().map(|v| v.starts_with("v1.")),
        Some(true)
    );
    for path in ["/readyz", "/livez", "/healthz"] {
        assert_eq!(call(&app, "GET", path, "").await, (StatusCode::OK, json!("ok")));
    }
    let (_, apis) =
        get_as(&app, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").await;
    assert_eq!(apis["kind"], "APIGroupDiscoveryList");
    assert_eq!(call(&app, "GET", "/openapi/v3/apis/agents.x-k8s.io/v1beta1", "").await.0, 200);
    assert_eq!(call(&app, "GET", &format!("{PODS}/p/log"), "").await.0, 404);
}
