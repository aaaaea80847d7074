//! Credentials of the machine's owner, and the files of secrets.

use std::collections::HashMap;
use std::path::Path;
use std::sync::RwLock;

use sha2::{Digest, Sha256};

use crate::Error;
use crate::identity::Identity;

/// Maximum bytes of a bearer token. A longer one is refused.
pub(crate) const TOKEN_BYTES: usize = 4096;

/// SHA-256 of a token. The token itself is not kept.
type Fingerprint = [u8; 32];

/// The credentials of the machine's owner, hashed. They last as long as the process: who replaces the file of a token ends the
/// old one with a restart.
#[derive(Default)]
pub(crate) struct Credentials(RwLock<HashMap<Fingerprint, Identity>>);

fn fingerprint(secret: &[u8]) -> Fingerprint {
    Sha256::digest(secret).into()
}

impl Credentials {
    /// Accepts a token as this identity from now on.
    pub(crate) fn grant(&self, token: &[u8], identity: Identity) {
        self.0.write().expect("a holder of the lock never panics").insert(fingerprint(token), identity);
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
        let grants = self.0.read().expect("a holder of the lock never panics");
        let (known, identity) = grants.get_key_value(&asked)?;
        aws_lc_rs::constant_time::verify_slices_are_equal(known, &asked).ok()?;
        Some(identity.clone())
    }
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
