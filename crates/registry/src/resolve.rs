//! Finds the image of a name for this machine: through indexes to a manifest.

use std::sync::Arc;

use bytes::Bytes;

use crate::choice::choose;
use crate::layout::{Layout, Stored};
use crate::manifest::{Blob, Image, Manifest};
use crate::platform::Platform;
use crate::session::Session;
use crate::{Digest, Error};

/// Maximum indexes between a name and a manifest.
pub(crate) const MAX_DEPTH: usize = 3;

/// An image of a registry, its manifest read and checked.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) stored: Stored,
    pub(crate) image: Image,
    /// The indexes on the way, and the manifest.
    documents: Vec<(Digest, Bytes)>,
}

impl Resolved {
    /// Digests of the indexes on the way and of the manifest.
    pub(crate) fn digests(&self) -> impl Iterator<Item = &Digest> {
        self.documents.iter().map(|(digest, _)| digest)
    }

    /// Stores the documents.
    pub(crate) fn store(&self, layout: &Layout) -> Result<(), Error> {
        self.documents.iter().try_for_each(|(_, bytes)| layout.put(bytes).map(drop))
    }
}

/// Requests the image from each place in order.
pub(crate) async fn resolve(sessions: &[Arc<Session>], reference: &str) -> Result<Resolved, Error> {
    let mut last = Error::NotFound { host: "the configuration".into(), what: "place to pull from".into() };
    for session in sessions {
        match resolve_at(session, reference).await {
            Ok(found) => return Ok(found),
            Err(error) => {
                tracing::debug!(host = session.host(), reference, %error, "failed to resolve image");
                last = error;
            }
        }
    }
    Err(last)
}

async fn resolve_at(session: &Session, reference: &str) -> Result<Resolved, Error> {
    let machine = Platform::of_this_machine();
    let mut document = session.manifest(reference).await?;
    let pulled: Digest = document.digest.clone();
    let mut documents = Vec::new();
    for _ in 0..=MAX_DEPTH {
        let manifest = Manifest::parse(&document.bytes, document.content_type.as_deref())?;
        documents.push((document.digest.clone(), document.bytes.clone()));
        match manifest {
            Manifest::Image(image) => {
                let manifest = Blob { digest: document.digest, size: document.bytes.len() as u64 };
                let stored = Stored { pulled, manifest, media_type: image.media_type.into() };
                return Ok(Resolved { stored, image, documents });
            }
            Manifest::Index(entries) => {
                let next = choose(&entries, &machine)?.blob.clone();
                document = session.manifest(&next.digest.to_string()).await?;
            }
        }
    }
    Err(Error::TooLarge { what: "the depth of its indexes".into(), limit: MAX_DEPTH.to_string() })
}
