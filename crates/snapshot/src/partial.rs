//! An image that is made.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hutch_image::{PathSegment, remove_tree};
use rustix::fs::{CWD, Mode, RenameFlags};
use rustix::io::Errno;
use serde_json::Value;

use crate::copy::copy;
use crate::error::Place;
use crate::image::memory_files;
use crate::manifest::{self, Manifest, MeasuredTree};
use crate::name::{MANIFEST, MEMORY, PARTIAL, UPPERS, VOLUMES, WHOLE, memory_of};
use crate::store::Store;
use crate::walk::MAX_ENTRIES;
use crate::{Copied, Error, Image, TreeName, private};

/// An image that is not complete. It is removed on drop.
#[derive(Debug)]
pub struct Partial {
    store: Arc<Store>,
    id: PathSegment,
    path: PathBuf,
    folder: OwnedFd,
    memory: BTreeSet<PathSegment>,
    trees: BTreeSet<TreeName>,
    /// A step has failed, so the image cannot become complete.
    has_failed: bool,
    is_finished: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_finished {
            // What stays is removed by the next `Images::open`.
            let _ = remove_tree(&self.path);
        }
    }
}

impl Partial {
    pub(crate) fn make(store: Arc<Store>, id: PathSegment) -> Result<Partial, Error> {
        let place = Place::new(&id, WHOLE);
        let name = PathSegment::new(format!("{id}{PARTIAL}")).ok_or(Errno::NAMETOOLONG);
        let path = name.map_err(place.io("begin"))?.below(&store.folder);
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Err(Errno::EXIST) => return Err(Place::new(&id, "unfinished image").exists()),
            made => made.map_err(place.io("begin"))?,
        }
        let opened = private::open_folder(CWD, &path);
        let folder = opened.inspect_err(|_| drop(remove_tree(&path))).map_err(place.io("begin"))?;
        let partial = Partial {
            store,
            id,
            path,
            folder,
            memory: BTreeSet::new(),
            trees: BTreeSet::new(),
            has_failed: false,
            is_finished: false,
        };
        for part in [MEMORY, UPPERS, VOLUMES] {
            rustix::fs::mkdirat(&partial.folder, part.as_str(), Mode::RWXU).map_err(place.io("begin"))?;
        }
        Ok(partial)
    }

    /// Id of the image.
    pub fn id(&self) -> &PathSegment {
        &self.id
    }

    /// Moves a folder with the memory of a container into the image. It has only regular files, each with one name, and lies on
    /// the file system of the images. No process may write to it any more.
    ///
    /// # Errors
    /// [`Error::Refused`] for anything else in the folder, [`Error::Exists`], [`Error::NoRoom`], [`Error::Io`]. Afterwards the
    /// image cannot be finished, and the folder may have been moved.
    pub fn take_memory(&mut self, container: &PathSegment, written: &Path) -> Result<(), Error> {
        let place = Place::new(&self.id, memory_of(container));
        if self.memory.contains(container) {
            return Err(place.exists());
        }
        self.has_failed = true;
        let memory = private::open_folder(&self.folder, MEMORY.as_str()).map_err(place.io("open"))?;
        rustix::fs::renameat_with(CWD, written, &memory, container.as_str(), RenameFlags::NOREPLACE)
            .map_err(place.io(format!("move {}", written.display())))?;
        // After it has been moved, so that this is what the image has.
        let files = memory_files(&place, memory.as_fd(), container);
        files.map_err(|error| match error {
            Error::Tampered { image, part, reason } => {
                Error::Refused { image, part, entry: written.display().to_string(), reason }
            }
            other => other,
        })?;
        self.memory.insert(container.clone());
        self.has_failed = false;
        Ok(())
    }

    /// Copies a tree into the image. It must not change meanwhile: a change that is noticed is an error.
    ///
    /// Sockets are left out and counted. See the crate for what is kept.
    ///
    /// # Errors
    /// [`Error::Refused`] for devices, mounts, too many entries or folders within each other, [`Error::Exists`],
    /// [`Error::NoRoom`], [`Error::Io`]. Afterwards the image cannot be finished.
    pub fn copy_tree(&mut self, name: &TreeName, folder: &Path) -> Result<Copied, Error> {
        let place = Place::new(&self.id, name);
        if self.trees.contains(name) {
            return Err(place.exists());
        }
        self.has_failed = true;
        let source =
            private::open_folder(CWD, folder).map_err(place.io(format!("open {}", folder.display())))?;
        let (kind, own) = name.place();
        let parent = private::open_folder(&self.folder, kind.as_str()).map_err(place.io("open"))?;
        rustix::fs::mkdirat(&parent, own.as_str(), Mode::RWXU).map_err(place.io("make"))?;
        let target = private::open_folder(&parent, own.as_str()).map_err(place.io("open"))?;
        let room = Some(self.store.folder.clone());
        let copied = copy(source, target, MAX_ENTRIES, room).map_err(|fault| place.not_kept(fault))?;
        self.trees.insert(name.clone());
        self.has_failed = false;
        Ok(copied)
    }

    /// Completes the image with facts of the caller: afterwards it is on the disk and found.
    ///
    /// # Errors
    /// [`Error::Refused`] after a step that failed, or for facts that are too large or too deep, [`Error::Exists`],
    /// [`Error::NoRoom`], [`Error::Io`]. The image is removed.
    pub fn finish(mut self, facts: Value) -> Result<Image, Error> {
        let manifest = self.seal(facts)?;
        let folder = rustix::io::fcntl_dupfd_cloexec(&self.folder, 0)
            .map_err(Place::new(&self.id, WHOLE).io("open"))?;
        self.store.publish(&self.path, &self.id)?;
        self.is_finished = true;
        Ok(Image::new(Arc::clone(&self.store), self.id.clone(), folder, manifest))
    }

    /// Makes and writes the manifest, and writes everything to the disk.
    pub(crate) fn seal(&mut self, facts: Value) -> Result<Manifest, Error> {
        let place = Place::new(&self.id, &MANIFEST);
        if self.has_failed {
            return Err(Place::new(&self.id, WHOLE).refused("image", "a part of it could not be copied"));
        }
        let manifest = self.measure_and_sync(facts)?;
        let (bytes, manifest) = manifest::write(&self.store.key, &self.id, &manifest)?;
        private::write(&self.folder, &MANIFEST, &bytes).map_err(place.io("write"))?;
        rustix::fs::syncfs(&self.folder).map_err(Place::new(&self.id, WHOLE).io("write out"))?;
        Ok(manifest)
    }

    /// Reads everything in the image for its digests, while another thread writes it to the disk.
    fn measure_and_sync(&self, facts: Value) -> Result<Manifest, Error> {
        std::thread::scope(|scope| {
            // Without the thread, all is written at the end.
            let sync = || rustix::fs::syncfs(&self.folder);
            let synced = std::thread::Builder::new().spawn_scoped(scope, sync).ok();
            let manifest = self.measure(facts)?;
            match synced.map(std::thread::ScopedJoinHandle::join) {
                // An error is reported once only, so it counts.
                Some(Ok(Err(errno))) => Err(Place::new(&self.id, WHOLE).io("write out")(errno)),
                _ => Ok(manifest),
            }
        })
    }

    /// Reads everything in the image for its digests.
    fn measure(&self, facts: Value) -> Result<Manifest, Error> {
        let key = &self.store.key;
        let mut memory = BTreeMap::new();
        let folder = private::open_folder(&self.folder, MEMORY.as_str());
        let folder = folder.map_err(Place::new(&self.id, WHOLE).io("open"))?;
        for container in &self.memory {
            let place = Place::new(&self.id, memory_of(container));
            let files = memory_files(&place, folder.as_fd(), container)?;
            let mut measured = BTreeMap::new();
            for (name, file) in files {
                let salt = manifest::new_salt().map_err(place.io("read"))?;
                measured.insert(name.clone(), file.measure(key, salt, &place, &name)?);
            }
            memory.insert(container.clone(), measured);
        }
        let mut trees = BTreeMap::new();
        for name in &self.trees {
            let place = Place::new(&self.id, name);
            let (kind, own) = name.place();
            let top = private::open_folder(&self.folder, kind.as_str())
                .and_then(|parent| private::open_folder(parent, own.as_str()))
                .map_err(place.io("open"))?;
            let salt = manifest::new_salt().map_err(place.io("read"))?;
            let tree = MeasuredTree::read(key, salt, top, MAX_ENTRIES);
            trees.insert(name.clone(), tree.map_err(|fault| place.not_kept(fault))?);
        }
        Ok(Manifest { memory, trees, facts })
    }
}
