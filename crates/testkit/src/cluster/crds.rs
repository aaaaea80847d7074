use anyhow::Context;
use futures::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// How the API server turns one version of a custom resource into another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conversion {
    /// Only `apiVersion` changes; fields that the other version lacks are lost.
    None,
    /// The CRDs as they are published, for the Service of the controller. Objects of the other version cannot be read until the
    /// controller has written its authority into the CRDs and an EndpointSlice leads to it.
    Published,
    /// A webhook at a URL of this machine.
    Webhook {
        /// `https://` address of the endpoint.
        url: String,
        /// The authority that signed its certificate, PEM.
        authority_pem: String,
    },
}

/// Field manager that applies the CRDs.
const MANAGER: &str = "hutch-testkit";
/// Group and version of every kind, and the plural names there.
const SERVED: [(&str, &[&str]); 2] = [
    ("agents.x-k8s.io/v1beta1", &["sandboxes"]),
    ("extensions.agents.x-k8s.io/v1beta1", &["sandboxclaims", "sandboxtemplates", "sandboxwarmpools"]),
];

/// Applies the published CRDs, server-side: one of them is too large for an annotation.
pub(super) async fn apply(client: &Client, conversion: &Conversion) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force();
    try_join_all(hutch_api::crds().iter().map(|yaml| async {
        let mut definition: Value = serde_saphyr::from_str(yaml).context("a published CRD")?;
        if let Some(conversion) = conversion.as_json() {
            definition["spec"]["conversion"] = conversion;
        }
        let name = definition["metadata"]["name"].as_str().context("the name of a CRD")?.to_owned();
        api.patch(&name, &params, &Patch::Apply(&definition)).await.context(name)
    }))
    .await?;
    Ok(())
}

impl Conversion {
    /// `spec.conversion`, where it is not the published one.
    fn as_json(&self) -> Option<Value> {
        use base64::Engine;
        match self {
            Conversion::Published => None,
            Conversion::None => Some(json!({"strategy": "None"})),
            Conversion::Webhook { url, authority_pem } => {
                let bundle = base64::prelude::BASE64_STANDARD.encode(authority_pem);
                let client = json!({"url": url, "caBundle": bundle});
                let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": client});
                Some(json!({"strategy": "Webhook", "webhook": webhook}))
            }
        }
    }
}

/// Returns true if the API server serves every kind.
pub(super) async fn are_served(client: &Client) -> bool {
    let listed = Api::<CustomResourceDefinition>::all(client.clone()).list(&ListParams::default()).await;
    let Ok(definitions) = listed else { return false };
    let established = definitions.iter().all(|definition| {
        let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Established" && c.status == "True"))
    });
    if !established {
        return false;
    }
    for (group_version, plurals) in SERVED {
        let Ok(served) = client.list_api_group_resources(group_version).await else { return false };
        if !plurals.iter().all(|plural| served.resources.iter().any(|resource| resource.name == *plural)) {
            return false;
        }
    }
    true
}
