//! Manifests and indexes of OCI and of Docker's schema 2, within bounds.

use serde::Deserialize;

use crate::error::shorten;
use crate::platform::Platform;
use crate::{Digest, Error};

/// Maximum bytes of a manifest, an index or a configuration; as `hutch-image` reads.
pub(crate) const MAX_MANIFEST: usize = 4 << 20;
/// Maximum layers of an image.
pub(crate) const MAX_LAYERS: usize = 127;
/// Maximum bytes of one layer; as `hutch-image` unpacks.
pub(crate) const MAX_LAYER: u64 = 16 << 30;
/// Maximum bytes of all layers of an image.
pub(crate) const MAX_IMAGE: u64 = 64 << 30;
/// Maximum entries of an index.
const MAX_ENTRIES: usize = 1024;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Manifests of Docker's first schema, signed or not.
const SCHEMA_1: [&str; 2] = [
    "application/vnd.docker.distribution.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
];
/// Configurations of images. Other artifacts have other types.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// Layers that `hutch-image` unpacks.
const LAYERS: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];
/// Header `Accept` of requests for manifests.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// A valid manifest or index.
#[derive(Debug, Clone)]
pub(crate) enum Manifest {
    Index(Vec<Entry>),
    Image(Image),
}

/// One image of an index.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) blob: Blob,
    pub(crate) platform: Option<Platform>,
}

/// Content of an image. All sizes are within bounds, and no layer occurs twice.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) media_type: &'static str,
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
}

/// Digest and size of content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Text {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
    fs_layers: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

impl Manifest {
    /// Reads a document. `content_type` is the header of the answer, and decides only where the document names no type.
    pub(crate) fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Manifest, Error> {
        let content_type = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
        if content_type.is_some_and(|text| SCHEMA_1.contains(&text)) {
            return Err(schema_1());
        }
        // The parser's own message may repeat content.
        let mut text: Text =
            serde_json::from_slice(bytes).map_err(|_| unsupported("its manifest is not a valid one"))?;
        let named = text.media_type.take();
        let media_type = named.as_deref().or(content_type).unwrap_or_default();
        if text.schema_version == 1 || text.fs_layers.is_some() || SCHEMA_1.contains(&media_type) {
            return Err(schema_1());
        }
        if text.schema_version != 2 {
            return Err(unsupported(&format!("its manifest has version {}, not 2", text.schema_version)));
        }
        match (media_type, text) {
            // Two readers could take such a document for different images.
            (
                _,
                Text { manifests: Some(_), config: Some(_), .. }
                | Text { manifests: Some(_), layers: Some(_), .. },
            ) => Err(unsupported("its manifest is also an index")),
            (OCI_INDEX | DOCKER_INDEX, Text { manifests: Some(found), .. }) => {
                entries(found).map(Manifest::Index)
            }
            (OCI_MANIFEST, Text { config: Some(config), layers: Some(layers), .. }) => {
                image(OCI_MANIFEST, config, layers).map(Manifest::Image)
            }
            (DOCKER_MANIFEST, Text { config: Some(config), layers: Some(layers), .. }) => {
                image(DOCKER_MANIFEST, config, layers).map(Manifest::Image)
            }
            (OCI_INDEX | DOCKER_INDEX | OCI_MANIFEST | DOCKER_MANIFEST, _) => {
                Err(unsupported("its manifest has not the content that its type requires"))
            }
            (other, _) => Err(unsupported(&format!(
                "its manifest has the type {:?}; supported are OCI and Docker schema 2",
                shorten(other)
            ))),
        }
    }
}

fn entries(found: Vec<Descriptor>) -> Result<Vec<Entry>, Error> {
    if found.len() > MAX_ENTRIES {
        return Err(Error::TooLarge { what: "the index".into(), limit: format!("{MAX_ENTRIES} entries") });
    }
    // An entry that is not for this machine may be of any form, so digests are checked where they are used.
    let entry = |d: Descriptor| Some(Entry { blob: d.blob(MAX_MANIFEST as u64).ok()?, platform: d.platform });
    Ok(found.into_iter().filter_map(entry).collect())
}

fn image(media_type: &'static str, config: Descriptor, layers: Vec<Descriptor>) -> Result<Image, Error> {
    if !CONFIGS.contains(&config.media_type.as_str()) {
        let kind = shorten(&config.media_type);
        return Err(unsupported(&format!(
            "it is an artifact of type {kind:?}, not the image of a container"
        )));
    }
    if layers.is_empty() {
        return Err(unsupported("it has no layers"));
    }
    if layers.len() > MAX_LAYERS {
        return Err(Error::TooLarge { what: "the image".into(), limit: format!("{MAX_LAYERS} layers") });
    }
    let mut found: Vec<Blob> = Vec::with_capacity(layers.len());
    for layer in layers {
        if !LAYERS.contains(&layer.media_type.as_str()) {
            let kind = shorten(&layer.media_type);
            return Err(unsupported(&format!(
                "a layer has the type {kind:?}; supported are tar, gzip and zstd"
            )));
        }
        let blob = layer.blob(MAX_LAYER)?;
        match found.iter().find(|other| other.digest == blob.digest) {
            Some(other) if other.size != blob.size => {
                return Err(unsupported("its manifest names two sizes of one layer"));
            }
            Some(_) => {}
            None => found.push(blob),
        }
    }
    let total = found.iter().map(|blob| blob.size).sum::<u64>();
    if total > MAX_IMAGE {
        return Err(Error::TooLarge { what: "the image".into(), limit: format!("{MAX_IMAGE} bytes") });
    }
    Ok(Image { media_type, config: config.blob(MAX_MANIFEST as u64)?, layers: found })
}

impl Descriptor {
    fn blob(&self, most: u64) -> Result<Blob, Error> {
        let digest = Digest::parse(&self.digest).ok_or_else(|| {
            unsupported(&format!("its digest {:?} is not a sha256 digest", shorten(&self.digest)))
        })?;
        if self.size > most {
            return Err(Error::TooLarge {
                what: format!("the size of {digest}"),
                limit: format!("{most} bytes"),
            });
        }
        Ok(Blob { digest, size: self.size })
    }
}

fn schema_1() -> Error {
    unsupported(
        "its manifest has Docker's schema 1, which has no digests of content; push it again with a newer client",
    )
}

pub(crate) fn unsupported(reason: &str) -> Error {
    Error::Unsupported(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn layer(kind: &str, size: u64) -> String {
        format!(
            r#"{{"mediaType":"{kind}","digest":"{HEX}","size":{size},"urls":["https://elsewhere.example"]}}"#
        )
    }

    fn manifest(kind: &str, config: &str, layers: &str) -> String {
        let config = layer(config, 2);
        format!(r#"{{"schemaVersion":2,"mediaType":"{kind}","config":{config},"layers":[{layers}]}}"#)
    }

    fn error(text: &str, content_type: Option<&str>) -> String {
        Manifest::parse(text.as_bytes(), content_type).unwrap_err().to_string()
    }

    #[test]
    fn both_forms_of_manifest_are_read() {
        for (kind, config, of_layer) in
            [(OCI_MANIFEST, CONFIGS[0], LAYERS[2]), (DOCKER_MANIFEST, CONFIGS[1], LAYERS[3])]
        {
            let layers = format!("{0},{0}", layer(of_layer, 7));
            let Ok(Manifest::Image(image)) =
                Manifest::parse(manifest(kind, config, &layers).as_bytes(), None)
            else {
                panic!("{kind}");
            };
            // The same layer twice is one download.
            assert_eq!((image.media_type, image.layers.len(), image.layers[0].size), (kind, 1, 7));
        }
    }

    #[test]
    fn content_type_counts_where_the_document_has_none() {
        let text = manifest("", CONFIGS[0], &layer(LAYERS[0], 1)).replace(r#""mediaType":"","#, "");
        assert!(
            Manifest::parse(
                text.as_bytes(),
                Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8")
            )
            .is_ok()
        );
        assert!(error(&text, None).contains("supported are OCI and Docker"));
        assert!(error(&text, Some(OCI_INDEX)).contains("not the content"));
    }

    #[test]
    fn other_documents_are_refused_with_the_reason() {
        let many = vec![layer(LAYERS[0], 1); 128].join(",");
        for (text, part) in [
            (r#"{"schemaVersion":1,"fsLayers":[{"blobSum":"x"}]}"#.to_owned(), "schema 1"),
            (r#"{"schemaVersion":3}"#.into(), "version 3"),
            ("[]".into(), "not a valid one"),
            (manifest(OCI_MANIFEST, "application/vnd.cncf.helm.config.v1+json", ""), "artifact"),
            (manifest(OCI_MANIFEST, CONFIGS[0], ""), "no layers"),
            (manifest(OCI_MANIFEST, CONFIGS[0], &many), "127 layers"),
            (manifest(OCI_MANIFEST, CONFIGS[0], &layer(LAYERS[0], MAX_LAYER + 1)), "exceeds"),
            (manifest(OCI_MANIFEST, CONFIGS[0], &layer("application/x-tar", 1)), "a layer has the type"),
            (
                manifest(
                    OCI_MANIFEST,
                    CONFIGS[0],
                    &format!("{},{}", layer(LAYERS[0], 1), layer(LAYERS[0], 2)),
                ),
                "two sizes",
            ),
            (
                manifest(OCI_MANIFEST, CONFIGS[0], &layer(LAYERS[0], 1))
                    .replace(r#""schemaVersion""#, r#""manifests":[],"schemaVersion""#),
                "also an index",
            ),
            (
                manifest(OCI_MANIFEST, CONFIGS[0], &layer(LAYERS[0], 1)).replace(HEX, "sha256:../../x"),
                "not a sha256",
            ),
        ] {
            let error = error(&text, None);
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(error("x", Some(SCHEMA_1[1])).contains("schema 1"));
    }
}
