//! `hutch user`: users with client certificates, as objects of the API.
//!
//! A user is who the certificate of a CertificateSigningRequest of the signer `kubernetes.io/kube-apiserver-client` names,
//! whatever the name of the object. The key is created here and written only to the kubeconfig.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hutch_client::Error;
use hutch_serve::{ClientRequest, IssuedCertificate, NewRequest};
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::cli::{UserArguments, UserCommand, UserCreateArguments};
use crate::client::{finish, plain};
use crate::{cluster, kubeconfig};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

type Requests = Api<CertificateSigningRequest>;

/// A user and the request that names it.
struct User {
    name: String,
    groups: Vec<String>,
    /// Last second of the certificate, as seconds since 1970; none before it is signed.
    end: Option<i64>,
    /// Name of the object.
    object: String,
}

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

async fn connect(file: Option<&Path>) -> anyhow::Result<(kube::Config, Client)> {
    let config = cluster::config(file).await?;
    let client = Client::try_from(config.clone()).context("the API server")?;
    Ok((config, client))
}

impl User {
    /// Returns the user that a request names.
    fn of(object: &CertificateSigningRequest) -> Option<User> {
        let request = ClientRequest::from_pem(&object.spec.request.0).ok()?;
        let certificate = object.status.as_ref().and_then(|status| status.certificate.as_ref());
        let end = match certificate {
            Some(certificate) => Some(IssuedCertificate::from_pem(&certificate.0).ok()?.end),
            None => None,
        };
        Some(User { name: request.name, groups: request.groups, end, object: object.name_any() })
    }
}

/// Returns the users of the API server, sorted by name.
async fn users(requests: &Requests) -> Result<Vec<User>, Error> {
    let selected = ListParams::default().fields(&format!("spec.signerName={SIGNER}"));
    let found = requests.list(&selected).await?;
    let mut users: Vec<User> = found.items.iter().filter_map(User::of).collect();
    users.sort_by(|a, b| (&a.name, &a.object).cmp(&(&b.name, &b.object)));
    Ok(users)
}

async fn create(arguments: &UserCreateArguments) -> anyhow::Result<u8> {
    let UserCreateArguments { name, groups, output, ttl, kubeconfig: file } = arguments;
    if let Some(output) = output.as_deref().filter(|file| std::fs::symlink_metadata(file).is_ok()) {
        bail!("--output: {} exists; remove it or name another file", output.display());
    }
    let (config, client) = connect(file.as_deref()).await?;
    may_approve(&client).await?;
    let requests: Requests = Api::all(client);
    if users(&requests).await?.iter().any(|user| user.name == *name) {
        bail!("there is a user {name}; `hutch user delete {name}` ends its certificate");
    }
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
    requests.create(&PostParams::default(), &object).await.map_err(Error::from)?;
    let delivered = match approve(&requests, name).await {
        Ok(certificate) => deliver(&config, name, &certificate, &request.key_pem, output.as_deref()),
        Err(error) => Err(error),
    };
    let Err(error) = delivered else { return Ok(0) };
    // Without its key the user is of no use, and the name must be free for the next attempt.
    match requests.delete(name, &Default::default()).await {
        Ok(_) => Err(error),
        Err(_) => Err(error.context(format!(
            "the request stays, for want of the right to delete it (`kubectl delete csr {name}` as an administrator)"
        ))),
    }
}

/// Checks that the caller may approve users, before a request is made.
async fn may_approve(client: &Client) -> anyhow::Result<()> {
    let attributes = ResourceAttributes {
        group: Some("certificates.k8s.io".to_owned()),
        resource: Some("signers".to_owned()),
        verb: Some("approve".to_owned()),
        name: Some(SIGNER.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec =
        SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await.map_err(Error::from)?;
    if answer.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    bail!("you may not approve users: that takes the verb approve on the signer {SIGNER}")
}

/// Approves a request and returns the certificate (PEM).
async fn approve(requests: &Requests, name: &str) -> anyhow::Result<Vec<u8>> {
    let condition = json!({"type": "Approved", "status": "True", "reason": "HutchUserCreate",
        "message": "approved by hutch user create"});
    let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    let signed = requests.patch_approval(name, &PatchParams::default(), &patch).await.map_err(Error::from)?;
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
) -> anyhow::Result<()> {
    let root = config.root_cert.as_ref().and_then(|roots| roots.first());
    let root = root.map(|der| kubeconfig::pem("CERTIFICATE", der)).unwrap_or_default();
    let server = config.cluster_url.to_string();
    let text = kubeconfig::of_user(server.trim_end_matches('/'), &root, name, certificate, key);
    match output {
        None => std::io::stdout().write_all(text.as_bytes()).context("cannot write the kubeconfig")?,
        Some(file) => {
            kubeconfig::write_new(file, &text)?;
            println!("user {name}: kubeconfig {}", file.display());
        }
    }
    Ok(())
}

async fn list(file: Option<&Path>) -> anyhow::Result<u8> {
    let (_, client) = connect(file).await?;
    let users = users(&Api::all(client)).await?;
    println!("{:<24}{:<24}{:<22}REQUEST", "NAME", "GROUPS", "EXPIRES");
    for user in users {
        // Names and groups come from the author of the request.
        let [name, groups] = [user.name, user.groups.join(",")].map(|text| plain(&text));
        let end = match user.end.map(Timestamp::from_second) {
            Some(Ok(end)) => end.to_string(),
            Some(Err(_)) => "-".to_owned(),
            None => "(not approved)".to_owned(),
        };
        println!("{name:<23} {groups:<23} {end:<21} {}", user.object);
    }
    Ok(0)
}

async fn delete(file: Option<&Path>, name: &str) -> anyhow::Result<u8> {
    let (_, client) = connect(file).await?;
    let requests: Requests = Api::all(client);
    let mut deleted = 0;
    for user in users(&requests).await?.into_iter().filter(|user| user.name == name) {
        requests.delete(&user.object, &Default::default()).await.map_err(Error::from)?;
        deleted += 1;
    }
    match deleted {
        0 => bail!("there is no user {}; `hutch user list` shows them", plain(name)),
        1 => println!("user {name} deleted; its certificate is no longer accepted"),
        _ => println!("user {name} deleted; its {deleted} certificates are no longer accepted"),
    }
    Ok(0)
}
