//! Writes an image with one more layer, for an import.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Seek, Write};

use oci_spec::image::MediaType;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::export::{add, add_blob, failed};
use super::{Catalog, Listed};
use crate::Error;
use crate::layout::blob_path;
use crate::unpack::{Hashing, Packing, hex};

impl Catalog {
    /// Writes an image with one more layer as a tar archive, which is an OCI layout. `layer` is a tar archive, from its start
    /// on; `created` is the time in the form of RFC 3339.
    ///
    /// # Errors
    /// When the image is damaged, has too many layers, or the output cannot be written.
    pub fn export_with_layer(
        &self,
        image: &Listed,
        mut layer: File,
        created: &str,
        output: impl Write,
    ) -> Result<(), Error> {
        let missing = || Error::Layout { path: image.folder.clone(), reason: "the image is gone".into() };
        let (shelf, stored) = super::stored(image)?.ok_or_else(missing)?;
        let found = shelf.image(&stored)?;
        // All are open before anything is written: a removal then takes none away.
        let blobs: Vec<(&str, File)> = {
            let hexes = found.layers.iter().map(|layer| layer.blob_digest.as_str());
            { hexes }.map(|hex| Ok((hex, shelf.open_blob(hex)?))).collect::<Result<_, Error>>()?
        };
        let added = digest(&mut layer).map_err(failed)?;
        let config =
            with_layer(&shelf.document(&found.config_digest)?, &added.0, created).ok_or_else(missing)?;
        let described = |kind: &MediaType, (hex, size): (&str, u64)| json!({"mediaType": kind, "digest": format!("sha256:{hex}"), "size": size});
        let layers =
            found.layers.iter().map(|layer| (media_type(layer.packing), (&*layer.blob_digest, layer.size)));
        let layers = layers.chain([(MediaType::ImageLayer, (&*added.0, added.1))]);
        let layers: Vec<_> = { layers }.map(|(kind, blob)| described(&kind, blob)).collect();
        let config_hex = hex(&Sha256::digest(&config));
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MediaType::ImageManifest, "layers": layers,
            "config": described(&MediaType::ImageConfig, (&config_hex, config.len() as u64)),
        });
        let manifest = manifest.to_string().into_bytes();
        let manifest_hex = hex(&Sha256::digest(&manifest));
        let index = json!({"schemaVersion": 2, "mediaType": MediaType::ImageIndex, "manifests": [
            described(&MediaType::ImageManifest, (&manifest_hex, manifest.len() as u64)),
        ]});
        let mut archive = tar::Builder::new(output);
        add(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let mut written = BTreeSet::new();
        for (hex, file) in blobs.into_iter().chain([(&*added.0, layer)]) {
            if written.insert(hex) {
                add_blob(&mut archive, hex, file)?;
            }
        }
        for (hex, document) in [(&config_hex, &config), (&manifest_hex, &manifest)] {
            add(&mut archive, &blob_path(hex), document)?;
        }
        add(&mut archive, "index.json", index.to_string().as_bytes())?;
        archive.into_inner().and_then(|mut output| output.flush()).map_err(failed)
    }
}

/// Returns the hexadecimal digest and the bytes of a file, and goes back to its start.
fn digest(file: &mut File) -> io::Result<(String, u64)> {
    let (mut content, hash) = Hashing::new(&*file);
    let size = io::copy(&mut content, &mut io::sink())?;
    let digest = hex(&hash.take().finalize());
    file.rewind()?;
    Ok((digest, size))
}

/// Adds a layer to a configuration; `None` if it is not valid.
fn with_layer(config: &[u8], diff_id: &str, created: &str) -> Option<Vec<u8>> {
    let mut config: Value = serde_json::from_slice(config).ok()?;
    config["rootfs"].get_mut("diff_ids")?.as_array_mut()?.push(format!("sha256:{diff_id}").into());
    let entry = json!({"created": created, "created_by": "hutch image commit"});
    match config.get_mut("history") {
        Some(Value::Array(history)) => history.push(entry),
        _ => config["history"] = json!([entry]),
    }
    config["created"] = created.into();
    serde_json::to_vec(&config).ok()
}

/// Type of a layer in a manifest of the OCI; what came from Docker has another.
fn media_type(packing: Packing) -> MediaType {
    match packing {
        Packing::Plain => MediaType::ImageLayer,
        Packing::Gzip => MediaType::ImageLayerGzip,
        Packing::Zstd => MediaType::ImageLayerZstd,
    }
}
