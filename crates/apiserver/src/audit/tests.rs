use std::time::Duration;

use axum::body::Body;
use tower::ServiceExt;

use super::*;
use crate::hooks::policy::{BINDINGS, POLICIES};
use crate::journal::memory::Records;
use crate::{ApiServer, Config};

async fn server(log: &Arc<Records>) -> ApiServer {
    let server = ApiServer::open(Config::default()).await.unwrap();
    server.set_audit(log.clone());
    server.accept_token("t", Identity::admin());
    server
}

fn request(method: &str, path: &str, token: &str, body: &'static str) -> Request {
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("authorization", format!("Bearer {token}"));
    request.header("content-type", "application/json").body(Body::from(body)).unwrap()
}

fn paths(log: &Records, status: u16) -> Vec<String> {
    let events = log.events();
    let events = events.iter().filter(|event| event["http_response"]["code"] == status);
    events.map(|event| event["http_request"]["url"]["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn write_is_recorded_after_its_caller_has_reset_the_connection() {
    let log = Records::new(0);
    let server = server(&log).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let create = request("POST", path, "t", r#"{"metadata":{"name":"a"}}"#);
    let created = server.authenticated().oneshot(create);
    let answer = tokio::time::timeout(Duration::from_secs(1), created).await;
    assert!(answer.is_err(), "the answer waits for its record");
    log.gate.add_permits(1);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if paths(&log, 201) == [path] {
            return;
        }
    }
    panic!("no record of the write: {:?}", log.events());
}

#[tokio::test]
async fn refused_logins_do_not_wait_and_are_bounded() {
    let log = Records::new(0);
    let server = server(&log).await;
    let long = format!("/{}", "a".repeat(60_000));
    for path in ["/api/v1/pods", &long, "/api/v1/nodes"] {
        let answer = server.authenticated().oneshot(request("GET", path, "wrong", "")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let found = paths(&log, 401);
    assert_eq!(found[0], "/api/v1/pods");
    assert!(found.len() == 2 && found[1].len() < 1100, "{found:?}");
    assert_eq!(log.events()[1]["count"], 2);
}

#[tokio::test]
async fn request_about_the_sandbox_of_a_claim_names_the_claim() {
    let log = Records::new(1);
    let server = server(&log).await;
    let path = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
    let body = r#"{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"Sandbox","metadata":{"name":"box",
        "ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxClaim","name":"job",
        "uid":"u","controller":true}]},"spec":{"podTemplate":{"spec":{"containers":[{"name":"a","image":"b"}]}}}}"#;
    let answer = server.authenticated().oneshot(request("POST", path, "t", body)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let tags = &log.events()[0]["metadata"]["tags"];
    assert_eq!((&tags[0]["value"], &tags[1]["value"]), (&"default/box".into(), &"default/job".into()));
}

#[tokio::test]
async fn annotations_of_policies_are_recorded_without_secrets() {
    let log = Records::new(1000);
    let server = server(&log).await;
    let rule = serde_json::json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["configmaps"]});
    let policy = serde_json::json!({"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}, {"expression": "!has(object.data)", "message": "no data"}],
        "auditAnnotations": [{"key": "token", "valueExpression": "'password=' + object.data.a"}]});
    let bound = serde_json::json!({"policyName": "p", "validationActions": ["Audit"]});
    for (collection, spec) in [(POLICIES, policy), (BINDINGS, bound)] {
        let object =
            serde_json::json!({"kind": "x", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": spec});
        server.core().store.create(collection, "p", object).await.unwrap();
    }
    let body = r#"{"metadata":{"name":"a"},"data":{"a":"hunter2"}}"#;
    let create = request("POST", "/api/v1/namespaces/default/configmaps", "t", body);
    assert_eq!(server.authenticated().oneshot(create).await.unwrap().status(), StatusCode::CREATED);
    let events = log.events();
    let annotations = &events.last().unwrap()["unmapped"]["annotations"];
    assert_eq!(annotations["p/token"], "password=***", "{events:?}");
    let failure = annotations["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap();
    let failure: Value = serde_json::from_str(failure).unwrap();
    assert_eq!(
        failure,
        serde_json::json!([{"message": "no data", "policy": "p", "binding": "p", "expressionIndex": 1,
            "validationActions": ["Audit"]}])
    );
}
