//! Credentials of the Pods that the gateway serves: values come from Secrets, and go to the process of the proxy alone.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::{annotation, label, owner};
use hutch_attach::{Mirror, Objects};
use hutch_controller::TokenKey;
use hutch_egress::{Issued, Secret};
use hutch_policy::{Credential, Level, Provider, ProviderSource, unambiguous};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;

use super::secrets::{Found, Place, Secrets};
use crate::credentials::first_too_many;

/// Name of the ValidatingAdmissionPolicy of `deploy/egress.yaml`, and of its binding: who writes a policy needs the verb `use`
/// for the providers that it names.
const LIMIT: &str = "hutch-credential-providers";

/// Everything from which credentials are issued.
pub(super) struct Credentials {
    key: TokenKey,
    pub(super) providers: Mirror<Option<Arc<Provider>>>,
    secrets: Secrets,
    /// The API server limits who uses a provider.
    pub(super) limited: bool,
}

/// Interval of checks whether the API server limits who uses a provider.
const LOOK: Duration = Duration::from_secs(5);

/// Sends whether the API server limits who uses a provider, whenever that changes. While the server does not answer, what was
/// true last still counts.
pub(super) async fn follow_limit(client: Client, sender: mpsc::Sender<bool>) {
    let mut last = None;
    loop {
        let found = is_limited(&client).await;
        if found.is_some() && found != last {
            last = found;
            let limited = found.unwrap_or_default();
            if !limited {
                tracing::warn!(
                    "nothing limits who uses providers of credentials; none is issued: apply deploy/egress.yaml"
                );
            }
            if sender.send(limited).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns true if the API server limits who uses a provider; `None` if it does not answer.
async fn is_limited(client: &Client) -> Option<bool> {
    let get = async |kind| {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        api.get(LIMIT).await
    };
    let found = async {
        let policy = get("ValidatingAdmissionPolicy").await?;
        Ok::<_, kube::Error>((policy, get("ValidatingAdmissionPolicyBinding").await?))
    };
    match found.await {
        Ok((policy, binding)) => Some(denies(&policy, &binding)),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Some(false),
        Err(error) => {
            tracing::warn!(%error, "failed to read the policy that limits who uses providers of credentials");
            None
        }
    }
}

/// Returns true if a binding has the policy deny requests in the whole cluster.
fn denies(policy: &DynamicObject, binding: &DynamicObject) -> bool {
    let (policy, binding) = (&policy.data["spec"], &binding.data["spec"]);
    let actions = binding["validationActions"].as_array();
    policy["failurePolicy"] != "Ignore"
        && binding["policyName"] == LIMIT
        && binding["matchResources"].as_object().is_none_or(serde_json::Map::is_empty)
        && actions.is_some_and(|actions| actions.iter().any(|action| action == "Deny"))
}

impl Credentials {
    pub(super) fn new(key: TokenKey, secrets: Secrets) -> Credentials {
        Credentials { key, providers: Mirror::default(), secrets, limited: false }
    }

    /// Takes news of a Secret. Returns true if a value has changed.
    pub(super) fn take(&mut self, found: Found) -> bool {
        self.secrets.take(found)
    }

    /// Ends what is followed for Pods that are gone.
    pub(super) fn forget_unused(&mut self) {
        self.secrets.forget_unused();
    }

    /// Returns the credentials of a Pod with these levels, and what is wrong with some. Without a value, the placeholder is
    /// refused.
    pub(super) fn issue(
        &mut self,
        pod: &Pod,
        objects: &Objects,
        levels: &[Arc<Level>],
    ) -> (Vec<Issued>, Vec<String>) {
        let (offered, mut mistakes) = unambiguous(levels);
        let mut issued = Vec::with_capacity(offered.len());
        for (level, credential) in offered {
            let (one, mistake) = self.one(pod, objects, &level.name, credential);
            issued.push(one);
            let of = || format!("credential {:?} of policy {:?}", credential.name, level.name);
            mistakes.extend(mistake.map(|why| format!("{}: {why}", of())));
        }
        if let Some(at) = first_too_many(&issued) {
            mistakes
                .push(format!("credential {:?} and further ones are too large together", issued[at].name));
            issued.truncate(at);
        }
        (issued, mistakes)
    }

    fn one(
        &mut self,
        pod: &Pod,
        objects: &Objects,
        policy: &str,
        credential: &Credential,
    ) -> (Issued, Option<String>) {
        let uid = owner::sandbox(pod).map(|owner| owner.uid.as_str()).unwrap_or_default();
        let placeholder = self.key.placeholder(uid, policy, &credential.name, credential.shape());
        let provider = self.provider(credential);
        let missing = Issued {
            name: credential.name.clone(),
            value: Secret::new(placeholder.clone()),
            placeholder,
            binding: credential.binding.clone(),
            bounds: provider.as_ref().ok().map(|provider| provider.bounds()),
            ends: None,
            missing: true,
        };
        let place = match provider.and_then(|provider| place(&provider, credential, pod)) {
            Ok(place) => place,
            Err(why) => return (missing, Some(why)),
        };
        let sandbox = objects.sandbox(pod);
        // One of a warm pool has placeholders alone.
        let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.labels.contains_key(label::WARM_POOL_SANDBOX))
        else {
            return (missing, None);
        };
        // Every gateway computes the same end, which no restart and no new Pod defers.
        let ends = credential.expires.map(|expires| {
            let seconds = i64::try_from(expires.duration().as_secs()).unwrap_or(i64::MAX);
            sandbox.created.unwrap_or_default().saturating_add(seconds)
        });
        match self.secrets.value(place) {
            Some(Ok(value)) => {
                (Issued { value, ends, missing: false, ..missing }, old(pod, policy, credential))
            }
            Some(Err(why)) => (missing, Some(why)),
            None => (missing, None),
        }
    }

    fn provider(&self, credential: &Credential) -> Result<Arc<Provider>, String> {
        if !self.limited {
            let why = "nothing limits who uses its provider: apply deploy/egress.yaml";
            return Err(why.to_owned());
        }
        let name = credential.provider.clone().unwrap_or_default();
        match self.providers.objects.get(&(String::new(), name.clone())) {
            Some(Some(provider)) => Ok(provider.clone()),
            Some(None) => Err(format!("CredentialProvider {name:?} is invalid")),
            None if self.providers.complete => Err(format!("CredentialProvider {name:?} does not exist")),
            None => Err("CredentialProviders are not known yet".to_owned()),
        }
    }
}

/// Returns the place of the value that a provider has for a Pod.
fn place(provider: &Provider, credential: &Credential, pod: &Pod) -> Result<Place, String> {
    let Some(ProviderSource::Secret(secret)) = provider.source() else {
        let name = credential.provider.as_deref().unwrap_or_default();
        return Err(format!(
            "CredentialProvider {name:?} has no `secret`, and the gateway reads no other source"
        ));
    };
    let namespace = secret.namespace.clone().or_else(|| pod.namespace()).unwrap_or_default();
    Ok(Place { namespace, name: secret.name.clone(), key: secret.key.clone() })
}

/// Returns a mistake if a Pod is older than what offers the credential, so that it has no placeholder.
fn old(pod: &Pod, policy: &str, credential: &Credential) -> Option<String> {
    let of = format!("{policy}/{}", credential.name);
    let names = pod.annotations().get(annotation::CREDENTIALS);
    let has = names.is_some_and(|names| names.split(',').any(|name| name == of));
    let why = "the Pod has no placeholder: it is older than the policy, or than the controller; replace it";
    (credential.env.is_some() && !has).then(|| why.to_owned())
}

#[cfg(test)]
mod tests {
    use hutch_attach::SandboxFacts;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn level(credential: &Value) -> Vec<Arc<Level>> {
        let mut level = Level::new(hutch_policy::Authority::Namespace, "team", None);
        level.credentials = serde_json::from_value(json!([credential])).unwrap();
        vec![Arc::new(level)]
    }

    fn objects(labels: &Value) -> Objects {
        let mut objects = Objects::default();
        let sandbox = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "s", "namespace": "d", "uid": "u", "labels": labels,
                "creationTimestamp": "1970-01-01T00:01:40Z"},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
        });
        let sandbox: hutch_api::Sandbox = serde_json::from_value(sandbox).unwrap();
        objects.sandboxes.take(Event::Apply(sandbox), |object| SandboxFacts::of(&object));
        objects
    }

    fn pod(annotations: &Value) -> Pod {
        let owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "s", "uid": "u", "controller": true});
        let metadata =
            json!({"name": "s", "namespace": "d", "ownerReferences": [owner], "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn provider(name: &str, source: &Value) -> DynamicObject {
        let mut spec = json!({"hosts": ["a.example"]});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "CredentialProvider",
            "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn credentials(limited: bool) -> Credentials {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>().await
        });
        let secrets = Secrets::new(Client::new(service, "d"), mpsc::channel(1).0);
        let mut credentials = Credentials::new(TokenKey::new(&[7; 32]).unwrap(), secrets);
        credentials.limited = limited;
        for (name, source) in [
            ("secret", json!({"secret": {"name": "github", "key": "token"}})),
            ("vault", json!({"vault": {"path": "secret/data/a", "field": "f"}})),
        ] {
            credentials.providers.take(Event::Apply(provider(name, &source)), hutch_attach::provider);
        }
        credentials.providers.complete = true;
        credentials
    }

    fn offering(provider: &str) -> Value {
        json!({"name": "github", "provider": provider, "hosts": ["a.example"], "env": "GITHUB_TOKEN", "expires": "1h"})
    }

    #[tokio::test]
    async fn value_of_a_secret_is_issued_and_its_end_counts_from_the_creation_of_the_sandbox() {
        let (mut credentials, found) = (credentials(true), objects(&json!({})));
        let (pod, levels) =
            (pod(&json!({annotation::CREDENTIALS: "team/github"})), level(&offering("secret")));
        let (issued, mistakes) = credentials.issue(&pod, &found, &levels);
        assert!(issued[0].missing && mistakes.is_empty(), "it is not known yet");
        let place = Place { namespace: "d".into(), name: "github".into(), key: "token".into() };
        let value = Secret::new("real-value".into());
        assert!(credentials.take((place.clone(), Ok(value.clone()))));
        assert!(!credentials.take((place.clone(), Ok(value.clone()))), "nothing has changed");
        let (issued, mistakes) = credentials.issue(&pod, &found, &levels);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!((issued[0].missing, &issued[0].value, issued[0].ends), (false, &value, Some(3700)));
        assert_eq!(
            issued[0].placeholder,
            credentials.key.placeholder("u", "team", "github", hutch_policy::Shape::GitHub)
        );
        assert!(issued[0].bounds.is_some());

        let pooled = objects(&json!({label::WARM_POOL_SANDBOX: "x"}));
        assert!(credentials.issue(&pod, &pooled, &levels).0[0].missing, "a warm pool has placeholders alone");
        assert!(credentials.take((place, Err("Secret d/github: it does not exist".into()))));
        let (issued, mistakes) = credentials.issue(&pod, &found, &levels);
        assert!(
            issued[0].missing && mistakes[0].contains("Secret d/github: it does not exist"),
            "{mistakes:?}"
        );
        credentials.forget_unused();
        credentials.forget_unused();
        assert!(credentials.secrets.followed.is_empty());
    }

    #[tokio::test]
    async fn credential_that_is_not_enforced_is_named_with_the_reason() {
        let found = objects(&json!({}));
        for (limited, provider, expected) in [
            (true, "vault", "has no `secret`"),
            (true, "missing", "CredentialProvider \"missing\" does not exist"),
            (false, "secret", "nothing limits who uses its provider"),
        ] {
            let (issued, mistakes) =
                credentials(limited).issue(&pod(&json!({})), &found, &level(&offering(provider)));
            assert!(issued[0].missing, "its placeholder is refused");
            assert!(mistakes[0].starts_with("credential \"github\" of policy \"team\": "), "{mistakes:?}");
            assert!(mistakes[0].contains(expected), "{mistakes:?}");
        }
        let credential = serde_json::from_value::<Credential>(offering("secret")).unwrap();
        assert!(old(&pod(&json!({})), "team", &credential).unwrap().contains("replace it"));
    }

    #[test]
    fn binding_must_deny_in_the_whole_cluster() {
        let object = |spec: Value| -> DynamicObject {
            let metadata = json!({"name": LIMIT});
            serde_json::from_value(
                json!({"apiVersion": "v1", "kind": "K", "metadata": metadata, "spec": spec}),
            )
            .unwrap()
        };
        let good = json!({"policyName": LIMIT, "validationActions": ["Deny"]});
        let fails = object(json!({"failurePolicy": "Fail"}));
        assert!(denies(&fails, &object(good.clone())));
        assert!(!denies(&object(json!({"failurePolicy": "Ignore"})), &object(good)));
        for wrong in [
            json!({"policyName": LIMIT, "validationActions": ["Warn"]}),
            json!({"policyName": "other", "validationActions": ["Deny"]}),
            json!({"policyName": LIMIT, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": {}}}),
        ] {
            assert!(!denies(&fails, &object(wrong.clone())), "{wrong}");
        }
    }
}
