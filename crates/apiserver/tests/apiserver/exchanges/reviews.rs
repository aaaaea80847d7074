//! Reviews of access.

use serde_json::{Value, json};

use super::Caller::{self, Admin, Anonymous, Bot, User};
use super::Exchange;

const AUTHORIZATION: &str = "/apis/authorization.k8s.io/v1";

fn review(caller: Caller, kind: &str, namespace: &str, spec: Value) -> Exchange {
    let plural = format!("{}s", kind.to_lowercase());
    let path = match namespace {
        "" => format!("{AUTHORIZATION}/{plural}"),
        namespace => format!("{AUTHORIZATION}/namespaces/{namespace}/{plural}"),
    };
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let name = body["spec"].to_string();
    Exchange::new(caller, "POST", path, body).named(&name).showing("/status")
}

/// `VERB GROUP/RESOURCE[/SUBRESOURCE] [NAMESPACE] [NAME]`.
fn resource(text: &str) -> Value {
    let words: Vec<&str> = text.split(' ').collect();
    let mut parts = words[1].splitn(3, '/');
    let mut attributes = json!({"verb": words[0], "group": parts.next(), "resource": parts.next()});
    if let Some(subresource) = parts.next() {
        attributes["subresource"] = subresource.into();
    }
    for (field, index) in [("namespace", 2), ("name", 3)] {
        if let Some(word) = words.get(index).filter(|word| **word != "-") {
            attributes[field] = (*word).into();
        }
    }
    json!({"resourceAttributes": attributes})
}

fn of_self() -> Vec<Exchange> {
    let own = |caller, spec| review(caller, "SelfSubjectAccessReview", "", spec);
    let path = |verb: &str, path: &str| json!({"nonResourceAttributes": {"verb": verb, "path": path}});
    let alice = User("alice", &[]);
    let mut all: Vec<Exchange> = [
        "list /pods team-a",
        "list /pods team-b",
        "list /pods",
        "get /secrets team-a",
        "create /pods/exec team-a p",
        "delete agents.x-k8s.io/sandboxes team-a",
        "list agents.x-k8s.io/sandboxes",
        "create rbac.authorization.k8s.io/roles team-a",
        "* */* team-a",
        "impersonate /serviceaccounts team-a bot",
    ]
    .into_iter()
    .map(|text| own(alice, resource(text)))
    .collect();
    all.extend([
        own(Admin, resource("delete /nodes - n")),
        own(Admin, path("post", "/metrics")),
        own(alice, path("get", "/openapi/v3")),
        own(alice, path("get", "/metrics")),
        own(User("olga", &[]), resource("get /configmaps team-a one")),
        own(User("olga", &[]), resource("get /configmaps team-a two")),
        own(User("olga", &[]), resource("get /configmaps team-a")),
        own(User("sven", &[]), resource("patch apps/deployments/status team-a")),
        own(User("dana", &["devs"]), resource("list /configmaps team-a")),
        own(User("lotte", &[]), resource("list /pods")),
        own(Bot, resource("list /configmaps team-a")),
        own(Bot, resource("list /secrets team-a")),
        own(Anonymous, resource("list /pods")),
        own(alice, json!({})),
        own(alice, json!({"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"verb": "get", "path": "/"}})),
    ]);
    all
}

fn of_others() -> Vec<Exchange> {
    let with = |mut spec: Value, user: &str, groups: &[&str]| {
        if !user.is_empty() {
            spec["user"] = user.into();
        }
        if !groups.is_empty() {
            spec["groups"] = json!(groups);
        }
        spec
    };
    let other = |spec| review(Admin, "SubjectAccessReview", "", spec);
    let local = |caller, spec| review(caller, "LocalSubjectAccessReview", "team-a", spec);
    let pods = || resource("list /pods team-a");
    vec![
        other(with(pods(), "victor", &[])),
        other(with(resource("list /pods team-b"), "victor", &[])),
        other(with(resource("list /configmaps team-a"), "", &["devs"])),
        other(with(resource("list /configmaps team-a"), "system:serviceaccount:team-a:bot", &[])),
        other(with(pods(), "x", &["system:masters"])),
        other(with(
            json!({"nonResourceAttributes": {"verb": "get", "path": "/healthz"}}),
            "",
            &["system:unauthenticated"],
        )),
        other(with(
            json!({"nonResourceAttributes": {"verb": "get", "path": "/api"}}),
            "",
            &["system:authenticated"],
        )),
        other(with(pods(), "lotte", &[])),
        other(pods()),
        other(with(json!({}), "victor", &[])),
        review(User("victor", &[]), "SubjectAccessReview", "", with(pods(), "victor", &[])),
        local(Admin, with(pods(), "victor", &[])),
        local(Admin, with(resource("list /pods team-b"), "victor", &[])),
        local(
            Admin,
            with(json!({"nonResourceAttributes": {"verb": "get", "path": "/healthz"}}), "victor", &[]),
        ),
        local(User("adam", &[]), with(pods(), "victor", &[])),
        local(User("alice", &[]), with(pods(), "victor", &[])),
    ]
}

fn of_rules() -> Vec<Exchange> {
    let rules = |caller, namespace: &str| {
        review(caller, "SelfSubjectRulesReview", "", json!({"namespace": namespace}))
    };
    vec![
        rules(User("alice", &[]), "team-a"),
        rules(User("alice", &[]), "team-b"),
        rules(User("victor", &[]), "team-a"),
        rules(User("adam", &[]), "team-a"),
        rules(User("olga", &["devs"]), "team-a"),
        rules(User("lotte", &[]), "default"),
        rules(User("m", &["system:masters"]), "default"),
        rules(Bot, "team-a"),
        rules(Anonymous, "default"),
        rules(Admin, ""),
    ]
}

fn of_identity() -> Vec<Exchange> {
    let who = |caller: Caller| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        Exchange::new(caller, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    };
    vec![
        who(User("alice", &[])).showing("/status"),
        who(User("dana", &["devs", "ops"])).showing("/status"),
        who(User("system:serviceaccount:team-a:bot", &[])).showing("/status"),
        who(Bot).showing("/status/userInfo/username"),
        who(Bot).named("groups").showing("/status/userInfo/groups"),
        who(Anonymous),
    ]
}

pub(super) fn all() -> Vec<Exchange> {
    [of_self(), of_others(), of_rules(), of_identity()].concat()
}
