//! From a name to folders.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::beneath::Folder;
use crate::layout::{Layer, Layout};
use crate::names::{self, Account};
use crate::reference::split_tag;
use crate::unpack::unpack;
use crate::{Error, PathSegment, Reference, host, remove_tree};

/// Where the sandbox runtime is expected inside; who runs an image that wants it puts it there.
pub const SANDBOXD_PATH: &str = "/.hutch/sandboxd";
/// The command of [`crate::BuiltIn::Pause`].
pub const PAUSE: [&str; 2] = [SANDBOXD_PATH, "--pause"];
/// Name of unfinished folders.
const UNFINISHED: &str = "unfinished-";
/// An unfinished folder of this age that nobody has locked belongs to nobody any more.
const UNFINISHED_AGE: Duration = Duration::from_secs(6 * 3600);

/// The images of one folder.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    substitutes: bool,
    layouts: Layouts,
}

/// Which layout folders may be named.
#[derive(Debug, Clone)]
enum Layouts {
    /// Any: the caller names folders of its own.
    Any,
    /// Those below this folder, or none.
    Below(Option<PathBuf>),
}

/// What stands behind an image's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Identity of the content: `sha256:...` of the manifest, or the name and version of a built-in image.
    pub id: String,
    /// Folders to stack as the root, topmost first. Never to be written.
    pub layers: Vec<PathBuf>,
    /// Parts of this machine that belong to the image, read-only.
    pub mounts: Vec<HostMount>,
    /// What the image says about its program.
    pub config: ImageConfig,
    /// The name of the built-in image that stands in for the published one that was asked for.
    pub substituted: Option<&'static str>,
    /// Whether the sandbox runtime must be put to [`SANDBOXD_PATH`].
    pub wants_sandboxd: bool,
}

/// A file or folder of this machine that shows in an image, read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMount {
    /// Path on this machine.
    pub source: PathBuf,
    /// Path in the image.
    pub target: PathBuf,
}

/// What an image says about its program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The part of the command that a user's arguments follow.
    pub entrypoint: Vec<String>,
    /// Arguments when the user gives none.
    pub cmd: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub working_dir: Option<PathBuf>,
    /// `user`, `user:group` or numbers; empty is root inside.
    pub user: String,
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
        Ok(Store { dir: dir.into(), substitutes: true, layouts: Layouts::Any })
    }

    /// Accepts only layout folders below `folder`, or none: the names come from users who must not read this machine's
    /// other folders. A relative path in a name is one below `folder`.
    pub fn with_layouts_below(mut self, folder: Option<PathBuf>) -> Store {
        self.layouts = Layouts::Below(folder);
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

    /// Opens `PATH`, or where there is none, `PATH` of `PATH:TAG`.
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
        let image = layout.read(tag)?;
        let mut layers = Vec::with_capacity(image.layers.len());
        for layer in &image.layers {
            let folder = self.layer(layout, layer)?;
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
        })
    }

    fn layer(&self, layout: &Layout, layer: &Layer) -> Result<PathBuf, Error> {
        let name = PathSegment::new(format!("layer-sha256-{}", layer.diff_id));
        let folder = name.ok_or_else(|| layout.no_name())?.below(&self.dir);
        if folder.is_dir() {
            return Ok(folder);
        }
        let unfinished = unfinished(&self.dir)?;
        let blob = layout.open_layer(layer)?;
        let digests = unpack(blob, layer.packing, unfinished.path())?;
        let check = |what: String, expected: &str, found: &str| match expected == found {
            true => Ok(()),
            false => Err(Error::DigestMismatch { what }),
        };
        check(layout.name_of(layer), &layer.blob_digest, &digests.blob)?;
        check("the layer's archive".into(), &layer.diff_id, &digests.archive)?;
        finish(unfinished, &folder)?;
        Ok(folder)
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(200).collect()
}

/// A new folder, removed on drop unless it is [finished](finish). Its content is an archive's, so it may be nested deep
/// and have any time of change.
pub(crate) struct Unfinished {
    folder: Option<tempfile::TempDir>,
    /// Locked, so that nobody sweeps it.
    _lock: std::fs::File,
}

impl Unfinished {
    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), tempfile::TempDir::path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            // What stays is swept later.
            let _ = remove_tree(&folder.keep());
        }
    }
}

/// Makes a folder for content that is not complete yet.
pub(crate) fn unfinished(dir: &Path) -> Result<Unfinished, Error> {
    sweep(dir);
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(UNFINISHED).tempdir_in(dir).map_err(Error::file("make a folder in", dir))?;
    let lock = lock(made.path()).map_err(Error::file("lock", made.path()))?;
    Ok(Unfinished { folder: Some(made), _lock: lock })
}

/// Gives a complete folder its name, after its content has reached the disk.
pub(crate) fn finish(mut unfinished: Unfinished, name: &Path) -> Result<(), Error> {
    let opened = Folder::open(unfinished.path()).map_err(Error::file("open", unfinished.path()))?;
    // mode 0700 of a fresh folder would hide the whole root from the users inside.
    if rustix::fs::stat(unfinished.path()).is_ok_and(|s| s.st_mode & 0o777 == 0o700) {
        rustix::fs::chmod(unfinished.path(), rustix::fs::Mode::from_raw_mode(0o755))
            .map_err(Error::file("set the mode of", unfinished.path()))?;
    }
    opened.sync().map_err(Error::file("write out", unfinished.path()))?;
    match std::fs::rename(unfinished.path(), name) {
        Ok(()) => {
            // It has another name now, so there is nothing left to remove.
            let _ = unfinished.folder.take().map(tempfile::TempDir::keep);
            Ok(())
        }
        // Somebody else was quicker with the same content.
        Err(_) if name.is_dir() => Ok(()),
        Err(source) => Err(Error::File { action: "name", path: name.into(), source }),
    }
}

/// Locks a folder until the descriptor is closed; an error when somebody else has it locked.
fn lock(folder: &Path) -> std::io::Result<std::fs::File> {
    let folder = std::fs::File::open(folder)?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// Removes what a killed process left.
fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let old = entry
            .metadata()
            .and_then(|m| m.modified())
            .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > UNFINISHED_AGE));
        if !old || !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        if let Ok(_lock) = lock(&entry.path()) {
            // What cannot be removed now is tried again by the next one.
            let _ = remove_tree(&entry.path());
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn folder_in_use_is_not_swept_however_old_its_archive_says_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let age = |folder: &Path| {
            let folder = std::fs::File::open(folder).unwrap();
            folder.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        let used = unfinished(dir.path()).unwrap();
        age(used.path());
        let left = dir.path().join("unfinished-left");
        std::fs::create_dir(&left).unwrap();
        age(&left);
        let _other = unfinished(dir.path()).unwrap();
        assert!(used.path().is_dir());
        assert!(!left.exists());
    }
}
