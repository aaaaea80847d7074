//! The folder of all images.

use std::path::Path;
use std::sync::Arc;

use hutch_image::{PathSegment, remove_tree};
use rustix::fs::CWD;

use crate::error::Place;
use crate::key::Key;
use crate::name::{KEY, PARTIAL, REMOVED, WHOLE, check_id};
use crate::store::{Store, exists};
use crate::{Error, Image, Partial, private};

/// Maximum images and other entries of the folder that are read.
const MAX_FOLDER_ENTRIES: usize = 100_000;
/// Images from which on no other one is begun: far fewer than can be read, so that the folder can always be opened.
const MAX_IMAGES: usize = 50_000;

/// The images of this machine.
#[derive(Debug, Clone)]
pub struct Images {
    pub(crate) store: Arc<Store>,
}

impl Images {
    /// Opens the folder of the images, which belongs to this user and has mode 0700, and the key in it. Makes what is absent.
    /// Removes what a process left that was killed while it made or removed an image.
    ///
    /// # Errors
    /// [`Error::Unsafe`] if another user owns or may use the folder or the key, or there are images and no key;
    /// [`Error::Folder`] if the system fails.
    pub fn open(folder: &Path) -> Result<Images, Error> {
        private::folder(folder)?;
        for name in entries(folder)? {
            if name.as_str().ends_with(PARTIAL) || name.as_str().ends_with(REMOVED) {
                let path = name.below(folder);
                remove_tree(&path).map_err(Error::folder("remove", &path))?;
            }
        }
        let path = KEY.below(folder);
        let has_images = entries(folder)?.iter().any(|name| check_id(name).is_ok());
        if has_images && !exists(&path).map_err(Error::folder("find", &path))? {
            // A new key would make them worthless without a word.
            let reason =
                "the key of the images in its folder is absent: restore it, or remove the images".into();
            return Err(Error::Unsafe { path, reason });
        }
        let key = Key::open(folder)?;
        Ok(Images { store: Arc::new(Store { folder: folder.to_owned(), key }) })
    }

    /// Begins an image of this id. Nothing finds it before it is finished.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Id`], [`Error::TooMany`], [`Error::NoRoom`] (5 % of the disk, at most 1 GiB, must stay free),
    /// [`Error::Io`].
    pub fn begin(&self, id: &PathSegment) -> Result<Partial, Error> {
        check_id(id)?;
        let place = Place::new(id, WHOLE);
        hutch_image::check_room(&self.store.folder, 0).map_err(place.io("begin"))?;
        if exists(&self.store.path(id)).map_err(place.io("begin"))? {
            return Err(place.exists());
        }
        self.begin_below(MAX_IMAGES, id)
    }

    /// Begins an image unless there are so many.
    pub(crate) fn begin_below(&self, maximum: usize, id: &PathSegment) -> Result<Partial, Error> {
        if entries(&self.store.folder)?.len() >= maximum {
            return Err(Error::TooMany { image: id.to_string(), maximum });
        }
        Partial::make(Arc::clone(&self.store), id.clone())
    }

    /// Finds an image and checks its manifest. What the manifest is about is checked as it is used.
    ///
    /// # Errors
    /// [`Error::Tampered`], [`Error::Truncated`], [`Error::Swapped`], [`Error::Foreign`], [`Error::Old`], [`Error::Id`] or
    /// [`Error::Io`].
    pub fn find(&self, id: &PathSegment) -> Result<Option<Image>, Error> {
        check_id(id)?;
        let place = Place::new(id, WHOLE);
        match exists(&self.store.path(id)).map_err(place.io("find"))? {
            true => Image::open(Arc::clone(&self.store), id.clone()).map(Some),
            false => Ok(None),
        }
    }

    /// Ids of all complete images, sorted. Their manifests are not checked.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn list(&self) -> Result<Vec<PathSegment>, Error> {
        let mut ids = entries(&self.store.folder)?;
        ids.retain(|id| check_id(id).is_ok());
        Ok(ids)
    }

    /// Removes an image, complete or not; nothing there is no error. From the first moment on nothing finds it.
    ///
    /// # Errors
    /// [`Error::Io`] if something stays; the next [`Images::open`] removes that. [`Error::Id`].
    pub fn remove(&self, id: &PathSegment) -> Result<(), Error> {
        check_id(id)?;
        self.store.remove(id)
    }
}

fn entries(folder: &Path) -> Result<Vec<PathSegment>, Error> {
    let opened = private::open_folder(CWD, folder).map_err(Error::folder("open", folder))?;
    let mut names = private::names(opened, MAX_FOLDER_ENTRIES).map_err(Error::folder("read", folder))?;
    names.retain(|name| *name != KEY);
    Ok(names)
}
