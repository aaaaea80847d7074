//! Writes an image as a tar archive, which is an OCI layout. It has also the list that `docker load` reads.

use std::io::{self, Read, Write};
use std::path::Path;

use oci_spec::image::MediaType;
use serde_json::json;
use sha2::Digest;

use super::{Catalog, Listed};
use crate::Error;
use crate::layout::blob_path;
use crate::unpack::{Hashing, hex};

/// Annotation with the full name of an image.
const FULL_NAME: &str = "io.containerd.image.name";
/// Annotation with its tag.
const TAG: &str = "org.opencontainers.image.ref.name";

impl Catalog {
    /// Writes an image under a full name and its tag.
    ///
    /// # Errors
    /// When the image is damaged, also if that shows only at its end, or the output cannot be written.
    pub fn export(
        &self,
        image: &Listed,
        (name, tag): (&str, Option<&str>),
        output: impl Write,
    ) -> Result<(), Error> {
        let missing = || Error::Layout { path: image.folder.clone(), reason: "the image is gone".into() };
        let (shelf, stored) = super::stored(image)?.ok_or_else(missing)?;
        shelf.image(&stored)?;
        let digests = [&image.digest, &image.config_digest].into_iter();
        let mut digests: Vec<&String> =
            digests.chain(image.layers.iter().map(|layer| &layer.digest)).collect();
        digests.sort();
        digests.dedup();
        // All are open before anything is written: a removal then takes none away.
        let mut blobs = Vec::new();
        for digest in digests {
            let hex = digest.strip_prefix("sha256:").ok_or_else(missing)?;
            blobs.push((hex, shelf.open_blob(hex)?));
        }
        let mut archive = tar::Builder::new(output);
        add(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        for (hex, file) in blobs {
            add_blob(&mut archive, hex, file)?;
        }
        let annotations = json!({FULL_NAME: name, TAG: tag.unwrap_or(name)});
        let index = json!({"schemaVersion": 2, "mediaType": MediaType::ImageIndex, "manifests": [{
            "mediaType": stored.manifest.media_type(), "digest": image.digest,
            "size": stored.manifest.size(), "annotations": annotations,
        }]});
        add(&mut archive, "index.json", index.to_string().as_bytes())?;
        let path = |digest: &String| digest.strip_prefix("sha256:").map(blob_path);
        let layers: Vec<_> = image.layers.iter().map(|layer| path(&layer.digest)).collect();
        let list = json!([{"Config": path(&image.config_digest), "RepoTags": [name], "Layers": layers}]);
        add(&mut archive, "manifest.json", list.to_string().as_bytes())?;
        archive.into_inner().and_then(|mut output| output.flush()).map_err(failed)
    }
}

pub(super) fn add_blob(
    archive: &mut tar::Builder<impl Write>,
    hex_digest: &str,
    file: std::fs::File,
) -> Result<(), Error> {
    let path = blob_path(hex_digest);
    let size = file.metadata().map_err(Error::file("read", &path))?.len();
    // A file that grows meanwhile would break the archive, and one that shrinks is found by its digest.
    let (blob, hash) = Hashing::new(file.take(size));
    archive.append_data(&mut header(size), &path, blob).map_err(failed)?;
    match hex(&hash.take().finalize()) == hex_digest {
        true => Ok(()),
        false => Err(Error::DigestMismatch { what: path }),
    }
}

pub(super) fn add(archive: &mut tar::Builder<impl Write>, path: &str, bytes: &[u8]) -> Result<(), Error> {
    archive.append_data(&mut header(bytes.len() as u64), path, bytes).map_err(failed)
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

pub(super) fn failed(error: io::Error) -> Error {
    Error::file("write", Path::new("the archive"))(error)
}
