//! From a name to folders.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use oci_spec::image::{Descriptor, MediaType};
use rustix::io::Errno;

use crate::beneath::Folder;
use crate::confined::unpack_confined;
use crate::layout::{Layer, Layout, LayoutImage};
use crate::names::{self, Account};
use crate::reference::split_tag;
use crate::turns::{LOCK, Slot, Turn};
use crate::unfinished::{finish, unfinished};
use crate::unpack::{Owners, unpack};
use crate::uses::{Use, Uses};
use crate::{Error, Hold, PathSegment, Reference, Resolved, Unpacker, host, reserve};

/// The images of one folder.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    substitutes: bool,
    layouts: Layouts,
    /// Without it, this process unpacks layers itself.
    unpacker: Option<Arc<dyn Unpacker>>,
    uses: Arc<Uses>,
}

/// Which layout folders may be named.
#[derive(Debug, Clone)]
enum Layouts {
    /// Any: the caller names folders of its own.
    Any,
    /// Those below this folder, or none.
    Below(Option<PathBuf>),
}

impl Resolved {
    /// Finds a user of the image: `user`, `user:group`, numbers, or the empty text for root.
    ///
    /// # Errors
    /// When the image knows no such user or group.
    pub fn account(&self, user: &str) -> Result<Account, Error> {
        names::look_up(&self.layers, user)
    }
}

impl Store {
    /// Opens the folder, making it with mode 0700 when missing and taking other users' rights from an existing one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(dir: &Path) -> Result<Store, Error> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(Error::file("make", dir))?;
        // Jails follow no link on the way to a layer.
        let dir = &dir.canonicalize().map_err(Error::file("open", dir))?;
        let found = std::fs::metadata(dir).map_err(Error::file("open", dir))?;
        if found.mode() & 0o077 != 0 {
            let private = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(dir, private).map_err(Error::file("set the mode of", dir))?;
        }
        Ok(Store {
            dir: dir.into(),
            substitutes: true,
            layouts: Layouts::Any,
            unpacker: None,
            uses: Arc::default(),
        })
    }

    /// Accepts only layout folders below `folder`, or none: the names come from users who must not read this machine's
    /// other folders. A relative path in a name is one below `folder`.
    pub fn with_layouts_below(mut self, folder: Option<PathBuf>) -> Store {
        self.layouts = Layouts::Below(folder);
        self
    }

    /// Has layers unpacked by confined processes. Programs that run images always set it.
    pub fn with_unpacker(mut self, unpacker: Arc<dyn Unpacker>) -> Store {
        self.unpacker = Some(unpacker);
        self
    }

    /// Refuses the published runtime images instead of answering them with the built-in one.
    pub fn without_substitutes(mut self) -> Store {
        self.substitutes = false;
        self
    }

    /// Finds an image, making or unpacking what is not there yet. A second call for the same image costs a few
    /// system calls for a built-in one and a few small reads for a layout folder.
    ///
    /// # Errors
    /// When the image cannot be had; the text says why.
    pub fn resolve(&self, name: &str) -> Result<Resolved, Error> {
        match Reference::parse(name)? {
            Reference::BuiltIn(image) => host::resolve(&self.dir, image),
            Reference::Published(image) if self.substitutes => {
                let resolved = host::resolve(&self.dir, image)?;
                Ok(Resolved { substituted: Some(image.name()), ..resolved })
            }
            Reference::Published(_) => Err(Error::NotPullable(name.to_owned())),
            Reference::Layout(text) => {
                let (layout, tag) = self.open_layout(&text)?;
                self.layout(&layout, tag)
            }
        }
    }

    /// Finds an image of the folder in which pulled images are, by its full name. The folder is trusted not to be one of
    /// users, so that [`Store::with_layouts_below`] does not restrict it.
    ///
    /// # Errors
    /// When the image is not there, or is not what its digests promise.
    pub fn resolve_pulled(&self, folder: &Path, name: &str) -> Result<Resolved, Error> {
        let opened = Folder::open(folder).map_err(Error::file("open", folder))?;
        self.layout(&Layout::new(opened, folder), Some(name))
    }

    /// As [`Store::resolve_pulled`], for an image that has no name yet, by digest, bytes and media type of its manifest.
    ///
    /// # Errors
    /// When the image is not what its digests promise.
    pub fn resolve_unnamed(
        &self,
        folder: &Path,
        (digest, size, media_type): (&str, u64, &str),
    ) -> Result<Resolved, Error> {
        let opened = Folder::open(folder).map_err(Error::file("open", folder))?;
        let layout = Layout::new(opened, folder);
        let digest: oci_spec::image::Digest = digest.parse().map_err(|_| layout.no_name())?;
        let manifest = Descriptor::new(MediaType::from(media_type), size, digest);
        self.unpacked(&layout, layout.image(&manifest)?)
    }

    /// As [`Store::resolve_pulled`]; `None` if the folder is missing or damaged, or has no image of that
    /// name.
    ///
    /// # Errors
    /// When the image is there, and is not what its digests promise.
    pub fn find_pulled(&self, folder: &Path, name: &str) -> Result<Option<Resolved>, Error> {
        let opened = match Folder::open(folder) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(Error::file("open", folder))?,
        };
        let layout = Layout::new(opened, folder);
        // A folder whose names are damaged has no image; the next pull sets them aside.
        if layout.has(name).unwrap_or(false) { self.layout(&layout, Some(name)).map(Some) } else { Ok(None) }
    }

    /// Checks in a folder of pulled images, which another process writes, that a digest is that of a manifest or of an
    /// index that leads to it.
    ///
    /// # Errors
    /// When it does not, or the folder cannot be read.
    pub fn check_pinned(folder: &Path, pinned: &str, manifest: &str) -> Result<(), Error> {
        let opened = Folder::open(folder).map_err(Error::file("open", folder))?;
        match Layout::new(opened, folder).leads(pinned, manifest) {
            true => Ok(()),
            false => Err(Error::DigestMismatch { what: "the image that was pulled".into() }),
        }
    }

    /// Opens `PATH`; if absent, `PATH` of `PATH:TAG`.
    fn open_layout<'a>(&self, text: &'a str) -> Result<(Layout, Option<&'a str>), Error> {
        let whole = Path::new(text);
        let errno = match self.open_folder(whole)? {
            Ok(folder) => return Ok((Layout::new(folder, whole), None)),
            Err(errno) => errno,
        };
        let (path, errno) = match split_tag(text) {
            Some((path, tag)) => match self.open_folder(path)? {
                Ok(folder) => return Ok((Layout::new(folder, path), Some(tag))),
                Err(errno) => (path, errno),
            },
            None => (whole, errno),
        };
        let reason = match errno {
            Errno::LOOP | Errno::XDEV => "a link is on its path, which is not followed".to_owned(),
            Errno::NOENT | Errno::NOTDIR => "no such folder".to_owned(),
            errno => std::io::Error::from(errno).to_string(),
        };
        Err(Error::Layout { path: path.into(), reason })
    }

    /// Opens a folder that may be named. The inner error is the kernel's.
    fn open_folder(&self, path: &Path) -> Result<Result<Folder, Errno>, Error> {
        let top = match &self.layouts {
            Layouts::Any => return Ok(Folder::open(path)),
            Layouts::Below(None) => return Err(Error::NoImageFolder(shown(path))),
            Layouts::Below(Some(top)) => top,
        };
        let plain =
            |path: &Path| path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        let below = if path.is_absolute() { path.strip_prefix(top).ok() } else { Some(path) };
        let Some(below) = below.filter(|below| plain(below)) else {
            return Err(Error::OutsideImageFolder { name: shown(path), folder: top.clone() });
        };
        let opened = Folder::open(top).map_err(Error::file("open", top))?;
        Ok(opened.folder_over_mounts(below))
    }

    fn layout(&self, layout: &Layout, tag: Option<&str>) -> Result<Resolved, Error> {
        self.unpacked(layout, layout.read(tag)?)
    }

    /// Unpacks what is not there yet.
    fn unpacked(&self, layout: &Layout, image: LayoutImage) -> Result<Resolved, Error> {
        let mut layers = Vec::with_capacity(image.layers.len());
        let mut hold = vec![self.hold(&use_of(&image.digest).ok_or_else(|| layout.no_name())?)?];
        for layer in &image.layers {
            let name = layer.folder_name().ok_or_else(|| layout.no_name())?;
            // Before it is looked for, so that nothing removes it meanwhile.
            hold.push(self.hold(&name)?);
            let folder = self.layer(layout, layer, &name)?;
            // The same layer twice would make the overlay mount fail, and the upper one says it all.
            layers.retain(|other| *other != folder);
            layers.push(folder);
        }
        layers.reverse();
        Ok(Resolved {
            id: image.digest,
            layers,
            mounts: Vec::new(),
            config: image.config,
            substituted: None,
            wants_sandboxd: false,
            hold: Hold::of(hold),
        })
    }

    fn hold(&self, name: &PathSegment) -> Result<Arc<Use>, Error> {
        self.uses.hold(&self.dir, name).map_err(Error::file("lock a file in", &self.dir))
    }

    fn layer(&self, layout: &Layout, layer: &Layer, name: &PathSegment) -> Result<PathBuf, Error> {
        let folder = name.below(&self.dir);
        if folder.is_dir() {
            return Ok(folder);
        }
        // Many Pods may start the same image at once.
        let _turn = self.turn(name).map_err(Error::file("lock a file in", &self.dir))?;
        if folder.is_dir() {
            return Ok(folder);
        }
        let _slot = Slot::take();
        let opened = Folder::open(&self.dir).map_err(Error::file("open", &self.dir))?;
        reserve::check(&opened).map_err(Error::file("unpack a layer into", &self.dir))?;
        let unfinished = unfinished(&self.dir)?;
        let blob = layout.open_layer(layer)?;
        let size = blob.metadata().map_err(Error::file("read", &self.dir))?.len();
        let digests = match &self.unpacker {
            Some(unpacker) => unpack_confined(&**unpacker, (blob, size), layer.packing, unfinished.path())?,
            None => unpack((blob, size), layer.packing, unfinished.path(), Owners::of_this_process())?,
        };
        let check = |what: String, expected: &str, found: &str| match expected == found {
            true => Ok(()),
            false => Err(Error::DigestMismatch { what }),
        };
        check(layout.name_of(layer), &layer.blob_digest, &digests.blob)?;
        check("the layer's archive".into(), &layer.diff_id, &digests.archive)?;
        finish(unfinished, &folder)?;
        Ok(folder)
    }

    /// Waits until no other thread or process makes the folder of this name.
    fn turn(&self, name: &PathSegment) -> std::io::Result<Turn> {
        let lock = PathSegment::new(format!("{LOCK}{}", name.as_str()));
        Turn::take(lock.ok_or(Errno::NAMETOOLONG)?.below(&self.dir))
    }
}

/// Name of the file that is locked while an image is in use; its argument is the digest of the manifest.
pub(crate) fn use_of(digest: &str) -> Option<PathSegment> {
    PathSegment::new(format!("image-{}", digest.replace(':', "-")))
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(200).collect()
}
