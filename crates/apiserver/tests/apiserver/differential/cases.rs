//! Description and sending of cases.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::answer::Answer;

/// One request. Nothing of it is kept: each is a dry run.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    method: &'static str,
    path: String,
    media: &'static str,
    /// Of a GET: what is changed in its continue token.
    body: String,
    /// JSON pointer to what matters when it is taken.
    place: String,
}

impl Case {
    pub(crate) fn new(
        name: impl Into<String>,
        method: &'static str,
        path: &str,
        body: impl ToString,
    ) -> Case {
        let (media, place) = (
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
            String::new(),
        );
        Case { name: name.into(), method, path: path.into(), media, body: body.to_string(), place }
    }

    /// Looks at this place of the object that was taken.
    pub(crate) fn showing(self, place: &str) -> Case {
        Case { place: place.into(), ..self }
    }
}

/// Kinds that the cases use, by where they are made.
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const SERVICES: &str = "/api/v1/namespaces/default/services";
pub(crate) const NAMESPACES: &str = "/api/v1/namespaces";
pub(crate) const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
pub(crate) const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
pub(crate) const POOLS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxwarmpools";
pub(crate) const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

/// An object of the kind that is made there, with this metadata and what the kind needs.
pub(crate) fn object(path: &str, metadata: &Value) -> Value {
    let (version, kind, rest) = match path {
        CONFIG_MAPS => ("v1", "ConfigMap", json!({})),
        SERVICES => ("v1", "Service", json!({"spec": {"ports": [{"port": 80}]}})),
        NAMESPACES => ("v1", "Namespace", json!({})),
        ROLES => ("rbac.authorization.k8s.io/v1", "Role", json!({"rules": []})),
        DEPLOYMENTS => ("apps/v1", "Deployment", json!({"spec": deployment()})),
        SANDBOXES => {
            ("agents.x-k8s.io/v1beta1", "Sandbox", json!({"spec": {"podTemplate": {"spec": pod()}}}))
        }
        POOLS => (
            "extensions.agents.x-k8s.io/v1beta1",
            "SandboxWarmPool",
            json!({"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}}),
        ),
        _ => ("example.com/v1", "Thing", json!({"spec": {}})),
    };
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
    object.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    object
}

fn pod() -> Value {
    json!({"containers": [{"name": "c", "image": "i"}]})
}

fn deployment() -> Value {
    json!({"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod()}})
}

/// Creates the objects that the cases need: a custom kind, and an object of two kinds.
pub(crate) async fn prepare(client: &Client) {
    let integer = |format: &str| json!({"type": "integer", "format": format});
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "plain": {"type": "integer"}, "small": integer("int32"), "large": integer("int64"),
        "number": {"type": "number"}, "bounded": {"type": "integer", "minimum": 1, "maximum": 10},
        "either": {"x-kubernetes-int-or-string": true}, "texts": {"type": "object", "additionalProperties": {"type": "string"}}}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "versions": [version], "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, said) = request(client, "POST", definitions, "application/json", definition.to_string()).await;
    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
    // A control plane without controllers does not create it; Pods and tokens need it.
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    request(client, "POST", accounts, "application/json", account.to_string()).await;
    for path in [THINGS, CONFIG_MAPS] {
        let there = object(path, &json!({"name": "there"})).to_string();
        // A real server begins to serve a new kind some time after its definition is stored.
        for _ in 0..1000 {
            if request(client, "POST", path, "application/json", there.clone()).await.0 == 201 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let (code, _) =
            request(client, "GET", &format!("{path}/there"), "application/json", String::new()).await;
        assert_eq!(code, 200, "{path}");
    }
}

pub(crate) async fn send(client: &Client, case: &Case) -> Answer {
    let joint = if case.path.contains('?') { '&' } else { '?' };
    let mut path = format!("{}{joint}dryRun=All", case.path);
    if case.method == "GET" && !case.body.is_empty() {
        let change = serde_json::from_str(&case.body).expect("a change");
        path = format!("{path}&continue={}", forged(client, &case.path, &change).await);
        let (code, body) = request(client, "GET", &path, case.media, String::new()).await;
        return Answer::of(code, &body, &case.place);
    }
    let (code, body) = request(client, case.method, &path, case.media, case.body.clone()).await;
    Answer::of(code, &body, &case.place)
}

/// The token of the server's own for the second page, with some of its fields changed.
async fn forged(client: &Client, path: &str, change: &Value) -> String {
    let (_, body) = request(client, "GET", path, "application/json", String::new()).await;
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let token = URL_SAFE_NO_PAD.decode(body["metadata"]["continue"].as_str().expect("a second page"));
    let mut token: Value = serde_json::from_slice(&token.expect("base64")).expect("JSON");
    let token_fields = token.as_object_mut().expect("an object");
    for (name, value) in change.as_object().expect("an object") {
        token_fields.insert(name.clone(), value.clone());
    }
    URL_SAFE_NO_PAD.encode(token.to_string())
}

async fn request(client: &Client, method: &str, path: &str, media: &str, body: String) -> (u16, Vec<u8>) {
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let request = request.body(Body::from(body.into_bytes())).expect("a request");
    let answer = client.send(request).await.expect("an answer");
    let code = answer.status().as_u16();
    (code, answer.into_body().collect().await.expect("all of it").to_bytes().to_vec())
}
