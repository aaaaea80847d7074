//! Identity of a caller, and the credentials that prove it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header;
use hutch_serve::{Connection, PeerCertificate};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::access::impersonation::impersonated;
use crate::access::{AUTHENTICATED, MASTERS, UNAUTHENTICATED, is_master};
use crate::failure::Failure;
use crate::server::Core;
use crate::{Error, service_token};

/// Maximum bytes of a bearer token. A longer one is refused.
pub(crate) const TOKEN_BYTES: usize = 4096;

/// Start of the name of every ServiceAccount's identity.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// Name of callers without a credential.
pub(crate) const ANONYMOUS: &str = "system:anonymous";

/// The name of a ServiceAccount's identity.
pub(crate) fn service_account_name(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT}{namespace}:{name}")
}

/// Namespace and name of the ServiceAccount that an identity's name stands for.
pub(crate) fn split_service_account(identity: &str) -> Option<(&str, &str)> {
    let (namespace, name) = identity.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let valid =
        hutch_api::syntax::label(namespace).is_empty() && hutch_api::syntax::subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

/// An authenticated caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Such as `admin` or `system:serviceaccount:default:builder`.
    pub name: String,
    /// UID of the ServiceAccount; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Such as `system:masters`.
    pub groups: Vec<String>,
    /// Further facts about the caller, such as the Pod of a ServiceAccount's token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// An identity with these groups and `system:authenticated`.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Identity {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        groups.push(AUTHENTICATED.into());
        Identity { name: name.into(), groups, ..Identity::default() }
    }

    /// The owner of the machine.
    pub fn admin() -> Identity {
        Identity::new("admin", &[MASTERS])
    }

    /// A ServiceAccount.
    pub fn service_account(namespace: &str, name: &str) -> Identity {
        let all = format!("system:serviceaccounts:{namespace}");
        Identity::new(service_account_name(namespace, name), &["system:serviceaccounts", &all])
    }

    /// A caller without a credential.
    pub(crate) fn anonymous() -> Identity {
        Identity { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Identity::default() }
    }
}

/// SHA-256 of a token or certificate. The secret itself is not kept.
type Fingerprint = [u8; 32];

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Grant {
    identity: Identity,
}

/// The credentials of the machine's owner, hashed, in a file of mode 0600.
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
                // Earlier versions kept the tokens of ServiceAccounts here. Deleting the account did not end them.
                if !grant.identity.name.starts_with(SERVICE_ACCOUNT) {
                    grants.insert(key, grant);
                }
            }
        }
        Ok(Credentials { file, grants: RwLock::new(grants) })
    }

    /// Accepts a secret (a token, or a certificate's DER) as this identity from now on.
    pub(crate) fn grant(&self, secret: &[u8], identity: Identity) -> Result<(), Error> {
        let mut grants = self.grants.write().expect("a holder of the lock never panics");
        // What is known is not written again: the disk may be full.
        if grants.get(&fingerprint(secret)).is_some_and(|known| known.identity == identity) {
            return Ok(());
        }
        let mut next = grants.clone();
        next.insert(fingerprint(secret), Grant { identity });
        if let Some(file) = &self.file {
            let stored: HashMap<String, &Grant> =
                next.iter().map(|(key, grant)| (to_hex(key), grant)).collect();
            let text = serde_json::to_string_pretty(&stored).unwrap_or_default();
            write_private(file, &text)?;
        }
        *grants = next;
        Ok(())
    }

    /// Whose secret this is.
    ///
    /// The hash of the secret is compared, so timing reveals hashes only, from which no secret can be
    /// approached; the last step is constant-time all the same.
    pub(crate) fn identify(&self, secret: &[u8]) -> Option<Identity> {
        if secret.is_empty() || secret.len() > TOKEN_BYTES {
            return None;
        }
        let asked = fingerprint(secret);
        let grants = self.grants.read().expect("a holder of the lock never panics");
        let (known, grant) = grants.get_key_value(&asked)?;
        aws_lc_rs::constant_time::verify_slices_are_equal(known, &asked).ok()?;
        Some(grant.identity.clone())
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

/// Reads a file; `None` if it is missing.
pub(crate) fn read_if_there(file: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::Credentials { path: file.into(), cause: cause.to_string() }),
    }
}

/// Writes a file that only its owner can read, in a folder that is made if it is missing.
pub(crate) fn write_private(file: &Path, text: &str) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |cause: String| Error::Credentials { path: file.into(), cause };
    if let Some(folder) = file.parent() {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|cause| failed(cause.to_string()))?;
    }
    hutch_serve::write_private(file, text).map_err(|cause| failed(cause.to_string()))
}

/// Request extension: the caller showed a credential rather than being part of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct External;

/// Request extension: the caller is a part of this process that may see writes before they are on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead;

/// The bearer of a token and the audiences of the token, if this server accepts it for any audience.
pub(crate) fn bearer(core: &Core, token: &[u8]) -> Option<(Identity, Vec<String>)> {
    let owner = core.credentials.identify(token).map(|owner| (owner, vec![service_token::AUDIENCE.into()]));
    owner.or_else(|| service_token::identify(core, token))
}

/// The caller with this token, which must be one for this server.
pub(crate) fn caller(core: &Core, token: &[u8]) -> Option<Identity> {
    let (identity, audiences) = bearer(core, token)?;
    audiences.iter().any(|audience| audience == service_token::AUDIENCE).then_some(identity)
}

/// Finds out who calls: the bearer of a token, the holder of a client certificate, or `system:anonymous`. A credential
/// that is not valid gets 401. Then applies impersonation.
pub(crate) async fn authenticate(
    State(core): State<Arc<Core>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(identity) = credential(&core, &request) else { return Failure::unauthorized().into_response() };
    if is_master(&identity)
        && let Some(connection) = request.extensions().get::<Connection>()
    {
        connection.trust();
    }
    let identity = match impersonated(&core, identity, &mut request) {
        Ok(identity) => identity,
        Err(failure) => return failure.into_response(),
    };
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(identity);
    request.extensions_mut().insert(External);
    next.run(request).await
}

/// The identity of a request's credential; `None` when the credential is not valid.
fn credential(core: &Core, request: &Request) -> Option<Identity> {
    if let Some(value) = request.headers().get(header::AUTHORIZATION) {
        // Another scheme is a credential that is not known.
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| caller(core, token.trim().as_bytes()))
            .flatten();
    }
    match request.extensions().get::<PeerCertificate>() {
        Some(certificate) => {
            let (now, connection) =
                (core.ambient.now().as_second(), request.extensions().get::<Connection>());
            let user = || core.certificates.identify(&core.store, &certificate.0, now, connection);
            core.credentials.identify(&certificate.0).or_else(user)
        }
        None => Some(Identity::anonymous()),
    }
}
