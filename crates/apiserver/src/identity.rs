//! Who calls, and how they show it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header;
use hutch_serve::PeerCertificate;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::failure::Failure;
use crate::server::Core;

/// Bytes of a bearer token at most; longer ones are not looked at.
const TOKEN_BYTES: usize = 4096;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Such as `admin` or `system:serviceaccount:default:builder`.
    pub name: String,
    /// Such as `system:masters`.
    pub groups: Vec<String>,
}

impl Identity {
    /// An identity with these groups and `system:authenticated`.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Identity {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        groups.push("system:authenticated".into());
        Identity { name: name.into(), groups }
    }

    /// The owner of the machine.
    pub fn admin() -> Identity {
        Identity::new("admin", &["system:masters"])
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str) -> Identity {
        let all = format!("system:serviceaccounts:{namespace}");
        Identity::new(format!("system:serviceaccount:{namespace}:{name}"), &["system:serviceaccounts", &all])
    }
}

/// SHA-256 of a token or certificate. The secret itself is not kept.
type Fingerprint = [u8; 32];

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Grant {
    identity: Identity,
    /// Unix seconds after which it is void.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    expires: Option<i64>,
}

/// The credentials that are accepted, hashed, in a file of mode 0600.
pub(crate) struct Credentials {
    file: Option<PathBuf>,
    grants: RwLock<HashMap<Fingerprint, Grant>>,
}

fn fingerprint(secret: &[u8]) -> Fingerprint {
    Sha256::digest(secret).into()
}

impl Credentials {
    pub(crate) fn open(folder: Option<&Path>) -> Result<Self, Error> {
        let file = folder.map(|folder| folder.join("credentials.json"));
        let mut grants = HashMap::new();
        if let Some(file) = &file
            && let Some(text) = read_if_there(file)?
        {
            let unusable = |cause: String| Error::Credentials { path: file.clone(), cause };
            let stored: HashMap<String, Grant> =
                serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
            for (hex, grant) in stored {
                let key = from_hex(&hex).ok_or_else(|| unusable(format!("{hex:?} is no fingerprint")))?;
                grants.insert(key, grant);
            }
        }
        Ok(Credentials { file, grants: RwLock::new(grants) })
    }

    /// Accepts a secret (a token, or a certificate's DER) as this identity from now on.
    pub(crate) fn grant(&self, secret: &[u8], identity: Identity, expires: Option<i64>) -> Result<(), Error> {
        let mut grants = self.grants.write().expect("a holder of the lock never panics");
        let now = jiff::Timestamp::now().as_second();
        let mut next = grants.clone();
        next.retain(|_, grant| grant.expires.is_none_or(|expires| expires > now));
        next.insert(fingerprint(secret), Grant { identity, expires });
        if let Some(file) = &self.file {
            let stored: HashMap<String, &Grant> =
                next.iter().map(|(key, grant)| (to_hex(key), grant)).collect();
            let text = serde_json::to_string_pretty(&stored).unwrap_or_default();
            write_private(file, &text)
                .map_err(|cause| Error::Credentials { path: file.clone(), cause: cause.to_string() })?;
        }
        *grants = next;
        Ok(())
    }

    /// Whose secret this is.
    ///
    /// What is compared is the hash of the secret, so timing tells about hashes only, from which no secret can be
    /// approached; the last step is constant-time all the same.
    pub(crate) fn identify(&self, secret: &[u8]) -> Option<Identity> {
        if secret.is_empty() || secret.len() > TOKEN_BYTES {
            return None;
        }
        let asked = fingerprint(secret);
        let grants = self.grants.read().expect("a holder of the lock never panics");
        let (known, grant) = grants.get_key_value(&asked)?;
        aws_lc_rs::constant_time::verify_slices_are_equal(known, &asked).ok()?;
        let now = jiff::Timestamp::now().as_second();
        grant.expires.is_none_or(|expires| expires > now).then(|| grant.identity.clone())
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Fingerprint> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(bytes)
}

fn read_if_there(file: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::Credentials { path: file.into(), cause: cause.to_string() }),
    }
}

fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    if let Some(folder) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let fresh = file.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&fresh, file)
}

/// Request extension: the caller showed a credential rather than being part of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct External;

/// Request extension: the caller is a part of this process that may see writes before they are on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead;

/// Lets nobody pass without a credential: a bearer token, or a client certificate that was granted.
pub(crate) async fn authenticate(
    State(core): State<Arc<Core>>,
    mut request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let identity = match (header, token) {
        (_, Some(token)) => core.credentials.identify(token.as_bytes()),
        // Another scheme is a credential that was tried and is not known.
        (Some(_), None) => None,
        (None, None) => request
            .extensions()
            .get::<PeerCertificate>()
            .and_then(|certificate| core.credentials.identify(&certificate.0)),
    };
    let Some(identity) = identity else { return Failure::unauthorized().into_response() };
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(identity);
    request.extensions_mut().insert(External);
    next.run(request).await
}
