//! Providers of credentials: where a server finds a value, and where it may go at most.
//!
//! Administrators write them. A policy that names one says where the value goes within these bounds, so its author needs
//! the verb `use` on the provider, and not the value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::credential::{Binding, is_label, is_variable};
use crate::http::PathPattern;
use crate::object::InvalidPolicy;
use crate::pattern::HostPattern;
use crate::ports::PortRange;

/// Kind of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    CredentialProvider,
}

/// Version of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    #[serde(rename = "policy.hutch.dev/v1alpha1")]
    V1alpha1,
}

/// A CredentialProvider, as it stands in the API server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderObject {
    api_version: Version,
    kind: Kind,
    metadata: serde_json::Value,
    /// Source and bounds.
    pub spec: Provider,
}

/// Source of a value, and the bounds of its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Provider {
    /// Hosts to which values may go at most.
    pub hosts: Vec<HostPattern>,
    /// Ports; without any, 443.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
    /// Paths; without any, every path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPattern>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<SecretKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service_account_token: Option<TokenSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vault: Option<VaultSource>,
}

/// Key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKey {
    /// Namespace; without it, that of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Key.
    pub key: String,
}

/// Token of the ServiceAccount of a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenSource {
    /// Audience.
    pub audience: String,
    /// Life of a token in seconds, 600 to 86400; a new one is issued in time.
    #[serde(default = "hour")]
    pub expiration_seconds: u32,
}

/// Field of a secret of Vault.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VaultSource {
    /// Path below `/v1/`, such as `secret/data/github`; `{namespace}` in it is that of the sandbox.
    pub path: String,
    /// Field of the secret.
    pub field: String,
    /// Parameters, for a secret that is requested with some.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// Where a value is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderSource<'a> {
    /// File of this name in the folder that the server's administrator chose.
    File(&'a str),
    /// Variable of the server that its administrator named.
    Env(&'a str),
    /// Key of a Secret.
    Secret(&'a SecretKey),
    /// Token of the ServiceAccount of the Pod.
    Token(&'a TokenSource),
    /// Field of a secret of Vault.
    Vault(&'a VaultSource),
}

/// Fields of a provider that each name a source.
const SOURCES: &str = "`file`, `env`, `secret`, `serviceAccountToken` or `vault`";
/// Maximum entries of a list.
pub(crate) const ENTRIES: usize = 64;
/// Maximum bytes of the name of an object, of a key of a Secret, and of an audience or a path.
pub(crate) const NAME: usize = 253;
pub(crate) const TEXT: usize = 512;
/// Maximum parameters of a request to Vault.
pub(crate) const PARAMETERS: usize = 16;
/// Life of a token, in seconds.
const SECONDS: std::ops::RangeInclusive<u32> = 600..=86_400;

fn hour() -> u32 {
    3600
}

impl ProviderObject {
    /// Checks the provider.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        self.spec.check().map_err(|(field, reason)| InvalidPolicy { field: format!("spec{field}"), reason })
    }
}

impl Provider {
    /// Returns where the value is found; `None` for a provider that was not checked.
    pub fn source(&self) -> Option<ProviderSource<'_>> {
        let all = [
            self.file.as_deref().map(ProviderSource::File),
            self.env.as_deref().map(ProviderSource::Env),
            self.secret.as_ref().map(ProviderSource::Secret),
            self.service_account_token.as_ref().map(ProviderSource::Token),
            self.vault.as_ref().map(ProviderSource::Vault),
        ];
        let mut given = all.into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }

    /// Returns the requests in which a value may stand at most.
    pub fn bounds(&self) -> Binding {
        let (hosts, ports, paths) = (self.hosts.clone(), self.ports.clone(), self.paths.clone());
        Binding { hosts, ports, paths, ..Binding::default() }
    }

    fn check(&self) -> Result<(), (String, String)> {
        let refuse = |field: &str, why: &str| Err((field.to_owned(), why.to_owned()));
        if self.hosts.is_empty() {
            return refuse(".hosts", "needs at least one host, to which values may go");
        }
        let lists = [self.hosts.len(), self.ports.len(), self.paths.len()];
        if let Some(list) = lists.iter().position(|length| *length > ENTRIES) {
            return refuse([".hosts", ".ports", ".paths"][list], "at most 64 entries");
        }
        if let Some(place) = self.paths.iter().position(PathPattern::has_query) {
            return Err((format!(".paths[{place}]"), PathPattern::WITH_QUERY.to_owned()));
        }
        match self.source() {
            None => refuse("", &format!("needs exactly one source: {SOURCES}")),
            Some(ProviderSource::File(name)) if !is_file(name) => {
                refuse(".file", "is the name of a file in the folder of credentials, without `/`")
            }
            Some(ProviderSource::Env(name)) if !is_variable(name) => {
                refuse(".env", "is not a name of a variable: letters, digits and `_`")
            }
            Some(ProviderSource::Secret(secret)) => secret.check(),
            Some(ProviderSource::Token(token)) if !is_text(&token.audience) => {
                refuse(".serviceAccountToken.audience", "must be printable ASCII, 1 to 512 characters")
            }
            Some(ProviderSource::Token(token)) if !SECONDS.contains(&token.expiration_seconds) => {
                refuse(".serviceAccountToken.expirationSeconds", "must be 600 to 86400")
            }
            Some(ProviderSource::Vault(vault)) => vault.check(),
            Some(_) => Ok(()),
        }
    }
}

impl SecretKey {
    fn check(&self) -> Result<(), (String, String)> {
        let refuse = |field: &str, why: &str| Err((format!(".secret{field}"), why.to_owned()));
        if self.namespace.as_ref().is_some_and(|namespace| !is_label(namespace)) {
            return refuse(".namespace", "is not the name of a namespace");
        }
        if !is_object(&self.name) {
            return refuse(".name", "is not the name of a Secret");
        }
        let key = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.key.is_empty() || self.key.len() > NAME || !self.key.bytes().all(key) {
            return refuse(".key", "is not a key of a Secret: letters, digits, `-`, `_` and `.`");
        }
        Ok(())
    }
}

impl VaultSource {
    /// Place of the sandbox's namespace in a path.
    const NAMESPACE: &str = "{namespace}";

    /// Returns the path for a sandbox of a namespace.
    pub fn path(&self, namespace: &str) -> String {
        self.path.replace(VaultSource::NAMESPACE, namespace)
    }

    fn check(&self) -> Result<(), (String, String)> {
        let refuse = |field: &str, why: &str| Err((format!(".vault{field}"), why.to_owned()));
        let path = self.path("namespace");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let segments = path.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
        if path.len() > TEXT || !path.bytes().all(plain) || !segments || path.starts_with("sys/") {
            return refuse(
                ".path",
                "must be a path below /v1/, such as `secret/data/github`, and not of `sys`",
            );
        }
        if !is_text(&self.field) {
            return refuse(".field", "must be printable ASCII, 1 to 512 characters");
        }
        let texts = self.parameters.iter().all(|(name, value)| is_text(name) && is_text(value));
        if self.parameters.len() > PARAMETERS || !texts {
            return refuse(".parameters", "at most 16, in printable ASCII of 1 to 512 characters");
        }
        Ok(())
    }
}

fn is_file(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// Returns true for a name of a Kubernetes object.
fn is_object(name: &str) -> bool {
    name.len() <= NAME && name.split('.').all(is_label)
}

fn is_text(text: &str) -> bool {
    (1..=TEXT).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: &str) -> Result<Provider, String> {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "CredentialProvider", "metadata": {{"name": "p"}}, "spec": {spec}}}"#
        );
        let object: ProviderObject = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        object.check().map_err(|error| error.to_string())?;
        Ok(object.spec)
    }

    fn with(source: &str) -> String {
        format!(r#"{{"hosts": ["a.example"], {source}}}"#)
    }

    #[test]
    fn provider_has_one_source() {
        let secret = r#""secret": {"name": "a", "key": "token"}"#;
        assert!(matches!(read(&with(secret)).unwrap().source(), Some(ProviderSource::Secret(_))));
        assert!(matches!(read(&with(r#""file": "a.txt""#)).unwrap().source(), Some(ProviderSource::File(_))));
        for source in [format!(r#"{secret}, "file": "a""#), r#""ports": [443]"#.to_owned()] {
            assert!(read(&with(&source)).unwrap_err().contains("needs exactly one source"), "{source}");
        }
    }

    #[test]
    fn invalid_provider_is_refused_by_field() {
        for (spec, expected) in [
            (r#"{"hosts": [], "file": "a"}"#.to_owned(), "spec.hosts: "),
            (r#"{"file": "a"}"#.to_owned(), "missing field `hosts`"),
            (with(r#""file": "../a""#), "spec.file: "),
            (with(r#""file": "a/b""#), "spec.file: "),
            (with(r#""file": ".hidden""#), "spec.file: "),
            (with(r#""env": "A=B""#), "spec.env: "),
            (with(r#""secret": {"name": "A", "key": "k"}"#), "spec.secret.name: "),
            (with(r#""secret": {"name": "a", "key": "a/b"}"#), "spec.secret.key: "),
            (with(r#""secret": {"namespace": "a/b", "name": "a", "key": "k"}"#), "spec.secret.namespace: "),
            (with(r#""secret": {"name": "a", "key": "k", "value": "v"}"#), "unknown field `value`"),
            (with(r#""serviceAccountToken": {"audience": ""}"#), "spec.serviceAccountToken.audience: "),
            (
                with(r#""serviceAccountToken": {"audience": "a", "expirationSeconds": 60}"#),
                "spec.serviceAccountToken.expirationSeconds: ",
            ),
            (with(r#""vault": {"path": "sys/seal", "field": "a"}"#), "spec.vault.path: "),
            (with(r#""vault": {"path": "secret/../sys", "field": "a"}"#), "spec.vault.path: "),
            (with(r#""vault": {"path": "a?b", "field": "a"}"#), "spec.vault.path: "),
            (with(r#""token": "secret""#), "unknown field `token`"),
        ] {
            let error = read(&spec).unwrap_err();
            assert!(error.contains(expected), "{spec}: {error}");
        }
    }

    #[test]
    fn values_stay_within_the_bounds_of_the_provider() {
        let provider = read(r#"{"hosts": ["*.a.example"], "paths": ["/x/**"], "env": "A"}"#).unwrap();
        let within = |destination: &str, path: &str| {
            let path = crate::request::Path::read(path).unwrap();
            provider.bounds().covers(&destination.parse().unwrap()) && provider.bounds().covers_path(&path)
        };
        assert!(within("b.a.example", "/x/y"));
        for (destination, path) in
            [("b.example", "/x/y"), ("b.a.example:8443", "/x/y"), ("b.a.example", "/y")]
        {
            assert!(!within(destination, path), "{destination}{path}");
        }
    }

    #[test]
    fn path_of_vault_may_have_the_namespace() {
        let provider =
            read(&with(r#""vault": {"path": "secret/data/{namespace}/a", "field": "token"}"#)).unwrap();
        let Some(ProviderSource::Vault(vault)) = provider.source() else { panic!("{provider:?}") };
        assert_eq!(vault.path("team"), "secret/data/team/a");
    }
}
