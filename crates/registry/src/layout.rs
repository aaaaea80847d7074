//! The store: an OCI layout folder with the images of all names.
//!
//! A blob gets its name after its digest was checked and its bytes are on the disk, and `index.json` names an image after
//! all its blobs are there. So a process that is killed leaves nothing that counts as whole and is not.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::read_text;
use crate::manifest::Blob;
use crate::platform::Platform;
use crate::{Digest, Error, ImageName};

/// Annotation of the OCI with the name of an image.
const NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation with the digest that the registry has for the name, which may be that of an index.
const PULLED: &str = "dev.hutch.image.digest";
/// Maximum bytes of `index.json`; as `hutch-image` reads.
const MAX_INDEX: u64 = 4 << 20;
/// Maximum images of a store whose oldest ones are forgotten. Each takes at most 1.6 kB of `index.json`.
const NAMES: usize = 2048;
/// Interval at which a pull waits for a removal.
const PULLS_INTERVAL: Duration = Duration::from_millis(50);
/// Age at which an incomplete download is abandoned.
const ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

/// An open store.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    dir: PathBuf,
}

/// File `index.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u8,
    media_type: String,
    manifests: Vec<Named>,
}

/// An image with its name.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Named {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// An image as the store names it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Digest that the registry has for the name.
    pub(crate) pulled: Digest,
    pub(crate) manifest: Blob,
    pub(crate) media_type: String,
}

impl Layout {
    /// Opens the folder, creating what is missing with mode 0700, and removes downloads that were abandoned.
    pub(crate) fn open(dir: &Path) -> Result<Layout, Error> {
        let layout = Layout { dir: dir.to_owned() };
        let blobs = dir.join("blobs");
        for folder in [dir, &blobs, &blobs.join("sha256"), &layout.partials()] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(Error::file("make", folder))?;
        }
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir, private).map_err(Error::file("set the mode of", dir))?;
        let _lock = layout.lock()?;
        if !dir.join("oci-layout").exists() {
            layout.replace("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        }
        if !dir.join("index.json").exists() {
            layout.write_index(&layout.empty())?;
        }
        layout.set_damaged_index_aside()?;
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(layout.pulls())
            .map_err(Error::file("make", &layout.pulls()))?;
        layout.sweep();
        Ok(layout)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a whole blob.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.hex())
    }

    /// Path of a blob that is being downloaded.
    pub(crate) fn partial(&self, digest: &Digest) -> PathBuf {
        self.partials().join(digest.hex())
    }

    /// File that is locked while images are pulled.
    fn pulls(&self) -> PathBuf {
        self.dir.join("pulls")
    }

    /// Keeps blobs from being removed until the file is dropped, because no name leads to them yet. Waits for a removal.
    pub(crate) async fn pulling(&self) -> Result<File, Error> {
        let (path, file) = self.open_pulls()?;
        while let Err(errno) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(Error::file("lock", &path)(errno));
            }
            tokio::time::sleep(PULLS_INTERVAL).await;
        }
        Ok(file)
    }

    /// As [`Layout::pulling`], for a thread that may block.
    pub(crate) fn importing(&self) -> Result<File, Error> {
        let (path, file) = self.open_pulls()?;
        rustix::fs::flock(&file, FlockOperation::LockShared).map_err(Error::file("lock", &path))?;
        Ok(file)
    }

    fn open_pulls(&self) -> Result<(PathBuf, File), Error> {
        let path = self.pulls();
        let file = File::open(&path).map_err(Error::file("open", &path))?;
        Ok((path, file))
    }

    /// Checks for which machine an image is, whose configuration is there.
    pub(crate) fn check_platform(&self, config: &Blob) -> Result<(), Error> {
        let bytes = self.read(config)?;
        let platform: Platform = serde_json::from_slice(&bytes)
            .map_err(|_| Error::Unsupported("its configuration is not valid".into()))?;
        platform.check_on(&Platform::of_this_machine())
    }

    /// Gives a damaged `index.json` another name and starts an empty one: its images are pulled again. The caller has the
    /// lock.
    fn set_damaged_index_aside(&self) -> Result<(), Error> {
        let path = self.dir.join("index.json");
        let error = match self.read_index() {
            Err(error @ Error::Damaged { .. }) => error,
            other => return other.map(drop),
        };
        let aside = self.dir.join("index.json.damaged");
        tracing::warn!(%error, aside = %aside.display(), "names of pulled images are damaged and set aside");
        std::fs::rename(&path, &aside).map_err(Error::file("rename", &path))?;
        self.write_index(&self.empty())
    }

    pub(crate) fn partials(&self) -> PathBuf {
        self.dir.join("partial")
    }

    /// Returns `true` when the whole blob is there.
    pub(crate) fn has(&self, blob: &Blob) -> bool {
        std::fs::metadata(self.blob(&blob.digest)).is_ok_and(|m| m.is_file() && m.len() == blob.size)
    }

    /// Gives a checked file the name of its digest, after its bytes are on the disk.
    pub(crate) fn keep(&self, file: &File, path: &Path, digest: &Digest) -> Result<(), Error> {
        file.sync_all().map_err(Error::file("write out", path))?;
        let blob = self.blob(digest);
        std::fs::rename(path, &blob).map_err(Error::file("name", &blob))?;
        sync(&self.dir.join("blobs/sha256"))
    }

    /// Stores a small document.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<Blob, Error> {
        let blob = Blob { digest: Digest::of(bytes), size: bytes.len() as u64 };
        if !self.has(&blob) {
            let path = self.partials();
            let mut file =
                tempfile::NamedTempFile::new_in(&path).map_err(Error::file("make a file in", &path))?;
            file.write_all(bytes).map_err(Error::file("write", file.path()))?;
            let (file, path) = file.into_parts();
            self.keep(&file, &path, &blob.digest)?;
            // It has another name now.
            let _ = path.keep();
        }
        Ok(blob)
    }

    /// Reads a small blob again.
    pub(crate) fn read(&self, blob: &Blob) -> Result<Vec<u8>, Error> {
        let path = self.blob(&blob.digest);
        read_text(&path, blob.size).map(String::into_bytes)
    }

    /// Returns the image of a name whose manifest is there.
    pub(crate) fn find(&self, name: &ImageName) -> Result<Option<Stored>, Error> {
        let name = name.to_string();
        let index = match self.read_index() {
            // It is set aside by the next pull.
            Err(Error::Damaged { .. }) => return Ok(None),
            index => index?,
        };
        let Some(named) = index.manifests.into_iter().find(|n| n.annotations.get(NAME) == Some(&name)) else {
            return Ok(None);
        };
        let Some(digest) = Digest::parse(&named.digest) else { return Ok(None) };
        let pulled = named.annotations.get(PULLED).and_then(|text| Digest::parse(text));
        let manifest = Blob { digest: digest.clone(), size: named.size };
        let stored = Stored { pulled: pulled.unwrap_or(digest), manifest, media_type: named.media_type };
        Ok(self.has(&stored.manifest).then_some(stored))
    }

    /// Names an image whose blobs are all there, all at once. Its earlier images lose the names. With `forget`, the oldest
    /// images lose their names when there are too many.
    pub(crate) fn name<'a>(
        &self,
        names: impl IntoIterator<Item = &'a ImageName>,
        image: &Stored,
        forget: bool,
    ) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.set_damaged_index_aside()?;
        let mut index = self.read_index()?;
        let mut changed = false;
        for name in names {
            let text = name.to_string();
            let annotations = [(NAME, text.clone()), (PULLED, image.pulled.to_string())];
            let named = Named {
                media_type: image.media_type.clone(),
                digest: image.manifest.digest.to_string(),
                size: image.manifest.size,
                annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
            };
            if !index.manifests.contains(&named) {
                index.manifests.retain(|other| other.annotations.get(NAME) != Some(&text));
                index.manifests.push(named);
                changed = true;
            }
        }
        if !changed {
            return Ok(());
        }
        if forget && index.manifests.len() > NAMES {
            index.manifests.drain(..index.manifests.len() - NAMES);
        }
        self.write_index(&index)
    }

    fn empty(&self) -> Index {
        let media_type = "application/vnd.oci.image.index.v1+json".into();
        Index { schema_version: 2, media_type, manifests: Vec::new() }
    }

    fn read_index(&self) -> Result<Index, Error> {
        let path = self.dir.join("index.json");
        let file = File::open(&path).map_err(Error::file("open", &path))?;
        let mut bytes = Vec::new();
        file.take(MAX_INDEX + 1).read_to_end(&mut bytes).map_err(Error::file("read", &path))?;
        let read: Option<Index> =
            if bytes.len() as u64 > MAX_INDEX { None } else { serde_json::from_slice(&bytes).ok() };
        // Other readers refuse the whole file for one digest.
        let valid =
            |index: &Index| index.manifests.iter().all(|named| Digest::parse(&named.digest).is_some());
        read.filter(valid).ok_or_else(|| Error::Damaged { path: path.display().to_string() })
    }

    fn write_index(&self, index: &Index) -> Result<(), Error> {
        let path = self.dir.join("index.json");
        let bytes = serde_json::to_vec(index).map_err(Error::file("write", &path))?;
        if bytes.len() as u64 > MAX_INDEX {
            let what = path.display().to_string();
            return Err(Error::TooLarge { what, limit: format!("{MAX_INDEX} bytes: too many images") });
        }
        self.replace("index.json", &bytes)
    }

    /// Replaces a file as a whole.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.dir.join(name);
        let failed = || Error::file("write", &path);
        let mut file = tempfile::NamedTempFile::new_in(self.partials()).map_err(failed())?;
        file.write_all(bytes).map_err(failed())?;
        file.as_file().sync_all().map_err(failed())?;
        file.persist(&path).map_err(|e| failed()(e.error))?;
        sync(&self.dir)
    }

    /// Waits for the right to change `index.json`, which lasts until the file is closed.
    pub(crate) fn lock(&self) -> Result<File, Error> {
        let path = self.dir.join("lock");
        let options = File::options().create(true).truncate(false).write(true).open(&path);
        let file = options.map_err(Error::file("open", &path))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(Error::file("lock", &path))?;
        Ok(file)
    }

    /// Removes old files that no process has locked.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(self.partials()) else { return };
        for entry in entries.flatten() {
            let age = |time| SystemTime::now().duration_since(time).unwrap_or_default();
            // Only the process that began one with a name of its own continues it.
            let own = entry.path().extension().is_some();
            let old =
                own || entry.metadata().and_then(|m| m.modified()).is_ok_and(|time| age(time) > ABANDONED);
            let Some(file) = old.then(|| File::open(entry.path()).ok()).flatten() else { continue };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                // What cannot be removed now is tried again at the next start.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Writes the names of a folder to the disk.
fn sync(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::file("write out", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(layout: &Layout, text: &str) -> Stored {
        let manifest = layout.put(text.as_bytes()).unwrap();
        Stored { pulled: Digest::of(b"index"), manifest, media_type: "m".into() }
    }

    #[test]
    fn name_leads_to_the_last_image() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let name = ImageName::parse("python").unwrap();
        assert!(layout.find(&name).unwrap().is_none());
        layout.name([&name], &stored(&layout, "one"), false).unwrap();
        layout.name([&ImageName::parse("other").unwrap()], &stored(&layout, "one"), false).unwrap();
        layout.name([&name], &stored(&layout, "two"), false).unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let found = layout.find(&name).unwrap().unwrap();
        assert_eq!((found.manifest.digest, found.pulled), (Digest::of(b"two"), Digest::of(b"index")));
        assert_eq!(layout.read_index().unwrap().manifests.len(), 2);
    }

    #[test]
    fn oldest_images_lose_their_names_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let image = stored(&layout, "one");
        let name = |number: usize| {
            ImageName::parse("python").unwrap().with_digest(&Digest::of(&number.to_le_bytes()))
        };
        let mut index = layout.empty();
        for number in 0..NAMES {
            let annotations = [(NAME.to_owned(), name(number).to_string())].into();
            let (media_type, digest) = ("m".to_owned(), image.manifest.digest.to_string());
            index.manifests.push(Named { media_type, digest, size: image.manifest.size, annotations });
        }
        layout.write_index(&index).unwrap();
        layout.name([&name(NAMES)], &image, true).unwrap();
        assert!(layout.find(&name(0)).unwrap().is_none());
        assert!(layout.find(&name(1)).unwrap().is_some() && layout.find(&name(NAMES)).unwrap().is_some());
    }

    #[test]
    fn damaged_names_are_set_aside_and_pulls_work_again() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let name = ImageName::parse("python").unwrap();
        let bad_digest =
            br#"{"schemaVersion":2,"mediaType":"m","manifests":[{"mediaType":"m","digest":"x","size":1}]}"#;
        for damaged in [&b"{"[..], b"", b"\xff\xfe", bad_digest, &vec![b' '; MAX_INDEX as usize + 1]] {
            let image = stored(&layout, "one");
            layout.name([&name], &image, false).unwrap();
            std::fs::write(dir.path().join("index.json"), damaged).unwrap();
            assert!(layout.find(&name).unwrap().is_none());
            layout.name([&name], &image, false).unwrap();
            assert!(layout.find(&name).unwrap().is_some());
            std::fs::write(dir.path().join("index.json"), damaged).unwrap();
            assert!(Layout::open(dir.path()).unwrap().find(&name).unwrap().is_none());
            assert_eq!(std::fs::read(dir.path().join("index.json.damaged")).unwrap(), damaged);
        }
    }

    #[test]
    fn image_without_its_manifest_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let name = ImageName::parse("python").unwrap();
        let image = stored(&layout, "one");
        layout.name([&name], &image, false).unwrap();
        std::fs::remove_file(layout.blob(&image.manifest.digest)).unwrap();
        assert!(layout.find(&name).unwrap().is_none());
    }

    #[test]
    fn abandoned_downloads_are_removed_unless_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let make = |text: &[u8]| {
            let path = layout.partial(&Digest::of(text));
            let file = File::create(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            (path, file)
        };
        let (used, file) = make(b"used");
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let (left, _) = make(b"left");
        let own = layout.partial(&Digest::of(b"own")).with_extension("0123456789abcdef");
        File::create(&own).unwrap();
        Layout::open(dir.path()).unwrap();
        assert!(used.exists() && !left.exists() && !own.exists());
    }
}
