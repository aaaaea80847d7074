//! `spec.conversion.webhook` of the four definitions.

use std::collections::HashMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, GetParams, Patch, PatchParams};
use kube::{Client, core};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Error, Settings, convert};

/// The definitions of the four kinds.
pub(crate) const NAMES: [&str; 4] = [
    "sandboxes.agents.x-k8s.io",
    "sandboxclaims.extensions.agents.x-k8s.io",
    "sandboxtemplates.extensions.agents.x-k8s.io",
    "sandboxwarmpools.extensions.agents.x-k8s.io",
];
pub(crate) const COLLECTION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Versions of a review that the API server may send, where a definition does not list them.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// A definition without its schemas, which are most of it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Definition {
    metadata: ObjectMeta,
    spec: DefinitionSpec,
}

#[derive(Debug, Clone, Deserialize)]
struct DefinitionSpec {
    conversion: Option<CustomResourceConversion>,
}

/// The definitions as they were when last seen.
pub(crate) struct Definitions {
    client: Client,
    api: Api<CustomResourceDefinition>,
    seen: HashMap<&'static str, Definition>,
}

/// How a write of the definitions went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// All of them have it.
    Done,
    /// Another client changed one since it was read.
    Overtaken,
}

impl Definitions {
    pub(crate) fn new(client: Client) -> Definitions {
        Definitions { api: Api::all(client.clone()), client, seen: HashMap::new() }
    }

    /// Looks at the definitions. One that has not changed since is not read again: a definition is a quarter of a megabyte.
    pub(crate) async fn observe(&mut self) -> Result<(), Error> {
        for name in NAMES {
            let reading = || Error::api(format!("reading CustomResourceDefinition {name}"));
            let Some(head) = self.api.get_metadata_opt(name).await.map_err(reading())? else {
                self.seen.remove(name);
                continue;
            };
            let known = self.seen.get(name).and_then(|known| known.metadata.resource_version.as_deref());
            if known.is_some() && known == head.metadata.resource_version.as_deref() {
                continue;
            }
            let request =
                core::Request::new(COLLECTION).get(name, &GetParams::default()).map_err(|error| {
                    Error::Api {
                        doing: "reading definitions".into(),
                        source: kube::Error::BuildRequest(error),
                    }
                })?;
            match self.client.request::<Definition>(request).await {
                Ok(definition) => self.seen.insert(name, definition),
                Err(kube::Error::Api(status)) if status.is_not_found() => self.seen.remove(name),
                Err(error) => return Err(reading()(error)),
            };
        }
        Ok(())
    }

    /// Writes the bundle into those definitions that want a webhook and have not this one, guarded by what was observed.
    pub(crate) async fn publish(&mut self, settings: &Settings, bundle: &str) -> Result<Published, Error> {
        for name in NAMES {
            let Some(definition) = self.seen.get(name) else { continue };
            let Some(webhook) = change(definition.spec.conversion.as_ref(), settings, bundle) else {
                continue;
            };
            let patch = json!({
                "metadata": { "resourceVersion": definition.metadata.resource_version },
                "spec": { "conversion": { "webhook": webhook } },
            });
            let changing = Error::api(format!("changing CustomResourceDefinition {name}"));
            let request = core::Request::new(COLLECTION)
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .map_err(|error| Error::Api {
                    doing: "changing definitions".into(),
                    source: kube::Error::BuildRequest(error),
                })?;
            match self.client.request::<Definition>(request).await {
                Ok(changed) => {
                    tracing::info!(
                        definition = name,
                        "the definition names the webhook and what it is trusted by"
                    );
                    self.seen.insert(name, changed);
                }
                Err(kube::Error::Api(status)) if status.is_not_found() => {
                    self.seen.remove(name);
                }
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    self.seen.remove(name);
                    return Ok(Published::Overtaken);
                }
                Err(error) => return Err(changing(error)),
            }
        }
        Ok(Published::Done)
    }
}

/// Returns the merge for `spec.conversion.webhook`; `None` if it is set already or a user chose otherwise: another
/// strategy, or a URL in place of a Service.
fn change(conversion: Option<&CustomResourceConversion>, settings: &Settings, bundle: &str) -> Option<Value> {
    let conversion = conversion.filter(|conversion| conversion.strategy == "Webhook")?;
    let webhook = conversion.webhook.as_ref();
    let client = webhook.and_then(|webhook| webhook.client_config.as_ref());
    if client.is_some_and(|client| client.url.is_some()) {
        return None;
    }
    let service = client.and_then(|client| client.service.as_ref());
    let same_service = service.is_some_and(|service| {
        service.name == settings.service_name
            && service.namespace == settings.namespace
            && service.path.as_deref() == Some(convert::PATH)
    });
    let held = client.and_then(|client| client.ca_bundle.as_ref());
    let same_bundle = held.is_some_and(|held| held.0 == bundle.as_bytes());
    let versions = webhook.map(|webhook| webhook.conversion_review_versions.clone()).unwrap_or_default();
    if same_service && same_bundle && !versions.is_empty() {
        return None;
    }
    let versions = if versions.is_empty() { REVIEW_VERSIONS.map(str::to_owned).to_vec() } else { versions };
    Some(json!({
        "conversionReviewVersions": versions,
        "clientConfig": {
            "service": {
                "name": settings.service_name, "namespace": settings.namespace, "path": convert::PATH,
            },
            "caBundle": k8s_openapi::ByteString(bundle.as_bytes().to_vec()),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversion(value: Value) -> Option<CustomResourceConversion> {
        Some(serde_json::from_value(value).expect("a conversion"))
    }

    #[test]
    fn only_definitions_that_want_this_webhook_and_have_not_got_it_are_changed() {
        let settings = Settings::default();
        let ours = json!({"name": "agent-sandbox-webhook-service", "namespace": "agent-sandbox-system", "path": "/convert"});
        let (right, wrong) = ("UEVN", "b2xk");
        let webhook = |service: &Value, bundle: &str, versions: Value| {
            conversion(json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": versions,
                "clientConfig": {"service": service, "caBundle": bundle}}}))
        };
        let other = json!({"name": "other", "namespace": "agent-sandbox-system", "path": "/convert"});
        let url = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://example.com/convert"}}});
        for (case, conversion, versions) in [
            ("no conversion", None, None),
            ("none", conversion(json!({"strategy": "None"})), None),
            ("a URL", conversion(url), None),
            ("as wanted", webhook(&ours, right, json!(["v1"])), None),
            ("other bundle", webhook(&ours, wrong, json!(["v1"])), Some(json!(["v1"]))),
            ("other service", webhook(&other, right, json!(["v1beta1"])), Some(json!(["v1beta1"]))),
            ("no versions", webhook(&ours, right, json!([])), Some(json!(["v1", "v1beta1"]))),
            ("bare", conversion(json!({"strategy": "Webhook"})), Some(json!(["v1", "v1beta1"]))),
        ] {
            let change = change(conversion.as_ref(), &settings, "PEM");
            assert_eq!(
                change.as_ref().map(|change| change["conversionReviewVersions"].clone()),
                versions,
                "{case}"
            );
            if let Some(change) = change {
                assert_eq!(change["clientConfig"], json!({"service": ours, "caBundle": right}), "{case}");
            }
        }
    }
}
