//! Request bodies: their forms, their errors, and the messages about them.

use super::*;

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
    let (code, _) = get_as(&app, PODS, "text/html").await;
    assert_eq!(code, 406);
    let big = format!("{{\"a\":\"{}\"}}", "x".repeat(BODY_BYTES));
    let (code, status) = call(&app, "POST", CONFIG_MAPS, &big).await;
    assert_eq!((code.as_u16(), &status["reason"]), (413, &json!("RequestEntityTooLarge")));
    let (code, status) = call(&app, "POST", CONFIG_MAPS, "{\"a\":").await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().contains("line 1 column"), "{status}");
}

#[tokio::test]
async fn client_that_accepts_only_protobuf_gets_json() {
    let app = app().await;
    let (code, list) = get_as(&app, PODS, "application/vnd.kubernetes.protobuf").await;
    assert_eq!((code.as_u16(), &list["kind"]), (200, &json!("PodList")));
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
    // kubectl writes it into the body.
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}).to_string();
    assert_eq!(call(&app, "DELETE", &format!("{CONFIG_MAPS}/a"), &options).await.0, 200);
    assert_eq!(call(&app, "DELETE", CONFIG_MAPS, &options).await.0, 200);
    let other = options.replace("All", "Some");
    assert_eq!(call(&app, "DELETE", &format!("{CONFIG_MAPS}/a"), &other).await.0, 422);
    let patch = "{\"data\":{\"a\":\"c\"}}";
    let path = format!("{CONFIG_MAPS}/a?dryRun=All");
    let (_, shown) = typed(&app, "PATCH", &path, "application/merge-patch+json", patch).await;
    assert_eq!(shown["data"]["a"], "c");
    let (_, kept) = call(&app, "GET", &format!("{CONFIG_MAPS}/a"), "").await;
    assert_eq!(kept["data"]["a"], "b");
    assert_eq!(call(&app, "POST", &format!("{CONFIG_MAPS}?dryRun=x"), &config_map("b")).await.0, 422);
}
