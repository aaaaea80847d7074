//! Tokens of ServiceAccounts: what they open, and when they end.

use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{Up, text};

/// A new token of a ServiceAccount.
fn token(up: &Up, words: &str) -> String {
    up.ok(&format!("create token {words}")).trim().to_owned()
}

/// kubectl with this token in place of the admin credential.
fn with_token(up: &Up, token: &str, words: &str) -> Output {
    up.kubectl(&format!("--token={token} {words}"))
}

/// The status of a TokenReview for these audiences.
fn review(up: &Up, token: &str, audiences: &[&str]) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": audiences}});
    let file = up.folder().join("review.json");
    std::fs::write(&file, review.to_string()).expect("the review is written");
    let answer =
        up.ok_args(&["create", "--validate=false", "-o", "json", "-f", file.to_str().expect("a path")]);
    serde_json::from_str::<Value>(&answer).expect("JSON")["status"].clone()
}

#[track_caller]
fn forbidden(output: &Output, message: &str) {
    let printed = text(&output.stderr);
    assert!(!output.status.success(), "allowed: {}", text(&output.stdout));
    assert!(printed.contains("orbidden") && printed.contains(message), "{message:?} is not in {printed:?}");
}

#[test]
fn service_account_token_opens_nothing_but_itself() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    up.ok("create namespace other");
    up.ok("create secret generic hidden -n other --from-literal=key=value");
    let token = token(&up, "default");
    let user = "User \"system:serviceaccount:default:default\" cannot";
    let in_default = "in API group \"\" in the namespace \"default\"";
    for (words, message) in [
        ("get pods", format!("pods is forbidden: {user} list resource \"pods\" {in_default}")),
        (
            "get secret hidden -n other",
            format!("secrets \"hidden\" is forbidden: {user} get resource \"secrets\""),
        ),
        (
            "get secrets -A",
            format!(
                "secrets is forbidden: {user} list resource \"secrets\" in API group \"\" at the cluster scope"
            ),
        ),
        (
            "delete namespace other",
            format!("namespaces \"other\" is forbidden: {user} delete resource \"namespaces\""),
        ),
        ("create configmap m", format!("{user} create resource \"configmaps\" {in_default}")),
        ("create token default", format!("{user} create resource \"serviceaccounts/token\" {in_default}")),
        ("get --raw /metrics", format!("{user} get path \"/metrics\"")),
        (
            "get pods --as=admin --as-group=system:masters",
            "cannot impersonate-on:user-info:list resource \"pods\"".to_owned(),
        ),
    ] {
        forbidden(&with_token(&up, &token, words), &message);
    }
    up.ok("get namespace other");
    let whoami = with_token(&up, &token, "auth whoami -o json");
    let whoami: Value = serde_json::from_slice(&whoami.stdout).expect("JSON");
    assert_eq!(whoami["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
    for (words, answer) in [
        ("auth can-i list pods", "no"),
        ("auth can-i create selfsubjectaccessreviews.authorization.k8s.io", "yes"),
    ] {
        assert_eq!(text(&with_token(&up, &token, words).stdout).trim(), answer, "{words}");
        let impersonated = format!("{words} --as=system:serviceaccount:default:default");
        assert_eq!(text(&up.kubectl(&impersonated).stdout).trim(), answer, "{impersonated}");
    }
    assert_eq!(up.ok("auth can-i list pods").trim(), "yes");
}

#[test]
fn token_ends_with_its_account() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    up.ok("create serviceaccount builder");
    let token = token(&up, "builder");
    assert_eq!(review(&up, &token, &[])["user"]["username"], "system:serviceaccount:default:builder");
    up.stop();
    up.restart();
    assert_eq!(review(&up, &token, &[])["authenticated"], true, "a token outlives a restart");
    up.ok("delete serviceaccount builder");
    assert_ne!(review(&up, &token, &[])["authenticated"], true, "its account was deleted");
    let refused = with_token(&up, &token, "auth whoami");
    assert!(text(&refused.stderr).contains("Unauthorized"), "{}", text(&refused.stderr));
    up.ok("create serviceaccount builder");
    assert_ne!(review(&up, &token, &[])["authenticated"], true, "another account has its name");
}

#[test]
fn token_ends_with_its_namespace_and_its_pod() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    up.ok("create namespace short");
    let first = token(&up, "default -n short");
    assert_eq!(review(&up, &first, &[])["authenticated"], true);
    up.ok("delete namespace short --wait=false");
    assert_ne!(review(&up, &first, &[])["authenticated"], true, "its namespace is going");

    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bound"}});
    let file = up.folder().join("secret.json");
    std::fs::write(&file, object.to_string()).expect("the Secret is written");
    up.ok_args(&["create", "-f", file.to_str().expect("a path")]);
    let bound = token(&up, "default --bound-object-kind=Secret --bound-object-name=bound");
    assert_eq!(review(&up, &bound, &[])["authenticated"], true);
    up.ok("delete secret bound");
    assert_ne!(
        review(&up, &bound, &[])["authenticated"],
        true,
        "the object that it was bound to was deleted"
    );
}

#[test]
fn token_of_another_audience_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let other = token(&up, "default --audience=vault");
    let refused = with_token(&up, &other, "get --raw /version");
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    assert_ne!(review(&up, &other, &[])["authenticated"], true);
    assert_ne!(review(&up, &other, &["router"])["authenticated"], true);
    let good = review(&up, &other, &["router", "vault"]);
    assert_eq!((&good["authenticated"], &good["audiences"]), (&json!(true), &json!(["vault"])));
    let own = token(&up, "default");
    assert_ne!(review(&up, &own, &["vault"])["authenticated"], true);
}

#[test]
fn tokens_are_not_stored() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let content = || {
        let files = std::fs::read_dir(up.data().join("ca")).expect("a folder").flatten();
        files.map(|file| (file.file_name(), std::fs::read(file.path()).expect("a file"))).collect::<Vec<_>>()
    };
    let before = content();
    for _ in 0..10 {
        token(&up, "default");
    }
    assert_eq!(before, content());
    for (duration, message) in [
        ("599s", "may not specify a duration less than 10 minutes"),
        ("1193047h", "may not specify a duration larger than 2^32 seconds"),
    ] {
        let refused = up.kubectl(&format!("create token default --duration={duration}"));
        assert!(text(&refused.stderr).contains(message), "{}", text(&refused.stderr));
    }
}
