//! A folder of pulled images as those see it who remove some: names, blobs and locks.
//!
//! The folder may belong to a process that parses what registries send, and is not trusted: no link in it is followed, and
//! what is written has the owner of the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use oci_spec::image::{Descriptor, ImageIndex};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde_json::Value;

use crate::beneath::Folder;
use crate::layout::{Layout, LayoutImage, TAG, blob_path};
use crate::{Error, PathSegment};

/// Annotation with the digest that the registry has for the name.
pub(crate) const PULLED: &str = "dev.hutch.image.digest";
/// File that is locked while `index.json` changes.
const LOCK: &str = "lock";
/// Ending of a file that will replace another one.
const NEW: &str = ".new";
/// File that pulls have locked, shared with each other.
const PULLS: &str = "pulls";
/// Folder of incomplete downloads.
const PARTIAL: &str = "partial";
/// Time to wait for the lock of `index.json`, and the interval at which it is tried.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum depth of indexes that lead to a manifest.
const MAX_DEPTH: usize = 3;
/// Maximum documents of one depth that are read.
const MAX_INDEXES: usize = 32;
/// Maximum blobs of one folder that are listed.
const MAX_BLOBS: usize = 1 << 20;

/// An open folder of pulled images.
pub(crate) struct Shelf {
    layout: Layout,
}

/// A name of the folder.
pub(crate) struct Name {
    pub(crate) name: String,
    /// Digest that the registry has for the name.
    pub(crate) pulled: String,
    pub(crate) manifest: Descriptor,
}

impl Shelf {
    /// Opens the folder; `None` if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Option<Shelf>, Error> {
        match Folder::open(path) {
            Ok(folder) if folder.has(Path::new("index.json")) => {
                Ok(Some(Shelf { layout: Layout::new(folder, path) }))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::file("open", path)(errno)),
        }
    }

    /// Returns all names.
    pub(crate) fn names(&self) -> Result<Vec<Name>, Error> {
        let text = self.layout.read_file("index.json")?;
        let index = ImageIndex::from_reader(&*text).map_err(|_| self.layout.invalid("file index.json"))?;
        let name = |manifest: &Descriptor| {
            let notes = manifest.annotations().as_ref()?;
            let digest = manifest.digest().to_string();
            let pulled = notes.get(PULLED).cloned().unwrap_or(digest);
            Some(Name { name: notes.get(TAG)?.clone(), pulled, manifest: manifest.clone() })
        };
        Ok(index.manifests().iter().filter_map(name).collect())
    }

    /// Reads the image of a name.
    pub(crate) fn image(&self, name: &Name) -> Result<LayoutImage, Error> {
        self.layout.image(&name.manifest)
    }

    /// Returns `true` if a digest is that of a manifest, or of an index that leads to it.
    pub(crate) fn leads(&self, from: &str, manifest: &str) -> bool {
        self.layout.leads(from, manifest)
    }

    /// Reads a small blob as a whole, which has its digest.
    pub(crate) fn document(&self, digest: &str) -> Result<Vec<u8>, Error> {
        self.layout.verified(&self.layout.sha256(digest)?)
    }

    /// Opens a blob.
    pub(crate) fn open_blob(&self, hex: &str) -> Result<File, Error> {
        self.layout.open(&blob_path(hex))
    }

    /// Returns the time at which a manifest was stored.
    pub(crate) fn stored(&self, digest: &str) -> Option<SystemTime> {
        let hex = self.layout.sha256(digest).ok()?;
        self.layout.folder.open_file(Path::new(&blob_path(&hex))).ok()?.metadata().ok()?.modified().ok()
    }

    /// Returns the blobs of a name, by the hexadecimal part of their digests.
    pub(crate) fn blobs_of(
        &self,
        name: &Name,
        image: Option<&LayoutImage>,
    ) -> Result<BTreeSet<String>, Error> {
        let mut found = BTreeSet::from([name.manifest.digest().to_string()]);
        if let Some(image) = image {
            found.insert(image.config_digest.clone());
            found.extend(image.layers.iter().map(|layer| format!("sha256:{}", layer.blob_digest)));
        }
        let mut indexes = vec![name.pulled.clone()];
        for _ in 0..MAX_DEPTH {
            let read = indexes.iter().take(MAX_INDEXES);
            let mut entries: Vec<String> = Vec::new();
            for index in read {
                entries.extend(self.layout.entries_of(index)?);
            }
            found.extend(indexes);
            indexes = entries;
        }
        found.extend(indexes);
        Ok(found.iter().filter_map(|digest| self.layout.sha256(digest).ok()).collect())
    }

    /// Takes names away that are those of a manifest.
    pub(crate) fn forget(&self, gone: &BTreeSet<&str>, digest: &str) -> Result<(), Error> {
        let _lock = self.lock()?;
        let text = self.layout.read_file("index.json")?;
        let mut index: Value =
            serde_json::from_slice(&text).map_err(|_| self.layout.invalid("file index.json"))?;
        if let Some(manifests) = index.get_mut("manifests").and_then(Value::as_array_mut) {
            manifests.retain(|manifest| {
                // A pull may have given the name to another manifest meanwhile.
                manifest["digest"].as_str() != Some(digest)
                    || manifest["annotations"][TAG].as_str().is_none_or(|name| !gone.contains(name))
            });
        }
        self.replace("index.json", index.to_string().as_bytes())
            .map_err(self.layout.file_error("write", "index.json"))
    }

    /// Replaces a file as a whole.
    fn replace(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let folder = &self.layout.folder;
        let new = format!("{name}{NEW}");
        let mut file = folder.create_file(Path::new(&new))?;
        let written = file.write_all(bytes).and_then(|()| {
            folder.share_owner(&file)?;
            file.sync_all()
        });
        if let Err(error) = written {
            // What is written of it takes space.
            let _ = folder.remove_file(Path::new(&new));
            return Err(error);
        }
        folder.rename(Path::new(&new), Path::new(name))?;
        Ok(folder.sync_names()?)
    }

    /// Waits for the right to change `index.json`, for a bounded time.
    fn lock(&self) -> Result<Option<File>, Error> {
        let Ok(file) = self.layout.folder.open_file(Path::new(LOCK)) else { return Ok(None) };
        let until = Instant::now() + LOCK_TIMEOUT;
        while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > until {
                return Err(self.layout.error("another process has it locked"));
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
        Ok(Some(file))
    }

    /// Keeps pulls from starting until the file is dropped; `None` while one is in progress.
    pub(crate) fn stop_pulls(&self) -> Result<Option<File>, Error> {
        let failed = |errno| self.layout.error(&format!("cannot open {PULLS}: {errno}"));
        let file = match self.layout.folder.open_file(Path::new(PULLS)) {
            // Of an earlier version.
            Err(Errno::NOENT) => {
                let made = self.layout.folder.create_file(Path::new(PULLS)).map_err(failed)?;
                self.layout.folder.share_owner(&made).map_err(failed)?;
                made
            }
            opened => opened.map_err(failed)?,
        };
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(locked.is_ok().then_some(file))
    }

    /// Returns the blobs that are there, with their sizes.
    pub(crate) fn blobs(&self) -> BTreeMap<String, u64> {
        let is_digest = |name: &str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.files("blobs/sha256").into_iter().filter(|(name, _)| is_digest(name)).collect()
    }

    /// Removes a blob. Returns `false` if it stays.
    pub(crate) fn remove_blob(&self, hex: &str) -> bool {
        let Ok(folder) = self.layout.folder.folder(Path::new("blobs/sha256")) else { return false };
        PathSegment::new(hex).is_some() && folder.remove_file(Path::new(hex)).is_ok()
    }

    /// Removes what a killed process has left of a new `index.json`.
    pub(crate) fn remove_new_index(&self) {
        if let Ok(Some(_lock)) = self.lock() {
            // What stays is replaced by the next one.
            let _ = self.layout.folder.remove_file(Path::new(&format!("index.json{NEW}")));
        }
    }

    /// Removes downloads that no process has in work. Returns their bytes.
    pub(crate) fn remove_partial(&self) -> u64 {
        let Ok(folder) = self.layout.folder.folder(Path::new(PARTIAL)) else { return 0 };
        let mut bytes = 0;
        for (name, size) in self.files(PARTIAL) {
            let Ok(file) = folder.open_file(Path::new(&name)) else { continue };
            let free = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if free && folder.remove_file(Path::new(&name)).is_ok() {
                bytes += size;
            }
        }
        bytes
    }

    /// Returns names and sizes of the files of a subfolder.
    fn files(&self, folder: &str) -> Vec<(String, u64)> {
        let Ok(folder) = self.layout.folder.folder(Path::new(folder)) else { return Vec::new() };
        let Ok(entries) = folder.entries() else { return Vec::new() };
        let file = |entry: rustix::fs::DirEntry| {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let found = folder.metadata(Path::new(name)).ok()?;
            let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
            is_file.then(|| Some((name.to_str()?.to_owned(), u64::try_from(found.st_size).ok()?)))?
        };
        entries.flatten().take(MAX_BLOBS).filter_map(file).collect()
    }
}
