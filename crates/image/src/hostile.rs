//! Names of images, the documents and layers of an OCI layout, and an image's accounts, each as one function of any bytes:
//! it neither panics nor runs without end.

use std::fs::File;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::beneath::Folder;
use crate::layout::Layout;
use crate::reference::Reference;
use crate::remove_tree;
use crate::unpack::{Owners, Packing, hex, unpack};

/// A name.
pub fn references(bytes: &[u8]) {
    if let Ok(name) = std::str::from_utf8(bytes) {
        let _ = Reference::parse(name);
    }
}

/// A folder for one call, removed with what is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("hutch-hostile-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Scratch(folder)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let file = self.0.join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, bytes).expect("written");
    }

    fn layout(&self) -> Layout {
        Layout::new(Folder::open(&self.0).expect("a folder"), &self.0)
    }

    /// Writes a blob under the name that is its due. Gives its digest.
    fn blob(&self, bytes: &[u8]) -> String {
        let digest = hex(&Sha256::digest(bytes));
        self.put(&format!("blobs/sha256/{digest}"), bytes);
        digest
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Errors cannot be reported from `drop`, and the folder is a temporary one.
        let _ = remove_tree(&self.0);
    }
}

const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// The index of a layout, in a folder that is made for it.
///
/// # Panics
/// When no folder can be had.
pub fn indexes(bytes: &[u8]) {
    let folder = Scratch::new("layout");
    folder.put("oci-layout", LAYOUT);
    folder.put("index.json", bytes);
    for tag in [None, Some("latest")] {
        let _ = folder.layout().read(tag);
    }
}

/// A manifest, a NUL, and a configuration; `CONFIG` in the manifest stands for the digest of the latter. Every name that
/// comes of them is a digest.
///
/// # Panics
/// When no folder can be had, or a path leads out of it.
pub fn manifests(bytes: &[u8]) {
    let Some(nul) = bytes.iter().position(|&byte| byte == 0) else { return };
    let folder = Scratch::new("manifest");
    let config = folder.blob(&bytes[nul + 1..]);
    let manifest = String::from_utf8_lossy(&bytes[..nul]).replace("CONFIG", &config);
    let digest = folder.blob(manifest.as_bytes());
    folder.put("oci-layout", LAYOUT);
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{digest}","size":{}}}]}}"#,
        manifest.len()
    );
    folder.put("index.json", index.as_bytes());
    let Ok(image) = folder.layout().read(None) else { return };
    assert_eq!(image.digest, format!("sha256:{digest}"));
    for layer in &image.layers {
        assert!([&layer.blob_digest, &layer.diff_id].iter().all(|hex| hex.len() == 64), "{layer:?}");
    }
    assert!(image.config.working_dir.is_none_or(|folder| folder.is_absolute()));
}

/// A layer in each packing, unpacked into a folder that is made for it; nothing beside that folder changes.
///
/// # Panics
/// When something was made elsewhere, or no folder can be had.
pub fn layers(bytes: &[u8]) {
    let folder = Scratch::new("layer");
    folder.put("blob", bytes);
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let target = folder.0.join("layer");
        std::fs::create_dir_all(&target).expect("a folder");
        let blob = File::open(folder.0.join("blob")).expect("the blob");
        let _ = unpack((blob, bytes.len() as u64), packing, &target, Owners::of_this_process());
        let names = std::fs::read_dir(&folder.0).expect("a folder").flatten().map(|entry| entry.file_name());
        assert!(names.into_iter().all(|name| name == "blob" || name == "layer"), "{packing:?}");
        // Folders of the layer may have lost what is needed to remove what is in them.
        let _ = remove_tree(&target);
    }
}

/// A report of a process that unpacks a layer. Owners that it names change nothing beside the folder of the layer.
///
/// # Panics
/// When no folder can be had, or another folder has changed its owner.
pub fn reports(bytes: &[u8]) {
    use std::os::unix::fs::MetadataExt;
    let folder = Scratch::new("report");
    folder.put("layer/folder/file", b"");
    let owner = |path: &Path| path.metadata().map(|found| (found.uid(), found.gid())).expect("a folder");
    let before = owner(&folder.0);
    crate::confined::read_report_of(bytes, &folder.0.join("layer"));
    assert_eq!(owner(&folder.0), before);
}

/// The first line names an account, the rest is `passwd` and `group` of the image. It resolves to root
/// only for an empty user, user 0, or when a line of the files has id 0.
///
/// # Panics
/// When no folder can be created, or an account resolves to root without such a cause.
pub fn accounts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (spec, files) = text.split_once('\n').unwrap_or((text, ""));
    let folder = Scratch::new("accounts");
    folder.put("etc/passwd", files.as_bytes());
    folder.put("etc/group", files.as_bytes());
    let Ok(account) = crate::names::look_up(std::slice::from_ref(&folder.0), spec) else { return };
    let user = spec.split(':').next().unwrap_or_default();
    let zero = |text: &str| text.parse() == Ok(0_u32);
    let said = files.lines().any(|line| line.split(':').nth(2).is_some_and(zero));
    assert!(account.uid != 0 || user.is_empty() || zero(user) || said, "{text:?}");
    assert!(account.home.is_none_or(|home| Path::new(&home).is_absolute()), "{text:?}");
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("image_references", super::references);
        feed("image_indexes", super::indexes);
        feed("image_manifests", super::manifests);
        feed("image_layers", super::layers);
        feed("image_accounts", super::accounts);
        feed("image_reports", super::reports);
    }
}
