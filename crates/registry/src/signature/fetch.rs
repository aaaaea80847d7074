//! Requests for signatures of an image, in both forms in which cosign stores them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Evidence, Form, MAX_PAYLOAD, STATEMENT, Signers};
use crate::manifest::Blob;
use crate::resolve::Resolved;
use crate::session::Session;
use crate::{Digest, Error, ImageName};

/// Maximum signatures that are tried of one image at one place.
const MAX_TRIED: usize = 64;
/// Maximum bytes of a bundle: a payload in base64, a certificate and proofs of a log.
const MAX_BUNDLE: u64 = 256 << 10;
/// Type of layers with the payload of a signature, which is in an annotation.
const SIMPLE_LAYER: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation with the signature.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Type of bundles.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// Manifests and indexes of signatures.
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// Manifest with signatures, or index of such manifests.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    #[serde(default)]
    layers: Vec<Entry>,
    manifests: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    artifact_type: Option<String>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    dsse_envelope: Envelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

/// Finds a signature of an image, or of an index that leads to it. Returns `None` if the image needs none.
pub(crate) async fn find(
    signers: &Signers,
    name: &ImageName,
    sessions: &[Arc<Session>],
    image: &Resolved,
) -> Result<Option<Evidence>, Error> {
    if !signers.cover(name) {
        return Ok(None);
    }
    let mut unreachable = None;
    let mut search = Search { signers, name, tried: 0 };
    for session in sessions {
        search.tried = 0;
        for digest in image.digests() {
            match search.at(session, digest).await {
                Ok(Some(evidence)) => return Ok(Some(evidence)),
                Ok(None) => {}
                Err(error) => unreachable = Some(error),
            }
        }
    }
    let reason = match search.tried {
        0 => "the registry has none".to_owned(),
        1 => "the only one is of no key for this image, or signs something else".to_owned(),
        tried => format!("none of {tried} is of a key for this image and signs it"),
    };
    Err(unreachable.unwrap_or(Error::Unsigned { name: name.to_string(), reason }))
}

struct Search<'a> {
    signers: &'a Signers,
    name: &'a ImageName,
    tried: usize,
}

impl Search<'_> {
    /// Finds a signature at a place.
    async fn at(&mut self, session: &Session, digest: &Digest) -> Result<Option<Evidence>, Error> {
        let tag = format!("sha256-{}", digest.hex());
        if let Some(listing) = listing(session, &format!("{tag}.sig")).await? {
            let layers = listing.layers.iter().filter(|entry| entry.media_type == SIMPLE_LAYER);
            for entry in layers.take(MAX_TRIED) {
                let Some(signature) = entry.annotations.get(SIGNATURE) else { continue };
                let Some(blob) = entry.blob(MAX_PAYLOAD as u64) else { continue };
                let Some(payload) = self.unless_damaged(session.document(&blob).await)? else { continue };
                let payload = STANDARD.encode(payload);
                let evidence = Evidence { form: Form::Simple, payload, signature: signature.clone() };
                if self.is_for(&evidence, digest) {
                    return Ok(Some(evidence));
                }
            }
        }
        // Registries without the interface for referrers have their list under a tag.
        let referrers = match session.referrers(digest, BUNDLE).await {
            // Some answer unknown paths with a page.
            Ok(bytes) => serde_json::from_slice(&bytes).ok().and_then(|listing: Listing| listing.manifests),
            Err(Error::NotFound { .. } | Error::InvalidAnswer { .. }) => None,
            Err(error) => return Err(error),
        };
        let referrers = match referrers {
            Some(referrers) => referrers,
            None => listing(session, &tag).await?.and_then(|listing| listing.manifests).unwrap_or_default(),
        };
        let of_bundles = |entry: &&Entry| entry.artifact_type.as_ref().is_none_or(|kind| kind == BUNDLE);
        for referrer in referrers.iter().filter(of_bundles).take(MAX_TRIED) {
            let Some(referrer) = Digest::parse(&referrer.digest) else { continue };
            let manifest = self.unless_damaged(listing(session, &referrer.to_string()).await)?;
            let Some(manifest) = manifest.flatten() else { continue };
            let bundles = manifest.layers.iter().filter(|layer| layer.media_type == BUNDLE);
            for blob in bundles.filter_map(|layer| layer.blob(MAX_BUNDLE)).take(1) {
                let Some(bytes) = self.unless_damaged(session.document(&blob).await)? else { continue };
                let found = evidence_of(&bytes);
                if let Some(evidence) = found.into_iter().find(|evidence| self.is_for(evidence, digest)) {
                    return Ok(Some(evidence));
                }
            }
        }
        Ok(None)
    }

    /// Leaves a signature out that the registry has lost or damaged: another one may count.
    fn unless_damaged<T>(&mut self, fetched: Result<T, Error>) -> Result<Option<T>, Error> {
        match fetched {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. } | Error::DigestMismatch { .. } | Error::TooLarge { .. }) => {
                self.tried += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_for(&mut self, evidence: &Evidence, digest: &Digest) -> bool {
        self.tried += 1;
        self.tried <= MAX_TRIED
            && self.signers.check(self.name, evidence).is_ok_and(|signed| signed.contains(digest))
    }
}

impl Entry {
    fn blob(&self, most: u64) -> Option<Blob> {
        let digest = Digest::parse(&self.digest)?;
        (self.size <= most).then_some(Blob { digest, size: self.size })
    }
}

/// Fetches a manifest or an index; `None` if it is absent.
async fn listing(session: &Session, reference: &str) -> Result<Option<Listing>, Error> {
    match session.manifest_as(reference, ACCEPT).await {
        Ok(document) => Ok(Some(serde_json::from_slice(&document.bytes).unwrap_or_default())),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the signatures of a bundle.
pub(crate) fn evidence_of(bundle: &[u8]) -> Vec<Evidence> {
    let Ok(Bundle { media_type, dsse_envelope }) = serde_json::from_slice(bundle) else { return Vec::new() };
    let Envelope { payload, payload_type, signatures } = dsse_envelope;
    if media_type != BUNDLE || payload_type != STATEMENT {
        return Vec::new();
    }
    let evidence = |signature: EnvelopeSignature| Evidence {
        form: Form::Envelope,
        payload: payload.clone(),
        signature: signature.sig,
    };
    signatures.into_iter().take(MAX_TRIED).map(evidence).collect()
}
