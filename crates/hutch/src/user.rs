//! `hutch user`: users with client certificates, as objects of the API.
//!
//! A user is an approved CertificateSigningRequest of the signer `kubernetes.io/kube-apiserver-client`, whose object has
//! the name of the user. The key is created here and written only to the kubeconfig.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hutch_serve::NewRequest;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::cli::{UserArguments, UserCommand, UserCreateArguments};
use crate::client::finish;
use crate::{cluster, kubeconfig};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Annotation with the groups of a user, separated by commas, for the list.
const GROUPS: &str = "hutch.dev/groups";

/// Runs the command.
pub(crate) fn main(arguments: &UserArguments) -> ExitCode {
    match &arguments.command {
        UserCommand::Create(create) => finish("user create", 1, self::create(create)),
        UserCommand::List(list) => finish("user list", 1, self::list(list.kubeconfig.as_deref())),
        UserCommand::Delete(delete) => {
            finish("user delete", 1, self::delete(delete.kubeconfig.as_deref(), &delete.name))
        }
    }
}

async fn connect(file: Option<&Path>) -> anyhow::Result<(kube::Config, Api<CertificateSigningRequest>)> {
    let config = cluster::config(file).await?;
    let client = Client::try_from(config.clone()).context("the API server")?;
    Ok((config, Api::all(client)))
}

async fn create(arguments: &UserCreateArguments) -> anyhow::Result<u8> {
    let UserCreateArguments { name, groups, output, ttl, kubeconfig: file } = arguments;
    let (config, requests) = connect(file.as_deref()).await?;
    let request = NewRequest::new(name, groups)?;
    let pem = kubeconfig::pem("CERTIFICATE REQUEST", &request.der);
    let seconds = ttl.map(|ttl| i32::try_from(ttl.as_secs())).transpose().context("--ttl: too long")?;
    let mut object = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["client auth".to_owned()]),
            expiration_seconds: seconds,
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    object.metadata.name = Some(name.clone());
    if !groups.is_empty() {
        object.annotations_mut().insert(GROUPS.to_owned(), groups.join(","));
    }
    if let Err(error) = requests.create(&PostParams::default(), &object).await {
        if matches!(&error, kube::Error::Api(status) if status.reason == "AlreadyExists") {
            bail!("there is a user {name}; hutch user delete {name} ends its certificate");
        }
        return Err(hutch_client::Error::from(error).into());
    }
    let delivered = match approve(&requests, name).await {
        Ok(certificate) => deliver(&config, name, &certificate, &request.key_pem, output.as_deref()),
        Err(error) => Err(error),
    };
    if delivered.is_err() {
        // Without its key the user is of no use, and the name must be free for the next attempt.
        let _ = requests.delete(name, &Default::default()).await;
    }
    delivered
}

/// Approves a request and returns the certificate (PEM).
async fn approve(requests: &Api<CertificateSigningRequest>, name: &str) -> anyhow::Result<Vec<u8>> {
    let condition = json!({"type": "Approved", "status": "True", "reason": "HutchUserCreate",
        "message": "approved by hutch user create"});
    let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    let signed = requests
        .patch_approval(name, &PatchParams::default(), &patch)
        .await
        .map_err(hutch_client::Error::from)?;
    let certificate = signed.status.and_then(|status| status.certificate);
    Ok(certificate.context("the server did not sign the request: is it hutch up?")?.0)
}

/// Writes the kubeconfig to a file of mode 0600, or prints it.
fn deliver(
    config: &kube::Config,
    name: &str,
    certificate: &[u8],
    key: &str,
    output: Option<&Path>,
) -> anyhow::Result<u8> {
    let root = config.root_cert.as_ref().and_then(|roots| roots.first());
    let root = root.map(|der| kubeconfig::pem("CERTIFICATE", der)).unwrap_or_default();
    let server = config.cluster_url.to_string();
    let text = kubeconfig::of_user(server.trim_end_matches('/'), &root, name, certificate, key);
    match output {
        None => std::io::stdout().write_all(text.as_bytes()).context("cannot write the kubeconfig")?,
        Some(file) => {
            kubeconfig::put(file, &text)?;
            println!("user {name}: kubeconfig {}", file.display());
        }
    }
    Ok(0)
}

async fn list(file: Option<&Path>) -> anyhow::Result<u8> {
    let (_, requests) = connect(file).await?;
    let found = requests.list(&ListParams::default()).await.map_err(hutch_client::Error::from)?;
    println!("{:<32}GROUPS", "NAME");
    for request in found.items {
        let signed = request.status.as_ref().is_some_and(|status| status.certificate.is_some());
        if signed && request.spec.signer_name == SIGNER {
            let groups = request.annotations().get(GROUPS).map_or("", String::as_str);
            println!("{:<32}{groups}", request.name_any());
        }
    }
    Ok(0)
}

async fn delete(file: Option<&Path>, name: &str) -> anyhow::Result<u8> {
    let (_, requests) = connect(file).await?;
    requests.delete(name, &Default::default()).await.map_err(hutch_client::Error::from)?;
    println!("user {name} deleted; its certificate is no longer accepted");
    Ok(0)
}
