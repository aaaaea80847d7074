//! The files and folders of the host that a jail shows, taken as detached mounts before the jail loses sight of them.
//!
//! Each path is looked up once. What was found there is what is mounted, whatever happens to the path later.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::error::Error;
use crate::folder::{CheckedFolder, open_without_links};
use crate::spec::{MountSource, Spec, Upper};
use crate::sys;

const SET_ID_AND_DEVICES: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// A file or folder of the host that a jail shows.
struct Wanted<'a> {
    path: &'a Path,
    found: Found<'a>,
    read_only: bool,
    /// `true` when ids are mapped, where the file system supports it.
    mapped: bool,
    /// `true` for the writable side of the root: the folders in it are created when missing.
    holds_upper: bool,
}

/// How it is looked up.
enum Found<'a> {
    /// By its path.
    Plainly,
    /// By its path, on which there must be no link.
    WithoutLinks,
    /// Below a folder, without following links.
    Beneath { folder: &'a CheckedFolder, path: &'a Path },
}

/// Everything of the host that `spec` names, in the order in which [`Sources::next`] returns it.
fn wanted(spec: &Spec) -> Vec<Wanted<'_>> {
    let mut list = Vec::new();
    let plain =
        |path| Wanted { path, found: Found::Plainly, read_only: true, mapped: true, holds_upper: false };
    if spec.makes_root() {
        list.extend(spec.root.layers.iter().map(|path| Wanted { found: Found::WithoutLinks, ..plain(path) }));
        if let Upper::Dir(path) = &spec.root.upper {
            list.push(Wanted { read_only: false, holds_upper: true, ..plain(path) });
        }
    }
    for mount in &spec.mounts {
        match &mount.source {
            MountSource::Bind(path) => list.push(Wanted { read_only: mount.read_only, ..plain(path) }),
            MountSource::Beneath { folder, path } => {
                let found = Found::Beneath { folder, path };
                list.push(Wanted { found, read_only: mount.read_only, ..plain(folder.path()) });
            }
            MountSource::Host { folder, .. } => list.push(Wanted { mapped: false, ..plain(folder) }),
            MountSource::Layered { folder, .. } => {
                let found = Found::Beneath { folder, path: Path::new("") };
                list.push(Wanted { found, ..plain(folder.path()) });
            }
            MountSource::Tmpfs { .. } | MountSource::Hidden { .. } => {}
        }
    }
    list
}

/// The detached mounts, in the order in which building the jail consumes them.
pub(crate) struct Sources(VecDeque<OwnedFd>);

impl Sources {
    /// Takes the mounts from the mount namespace of the caller. With `map`, ids are mapped as that user namespace
    /// does (needs root). Without, they stay as they are.
    pub(crate) fn take(spec: &Spec, map: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let wanted = wanted(spec);
        debug_assert_eq!(wanted.len(), spec.sources());
        wanted.iter().map(|wanted| take_one(wanted, map)).collect::<Result<_, _>>().map(Self)
    }

    /// The mounts as another process took and sent them.
    pub(crate) fn received(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors.into())
    }

    /// To send them to another process.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> Result<OwnedFd, Error> {
        self.0.pop_front().ok_or_else(|| Error::Message("a mount is missing".into()))
    }
}

fn take_one(wanted: &Wanted<'_>, map: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Error> {
    let path = wanted.path;
    let map = map.filter(|_| wanted.mapped);
    let failed = |errno: Errno| Error::Source { path: path.to_owned(), errno: errno.into() };
    if wanted.holds_upper {
        make_upper(path)?;
    }
    let found = look_up(wanted).map_err(failed)?;
    let clone =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mut recursive = false;
    let tree = match open_tree(&found, "", clone) {
        // An ordinary user may not uncover what is mounted below: there it comes along.
        Err(Errno::INVAL) if map.is_none() => {
            recursive = true;
            open_tree(&found, "", clone | OpenTreeFlags::AT_RECURSIVE)
        }
        other => other,
    };
    let tree = tree.map_err(failed)?;
    let attributes = SET_ID_AND_DEVICES | if wanted.read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
    match sys::set_mount_attributes(tree.as_fd(), attributes, map, recursive) {
        Ok(()) => return Ok(tree),
        Err(errno) if map.is_none() => return Err(failed(errno)),
        // Not every file system can map ids. Read-only it is still usable: its files have the overflow id inside.
        Err(_) if wanted.read_only => {
            sys::set_mount_attributes(tree.as_fd(), attributes, None, false).map_err(failed)?;
        }
        Err(errno) => {
            return Err(Error::IdMappedMount { path: path.to_owned(), errno: errno.into() });
        }
    }
    Ok(tree)
}

fn look_up(wanted: &Wanted<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match wanted.found {
        Found::Plainly => rustix::fs::open(wanted.path, flags, Mode::empty()),
        Found::WithoutLinks => open_without_links(wanted.path),
        Found::Beneath { folder, path } if path == Path::new("") => folder.descriptor(),
        Found::Beneath { folder, path } => {
            let flags = flags | OFlags::NOFOLLOW;
            rustix::fs::openat2(folder.descriptor()?, path, flags, Mode::empty(), folder.within())
        }
    }
}

/// Makes the folders of an overlay's writable side where they are missing.
fn make_upper(folder: &Path) -> Result<(), Error> {
    let failed = |errno: std::io::Error| Error::Source { path: folder.to_owned(), errno: errno.into() };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let work = folder.join("work");
    match rustix::fs::mkdirat(CWD, &work, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed(errno.into())),
    }
}
