//! Signatures that cosign makes with a key: which images need one, and the check of one.
//!
//! Both forms of cosign are read: payloads under the tag `sha256-DIGEST.sig`, and bundles v0.3 that refer to the image.
//! A signature counts if a key of the configuration made it, and its payload is about signing and has the digest of the
//! image. Certificates, transparency logs and timestamps are not read: the key decides.

mod fetch;
mod key;
#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::prefix::Prefix;
use crate::{Digest, Error, ImageName};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fetch::evidence_of;
pub(crate) use fetch::find;
use key::Key;

/// Maximum bytes of what is signed. Payloads of cosign have less than 1 kB; annotations of the signer add to them.
const MAX_PAYLOAD: usize = 64 << 10;
/// Maximum bytes of a signature. RSA of 8,192 bits has 1,024.
const MAX_SIGNATURE: usize = 2 << 10;
/// Maximum subjects of a statement.
const MAX_SUBJECTS: usize = 64;
/// Type of the payload of a bundle.
const STATEMENT: &str = "application/vnd.in-toto+json";
/// Type of payloads of `.sig` tags.
const SIMPLE: &str = "cosign container image signature";
/// Predicate of a statement about an image that is signed. Attestations, also of the same key, have others.
const SIGNED: &str = "https://sigstore.dev/cosign/sign/v1";

/// Which images need a signature, with the keys of their signers.
#[derive(Debug, Default)]
pub struct Signers {
    rules: Vec<(Prefix, Vec<Key>)>,
}

/// A signature with what it signs, as a registry sent them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    form: Form,
    /// In base64.
    payload: String,
    /// In base64.
    signature: String,
}

/// Form of a payload: it decides which bytes are signed, and where the digest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Form {
    /// Payload of a `.sig` tag.
    Simple,
    /// DSSE envelope of a bundle.
    Envelope,
}

#[derive(Deserialize)]
struct Simple {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: SimpleImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct SimpleImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    predicate_type: String,
    subject: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    sha256: Option<String>,
}

impl Signers {
    /// Reads the keys that the configuration names.
    ///
    /// # Errors
    /// When a file cannot be read, or has no public key in PEM of a kind that is supported.
    pub fn read(config: &Config) -> Result<Signers, Error> {
        let mut rules = Vec::new();
        for (i, rule) in config.signatures().iter().enumerate() {
            let mut keys = Vec::new();
            for (j, path) in rule.keys.iter().enumerate() {
                let field = format!("signatures[{i}].keys[{j}]");
                keys.extend(Key::read(path).map_err(|reason| Error::InvalidConfig { field, reason })?);
            }
            rules.push((rule.prefix.clone(), keys));
        }
        Ok(Signers { rules })
    }

    /// Returns `true` for images that need a signature.
    pub fn cover(&self, name: &ImageName) -> bool {
        !self.keys(name).is_empty()
    }

    /// Checks a signature of an image. Returns the digests of manifests and indexes that it is for.
    ///
    /// # Errors
    /// When none of the keys for the image made it, or it signs no image.
    pub fn check(&self, name: &ImageName, evidence: &Evidence) -> Result<Vec<Digest>, Error> {
        let invalid = |reason: &str| Error::Unsigned { name: name.to_string(), reason: reason.into() };
        let bytes = |text: &str, most: usize| {
            let fits = text.len() <= most.div_ceil(3) * 4;
            fits.then(|| STANDARD.decode(text).ok()).flatten()
        };
        let payload =
            bytes(&evidence.payload, MAX_PAYLOAD).ok_or_else(|| invalid("its payload is not valid"))?;
        let signature =
            bytes(&evidence.signature, MAX_SIGNATURE).ok_or_else(|| invalid("the signature is not valid"))?;
        let message = evidence.form.message(&payload);
        if !self.keys(name).iter().any(|key| key.has_signed(&message, &signature)) {
            return Err(invalid("the signature is of no key for this image"));
        }
        evidence
            .form
            .digests(&payload)
            .ok_or_else(|| invalid("what is signed is not that an image is signed"))
    }

    /// Signers of all images, by the keys of a PEM.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_all(pem: &str) -> Signers {
        Signers { rules: vec![(Prefix::All, Key::parse(pem.as_bytes()).expect("valid keys"))] }
    }

    /// Returns the keys of the closest prefix that covers the image.
    fn keys(&self, name: &ImageName) -> &[Key] {
        let rank = |(prefix, keys): &(Prefix, Vec<Key>)| match keys.is_empty() {
            // An exception is not read in two ways.
            true => prefix.allows(name).then(|| prefix.covers(name))?,
            false => prefix.covers(name),
        };
        let covering = self.rules.iter().filter_map(|rule| Some((rank(rule)?, &rule.1)));
        covering.max_by_key(|(rank, _)| *rank).map_or(&[], |(_, keys)| keys)
    }
}

impl Form {
    /// Returns the bytes that are signed.
    fn message(self, payload: &[u8]) -> Vec<u8> {
        match self {
            Form::Simple => payload.to_vec(),
            // Pre-authentication encoding of DSSE v1.
            Form::Envelope => {
                let head = format!("DSSEv1 {} {STATEMENT} {} ", STATEMENT.len(), payload.len());
                [head.as_bytes(), payload].concat()
            }
        }
    }

    /// Returns the digests of images that a payload says are signed; `None` if it says something else.
    fn digests(self, payload: &[u8]) -> Option<Vec<Digest>> {
        match self {
            Form::Simple => {
                let Simple { critical } = serde_json::from_slice(payload).ok()?;
                (critical.kind == SIMPLE)
                    .then(|| Digest::parse(&critical.image.digest))
                    .flatten()
                    .map(|d| vec![d])
            }
            Form::Envelope => {
                let statement: Statement = serde_json::from_slice(payload).ok()?;
                let digest = |subject: &Subject| {
                    Digest::parse(&format!("sha256:{}", subject.digest.sha256.as_deref()?))
                };
                let signed = statement.predicate_type == SIGNED && statement.subject.len() <= MAX_SUBJECTS;
                signed.then(|| statement.subject.iter().filter_map(digest).collect())
            }
        }
    }
}
