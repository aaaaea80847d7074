//! One webhook of a configuration.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::rule::{Rule, selector};
use crate::expression::{self, Expression};
use crate::selector::LabelSelector;

/// Variables of the conditions.
pub(crate) const VARIABLES: &[&str] = &["object", "oldObject", "request"];
/// Timeout of a webhook, if none is set. Kubernetes' default is stored with the object.
const TIMEOUT: u64 = 10;
/// Port of `https` URLs.
const PORT: u16 = 443;
/// Maximum calls of one webhook in progress.
const CALLS: usize = 16;

/// A webhook.
#[derive(Debug)]
pub(crate) struct Webhook {
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
    /// True if the rules concern only the version that a request is in.
    pub(crate) exact: bool,
    pub(crate) namespaces: LabelSelector,
    pub(crate) objects: LabelSelector,
    pub(crate) conditions: Vec<Condition>,
    /// True if a request is accepted when the call fails.
    pub(crate) ignores_failures: bool,
    /// True if it is called again when later webhooks change the object.
    pub(crate) reinvoked: bool,
    pub(crate) timeout: Duration,
    pub(crate) target: Target,
    /// Configuration of TLS, or why it is missing.
    pub(crate) tls: Result<Arc<ClientConfig>, String>,
    /// Places of its calls in progress: one that does not answer leaves places to others.
    pub(crate) calls: Semaphore,
}

/// A condition: its text, and the compiled expression or why it is invalid.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) text: String,
    pub(crate) compiled: Result<Expression, String>,
}

impl Condition {
    /// Reads a list of conditions.
    pub(crate) fn all(conditions: &Value, variables: &[&str]) -> Vec<Condition> {
        let conditions = conditions.as_array().into_iter().flatten();
        conditions
            .map(|condition| {
                let text = condition["expression"].as_str().unwrap_or_default().trim().to_owned();
                let compiled = expression::compile(&text, variables);
                Condition { text, compiled }
            })
            .collect()
    }
}

/// Receiver of the reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A host, by a URL.
    Host { host: String, port: u16, path: String },
    /// A Service of this server.
    Service { namespace: String, name: String, port: u16, path: String },
}

impl Target {
    pub(crate) fn read(config: &Value) -> Target {
        if let Some(url) = config["url"].as_str() {
            return Target::of_url(url);
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(PORT);
        let path = text("path");
        let slash = if path.starts_with('/') { "" } else { "/" };
        Target::Service {
            namespace: text("namespace"),
            name: text("name"),
            port,
            path: format!("{slash}{path}"),
        }
    }

    /// The host, the port and the path of a URL that was checked when its configuration was stored.
    pub(crate) fn of_url(url: &str) -> Target {
        let uri: Uri = url.parse().unwrap_or_default();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        Target::Host { host, port: uri.port_u16().unwrap_or(PORT), path: uri.path().to_owned() }
    }

    pub(crate) fn path(&self) -> &str {
        let (Target::Host { path, .. } | Target::Service { path, .. }) = self;
        path
    }

    /// The name in the certificate.
    pub(crate) fn server_name(&self) -> String {
        match self {
            Target::Host { host, .. } => host.clone(),
            Target::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    /// Host and port, as in a URL.
    pub(crate) fn authority(&self) -> String {
        let (Target::Host { port, .. } | Target::Service { port, .. }) = self;
        let name = self.server_name();
        if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") }
    }
}

/// Message for a host that this server does not connect to.
pub(crate) fn not_allowed(host: &str, port: u16) -> String {
    format!(
        "hutch up --webhook-host does not name {host}:{port}, and this server connects to no other host; a service is \
         reached without it"
    )
}

impl Webhook {
    /// Reads a webhook with its defaults.
    pub(crate) fn read(webhook: &Value) -> Webhook {
        let is = |field: &str, value: &str| webhook[field].as_str() == Some(value);
        let rules = webhook["rules"].as_array().into_iter().flatten();
        let config = &webhook["clientConfig"];
        Webhook {
            name: webhook["name"].as_str().unwrap_or_default().to_owned(),
            rules: rules.map(Rule::read).collect(),
            exact: is("matchPolicy", "Exact"),
            namespaces: selector(&webhook["namespaceSelector"]),
            objects: selector(&webhook["objectSelector"]),
            conditions: Condition::all(&webhook["matchConditions"], VARIABLES),
            ignores_failures: is("failurePolicy", "Ignore"),
            reinvoked: is("reinvocationPolicy", "IfNeeded"),
            timeout: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT)),
            target: Target::read(config),
            tls: tls(config["caBundle"].as_str().unwrap_or_default()),
            calls: Semaphore::new(CALLS),
        }
    }
}

/// Returns the configuration of TLS that trusts these authorities, in base64 of PEM.
///
/// The authorities of the machine are not trusted: this process cannot read them.
pub(crate) fn tls(bundle: &str) -> Result<Arc<ClientConfig>, String> {
    if bundle.is_empty() {
        return Err("caBundle is empty, and no other authority is trusted".into());
    }
    let pem = STANDARD.decode(bundle).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate =
            certificate.map_err(|error| format!("unable to load root certificates: {error}"))?;
        roots.add(certificate).map_err(|error| format!("unable to load root certificates: {error}"))?;
    }
    if roots.is_empty() {
        return Err("unable to load root certificates: there is no certificate in PEM".into());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
