//! Acting as someone else. The callers are impersonated by the admin where they only have roles; those who impersonate are
//! ServiceAccounts of users' roles.

use serde_json::{Value, json};

use super::Caller::{Admin, Bot};
use super::Exchange;

pub(super) fn all() -> Vec<Exchange> {
    let pods = "/api/v1/namespaces/team-a/pods";
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let get = |detail: &str| Exchange::new(Bot, "GET", pods, Value::Null).named(detail);
    let me = |detail: &str| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        Exchange::new(Admin, "POST", who, body).named(detail).showing("/status/userInfo")
    };
    let bind = |role: &str| {
        let object = super::setup::binding(
            "",
            &format!("bot-{role}"),
            ("ClusterRole", role),
            "ServiceAccount:team-a:bot",
        );
        Exchange::new(Admin, "POST", super::setup::place(&object), object).named(role)
    };
    let unbind = |role: &str| {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bot-{role}");
        Exchange::new(Admin, "DELETE", path, Value::Null)
    };
    let user = "impersonate-user";
    let group = "impersonate-group";
    vec![
        get("as victor, without the right").with(user, "victor"),
        get("as an account, without the right").with(user, "system:serviceaccount:team-a:gone"),
        get("as a node, without the right").with(user, "system:node:n"),
        get("as a group alone").with(group, "devs"),
        get("as a uid alone").with("impersonate-uid", "1"),
        bind("narrow-impersonator"),
        get("narrow, as victor").with(user, "victor"),
        get("narrow, as alice").with(user, "alice"),
        get("narrow, as victor of devs").with(user, "victor").with(group, "devs"),
        get("narrow, as victor of ops").with(user, "victor").with(group, "ops"),
        get("narrow, as victor of masters").with(user, "victor").with(group, "system:masters"),
        get("narrow, with a scope").with(user, "victor").with("impersonate-extra-scopes", "view"),
        get("narrow, with another scope").with(user, "victor").with("impersonate-extra-scopes", "edit"),
        get("narrow, with a uid").with(user, "victor").with("impersonate-uid", "u-1"),
        get("narrow, with another uid").with(user, "victor").with("impersonate-uid", "u-2"),
        unbind("narrow-impersonator"),
        bind("constrained-impersonator"),
        get("constrained, as victor").with(user, "victor"),
        get("constrained, as victor of devs").with(user, "victor").with(group, "devs"),
        get("constrained, as victor of masters").with(user, "victor").with(group, "system:masters"),
        get("constrained, as an account").with(user, "system:serviceaccount:team-a:gone"),
        get("constrained, as a node").with(user, "system:node:n"),
        Exchange::new(Bot, "GET", "/api/v1/namespaces/team-a/secrets", Value::Null)
            .named("constrained, another resource")
            .with(user, "victor"),
        Exchange::new(Bot, "GET", format!("{pods}/p"), Value::Null)
            .named("constrained, another verb")
            .with(user, "victor"),
        unbind("constrained-impersonator"),
        me("as alice").with(user, "alice"),
        me("as alice of devs").with(user, "alice").with(group, "devs"),
        me("as alice, unauthenticated").with(user, "alice").with(group, "system:unauthenticated"),
        me("as an account").with(user, "system:serviceaccount:team-b:x"),
        me("as an account of a group").with(user, "system:serviceaccount:team-b:x").with(group, "devs"),
        me("as a node").with(user, "system:node:n"),
        me("with extras")
            .with(user, "alice")
            .with("impersonate-extra-example.com%2fteam", "red")
            .with("impersonate-uid", "7"),
        Exchange::new(Admin, "GET", pods, Value::Null).named("as anonymous").with(user, "system:anonymous"),
    ]
}
