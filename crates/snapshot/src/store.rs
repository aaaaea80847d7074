//! The folder that all handles of images share: its path, the key, and how folders of images get and lose their names.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use hutch_image::{PathSegment, remove_tree};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::error::{Place, is_full};
use crate::key::Key;
use crate::name::{MANIFEST, REMOVED, WHOLE};
use crate::{Error, private};

/// A folder of images.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) folder: PathBuf,
    pub(crate) key: Key,
}

impl Store {
    /// Path of a complete image.
    pub(crate) fn path(&self, id: &PathSegment) -> PathBuf {
        id.below(&self.folder)
    }

    /// Removes an image; nothing there is no error.
    pub(crate) fn remove(&self, id: &PathSegment) -> Result<(), Error> {
        let place = Place::new(id, WHOLE);
        let path = self.path(id);
        if !exists(&path).map_err(place.io("remove"))? {
            return Ok(());
        }
        let removed = self.set_aside(&path, id).map_err(place.io("remove"))?;
        remove_tree(&removed).map_err(place.io("remove"))
    }

    /// Gives the folder of an image a name that no image has.
    fn set_aside(&self, path: &Path, id: &PathSegment) -> io::Result<PathBuf> {
        for number in 0_u32.. {
            let name =
                PathSegment::new(format!("{id}.{number}{REMOVED}")).ok_or(ErrorKind::InvalidFilename)?;
            let aside = name.below(&self.folder);
            if exists(&aside)? {
                continue;
            }
            match std::fs::rename(path, &aside) {
                // Even a name can need space. Without its manifest the folder is no image either.
                Err(error) if is_full(&error) => {
                    std::fs::remove_file(MANIFEST.below(path))?;
                    return Ok(path.to_owned());
                }
                renamed => renamed?,
            }
            private::sync(&self.folder)?;
            return Ok(aside);
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Gives a complete folder its name, on the disk too.
    pub(crate) fn publish(&self, partial: &Path, id: &PathSegment) -> Result<(), Error> {
        let place = Place::new(id, WHOLE);
        let path = self.path(id);
        let renamed = match rustix::fs::renameat_with(CWD, partial, CWD, &path, RenameFlags::NOREPLACE) {
            // The file system cannot do so. The other call does not replace a folder that has something in it.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(partial, &path),
            renamed => renamed,
        };
        match renamed {
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => return Err(place.exists()),
            renamed => renamed.map_err(place.io("name"))?,
        }
        private::sync(&self.folder).map_err(place.io("write out")).inspect_err(|_| {
            // The disk may not have the name, so no caller may rely on the image. The error to report is the first one.
            let _ = self.remove(id);
        })
    }
}

/// Returns `true` if a file, folder or link of this name exists.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
