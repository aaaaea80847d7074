//! Placeholders of credentials in the Pods of Sandboxes. The gateway derives the same ones, and knows the values; nothing here
//! does.

use hutch_api::{Sandbox, SandboxTemplate, annotation};
use hutch_attach::{policies_of_kind, policy};
use hutch_policy::{Credential, Policies, Shape, Subject, applying, policy_names, unambiguous};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use tokio::sync::Semaphore;

use super::TokenKey;
use crate::error::Error;

/// Kind of the policies that offer credentials. Those of the cluster offer none.
const KIND: &str = "SandboxPolicy";
/// Policies of an answer of the server, and maximum of a namespace that are read. Tenants write them, and each may be large.
const PAGE: u32 = 50;
const MOST: usize = 1000;
/// Namespaces whose policies are read at once.
static READING: Semaphore = Semaphore::const_new(4);

/// Credential of a policy, and its placeholder in a Sandbox.
#[derive(Debug, PartialEq, Eq)]
struct Offered {
    policy: String,
    name: String,
    variable: String,
    placeholder: String,
}

/// Gives the Pod of a Sandbox the placeholders of the credentials that its policies offer. They are read from the server, so
/// that a policy counts that was written before the Sandbox.
pub(super) async fn offer(
    client: &Client,
    key: &TokenKey,
    (sandbox, template): (&Sandbox, Option<&SandboxTemplate>),
    pod: &mut Pod,
    now: Timestamp,
) -> Result<(), Error> {
    let namespace = sandbox.namespace().unwrap_or_default();
    // Never closed.
    let _turn = READING.acquire().await;
    let Some(policies) = read(client, &namespace).await? else { return Ok(()) };
    add(pod, &offered(&policies, key, (sandbox, template), now));
    Ok(())
}

/// Reads the policies of a namespace without their rules. `None` if the server has none, or does not show them.
async fn read(client: &Client, namespace: &str) -> Result<Option<Policies>, Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &policies_of_kind(KIND));
    let (mut policies, mut params) = (Policies::new(), ListParams::default().limit(PAGE));
    loop {
        let page = match api.list(&params).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let why = "may not list SandboxPolicies: apply deploy/egress.yaml of this version; until then, Pods get no \
                           placeholders";
                tracing::warn!(namespace, "{why}");
                return Ok(None);
            }
            Err(source) => {
                return Err(Error::List { kind: KIND.to_owned(), namespace: namespace.to_owned(), source });
            }
        };
        for object in page.items {
            let key = (namespace.to_owned(), object.name_any());
            policies.insert(key, policy(without_rules(object)));
        }
        match page.metadata.continue_ {
            Some(next) if !next.is_empty() && policies.len() < MOST => params = params.continue_token(&next),
            Some(next) if !next.is_empty() => {
                tracing::warn!(namespace, "only {MOST} SandboxPolicies are read for placeholders");
                return Ok(Some(policies));
            }
            _ => return Ok(Some(policies)),
        }
    }
}

/// Removes what placeholders do not depend on, and what takes long to read.
fn without_rules(mut object: DynamicObject) -> DynamicObject {
    if let Some(spec) = object.data["spec"].as_object_mut() {
        spec.retain(|field, _| !["egress", "files", "scanner"].contains(&field.as_str()));
    }
    object
}

/// Returns the credentials that have a variable.
fn offered(
    policies: &Policies,
    key: &TokenKey,
    (sandbox, template): (&Sandbox, Option<&SandboxTemplate>),
    now: Timestamp,
) -> Vec<Offered> {
    let Some(uid) = sandbox.uid() else { return Vec::new() };
    let named = |annotations: &std::collections::BTreeMap<String, String>| {
        annotations.get(annotation::POLICIES).map(|names| policy_names(names)).unwrap_or_default()
    };
    let subject = Subject {
        namespace: sandbox.namespace().unwrap_or_default(),
        sandbox: Some(sandbox.name_any()),
        labels: sandbox.labels().clone(),
        template: sandbox.annotations().get(annotation::TEMPLATE_REF).cloned(),
        by_template: template.map(|template| named(template.annotations())).unwrap_or_default(),
        by_claim: named(sandbox.annotations()),
        ..Subject::default()
    };
    // Where a policy is missing or cannot be read, the gateway closes everything.
    let Ok(found) = applying(&subject, &Policies::new(), policies, None, now) else { return Vec::new() };
    let one = |(level, credential): (&hutch_policy::Level, &Credential)| {
        let (policy, name) = (level.name.clone(), credential.name.clone());
        let placeholder = key.placeholder(&uid, &policy, &name, credential.shape());
        Some(Offered { policy, name, variable: credential.env.clone()?, placeholder })
    };
    unambiguous(&found.levels).0.into_iter().filter_map(one).collect()
}

/// Adds the variables to all containers, in place of those with the same names, and names the credentials in an annotation.
fn add(pod: &mut Pod, all: &[Offered]) {
    if all.is_empty() {
        return;
    }
    let names: Vec<String> = all.iter().map(|one| format!("{}/{}", one.policy, one.name)).collect();
    pod.annotations_mut().insert(annotation::CREDENTIALS.to_owned(), names.join(","));
    let Some(spec) = &mut pod.spec else { return };
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    containers.for_each(|container| add_to(container, all));
}

fn add_to(container: &mut Container, all: &[Offered]) {
    let own = container.env.get_or_insert_default();
    own.retain(|variable| all.iter().all(|one| one.variable != variable.name));
    let new = all.iter().map(|one| EnvVar {
        name: one.variable.clone(),
        value: Some(one.placeholder.clone()),
        value_from: None,
    });
    // First, so that others can refer to them.
    own.splice(0..0, new);
}

impl TokenKey {
    /// Returns the placeholder of a credential of the Sandbox with this uid: always the same one, so that what programs keep
    /// of it stays of use.
    pub fn placeholder(&self, uid: &str, policy: &str, credential: &str, shape: Shape) -> String {
        hutch_policy::derived_placeholder(shape, |block| {
            let of = serde_json::json!([uid, policy, credential, shape, block]).to_string();
            aws_lc_rs::hmac::sign(&self.placeholders, of.as_bytes()).as_ref().to_vec()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn key() -> TokenKey {
        TokenKey::new(&[7; 32]).unwrap()
    }

    fn sandbox(uid: &str) -> Sandbox {
        let annotations = json!({annotation::POLICIES: "by-claim"});
        serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "s", "namespace": "d", "uid": uid, "labels": {"app": "a"}, "annotations": annotations},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
        }))
        .unwrap()
    }

    fn stored(
        name: &str,
        applies: &Value,
        credential: &Value,
    ) -> ((String, String), hutch_policy::StoredPolicy) {
        let mut spec = json!({"egress": {"rules": []}, "credentials": [credential]});
        if !applies.is_null() {
            spec["appliesTo"] = applies.clone();
        }
        let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
            "metadata": {"name": name, "namespace": "d"}, "spec": spec});
        (("d".to_owned(), name.to_owned()), policy(serde_json::from_value(object).unwrap()))
    }

    fn credential(name: &str, variable: &str) -> Value {
        json!({"name": name, "provider": "p", "hosts": ["a.example"], "env": variable})
    }

    #[test]
    fn pod_gets_the_placeholders_that_its_policies_offer() {
        let none = Value::Null;
        let policies: Policies = [
            stored(
                "selected",
                &json!({"selector": {"matchLabels": {"app": "a"}}}),
                &credential("github", "GITHUB_TOKEN"),
            ),
            stored(
                "other",
                &json!({"selector": {"matchLabels": {"app": "b"}}}),
                &credential("other", "OTHER"),
            ),
            stored("by-claim", &none, &credential("mine", "MINE")),
            stored(
                "header",
                &json!({}),
                &json!({"name": "h", "provider": "p", "hosts": ["a.example"], "header": "X-Key"}),
            ),
        ]
        .into();
        let all = offered(&policies, &key(), (&sandbox("u1"), None), Timestamp::now());
        let found: Vec<&str> = all.iter().map(|one| one.variable.as_str()).collect();
        assert_eq!(found, ["MINE", "GITHUB_TOKEN"]);
        assert!(all[1].placeholder.starts_with("ghp_"));

        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
            "containers": [{"name": "a", "env": [{"name": "A", "value": "1"}, {"name": "MINE", "value": "own"}]}],
            "initContainers": [{"name": "b"}]}}))
        .unwrap();
        add(&mut pod, &all);
        assert_eq!(pod.annotations()[annotation::CREDENTIALS], "by-claim/mine,selected/github");
        let spec = pod.spec.unwrap();
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let env = container.env.as_ref().unwrap();
            assert_eq!(env.iter().filter(|one| one.name == "MINE").count(), 1);
            assert_eq!(
                (env[0].name.as_str(), env[0].value.as_deref()),
                ("MINE", Some(all[0].placeholder.as_str()))
            );
        }
        let missing: Policies = policies.into_iter().filter(|((_, name), _)| name != "by-claim").collect();
        assert!(
            offered(&missing, &key(), (&sandbox("u1"), None), Timestamp::now()).is_empty(),
            "the gateway closes all"
        );
    }

    #[test]
    fn placeholders_do_not_depend_on_rules() {
        let rules =
            json!({"rules": [{"name": "a", "hosts": ["a.example"], "when": "this is no expression"}]});
        let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
            "metadata": {"name": "p", "namespace": "d"},
            "spec": {"appliesTo": {}, "egress": rules, "credentials": [credential("github", "GITHUB_TOKEN")]}});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        assert!(policy(object.clone()).object().is_none(), "its rules are read");
        let read = policy(without_rules(object));
        let policies = Policies::from([
            (("d".to_owned(), "p".to_owned()), read),
            stored("by-claim", &Value::Null, &credential("mine", "MINE")),
        ]);
        assert_eq!(offered(&policies, &key(), (&sandbox("u1"), None), Timestamp::now()).len(), 2);
    }

    #[test]
    fn placeholder_belongs_to_one_key_sandbox_policy_and_credential() {
        let of = |key: &TokenKey, uid, policy, name| key.placeholder(uid, policy, name, Shape::GitHub);
        let first = of(&key(), "u1", "p", "c");
        assert_eq!(of(&key(), "u1", "p", "c"), first);
        for other in [of(&key(), "u2", "p", "c"), of(&key(), "u1", "q", "c"), of(&key(), "u1", "p", "d")] {
            assert_ne!(other, first);
        }
        assert_ne!(of(&TokenKey::new(&[8; 32]).unwrap(), "u1", "p", "c"), first);
    }
}
