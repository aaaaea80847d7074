//! Tokens of ServiceAccounts.

use serde_json::{Value, json};

use super::Caller::{Admin, User};
use super::Exchange;

const A: &str = "/api/v1/namespaces/team-a";

pub(super) fn all() -> Vec<Exchange> {
    let request = |detail: &str, spec: Value| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        Exchange::new(Admin, "POST", format!("{A}/serviceaccounts/bot/token"), body)
            .named(detail)
            .showing("/spec")
    };
    let review = |detail: &str, spec: Value, place: &'static str| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        Exchange::new(Admin, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
            .named(detail)
            .showing(place)
    };
    let bound =
        |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    let bot = "TOKEN-OF-THE-BOT";
    vec![
        request("audiences", json!({"audiences": ["x", "y"], "expirationSeconds": 600})),
        request("too short", json!({"expirationSeconds": 599})),
        request("too long", json!({"expirationSeconds": (1_i64 << 32) + 1})),
        request("of a missing pod", bound("Pod", "nothing")),
        request("of a missing secret", bound("Secret", "nothing")),
        request("of another kind", bound("ConfigMap", "one")),
        Exchange::new(
            Admin,
            "POST",
            format!("{A}/serviceaccounts/nothing/token"),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
        ),
        Exchange::new(
            User("alice", &[]),
            "POST",
            format!("{A}/serviceaccounts/bot/token"),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
        ),
        review("good", json!({"token": bot}), "/status/authenticated"),
        review("good: user", json!({"token": bot}), "/status/user/username"),
        review("good: groups", json!({"token": bot}), "/status/user/groups"),
        review("another audience", json!({"token": bot, "audiences": ["x"]}), "/status/user"),
        review("nonsense", json!({"token": "nonsense"}), "/status"),
        review("empty", json!({"token": ""}), "/status"),
        Exchange::new(
            User("alice", &[]),
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}),
        ),
    ]
}
