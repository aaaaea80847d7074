//! Credentials for registries: files `config.json` of Docker, and Secrets of Kubernetes in the same form.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::Deserialize;
use sha2::Digest as _;

use crate::Error;
use crate::config::read_text;
use crate::digest::Digest;
use crate::helper::Helper;
use crate::names::DOCKER;
use crate::prefix::is_below;
use crate::secret::Secret;

/// Maximum bytes of a file or Secret.
pub(crate) const MAX_BYTES: u64 = 1 << 20;
/// Maximum credentials that are tried for one repository.
const MAX_TRIED: usize = 8;
/// Key of Docker for its own registry.
pub(crate) const DOCKER_KEY: &str = "https://index.docker.io/v1/";
/// User name by which helpers mark identity tokens.
const TOKEN_USER: &str = "<token>";

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    Basic {
        user: String,
        password: Secret,
    },
    /// Exchanged for a token of the repository.
    Identity(Secret),
    /// Sent as it is.
    Bearer(Secret),
}

/// Credentials of one file or of several Secrets.
#[derive(Debug, Clone, Default)]
pub struct Keychain {
    /// Most specific first.
    entries: Vec<Entry>,
    /// Helpers of single registries.
    helpers: BTreeMap<String, Helper>,
    /// Helper of all registries.
    store: Option<Helper>,
}

/// Credentials of one key.
#[derive(Debug, Clone)]
struct Entry {
    host: String,
    path: String,
    credential: Credential,
}

/// The file of Docker. Other fields of it configure Docker itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Login {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl Keychain {
    /// Reads a `config.json` of Docker of this machine's administrator. Its helpers are run when they are needed.
    ///
    /// # Errors
    /// When it cannot be read, or is not such a file. The error has no content of it.
    pub fn read(path: &Path) -> Result<Keychain, Error> {
        let origin = path.display().to_string();
        let text = Secret::new(read_text(path, MAX_BYTES)?);
        let config = parse(&origin, text.expose().as_bytes())?;
        let helper = |name: &str| Helper::new(name).map_err(|reason| wrong(&origin, reason));
        let mut keychain = Keychain { entries: entries(&origin, &config)?, ..Keychain::default() };
        for (key, name) in &config.cred_helpers {
            keychain.helpers.insert(split_key(key).0, helper(name)?);
        }
        keychain.store =
            config.creds_store.as_deref().filter(|name| !name.is_empty()).map(helper).transpose()?;
        Ok(keychain)
    }

    /// Reads the values `.dockerconfigjson` of Secrets. Helpers that they name are never run: a Secret is of a user of the
    /// cluster, and programs of this machine are not.
    ///
    /// # Errors
    /// When a Secret is not in that form. The error has no content of it.
    pub fn from_secrets<'a>(
        secrets: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Keychain, Error> {
        let mut keychain = Keychain::default();
        for (name, bytes) in secrets {
            let origin = format!("Secret {name}");
            if bytes.len() as u64 > MAX_BYTES {
                return Err(wrong(&origin, format!("has more than {MAX_BYTES} bytes")));
            }
            keychain.entries.extend(entries(&origin, &parse(&origin, bytes)?)?);
        }
        sort(&mut keychain.entries);
        Ok(keychain)
    }

    /// Returns the credentials for a repository in the order in which to try them: those with the most specific path first.
    /// `registry` is that of image names, such as `docker.io`.
    pub(crate) async fn find(&self, registry: &str, repository: &str) -> Result<Vec<Credential>, Error> {
        let fits = |entry: &&Entry| host_fits(&entry.host, registry) && is_below(repository, &entry.path);
        let mut found: Vec<Credential> =
            self.entries.iter().filter(fits).take(MAX_TRIED).map(|entry| entry.credential.clone()).collect();
        if let Some(helper) = self.helpers.get(registry).or(self.store.as_ref()) {
            let key = if registry == DOCKER { DOCKER_KEY } else { registry };
            if let Some((user, secret)) = helper.get(key).await? {
                let credential = match user == TOKEN_USER {
                    true => Credential::Identity(secret),
                    false => Credential::Basic { user, password: secret },
                };
                found.insert(0, credential);
            }
        }
        Ok(found)
    }
}

/// Distinguishes lists of credentials without keeping them.
pub(crate) fn fingerprint(credentials: &[Credential]) -> Digest {
    let mut hash = sha2::Sha256::new();
    for credential in credentials {
        let parts = match credential {
            Credential::Basic { user, password } => ["basic", user, password.expose()],
            Credential::Identity(token) => ["identity", "", token.expose()],
            Credential::Bearer(token) => ["bearer", "", token.expose()],
        };
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    Digest::finish(hash)
}

pub(crate) fn wrong(origin: &str, reason: String) -> Error {
    Error::Credentials { origin: origin.into(), reason }
}

fn parse(origin: &str, bytes: &[u8]) -> Result<DockerConfig, Error> {
    // The parser's own message may repeat content.
    serde_json::from_slice(bytes).map_err(|e| {
        wrong(origin, format!("not a config.json of Docker (line {}, column {})", e.line(), e.column()))
    })
}

fn entries(origin: &str, config: &DockerConfig) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for (key, login) in &config.auths {
        let (host, path) = split_key(key);
        let credential = read_login(login)
            .ok_or_else(|| wrong(origin, format!("auths[{key:?}].auth is not base64 of USER:PASSWORD")))?;
        // An entry without content only says that a helper has the credentials.
        entries.extend(credential.map(|credential| Entry { host, path, credential }));
    }
    sort(&mut entries);
    Ok(entries)
}

/// Sorts by length of the path, and hosts with wildcards last. The order is otherwise kept.
fn sort(entries: &mut [Entry]) {
    entries.sort_by_key(|e| (std::cmp::Reverse(e.path.len()), e.host.contains('*')));
}

/// Returns the credentials of an entry, `Some(None)` if it has none, and `None` if it is invalid.
fn read_login(login: &Login) -> Option<Option<Credential>> {
    let secret = |text: &str| Secret::new(text.to_owned());
    if !login.registrytoken.is_empty() {
        return Some(Some(Credential::Bearer(secret(&login.registrytoken))));
    }
    if !login.identitytoken.is_empty() {
        return Some(Some(Credential::Identity(secret(&login.identitytoken))));
    }
    if !login.auth.is_empty() {
        let text = login.auth.trim();
        let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok()?;
        let text = Secret::new(String::from_utf8(bytes).ok()?);
        let (user, password) = text.expose().split_once(':')?;
        // Docker pads passwords with NUL.
        let password = secret(password.trim_end_matches('\0'));
        return Some(Some(Credential::Basic { user: user.to_owned(), password }));
    }
    let named = !login.username.is_empty();
    Some(named.then(|| Credential::Basic { user: login.username.clone(), password: secret(&login.password) }))
}

/// Splits a key into host and path. Keys may be URLs, and have the version of an API as their path.
fn split_key(key: &str) -> (String, String) {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_matches('/');
    let versions = ["v1", "v2"];
    let path = match path.split_once('/') {
        Some((first, rest)) if versions.contains(&first) => rest,
        None if versions.contains(&path) => "",
        _ => path,
    };
    let host = host.to_ascii_lowercase();
    let docker = ["index.docker.io", "registry-1.docker.io"].contains(&host.as_str());
    (if docker { DOCKER.into() } else { host }, path.to_owned())
}

/// Matches hosts label by label. `*` in a label of the key stands for any text inside that label; ports are equal.
fn host_fits(key: &str, host: &str) -> bool {
    if !key.contains('*') {
        return key == host;
    }
    let (key, key_port) = key.split_once(':').unwrap_or((key, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let label = |(key, host): (&str, &str)| match key.split_once('*') {
        // One wildcard in a label is enough; others count as text.
        Some((start, end)) => {
            host.len() >= start.len() + end.len() && host.starts_with(start) && host.ends_with(end)
        }
        None => key == host,
    };
    key_port == port
        && key.split('.').count() == host.split('.').count()
        && key.split('.').zip(host.split('.')).all(label)
}

#[cfg(test)]
mod tests;
