//! Credentials of the machine's owner, and the files of secrets.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::identity::{Identity, SERVICE_ACCOUNT};

/// Maximum bytes of a bearer token. A longer one is refused.
pub(crate) const TOKEN_BYTES: usize = 4096;

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
