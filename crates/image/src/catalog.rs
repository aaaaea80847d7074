//! Lists and removes the images of a data folder: those that were pulled, and their unpacked layers.
//!
//! An image loses its name first, then its blobs and layers go. A process that is killed meanwhile leaves content without a
//! name, which the next removal of unused content takes.

mod commit;
mod export;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::layout::{LAYER, LayoutImage};
use crate::shelf::{Name, Shelf};
use crate::store::use_of;
use crate::{Error, ImageConfig, PathSegment, turns, unfinished, uses};

/// Maximum length of a text of an image's configuration that a list has.
const MAX_TEXT: usize = 100;

/// Images of a data folder.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Folder of unpacked layers.
    store: PathBuf,
    /// Folders of pulled images.
    shelves: Vec<PathBuf>,
}

/// An image that was pulled.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Full names.
    pub names: Vec<String>,
    /// Digest of the manifest.
    pub digest: String,
    /// Digest that the registry has for the first name; it may be that of an index that leads to the manifest.
    pub pulled: String,
    /// Folder of pulled images in which it is.
    pub folder: PathBuf,
    /// Bytes of manifest, configuration and packed layers.
    pub size: u64,
    /// Digest of the configuration.
    pub config_digest: String,
    /// Time at which it was built, as it says.
    pub created: Option<String>,
    /// Operating system and architecture.
    pub platform: String,
    /// Lowest first.
    pub layers: Vec<ListedLayer>,
    /// Time of the last use, else that of the pull.
    pub last_used: Option<SystemTime>,
    /// Processes that use it.
    pub users: Vec<u32>,
    /// Reason why it cannot be used.
    pub problem: Option<String>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedLayer {
    /// Digest of the packed layer.
    pub digest: String,
    /// Digest of its archive.
    pub diff_id: String,
    /// Bytes, as packed.
    pub size: u64,
    /// Its folder, if it is unpacked.
    pub unpacked: Option<PathBuf>,
}

/// Result of a removal.
#[derive(Debug, Default)]
pub struct Freed {
    /// Bytes of the disk that are free again.
    pub bytes: u64,
    /// Digests of blobs and names of folders of layers that were removed.
    pub removed: Vec<String>,
    /// Folders of pulled images whose blobs stay, because a pull is in progress.
    pub pulling: Vec<PathBuf>,
    /// Content that could not be removed, and the reason.
    pub failed: Vec<String>,
}

impl Freed {
    fn add(&mut self, other: Freed) {
        self.bytes += other.bytes;
        self.removed.extend(other.removed);
        self.pulling.extend(other.pulling);
        self.failed.extend(other.failed);
    }
}

/// Returns the folder of an image, and a name there that leads to it.
fn stored(image: &Listed) -> Result<Option<(Shelf, Name)>, Error> {
    let Some(shelf) = Shelf::open(&image.folder)? else { return Ok(None) };
    let name = shelf.names()?.into_iter().find(|name| name.manifest.digest().to_string() == image.digest);
    Ok(name.map(|name| (shelf, name)))
}

/// Content of images.
#[derive(Default)]
struct Content {
    blobs: BTreeSet<String>,
    layers: BTreeSet<String>,
    /// Names of the files that are locked while an image is in use.
    uses: BTreeSet<String>,
}

impl Content {
    fn add(&mut self, shelf: &Shelf, name: &Name, image: Option<&LayoutImage>) -> Result<(), Error> {
        self.blobs.extend(shelf.blobs_of(name, image)?);
        let layers = image.into_iter().flat_map(|image| &image.layers);
        let names = layers.filter_map(crate::layout::Layer::folder_name);
        self.layers.extend(names.map(|name| name.as_str().to_owned()));
        let of_use = use_of(name.manifest.digest().as_ref());
        self.uses.extend(of_use.map(|of_use| of_use.as_str().to_owned()));
        Ok(())
    }
}

impl Catalog {
    /// `store` is the folder of unpacked layers; `shelves` are those of pulled images. None need be there.
    pub fn new(store: PathBuf, shelves: Vec<PathBuf>) -> Catalog {
        Catalog { store, shelves }
    }

    /// Returns all images, in the order of their names, and the reasons why folders could not be read.
    pub fn list(&self) -> (Vec<Listed>, Vec<Error>) {
        let (mut all, mut damaged): (Vec<Listed>, Vec<Error>) = (Vec::new(), Vec::new());
        let locks = uses::Locks::read();
        for folder in &self.shelves {
            match self.list_shelf(folder, &locks) {
                Ok(images) => all.extend(images),
                Err(error) => damaged.push(error),
            }
        }
        all.iter_mut().for_each(|image| image.names.sort());
        all.sort_by(|a, b| a.names.cmp(&b.names));
        (all, damaged)
    }

    fn list_shelf(&self, folder: &Path, locks: &uses::Locks) -> Result<Vec<Listed>, Error> {
        let mut all: Vec<Listed> = Vec::new();
        let Some(shelf) = Shelf::open(folder)? else { return Ok(all) };
        for name in shelf.names()? {
            let digest = name.manifest.digest().to_string();
            match all.iter_mut().find(|other| other.digest == digest) {
                Some(other) => other.names.push(name.name),
                None => all.push(self.listed(folder, &shelf, name, locks)),
            }
        }
        Ok(all)
    }

    /// Reads the program configuration of an image; that of a damaged image is empty.
    ///
    /// # Errors
    /// When the names of its folder cannot be read.
    pub fn config(&self, image: &Listed) -> Result<ImageConfig, Error> {
        let found = stored(image)?.and_then(|(shelf, name)| shelf.image(&name).ok());
        Ok(found.map(|image| image.config).unwrap_or_default())
    }

    fn listed(&self, folder: &Path, shelf: &Shelf, name: Name, locks: &uses::Locks) -> Listed {
        let digest = name.manifest.digest().to_string();
        // Another process may have written it.
        let pulled = if shelf.leads(&name.pulled, &digest) { name.pulled.clone() } else { digest.clone() };
        let (image, problem) = match shelf.image(&name) {
            Ok(image) => (Some(image), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let of_use = use_of(&digest);
        let last_used = of_use.as_ref().and_then(|of_use| uses::last_use(&self.store, of_use));
        let layer = |layer: &crate::layout::Layer| ListedLayer {
            digest: format!("sha256:{}", layer.blob_digest),
            diff_id: format!("sha256:{}", layer.diff_id),
            size: layer.size,
            unpacked: layer.folder_name().map(|name| name.below(&self.store)).filter(|path| path.is_dir()),
        };
        Listed {
            last_used: last_used.or_else(|| shelf.stored(&digest)),
            users: of_use.map(|of_use| uses::users(&self.store, &of_use, locks)).unwrap_or_default(),
            layers: image.iter().flat_map(|image| &image.layers).map(layer).collect(),
            size: image.as_ref().map_or(0, |image| image.size),
            config_digest: image.as_ref().map(|image| image.config_digest.clone()).unwrap_or_default(),
            created: image
                .as_ref()
                .and_then(|image| image.created.clone())
                .filter(|text| text.len() <= MAX_TEXT),
            platform: image
                .as_ref()
                .map(|image| image.platform.chars().take(MAX_TEXT).collect())
                .unwrap_or_default(),
            names: vec![name.name],
            pulled,
            folder: folder.to_owned(),
            digest,
            problem,
        }
    }

    /// Removes names of an image, or all of them if none is given. With its last name it loses what no other image has.
    ///
    /// # Errors
    /// [`Error::InUse`] if its last name would go while it is in use.
    pub fn remove(&self, image: &Listed, names: &[String]) -> Result<Freed, Error> {
        let Some(shelf) = Shelf::open(&image.folder)? else { return Ok(Freed::default()) };
        let gone = if names.is_empty() { &image.names } else { names };
        if !image.names.iter().all(|name| gone.contains(name)) {
            let gone: BTreeSet<&str> = gone.iter().map(String::as_str).collect();
            shelf.forget(&gone, &image.digest)?;
            return Ok(Freed::default());
        }
        self.remove_whole(&shelf, image, gone, None)
    }

    /// Removes an image with all of its names; while a pull is in progress, only its unpacked layers.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is in use.
    pub fn collect(&self, image: &Listed) -> Result<Freed, Error> {
        let Some(shelf) = Shelf::open(&image.folder)? else { return Ok(Freed::default()) };
        match shelf.stop_pulls()? {
            Some(stopped) => self.remove_whole(&shelf, image, &image.names, Some(stopped)),
            None => Ok(Freed { pulling: vec![image.folder.clone()], ..self.remove_layers(image) }),
        }
    }

    /// Removes the last names of an image and its content. `stopped` is the lock of pulls, if it is taken.
    fn remove_whole(
        &self,
        shelf: &Shelf,
        image: &Listed,
        gone: &[String],
        stopped: Option<File>,
    ) -> Result<Freed, Error> {
        let mut content = Content::default();
        for name in shelf.names()?.iter().filter(|name| name.manifest.digest().to_string() == image.digest) {
            // What cannot be read stays for a later removal of unused content.
            let _ = content.add(shelf, name, shelf.image(name).ok().as_ref());
        }
        let right = self.unused(image)?;
        let gone: BTreeSet<&str> = gone.iter().map(String::as_str).collect();
        let mut freed = Freed::default();
        if let Err(error) = shelf.forget(&gone, &image.digest) {
            if !error.is_full_disk() {
                return Err(error);
            }
            // The list of names needs some space, and layers can be unpacked again.
            freed = self.remove_layers(image);
            shelf.forget(&gone, &image.digest)?;
        }
        drop(right);
        freed.add(self.take(Some(&content), stopped.map(|stopped| (image.folder.as_path(), stopped)))?);
        Ok(freed)
    }

    /// Returns the right to remove an image that is not in use.
    fn unused(&self, image: &Listed) -> Result<Option<uses::Removing>, Error> {
        // Without the folder nothing was unpacked, so nothing is in use.
        let Some(name) = use_of(&image.digest).filter(|_| self.store.is_dir()) else { return Ok(None) };
        let right = uses::removing(&self.store, &name);
        match right.map_err(Error::file("lock a file in", &self.store))? {
            Some(right) => Ok(Some(right)),
            None => {
                let by = uses::describe(&uses::users(&self.store, &name, &uses::Locks::read()));
                let what = format!("image {}", image.names.first().unwrap_or(&image.digest));
                Err(Error::InUse { what, by })
            }
        }
    }

    /// Removes content that belongs to no image and is not in use: blobs, unpacked layers, and what interrupted pulls left.
    ///
    /// # Errors
    /// When the folder of layers cannot be read. What the damaged names of a folder are for is unknown: its blobs and all
    /// layers stay then, and [`Freed::failed`] has the reason.
    pub fn prune(&self) -> Result<Freed, Error> {
        self.take(None, None)
    }

    /// Removes the unpacked layers of an image that are not in use. They are unpacked again when they are needed.
    pub fn remove_layers(&self, image: &Listed) -> Freed {
        let mut freed = Freed::default();
        for folder in image.layers.iter().filter_map(|layer| layer.unpacked.as_deref()) {
            self.remove_layer(folder, &mut freed);
        }
        freed
    }

    /// Removes content of no image: all of it, or only what is in `of`. `held` is the lock of pulls of a folder.
    fn take(&self, of: Option<&Content>, mut held: Option<(&Path, File)>) -> Result<Freed, Error> {
        let (mut freed, mut kept, mut damaged) = (Freed::default(), Content::default(), false);
        for folder in &self.shelves {
            let stopped = held.take_if(|(path, _)| *path == folder.as_path()).map(|(_, stopped)| stopped);
            match take_of_shelf(folder, stopped, of, &mut freed) {
                Ok(mut named) => {
                    kept.layers.append(&mut named.layers);
                    kept.uses.append(&mut named.uses);
                }
                Err(error) => {
                    damaged = true;
                    freed.failed.push(error.to_string());
                }
            }
        }
        // A damaged folder could name any layer.
        if damaged || !self.store.is_dir() {
            return Ok(freed);
        }
        unfinished::sweep(&self.store);
        turns::sweep(&self.store);
        let entries = std::fs::read_dir(&self.store).map_err(Error::file("read", &self.store))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let named = of.is_none_or(|of| of.layers.contains(&name));
            if name.starts_with(LAYER) && named && !kept.layers.contains(&name) {
                self.remove_layer(&entry.path(), &mut freed);
            }
        }
        if of.is_none() {
            let is_layer =
                |name: &str| PathSegment::new(name).is_some_and(|name| name.below(&self.store).is_dir());
            uses::sweep(&self.store, |name| kept.uses.contains(name) || is_layer(name));
        }
        Ok(freed)
    }

    fn remove_layer(&self, folder: &Path, freed: &mut Freed) {
        let name = folder.file_name().and_then(|name| name.to_str()).and_then(PathSegment::new);
        let Some(name) = name else { return };
        let right = match uses::removing(&self.store, &name) {
            Ok(Some(right)) => right,
            // In use.
            Ok(None) => return,
            Err(error) => return freed.failed.push(format!("{name}: {error}")),
        };
        let bytes = disk_usage(folder);
        match unfinished::remove_whole(&self.store, folder, || drop(right)) {
            Ok(()) => {
                freed.bytes += bytes;
                freed.removed.push(name.to_string());
            }
            Err(error) => freed.failed.push(format!("{}: {error}", folder.display())),
        }
    }
}

/// Removes blobs of a folder that belong to none of its images. Returns the content of its images.
fn take_of_shelf(
    folder: &Path,
    stopped: Option<File>,
    of: Option<&Content>,
    freed: &mut Freed,
) -> Result<Content, Error> {
    let mut kept = Content::default();
    let Some(shelf) = Shelf::open(folder)? else { return Ok(kept) };
    let stopped = match stopped {
        Some(stopped) => Some(stopped),
        None => shelf.stop_pulls()?,
    };
    for name in shelf.names()? {
        let image = match shelf.image(&name) {
            Ok(image) => Some(image),
            Err(error @ Error::File { .. }) => return Err(error),
            Err(_) => None,
        };
        kept.add(&shelf, &name, image.as_ref())?;
    }
    match stopped {
        Some(_stopped) => take_blobs(&shelf, &kept, of, freed),
        None => freed.pulling.push(folder.to_owned()),
    }
    Ok(kept)
}

fn take_blobs(shelf: &Shelf, kept: &Content, of: Option<&Content>, freed: &mut Freed) {
    for (hex, size) in shelf.blobs() {
        if kept.blobs.contains(&hex) || of.is_some_and(|of| !of.blobs.contains(&hex)) {
            continue;
        }
        if shelf.remove_blob(&hex) {
            freed.bytes += size;
            freed.removed.push(format!("sha256:{hex}"));
        } else {
            freed.failed.push(format!("blob sha256:{hex} stays"));
        }
    }
    if of.is_none() {
        freed.bytes += shelf.remove_partial();
        shelf.remove_new_index();
    }
}

/// Returns the bytes of the disk that a folder takes; a file with several names counts once. What cannot be read counts nothing.
pub(crate) fn disk_usage(folder: &Path) -> u64 {
    let (mut bytes, mut seen) = (0, BTreeSet::new());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(opened) = std::fs::read_dir(&folder) else { continue };
        for entry in opened.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.nlink() == 1 || found.is_dir() || seen.insert(found.ino()) {
                bytes += found.blocks() * 512;
            }
            if found.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    bytes
}

impl ListedLayer {
    /// Returns the bytes of the disk that the unpacked layer takes.
    pub fn disk_usage(&self) -> u64 {
        self.unpacked.as_deref().map_or(0, disk_usage)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
#[path = "catalog/tests.rs"]
mod tests;
