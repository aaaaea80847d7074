//! Access, reviews of the caller, and the version and health of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;

#[tokio::test]
async fn credential_that_is_not_valid_gets_401_and_none_is_anonymous() {
    let server = server().await;
    server.accept_token("a-good-token", Identity::admin());
    let app = server.authenticated();
    let with = |header: Option<&str>, path: &str| {
        let mut request = Request::get(path);
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        request.body(Body::empty()).unwrap()
    };
    for path in ["/api", "/version", "/readyz", "/openapi/v3", PODS, "/nonsense"] {
        for header in [Some("Bearer wrong"), Some("Bearer "), Some("Basic YWRtaW46YWRtaW4=")] {
            let (code, body) = text(send(&app, with(header, path)).await).await;
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (code.as_u16(), &status["reason"]),
                (401, &json!("Unauthorized")),
                "{path} {header:?}"
            );
        }
    }
    for (path, expected) in
        [("/version", 200), ("/readyz", 200), ("/api", 403), ("/openapi/v3", 403), (PODS, 403)]
    {
        let (code, body) = text(send(&app, with(None, path)).await).await;
        assert_eq!(code.as_u16(), expected, "{path}: {body}");
        assert!(expected == 200 || body.contains(r#"User \"system:anonymous\" cannot"#), "{body}");
    }
    let (code, _) = text(send(&app, with(Some("Bearer a-good-token"), PODS)).await).await;
    assert_eq!(code, 200);
    let certificate = hutch_serve::PeerCertificate(vec![1, 2, 3].into());
    let mut request = with(None, PODS);
    request.extensions_mut().insert(certificate);
    assert_eq!(send(&app, request).await.status(), 401);
}

/// Regression: a token was accepted after each restart, also when its file had been replaced.
#[tokio::test]
async fn token_is_accepted_by_one_server_only() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { data: Some(folder.path().into()), ..Config::default() };
    let server = ApiServer::open(config.clone()).await.unwrap();
    server.accept_token("a-good-token", Identity::admin());
    assert_eq!(server.identify_token("a-good-token"), Some(Identity::admin()));
    assert_eq!(server.identify_token("a-good-toke"), None);
    server.close().await;
    drop(server);
    let server = ApiServer::open(config).await.unwrap();
    assert_eq!(server.identify_token("a-good-token"), None);
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
    assert_eq!(bad["status"]["authenticated"], Value::Null);
    assert_eq!(bad["status"]["error"], "invalid bearer token");
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

#[tokio::test]
async fn identity_without_system_masters_is_refused_before_anything_is_read() {
    let server = server().await;
    let app = server.router_as(Identity::new("x", &[]));
    for (method, path, code) in [
        ("GET", PODS, 403),
        ("GET", "/nonsense", 403),
        ("POST", PODS, 403),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", 403),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 403),
        ("GET", "/version", 200),
        ("GET", "/apis", 200),
    ] {
        let (found, body) = call(&app, method, path, "no JSON").await;
        assert_eq!(found.as_u16(), code, "{method} {path}: {body}");
    }
    let (_, status) = call(&app, "GET", PODS, "").await;
    assert_eq!((&status["reason"], &status["details"]["kind"]), (&json!("Forbidden"), &json!("pods")));
}

/// Sends a request with a bearer token.
async fn bearing(app: &Router, token: &str, path: &str) -> StatusCode {
    let request = Request::get(path).header("authorization", format!("Bearer {token}"));
    send(app, request.body(Body::empty()).unwrap()).await.status()
}

#[tokio::test]
async fn token_secret_is_filled_and_ends_with_its_account() {
    use base64::Engine;
    let folder = tempfile::tempdir().unwrap();
    let authority = Arc::new(hutch_serve::Authority::open(folder.path()).unwrap());
    let config = Config { authority: Some(authority.clone()), ..Config::default() };
    let server = ApiServer::open(config).await.unwrap();
    let (admin, app) = (server.router_as(Identity::admin()), server.authenticated());
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = |name: &str, account: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}}})
    };
    let mut unnamed = secret("t", "");
    let (code, refused) = call(&admin, "POST", secrets, &unnamed.to_string()).await;
    assert_eq!(code, 422, "{refused}");
    unnamed["type"] = "Opaque".into();
    assert_eq!(call(&admin, "POST", secrets, &secret("t", "absent").to_string()).await.0, 404);
    let decode = |secret: &Value, key: &str| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(secret["data"][key].as_str().unwrap());
        String::from_utf8(bytes.unwrap()).unwrap()
    };
    let (code, made) = call(&admin, "POST", secrets, &secret("t", "default").to_string()).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(
        (decode(&made, "ca.crt").as_str(), decode(&made, "namespace").as_str()),
        (authority.certificate_pem(), "default")
    );
    let token = decode(&made, "token");
    let identity = server.identify_token(&token).unwrap();
    assert_eq!(identity.name, "system:serviceaccount:default:default");
    assert_eq!(bearing(&app, &token, "/api").await, 200);
    assert_eq!(bearing(&app, &token, PODS).await, 403);
    // A token that was taken out of the Secret is made again; the first one stays good.
    let path = format!("{secrets}/t");
    let (_, again) =
        typed(&admin, "PATCH", &path, "application/merge-patch+json", r#"{"data": {"token": null}}"#).await;
    assert_eq!(
        server.identify_token(&decode(&again, "token")).map(|identity| identity.name),
        Some(identity.name)
    );
    assert_eq!(call(&admin, "DELETE", &path, "").await.0, 200);
    assert_eq!(bearing(&app, &token, "/api").await, 401);
    let (_, made) = call(&admin, "POST", secrets, &secret("u", "default").to_string()).await;
    let token = decode(&made, "token");
    assert_eq!(bearing(&app, &token, "/api").await, 200);
    assert_eq!(call(&admin, "DELETE", "/api/v1/namespaces/default/serviceaccounts/default", "").await.0, 200);
    assert_eq!(bearing(&app, &token, "/api").await, 401);
    assert_eq!(call(&admin, "GET", &format!("{secrets}/u"), "").await.0, 404);
}

#[tokio::test]
async fn token_ends_with_its_audience_time_pod_and_account() {
    let second = Arc::new(AtomicI64::new(1_800_000_000));
    let clock = second.clone();
    let now = move || jiff::Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap();
    let ambient = hutch_serve::Ambient::new(now, rand::random);
    let config = Config { ambient, default_node: Some("hutch".into()), ..Config::default() };
    let server = ApiServer::open(config).await.unwrap();
    let (admin, app) = (server.router_as(Identity::admin()), server.authenticated());
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let token = async |spec: Value| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let (code, made) =
            call(&admin, "POST", &format!("{accounts}/default/token"), &body.to_string()).await;
        assert_eq!(code, 201, "{made}");
        made["status"]["token"].as_str().unwrap().to_owned()
    };
    let foreign = token(json!({"audiences": ["vault"]})).await;
    assert_eq!(bearing(&app, &foreign, "/api").await, 401);
    let review = |token: &str, audience: &str| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": [audience]}})
            .to_string()
    };
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (_, good) = call(&admin, "POST", reviews, &review(&foreign, "vault")).await;
    assert_eq!(
        (&good["status"]["authenticated"], &good["status"]["audiences"]),
        (&json!(true), &json!(["vault"]))
    );
    let (_, bad) = call(&admin, "POST", reviews, &review(&foreign, "other")).await;
    assert_eq!(bad["status"]["authenticated"], Value::Null);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(call(&admin, "POST", PODS, &pod.to_string()).await.0, 201);
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
    let bound = token(json!({"boundObjectRef": reference, "expirationSeconds": 600})).await;
    let plain = token(json!({})).await;
    let extra = server.identify_token(&bound).unwrap().extra;
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["p"]);
    assert_eq!(bearing(&app, &bound, "/api").await, 200);
    call(&admin, "DELETE", &format!("{PODS}/p"), r#"{"gracePeriodSeconds": 0}"#).await;
    assert_eq!(bearing(&app, &bound, "/api").await, 401);
    assert_eq!(bearing(&app, &plain, "/api").await, 200);
    let short = token(json!({"expirationSeconds": 600})).await;
    second.fetch_add(601, Ordering::Relaxed);
    assert_eq!(bearing(&app, &short, "/api").await, 401);
    assert_eq!(bearing(&app, &plain, "/api").await, 200);
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}).to_string();
    call(&admin, "DELETE", &format!("{accounts}/default"), "").await;
    assert_eq!(call(&admin, "POST", accounts, &account).await.0, 201);
    assert_eq!(bearing(&app, &plain, "/api").await, 401, "another account of the same name");
}

/// Every resource and subresource that discovery lists, times every verb.
#[tokio::test]
async fn caller_without_roles_is_refused_everywhere_and_changes_nothing() {
    let server = server().await;
    let (admin, eve) =
        (server.router_as(Identity::admin()), server.router_as(Identity::new("eve", &["devs"])));
    let (_, groups) = call(&admin, "GET", "/apis", "").await;
    let named = groups["groups"].as_array().unwrap().iter().flat_map(|group| {
        let versions = group["versions"].as_array().unwrap().iter();
        versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()))
    });
    let prefixes: Vec<String> = named.chain(["/api/v1".to_owned()]).collect();
    let mut requests = 0;
    for prefix in prefixes {
        let (_, listed) = call(&admin, "GET", &prefix, "").await;
        for resource in listed["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            // What every caller may ask about itself.
            if name.starts_with("selfsubject") {
                continue;
            }
            let (base, part) =
                name.split_once('/').map_or((name, String::new()), |(base, part)| (base, format!("/{part}")));
            let place = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let (all, one) = (format!("{prefix}{place}/{base}"), format!("{prefix}{place}/{base}/x{part}"));
            let body = json!({"kind": resource["kind"], "metadata": {"name": "x"}}).to_string();
            let apply = format!("{one}?fieldManager=test&force=true");
            for (method, path, kind) in [
                ("GET", &all, ""),
                ("GET", &format!("{prefix}/{base}"), ""),
                ("GET", &format!("{all}?watch=true&timeoutSeconds=1"), ""),
                ("GET", &one, ""),
                ("POST", if part.is_empty() { &all } else { &one }, ""),
                ("PUT", &one, ""),
                ("PATCH", &one, "application/merge-patch+json"),
                ("PATCH", &one, "application/json-patch+json"),
                ("PATCH", &apply, "application/apply-patch+yaml"),
                ("DELETE", &one, ""),
                ("DELETE", &all, ""),
            ] {
                let body = if method == "GET" || method == "DELETE" { "" } else { &body };
                let code = match kind {
                    "" => call(&eve, method, path, body).await.0,
                    kind => typed(&eve, method, path, kind, body).await.0,
                };
                requests += 1;
                assert!([403, 405].contains(&code.as_u16()), "{method} {path} {kind}: {code}");
            }
        }
    }
    assert!(requests > 800, "{requests} requests");
}
