use std::path::{Path, PathBuf};

use anyhow::Context;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::credentials::private;

/// Seconds for which the token of a ServiceAccount is good.
const TOKEN_SECONDS: i64 = 3600;

/// Access of one client to the API server.
#[derive(Debug, Clone)]
pub struct Access {
    kubeconfig: PathBuf,
    server: String,
}

impl Access {
    pub(super) fn admin(folder: &Path, server: String, token: &str) -> anyhow::Result<Access> {
        let access = Access { kubeconfig: folder.join("kubeconfig"), server };
        access.write(token)?;
        Ok(access)
    }

    pub(super) async fn service_account(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<Access> {
        let spec =
            TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let granted = Api::<ServiceAccount>::namespaced(client.clone(), namespace)
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("a token for ServiceAccount {namespace}/{name}"))?;
        let token = granted.status.and_then(|status| status.token).context("a token")?;
        let kubeconfig = self.kubeconfig.with_file_name(format!("kubeconfig.{namespace}.{name}"));
        let access = Access { kubeconfig, ..self.clone() };
        access.write(&token)?;
        Ok(access)
    }

    /// The kubeconfig, for other programs.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client on connections of its own, with that user agent. It belongs to the tokio runtime of the caller.
    ///
    /// # Errors
    /// None but for a damaged kubeconfig, or an agent that is no header value.
    pub async fn client(&self, agent: &str) -> anyhow::Result<Client> {
        // It is there already when another client came first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let read = Kubeconfig::read_from(&self.kubeconfig)?;
        let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        config.headers.push((http::header::USER_AGENT, agent.parse()?));
        Ok(Client::try_from(config)?)
    }

    fn write(&self, token: &str) -> anyhow::Result<()> {
        let certificate = self.kubeconfig.with_file_name("server.crt");
        let cluster = json!({"server": self.server, "certificate-authority": certificate});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        });
        private(&self.kubeconfig, &config.to_string())
    }
}

/// Returns true if the API server reports that it is ready.
pub(super) async fn is_ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
    client.request_text(request).await.is_ok()
}

/// Returns true if Pods can be created in the namespace.
pub(super) async fn has_account(client: &Client, namespace: &str) -> bool {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    matches!(accounts.get_opt("default").await, Ok(Some(_)))
}

pub(super) async fn create_namespace(client: &Client, prefix: &str) -> anyhow::Result<String> {
    let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(made.name_any())
}
