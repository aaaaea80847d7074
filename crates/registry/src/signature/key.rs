//! Public keys of signers.

use std::path::Path;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P521_SHA512_ASN1, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use ed25519_dalek::{Signature, VerifyingKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha512};

use crate::config::read_text;

/// Maximum bytes of a file with keys.
const MAX_FILE: u64 = 64 << 10;

/// Algorithms with which cosign signs by keys, besides Ed25519ph, which the library does not have.
static ALGORITHMS: [&dyn VerificationAlgorithm; 4] =
    [&ECDSA_P256_SHA256_ASN1, &ECDSA_P384_SHA384_ASN1, &ECDSA_P521_SHA512_ASN1, &RSA_PKCS1_2048_8192_SHA256];

/// Start of a public key of Ed25519 in DER, before its 32 bytes.
const ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A public key, with the one algorithm that it is for.
#[derive(Debug)]
pub(super) enum Key {
    Parsed(ParsedPublicKey),
    /// For Ed25519ph without a context. cosign makes no pure signatures with such a key.
    Prehashed(Box<VerifyingKey>),
}

impl Key {
    /// Reads the keys of a file in PEM.
    pub(super) fn read(path: &Path) -> Result<Vec<Key>, String> {
        let text = read_text(path, MAX_FILE).map_err(|error| error.to_string())?;
        Key::parse(text.as_bytes()).map_err(|reason| format!("{} {reason}", path.display()))
    }

    /// Reads keys in PEM.
    pub(super) fn parse(pem: &[u8]) -> Result<Vec<Key>, String> {
        let mut keys = Vec::new();
        for der in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
            let der = der.map_err(|_| "is not valid PEM")?;
            let parsed = ALGORITHMS.iter().find_map(|algorithm| ParsedPublicKey::new(*algorithm, &*der).ok());
            keys.push(parsed.map(Key::Parsed).or_else(|| prehashed(&der)).ok_or(
                "has a key that is not supported: write ECDSA P-256, P-384, P-521, Ed25519, or RSA of 2,048 to 8,192 bits",
            )?);
        }
        match keys.is_empty() {
            true => {
                Err("has no public key in PEM: write the file cosign.pub of cosign generate-key-pair".into())
            }
            false => Ok(keys),
        }
    }

    /// Returns `true` if the key made the signature of the message.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Key::Parsed(key) => key.verify_sig(message, signature).is_ok(),
            Key::Prehashed(key) => Signature::from_slice(signature).is_ok_and(|signature| {
                key.verify_prehashed_strict(Sha512::new_with_prefix(message), None, &signature).is_ok()
            }),
        }
    }
}

/// Reads a key of Ed25519.
fn prehashed(der: &[u8]) -> Option<Key> {
    let key = VerifyingKey::from_bytes(der.strip_prefix(&ED25519)?.try_into().ok()?).ok()?;
    (!key.is_weak()).then(|| Key::Prehashed(Box::new(key)))
}
