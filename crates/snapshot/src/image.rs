//! A complete image.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hutch_image::{PathSegment, remove_tree};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use serde_json::Value;

use crate::content::Salt;
use crate::copy::copy;
use crate::error::{Fault, Place};
use crate::key::Key;
use crate::manifest::{self, MAX_BYTES, Manifest, Measured, MeasuredTree};
use crate::name::{MANIFEST, MEMORY, UPPERS, VOLUMES, WHOLE, memory_of};
use crate::store::Store;
use crate::walk::MAX_ENTRIES;
use crate::{Copied, Error, TreeName, private};

/// Maximum files of the memory of a container; `runsc` writes three.
const MAX_FILES: usize = 64;
/// Maximum containers or volumes of an image.
const MAX_PARTS: usize = 10_000;

/// An image whose manifest has been checked.
#[derive(Debug)]
pub struct Image {
    store: Arc<Store>,
    id: PathSegment,
    folder: OwnedFd,
    manifest: Manifest,
}

/// Bytes of an image, without pages of zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Memory of all containers.
    pub memory: u64,
    /// Files of all trees.
    pub files: u64,
}

impl Image {
    pub(crate) fn new(store: Arc<Store>, id: PathSegment, folder: OwnedFd, manifest: Manifest) -> Image {
        Image { store, id, folder, manifest }
    }

    /// Opens the folder of an image, and checks its manifest and that it has exactly the parts that the manifest names.
    pub(crate) fn open(store: Arc<Store>, id: PathSegment) -> Result<Image, Error> {
        let place = Place::new(&id, WHOLE);
        let folder = match private::open_folder(CWD, store.path(&id)) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(place.tampered("it is not a folder")),
            opened => opened.map_err(place.io("open"))?,
        };
        let found = rustix::fs::fstat(&folder).map_err(place.io("read"))?;
        private::check(&store.path(&id), &found)?;
        let of_manifest = Place::new(&id, &MANIFEST);
        let bytes = private::read(&folder, &MANIFEST, MAX_BYTES).map_err(|error| match error.kind() {
            ErrorKind::NotFound => of_manifest.truncated("it is absent"),
            ErrorKind::FileTooLarge => of_manifest.tampered("it is larger than 4 MiB"),
            _ if is_no_file(&error) => of_manifest.tampered("it is not a regular file"),
            _ => of_manifest.io("read")(error),
        })?;
        let manifest = manifest::read(&store.key, &id, &bytes)?;
        let image = Image { store, id, folder, manifest };
        image.check_parts()?;
        Ok(image)
    }

    /// Id of the image.
    pub fn id(&self) -> &PathSegment {
        &self.id
    }

    /// The facts with which the image was finished.
    pub fn facts(&self) -> &Value {
        &self.manifest.facts
    }

    /// Containers of whose memory the image has.
    pub fn containers(&self) -> impl Iterator<Item = &PathSegment> {
        self.manifest.memory.keys()
    }

    /// Trees of the image.
    pub fn trees(&self) -> impl Iterator<Item = &TreeName> {
        self.manifest.trees.keys()
    }

    /// Bytes of a tree, without pages of zeros. `None` if the image does not have it.
    pub fn tree_bytes(&self, name: &TreeName) -> Option<u64> {
        self.manifest.trees.get(name).map(|tree| tree.bytes)
    }

    /// Bytes of the image.
    pub fn sizes(&self) -> Sizes {
        let files = self.manifest.memory.values().flat_map(BTreeMap::values);
        Sizes {
            memory: files.map(|file| file.bytes).fold(0, u64::saturating_add),
            files: self.manifest.trees.values().map(|tree| tree.bytes).fold(0, u64::saturating_add),
        }
    }

    /// Checks each file of the memory of a container, and returns their folder. It must not be written.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Tampered`], [`Error::Truncated`], [`Error::Io`].
    pub fn memory(&self, container: &PathSegment) -> Result<PathBuf, Error> {
        let place = Place::new(&self.id, memory_of(container));
        let expected = self.manifest.memory.get(container).ok_or_else(|| place.absent())?;
        let folder = private::open_folder(&self.folder, MEMORY.as_str()).map_err(gone(&place))?;
        let mut files = memory_files(&place, folder.as_fd(), container)?;
        for (name, expected) in expected {
            let Some(file) = files.remove(name) else {
                return Err(place.truncated(format!("{name} is absent")));
            };
            if file.length < expected.length {
                let (found, length) = (file.length, expected.length);
                return Err(place.truncated(format!("{name} has {found} bytes instead of {length}")));
            }
            if file.length > expected.length
                || file.measure(&self.store.key, expected.salt.0, &place, name)? != *expected
            {
                return Err(place.tampered(format!("{name} does not have the content that was written")));
            }
        }
        if let Some((name, _)) = files.pop_first() {
            return Err(place.tampered(format!("{:?} was added", name.as_str())));
        }
        Ok(container.below(&MEMORY.below(&self.store.path(&self.id))))
    }

    /// Copies a tree to a folder that is absent or empty, and checks the copy. The parent of the folder is trusted, and no other
    /// process uses the folder meanwhile. The copy is not written out to the disk. On any error the folder is removed.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Target`] (the folder stays), [`Error::Tampered`], [`Error::NoRoom`], [`Error::Io`].
    pub fn copy_out(&self, name: &TreeName, target: &Path) -> Result<Copied, Error> {
        let place = Place::new(&self.id, name);
        let expected = *self.manifest.trees.get(name).ok_or_else(|| place.absent())?;
        let source = self.tree(name, &place)?;
        let empty = empty_folder(&place, target)?;
        let room = disk_above(&empty, target);
        self.copy_checked(&place, name, expected, (source, empty, room)).inspect_err(|_| {
            // The error of the copy is the one to report.
            let _ = remove_tree(target);
        })
    }

    fn copy_checked(
        &self,
        place: &Place,
        name: &TreeName,
        expected: MeasuredTree,
        (source, target, room): (OwnedFd, OwnedFd, Option<PathBuf>),
    ) -> Result<Copied, Error> {
        let not_as_made = |fault: Fault| place.not_as_made(fault);
        // A part that does not fit would fill the disk for a moment, and the Pod that uses most of it would be evicted.
        if let Some(folder) = &room {
            hutch_image::check_room(folder, expected.bytes).map_err(place.io("write"))?;
        }
        let top = rustix::io::fcntl_dupfd_cloexec(&target, 0).map_err(place.io("open"))?;
        let copied = copy(source, target, expected.entries, room).map_err(not_as_made)?;
        if copied.sockets > 0 {
            return Err(place.tampered("a socket was added"));
        }
        let measure = |top| MeasuredTree::read(&self.store.key, expected.salt.0, top, MAX_ENTRIES);
        if measure(top).map_err(not_as_made)? == expected {
            return Ok(copied);
        }
        // Either the image or the file system of the copy is to blame.
        if measure(self.tree(name, place)?).map_err(not_as_made)? == expected {
            let reason = "its file system does not keep owners, times, links or attributes of the copy";
            return Err(place.io("copy")(std::io::Error::new(ErrorKind::Unsupported, reason)));
        }
        Err(place.tampered("names, attributes or content are not the ones that were written"))
    }

    fn tree(&self, name: &TreeName, place: &Place) -> Result<OwnedFd, Error> {
        let (kind, own) = name.place();
        private::open_folder(&self.folder, kind.as_str())
            .and_then(|parent| private::open_folder(parent, own.as_str()))
            .map_err(gone(place))
    }

    /// Checks that no part is absent or was added.
    fn check_parts(&self) -> Result<(), Error> {
        let place = Place::new(&self.id, WHOLE);
        let trees = |kind: PathSegment| {
            let of_kind = self.manifest.trees.keys().map(TreeName::place).filter(|place| place.0 == kind);
            of_kind.map(|place| place.1.clone()).collect()
        };
        let memory = self.manifest.memory.keys().cloned().collect();
        let top = vec![MANIFEST, MEMORY, UPPERS, VOLUMES];
        self.check_names(&place, ".", top)?;
        for (part, expected) in [(MEMORY, memory), (UPPERS, trees(UPPERS)), (VOLUMES, trees(VOLUMES))] {
            self.check_names(&place, part.as_str(), expected)?;
        }
        Ok(())
    }

    fn check_names(&self, place: &Place, folder: &str, expected: Vec<PathSegment>) -> Result<(), Error> {
        let opened = private::open_folder(&self.folder, folder).map_err(gone(place))?;
        let found = names(place, &opened, MAX_PARTS)?;
        if let Some(name) = expected.iter().find(|name| !found.contains(name)) {
            return Err(place.truncated(format!("{folder}/{name} is absent")));
        }
        if let Some(name) = found.iter().find(|name| !expected.contains(name)) {
            return Err(place.tampered(format!("{:?} was added", format!("{folder}/{name}"))));
        }
        Ok(())
    }
}

/// The parent of a folder, if both are on one disk. A volume in memory is a mount with a bound of its own.
fn disk_above(folder: &OwnedFd, path: &Path) -> Option<PathBuf> {
    let (parent, own) = (path.parent()?, rustix::fs::fstat(folder).ok()?);
    let above = rustix::fs::stat(parent).ok()?;
    (above.st_dev == own.st_dev).then(|| parent.to_owned())
}

/// Opens the folder to copy to, which is made if it is absent.
fn empty_folder(place: &Place, target: &Path) -> Result<OwnedFd, Error> {
    let refused = |reason| {
        let Place { image, part } = place.clone();
        Error::Target { image, part, target: target.to_owned(), reason }
    };
    match rustix::fs::mkdir(target, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(place.io(format!("make {}", target.display()))(errno)),
    }
    let opened = match private::open_folder(CWD, target) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused("it is not a folder")),
        opened => opened.map_err(place.io(format!("open {}", target.display())))?,
    };
    match private::names(&opened, 0) {
        Ok(_) => Ok(opened),
        Err(error)
            if [ErrorKind::ArgumentListTooLong, ErrorKind::InvalidFilename].contains(&error.kind()) =>
        {
            Err(refused("it is not empty"))
        }
        Err(error) => Err(place.io(format!("read {}", target.display()))(error)),
    }
}

/// A file of the memory of a container.
pub(crate) struct MemoryFile {
    file: File,
    length: u64,
}

impl MemoryFile {
    /// Reads the file for its digest.
    pub(crate) fn measure(
        &self,
        key: &Key,
        salt: Salt,
        place: &Place,
        name: &PathSegment,
    ) -> Result<Measured, Error> {
        Measured::read(key, salt, self.file.as_fd(), self.length)
            .map_err(|cause| place.not_as_made(Fault { entry: name.to_string(), cause }))
    }
}

/// Opens the files of the memory of a container; anything else in its folder is refused.
pub(crate) fn memory_files(
    place: &Place,
    memory: BorrowedFd<'_>,
    container: &PathSegment,
) -> Result<BTreeMap<PathSegment, MemoryFile>, Error> {
    let folder = private::open_folder(memory, container.as_str()).map_err(gone(place))?;
    let mut files = BTreeMap::new();
    for name in names(place, &folder, MAX_FILES)? {
        let (file, found) = match private::open_file(&folder, name.as_str()) {
            Err(errno) if is_no_file(&errno.into()) => {
                return Err(place.tampered(format!("{:?} is not a regular file", name.as_str())));
            }
            opened => opened.map_err(place.io(format!("open {:?}", name.as_str())))?,
        };
        if found.st_nlink != 1 {
            return Err(place.tampered(format!("{:?} has another name elsewhere", name.as_str())));
        }
        files.insert(name, MemoryFile { file, length: u64::try_from(found.st_size).unwrap_or(0) });
    }
    Ok(files)
}

fn names(place: &Place, folder: &OwnedFd, maximum: usize) -> Result<Vec<PathSegment>, Error> {
    private::names(folder, maximum).map_err(|error| match error.kind() {
        ErrorKind::ArgumentListTooLong => place.tampered(format!("it has more than {maximum} files")),
        ErrorKind::InvalidFilename => place.tampered("it has a name that is not UTF-8"),
        _ => place.io("read")(error),
    })
}

/// Returns `true` for the errors of opening a link, a folder, a socket or a device as a regular file.
fn is_no_file(error: &std::io::Error) -> bool {
    let errnos = [Errno::LOOP, Errno::NOTSUP, Errno::ISDIR, Errno::NXIO, Errno::NODEV];
    Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
}

/// For `map_err` on the opening of a folder of an image.
fn gone(place: &Place) -> impl FnOnce(Errno) -> Error {
    let place = place.clone();
    move |errno| match errno {
        Errno::NOENT => place.truncated("its folder is absent"),
        Errno::NOTDIR | Errno::LOOP => place.tampered("it is not a folder"),
        errno => place.io("open")(errno),
    }
}
