//! Images in the OCI layout, made for one test.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Entry of a layer at a path.
#[derive(Clone)]
pub(crate) enum Entry<'a> {
    Folder,
    /// Executable for all users.
    Program(&'a [u8]),
    Link(&'a str),
}

/// An image of one layer, with these fields in the `config` of its configuration.
pub(crate) fn image(folder: &Path, config: &Value, entries: &[(&str, Entry<'_>)]) {
    fs::create_dir_all(folder.join("blobs/sha256")).expect("folder");
    fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
    let layer = layer(entries);
    let diff = format!("sha256:{}", hex(&layer));
    let layer = blob(folder, "application/vnd.oci.image.layer.v1.tar", &layer);
    let whole = json!({"architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff]}});
    let config = blob(folder, "application/vnd.oci.image.config.v1+json", whole.to_string().as_bytes());
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer]});
    let manifest =
        blob(folder, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(folder.join("index.json"), index.to_string()).expect("write");
}

fn layer(entries: &[(&str, Entry<'_>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, entry) in entries {
        let mut header = tar::Header::new_ustar();
        let (kind, mode, bytes) = match entry {
            Entry::Folder => (tar::EntryType::Directory, 0o755, &b""[..]),
            Entry::Program(bytes) => (tar::EntryType::Regular, 0o755, *bytes),
            Entry::Link(_) => (tar::EntryType::Symlink, 0o777, &b""[..]),
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        if let Entry::Link(target) = entry {
            header.set_link_name(target).expect("a short link");
        }
        archive.append_data(&mut header, path, bytes).expect("a layer in memory");
    }
    archive.into_inner().expect("a layer in memory")
}

/// Stores it under its digest; its descriptor.
fn blob(folder: &Path, media_type: &str, bytes: &[u8]) -> Value {
    let digest = hex(bytes);
    fs::write(folder.join("blobs/sha256").join(&digest), bytes).expect("write");
    json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len()})
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
