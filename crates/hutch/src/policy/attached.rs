//! The policies of a server that apply to a Sandbox, chosen by the code of the node.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hutch_api::{Sandbox, SandboxTemplate, annotation};
use hutch_attach::SandboxFacts;
use hutch_client::{Name, Sandboxes, Wait};
use hutch_policy::{
    Applying, Facts, NOT_ENFORCEABLE, NetworkLevel, Policies, Subject, applying, policy_names,
};
use hutch_serve::error_text;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};

use crate::cli::Place;
use crate::client::with_hint;

/// A Sandbox, and all policies that may apply to it.
pub(super) struct Attached {
    pub(super) client: Client,
    pub(super) sandbox: Sandbox,
    pub(super) subject: Subject,
    cluster: Policies,
    namespaced: Policies,
    network: Option<NetworkLevel>,
    /// Name of the template of the Sandbox, if it is gone.
    gone: Option<String>,
    /// The server is that of a machine, which records who created a Sandbox.
    records_users: bool,
}

/// Returns the resource of a kind of policies.
pub(super) fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("policy.hutch.dev", "v1alpha1", kind))
}

impl Attached {
    /// Reads everything.
    pub(super) async fn read(place: &Place, name: &Name) -> anyhow::Result<Attached> {
        let config = crate::cluster::config(place.kubeconfig.as_deref()).await?;
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.clone();
        let client = Client::try_from(config).with_context(|| format!("the API server {url}"))?;
        let mut progress = ();
        let mut wait = Wait::new(Duration::ZERO, &mut progress);
        let sandbox = Sandboxes::new(client.clone(), &namespace).find(name, &mut wait).await;
        let sandbox = sandbox.map_err(with_hint)?;
        let of_namespace = Api::<Namespace>::all(client.clone()).get(&namespace).await;
        let of_namespace = of_namespace.map_err(described(format!("namespace {namespace}")))?;
        let template = sandbox.annotations().get(annotation::TEMPLATE_REF).cloned();
        let of_template = match &template {
            Some(name) => {
                let kind = ApiResource::erase::<SandboxTemplate>(&());
                let templates: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &kind);
                templates.get_opt(name).await.map_err(described(format!("template {name}")))?
            }
            None => None,
        };
        let network = of_template
            .as_ref()
            .and_then(|template| NetworkLevel::read(&template.name_any(), &template.data["spec"]));
        let gone = template.clone().filter(|_| of_template.is_none());
        let version =
            client.apiserver_version().await.map_err(described("the version of the server".to_owned()))?;
        let subject = Subject {
            namespace: namespace.clone(),
            namespace_labels: of_namespace.labels().clone(),
            sandbox: Some(sandbox.name_any()),
            labels: sandbox.labels().clone(),
            by_template: of_template.as_ref().map(names).unwrap_or_default(),
            by_claim: names(&sandbox),
            template,
        };
        let cluster: Api<DynamicObject> = Api::all_with(client.clone(), &resource("ClusterSandboxPolicy"));
        let own: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace, &resource("SandboxPolicy"));
        let cluster = policies(&cluster).await.context("the ClusterSandboxPolicies")?;
        let namespaced = policies(&own).await.context("the SandboxPolicies")?;
        let records_users = version.git_version.ends_with("+hutch");
        Ok(Attached { client, sandbox, subject, cluster, namespaced, network, gone, records_users })
    }

    /// Returns the levels that apply now.
    ///
    /// # Errors
    /// Nothing is reachable: the reason.
    pub(super) fn applying(&self) -> anyhow::Result<Applying> {
        if let Some(template) = &self.gone {
            bail!("its SandboxTemplate {template} does not exist: no egress");
        }
        let (cluster, own) = (&self.cluster, &self.namespaced);
        Ok(applying(&self.subject, cluster, own, self.network.as_ref(), Timestamp::now())?)
    }

    /// Returns the levels that would apply with this policy of the namespace.
    ///
    /// # Errors
    /// As [`Attached::applying`]. The policy is then there nevertheless.
    pub(super) fn applying_with(&mut self, policy: DynamicObject) -> anyhow::Result<Applying> {
        let key = (self.subject.namespace.clone(), policy.name_any());
        self.namespaced.insert(key, hutch_attach::policy(policy));
        self.applying()
    }

    /// Returns what the Sandbox reports, if its policies cannot be enforced and its network is closed.
    pub(super) fn not_enforceable(&self) -> Option<&str> {
        let conditions = self.sandbox.status.as_ref()?.conditions.as_ref()?;
        let reported = conditions.iter().find(|condition| condition.type_ == "PolicyEnforced")?;
        let closed = reported.status == "False" && reported.reason == NOT_ENFORCEABLE;
        closed.then_some(reported.message.as_str())
    }

    /// Refuses to open something for a Sandbox whose network stays closed.
    pub(super) fn check_enforceable(&self) -> anyhow::Result<()> {
        let Some(why) = self.not_enforceable() else { return Ok(()) };
        bail!("the Sandbox reports that its policies are not enforceable: {why}; nothing was written")
    }

    /// Returns what conditions see of the Sandbox.
    pub(super) fn facts(&self) -> Facts {
        let facts = SandboxFacts::of(&self.sandbox).facts(&self.sandbox.name_any(), &self.subject.namespace);
        // On a cluster, anyone may write the annotation.
        Facts { user: facts.user.clone().filter(|_| self.records_users), ..facts }
    }
}

/// Returns the policies that the annotation of an object names.
fn names(object: &impl ResourceExt) -> BTreeSet<String> {
    object.annotations().get(annotation::POLICIES).map(|value| policy_names(value)).unwrap_or_default()
}

/// Returns an error of the API server as users read it.
pub(super) fn described(what: String) -> impl FnOnce(kube::Error) -> anyhow::Error {
    move |error| anyhow!("{what}: {}", error_text(&error))
}

async fn policies(api: &Api<DynamicObject>) -> anyhow::Result<Policies> {
    let objects = api.list(&ListParams::default()).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            anyhow!("this server has none: their CRD is missing")
        }
        other => anyhow!(error_text(&other)),
    })?;
    let policy = |object: DynamicObject| {
        ((object.namespace().unwrap_or_default(), object.name_any()), hutch_attach::policy(object))
    };
    Ok(objects.into_iter().map(policy).collect())
}
