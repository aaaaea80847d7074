//! ValidatingAdmissionPolicies and their bindings.

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, Config, Identity};
use serde_json::{Value, json};

use crate::raw::{CONFIG_MAPS, call, typed};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

async fn server() -> ApiServer {
    ApiServer::open(Config { default_node: Some("hutch".into()), ..Config::default() }).await.unwrap()
}

async fn app() -> Router {
    server().await.router_as(Identity::admin())
}

/// A policy for ConfigMaps with these fields of its spec.
fn policy(name: &str, spec: &Value) -> String {
    let rule =
        json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
    let mut object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}}});
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object.to_string()
}

fn binding(name: &str, spec: &Value) -> String {
    let mut object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object.to_string()
}

/// Stores a policy `p` with a binding `b`.
async fn bind(app: &Router, spec: Value, bound: Value) {
    let (code, made) = call(app, "POST", POLICIES, &policy("p", &spec)).await;
    assert_eq!(code, 201, "{made}");
    let (code, made) = call(app, "POST", BINDINGS, &binding("b", &bound)).await;
    assert_eq!(code, 201, "{made}");
}

async fn unbind(app: &Router) {
    assert_eq!(call(app, "DELETE", BINDINGS, "").await.0, 200);
    assert_eq!(call(app, "DELETE", POLICIES, "").await.0, 200);
}

fn config_map(name: &str, data: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": name}}, "data": data})
        .to_string()
}

/// Tries a create; returns the code, the answer and the warnings.
async fn attempt(app: &Router, name: &str, data: Value) -> (u16, Value, Vec<String>) {
    let request =
        Request::post(format!("{CONFIG_MAPS}?dryRun=All")).header("content-type", "application/json");
    let request = request.body(Body::from(config_map(name, &data))).unwrap();
    let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
    let warnings =
        response.headers().get_all("warning").iter().map(|one| one.to_str().unwrap().to_owned()).collect();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap(), warnings)
}

#[tokio::test]
async fn failed_validation_denies_with_the_message_and_reason_of_the_policy() {
    let app = app().await;
    let denied = |message: &str| {
        format!(
            "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {message}"
        )
    };
    for (validation, code, reason, message) in [
        (json!({}), 422, "Invalid", "failed expression: object.data.a != 'bad'"),
        (json!({"message": " not bad \n"}), 422, "Invalid", "not bad"),
        (json!({"reason": "Forbidden", "message": "no"}), 403, "Forbidden", "no"),
        (
            json!({"reason": "RequestEntityTooLarge"}),
            413,
            "RequestEntityTooLarge",
            "failed expression: object.data.a != 'bad'",
        ),
        (json!({"messageExpression": "'a is ' + object.data.a", "message": "m"}), 422, "Invalid", "a is bad"),
        (json!({"messageExpression": "object.data.none", "message": "m"}), 422, "Invalid", "m"),
        (json!({"messageExpression": "'two\\nlines'", "message": "m"}), 422, "Invalid", "m"),
    ] {
        let mut first = json!({"expression": "object.data.a != 'bad'"});
        first.as_object_mut().unwrap().extend(validation.as_object().unwrap().clone());
        bind(&app, json!({"validations": [first, {"expression": "true"}]}), json!({})).await;
        let (refused, answer, _) = attempt(&app, "x", json!({"a": "bad"})).await;
        assert_eq!(
            (refused, &answer["reason"], &answer["message"]),
            (code, &json!(reason), &json!(denied(message)))
        );
        assert_eq!(answer["details"]["causes"].as_array().unwrap().len(), 1);
        assert_eq!(attempt(&app, "x", json!({"a": "good"})).await.0, 201);
        unbind(&app).await;
        assert_eq!(attempt(&app, "x", json!({"a": "bad"})).await.0, 201);
    }
}

#[tokio::test]
async fn actions_of_the_binding_decide() {
    let app = app().await;
    let spec = json!({"validations": [{"expression": "object.data.a != 'bad'", "message": "is bad"}]});
    bind(&app, spec, json!({"validationActions": ["Warn", "Audit"]})).await;
    let (code, _, warnings) = attempt(&app, "x", json!({"a": "bad"})).await;
    let warning = "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': is bad\"";
    assert_eq!((code, warnings), (201, vec![warning.to_owned()]));
    assert_eq!(call(&app, "POST", BINDINGS, &binding("c", &json!({}))).await.0, 201);
    let (code, answer, _) = attempt(&app, "x", json!({"a": "bad"})).await;
    assert!(
        code == 422 && answer["message"].as_str().unwrap().contains("with binding 'c' denied request"),
        "{answer}"
    );
}

#[tokio::test]
async fn variables_conditions_and_the_namespace_are_known() {
    let app = app().await;
    let spec = json!({
        "variables": [
            {"name": "values", "expression": "object.data.map(key, object.data[key])"},
            {"name": "count", "expression": "size(variables.values)"},
            {"name": "broken", "expression": "object.data.none"}],
        "matchConditions": [{"name": "not-exempt", "expression": "object.metadata.name != 'exempt'"}],
        "validations": [
            {"expression": "variables.count < 3", "messageExpression": "string(variables.count) + ' values'"},
            {"expression": "request.operation == 'CREATE' && request.userInfo.username == 'admin'"},
            {"expression": "namespaceObject.metadata.name == 'default' && oldObject == null"},
            {"expression": "object.data.exists(key, key == 'b') || variables.broken == 'x'"}]});
    bind(&app, spec, json!({})).await;
    assert_eq!(attempt(&app, "x", json!({"a": "1", "b": "2"})).await.0, 201);
    assert_eq!(attempt(&app, "exempt", json!({"a": "1", "b": "2", "c": "3"})).await.0, 201);
    let (_, answer, _) = attempt(&app, "x", json!({"a": "1", "b": "2", "c": "3"})).await;
    assert!(answer["message"].as_str().unwrap().ends_with("denied request: 3 values"), "{answer}");
    let (_, answer, _) = attempt(&app, "x", json!({"a": "1"})).await;
    let why = "resulted in error: composited variable \"broken\" fails to evaluate: No such key: none";
    assert!(answer["message"].as_str().unwrap().ends_with(why), "{answer}");
}

#[tokio::test]
async fn failure_policy_decides_about_errors_and_hostile_objects() {
    let app = app().await;
    let data: Value =
        (0..400).map(|number| (format!("k{number}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    for (expression, why) in [
        ("object.data.none == 1", "No such key: none"),
        ("1 + 1", "must evaluate to bool, got int"),
        (
            "object.data.all(a, object.data.all(b, object.data.all(c, a + b + c != '')))",
            "operation cancelled: actual cost limit exceeded",
        ),
    ] {
        for (policy, expected) in [("Fail", 422), ("Ignore", 201)] {
            let spec = json!({"failurePolicy": policy, "validations": [{"expression": expression}]});
            bind(&app, spec, json!({})).await;
            let (code, answer, _) = attempt(&app, "x", data.clone()).await;
            assert_eq!(code, expected, "{answer}");
            if policy == "Fail" {
                assert!(answer["message"].as_str().unwrap().contains(why), "{answer}");
            }
            unbind(&app).await;
        }
    }
}

#[tokio::test]
async fn costly_policies_leave_no_other_policy_out() {
    let app = app().await;
    let data: Value =
        (0..400).map(|number| (format!("k{number}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let costly = json!({"failurePolicy": "Ignore", "validations": [
        {"expression": "object.data.all(a, object.data.all(b, object.data.all(c, a + b + c != '')))"}]});
    let make = async |name: &str| {
        let bound = binding(name, &json!({"policyName": name}));
        for (path, object) in [(POLICIES, policy(name, &costly)), (BINDINGS, bound)] {
            assert_eq!(call(&app, "POST", path, &object).await.0, 201);
        }
    };
    make("a0").await;
    let denies =
        json!({"failurePolicy": "Ignore", "validations": [{"expression": "false", "message": "no"}]});
    bind(&app, denies, json!({})).await;
    let (code, answer, _) = attempt(&app, "x", data.clone()).await;
    assert_eq!(code, 422, "{answer}");
    assert!(answer["message"].as_str().unwrap().ends_with("denied request: no"), "{answer}");
    for number in 1..10 {
        make(&format!("a{number}")).await;
    }
    let (code, answer, _) = attempt(&app, "x", data).await;
    let why = "the expressions of all admission policies and webhooks exceed the cost limit of a request";
    assert_eq!((code, &answer["message"]), (403, &json!(format!("configmaps \"x\" is forbidden: {why}"))));
}

#[tokio::test]
async fn parameters_come_from_config_maps_and_custom_resources_by_name() {
    let app = app().await;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "no-limits", "expression": "object.metadata.name != 'limits'"}],
        "validations": [{"expression": "size(object.data) <= int(params.data.most)",
            "messageExpression": "'at most ' + params.data.most"}]});
    bind(&app, spec, json!({"paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}})).await;
    let (_, answer, _) = attempt(&app, "x", json!({"a": "1"})).await;
    let why = "denied request: failed to configure binding: no params found for policy binding with `Deny` \
               parameterNotFoundAction";
    assert!(answer["message"].as_str().unwrap().ends_with(why), "{answer}");
    let change = json!({"spec": {"paramRef": {"parameterNotFoundAction": "Allow"}}}).to_string();
    let merge = "application/merge-patch+json";
    assert_eq!(typed(&app, "PATCH", &format!("{BINDINGS}/b"), merge, &change).await.0, 200);
    assert_eq!(call(&app, "POST", CONFIG_MAPS, &config_map("limits", &json!({"most": "1"}))).await.0, 201);
    assert_eq!(attempt(&app, "x", json!({"a": "1"})).await.0, 201);
    let (_, answer, _) = attempt(&app, "x", json!({"a": "1", "b": "2"})).await;
    assert!(answer["message"].as_str().unwrap().ends_with("denied request: at most 1"), "{answer}");
    unbind(&app).await;

    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "limits.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "limits", "kind": "Limit"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"most": {"type": "integer"}}}}}]}});
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(call(&app, "POST", crds, &definition.to_string()).await.0, 201);
    let limit =
        json!({"apiVersion": "example.com/v1", "kind": "Limit", "metadata": {"name": "l"}, "most": 1});
    assert_eq!(call(&app, "POST", "/apis/example.com/v1/limits", &limit.to_string()).await.0, 201);
    let spec = json!({"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"},
        "validations": [{"expression": "size(object.data) <= params.most"}]});
    bind(&app, spec, json!({"paramRef": {"name": "l", "parameterNotFoundAction": "Deny"}})).await;
    assert_eq!(attempt(&app, "x", json!({"a": "1"})).await.0, 201);
    assert_eq!(attempt(&app, "x", json!({"a": "1", "b": "2"})).await.0, 422);
}

#[tokio::test]
async fn selection_follows_the_policy_and_the_binding() {
    let app = app().await;
    let deny = json!([{"expression": "false", "message": "no"}]);
    let rule = |change: Value| {
        let mut rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        rule
    };
    let all = rule(json!({}));
    for (constraints, bound, [x, y]) in [
        (json!({"resourceRules": [all]}), json!({}), [422, 422]),
        (json!({"resourceRules": [rule(json!({"resourceNames": ["x"]}))]}), json!({}), [422, 201]),
        (
            json!({"resourceRules": [all], "excludeResourceRules": [rule(json!({"resourceNames": ["x"]}))]}),
            json!({}),
            [201, 422],
        ),
        (
            json!({"resourceRules": [all], "objectSelector": {"matchLabels": {"app": "y"}}}),
            json!({}),
            [201, 422],
        ),
        (
            json!({"resourceRules": [all], "namespaceSelector": {"matchLabels": {"no": "such"}}}),
            json!({}),
            [201, 201],
        ),
        (
            json!({"resourceRules": [all]}),
            json!({"matchResources": {"objectSelector": {"matchLabels": {"app": "x"}}}}),
            [422, 201],
        ),
        (
            json!({"resourceRules": [all]}),
            json!({"matchResources": {"resourceRules": [rule(json!({"operations": ["DELETE"]}))]}}),
            [201, 201],
        ),
    ] {
        bind(&app, json!({"matchConstraints": constraints, "validations": deny}), bound.clone()).await;
        let (at_x, at_y) = (attempt(&app, "x", json!({})).await.0, attempt(&app, "y", json!({})).await.0);
        assert_eq!([at_x, at_y], [x, y], "{constraints} {bound}");
        unbind(&app).await;
    }
}

#[tokio::test]
async fn updates_and_deletes_are_checked_with_the_old_object() {
    let app = app().await;
    assert_eq!(call(&app, "POST", CONFIG_MAPS, &config_map("x", &json!({"a": "1"}))).await.0, 201);
    let spec = json!({"validations": [
        {"expression": "request.operation != 'UPDATE' || object.data.a == oldObject.data.a", "message": "a is fixed"},
        {"expression": "request.operation != 'DELETE' || !('keep' in oldObject.data)", "message": "is kept"}]});
    bind(&app, spec, json!({})).await;
    let (path, merge) = (format!("{CONFIG_MAPS}/x"), "application/merge-patch+json");
    let patch =
        async |data: Value| typed(&app, "PATCH", &path, merge, &json!({ "data": data }).to_string()).await;
    assert_eq!(patch(json!({"keep": "1"})).await.0, 200);
    let (code, answer) = patch(json!({"a": "2"})).await;
    assert!(code == 422 && answer["message"].as_str().unwrap().ends_with("a is fixed"), "{answer}");
    let (code, answer) = call(&app, "DELETE", &path, "").await;
    assert!(code == 422 && answer["message"].as_str().unwrap().ends_with("is kept"), "{answer}");
    assert_eq!(patch(json!({"keep": null})).await.0, 200);
    assert_eq!(call(&app, "DELETE", &path, "").await.0, 200);
}

#[tokio::test]
async fn invalid_policies_and_bindings_are_refused_with_their_field() {
    let app = app().await;
    let valid = json!({"expression": "true"});
    for (spec, cause) in [
        (
            json!({}),
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
        ),
        (json!({"validations": [{"expression": ""}]}), "spec.validations[0].expression: Required value"),
        (
            json!({"validations": [{"expression": "object."}]}),
            "spec.validations[0].expression: Invalid value: \"object.\": compilation failed",
        ),
        (json!({"validations": [{"expression": "params.x"}]}), "undeclared reference to 'params'"),
        (json!({"validations": [{"expression": "variables.x"}]}), "undefined field 'x'"),
        (
            json!({"validations": [{"expression": "authorizer.x"}]}),
            "'authorizer' is not supported by this server",
        ),
        (
            json!({"validations": [{"expression": "true", "message": "a\nb"}]}),
            "spec.validations[0].message: Invalid value",
        ),
        (
            json!({"validations": [{"expression": "true", "reason": "X"}]}),
            "supported values: \"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\"",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "x"}]}),
            "spec.validations[0].messageExpression",
        ),
        (
            json!({"validations": [valid], "failurePolicy": "X"}),
            "spec.failurePolicy: Unsupported value: \"X\"",
        ),
        (json!({"validations": [valid], "matchConstraints": null}), "spec.matchConstraints: Required value"),
        (
            json!({"validations": [valid], "matchConstraints": {}}),
            "spec.matchConstraints.resourceRules: Required value",
        ),
        (
            json!({"validations": [valid], "variables": [{"name": "a-b", "expression": "1"}]}),
            "must be a valid CEL identifier",
        ),
        (
            json!({"validations": [valid], "variables": [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}]}),
            "undefined field 'b'",
        ),
        (
            json!({"validations": [valid], "paramKind": {"apiVersion": "v1", "kind": "Secret"}}),
            "spec.paramKind: Forbidden: this server takes parameters from ConfigMaps",
        ),
        (
            json!({"validations": [valid], "auditAnnotations": [{"key": "a b", "valueExpression": "'x'"}]}),
            "spec.auditAnnotations[0].key",
        ),
        (json!({"validations": vec![valid.clone(); 65]}), "spec.validations: Too many: 65"),
    ] {
        let (code, refused) = call(&app, "POST", POLICIES, &policy("p", &spec)).await;
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(code == StatusCode::UNPROCESSABLE_ENTITY && message.contains(cause), "{cause}: {refused}");
    }
    let reference = |change: Value| json!({ "paramRef": change });
    for (spec, cause) in [
        (json!({"policyName": ""}), "spec.policyName: Required value"),
        (json!({"validationActions": []}), "spec.validationActions: Required value"),
        (json!({"validationActions": ["Deny", "Warn"]}), "must not contain both Deny and Warn"),
        (json!({"validationActions": ["X"]}), "supported values: \"Audit\", \"Deny\", \"Warn\""),
        (reference(json!({})), "spec.paramRef: Required value: one of name or selector must be specified"),
        (reference(json!({"name": "x"})), "spec.paramRef.parameterNotFoundAction: Required value"),
        (
            reference(json!({"selector": {}, "parameterNotFoundAction": "Deny"})),
            "spec.paramRef.selector: Forbidden: this server finds parameters by name only",
        ),
    ] {
        let (code, refused) = call(&app, "POST", BINDINGS, &binding("b", &spec)).await;
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(code == StatusCode::UNPROCESSABLE_ENTITY && message.contains(cause), "{cause}: {refused}");
    }
}

#[tokio::test]
async fn binding_needs_the_right_to_read_its_parameters() {
    let server = server().await;
    let admin = server.router_as(Identity::admin());
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "binder"},
        "rules": [{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]});
    let bound = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "binder"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "binder"},
        "subjects": [{"kind": "User", "name": "u"}]});
    for (plural, object) in [("clusterroles", role), ("clusterrolebindings", bound)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{plural}");
        assert_eq!(call(&admin, "POST", &path, &object.to_string()).await.0, 201);
    }
    let user = server.router_as(Identity::new("u", &[]));
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": "true"}]});
    assert_eq!(call(&user, "POST", POLICIES, &policy("p", &spec)).await.0, 201);
    let reference =
        json!({"paramRef": {"name": "x", "namespace": "kube-system", "parameterNotFoundAction": "Deny"}});
    let (code, refused) = call(&user, "POST", BINDINGS, &binding("b", &reference)).await;
    assert!(
        code == 403 && refused["message"].as_str().unwrap().contains("does not have \"get\" permission"),
        "{refused}"
    );
    assert_eq!(call(&user, "POST", BINDINGS, &binding("b", &json!({}))).await.0, 201);
    assert_eq!(call(&admin, "POST", BINDINGS, &binding("c", &reference)).await.0, 201);
}
