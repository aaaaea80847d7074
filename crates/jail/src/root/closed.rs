//! Rules for files, on a finished tree of mounts.
//!
//! An empty mount hides a path, and a read-only path is mounted over itself. So a rule holds for every way to the path: a
//! link, an open folder, `/proc/self/root`. A folder on the way is mounted over itself too, because one that only contains a
//! mount could be moved, and another one made in its place. Where an earlier jail wrote to the root, a rule also holds for the
//! path to which the links of the image lead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::{FOLDER, SKELETON_BYTES, open_beneath, tmpfs};
use crate::error::Error;
use crate::files::{FileAccess, FileRule, FileRules, Level, OF_KERNEL, combine};
use crate::invariants::{Planned, mount_id};
use crate::sys;

/// Maximum links on the way to a path, as the kernel has it.
const LINKS: usize = 40;

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_EMPTY_PATH);

/// Further parameters of [`close`].
pub(crate) struct Means<'a> {
    /// An empty file that is mounted nowhere yet.
    pub(crate) hidden: OwnedFd,
    /// The root without what earlier jails wrote to it, if they did.
    pub(crate) image: Option<OwnedFd>,
    /// Further paths that cannot be closed.
    pub(crate) reserved: &'a [&'a str],
}

/// Closes files of the tree below `top` and returns the mounts that this made.
pub(crate) fn close(top: &OwnedFd, rules: &FileRules, means: Means<'_>) -> Result<Vec<Planned>, Error> {
    let by_image = means.image.map_or(Ok(Vec::new()), |image| by_links_of_image(&image, rules))?;
    let mut tree = Tree::new(top, &rules.shared, means.reserved, means.hidden)?;
    let mut levels = vec![Level::new()];
    let mut names = BTreeMap::new();
    let direct = rules.rules.iter().map(|rule| (rule, false));
    let mut ordered: Vec<(&FileRule, bool)> =
        direct.chain(by_image.iter().map(|rule| (rule, true))).collect();
    // What is deeper comes first, so that a missing folder is not made as a file.
    ordered.sort_by(|(one, _), (other, _)| other.path.cmp(&one.path));
    for (rule, by_image) in ordered {
        let found = tree.find(rule).map_err(|reason| refused(&rule.name, reason))?;
        let Some(Found { path, by_link }) = found else { continue };
        names.insert(path.clone(), rule.name.as_str());
        match by_link || by_image {
            false => levels[0].push((path, rule.access)),
            true => levels.push(vec![(path, rule.access)]),
        }
    }
    let closed = combine(&levels);
    let name = |path: &Path| names.get(path).copied().unwrap_or_default();
    let failed = |path: &Path| {
        let (name, path) = (name(path).to_owned(), path.display().to_string());
        move |errno: Errno| refused(&name, format!("{path} cannot be closed: {errno}"))
    };
    // Copies of what stays visible, before anything lies above it.
    let mut copies = BTreeMap::new();
    for (path, access) in closed.iter().filter(|(_, access)| *access != FileAccess::Hidden) {
        copies.insert(path.as_path(), tree.copy(path, *access).map_err(failed(path))?);
    }
    let mut made = Vec::new();
    for (path, access) in &closed {
        tree.keep_in_place(path, &mut made).map_err(failed(path))?;
        let mount = match copies.remove(path.as_path()) {
            Some(copy) => copy,
            None => tree.empty(path, &within(&closed, path, &copies)).map_err(failed(path))?,
        };
        tree.attach(&mount, path, *access != FileAccess::Write, &mut made).map_err(failed(path))?;
    }
    Ok(made)
}

/// Returns the rules whose paths lead elsewhere by links of the image, each with the path to which it leads. Code of an earlier
/// jail may have put something else in the place of these links.
fn by_links_of_image(image: &OwnedFd, rules: &FileRules) -> Result<Vec<FileRule>, Error> {
    let elsewhere = rules.rules.iter().map(|rule| {
        let path = without_links(image, &rule.path).map_err(|errno| {
            refused(&rule.name, format!("{} cannot be looked up in the image: {errno}", rule.path.display()))
        })?;
        Ok((path != rule.path).then(|| FileRule { path, ..rule.clone() }))
    });
    elsewhere.filter_map(Result::transpose).collect()
}

/// Returns a path without the links of a tree that does not change. Parts that are not in it stay.
fn without_links(tree: &OwnedFd, path: &Path) -> Result<PathBuf, Errno> {
    let mut rest: VecDeque<OsString> = names(path).collect();
    let (mut here, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let there = here.join(&name);
        let below = there.strip_prefix("/").unwrap_or(&there);
        match rustix::fs::readlinkat(tree, below, Vec::new()) {
            Ok(_) if links == LINKS => return Err(Errno::LOOP),
            Ok(target) => {
                links += 1;
                follow(target.as_bytes(), &mut here, &mut rest);
            }
            // Not a link, or not there.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => here = there,
            Err(errno) => return Err(errno),
        }
    }
    Ok(here)
}

/// Puts what a link in the folder `here` names before the rest of a path.
fn follow(target: &[u8], here: &mut PathBuf, rest: &mut VecDeque<OsString>) {
    let target = Path::new(OsStr::from_bytes(target));
    if target.is_absolute() {
        *here = PathBuf::from("/");
    }
    names(target).rev().for_each(|name| rest.push_front(name));
}

fn refused(rule: &str, reason: String) -> Error {
    Error::FileRule { rule: rule.to_owned(), reason }
}

/// Returns the visible paths right below a hidden one, each with `true` for a folder.
fn within<'a>(closed: &'a Level, hidden: &Path, copies: &BTreeMap<&Path, OwnedFd>) -> Vec<(&'a Path, bool)> {
    let outer = |path: &Path| {
        let all = path.ancestors().skip(1);
        all.into_iter().find(|folder| closed.iter().any(|(other, _)| other == folder)).map(Path::to_owned)
    };
    let below = closed.iter().map(|(path, _)| path.as_path()).filter(|path| *path != hidden);
    let below = below.filter(|path| outer(path).as_deref() == Some(hidden));
    below.filter_map(|path| Some((path, is_folder(copies.get(path)?).ok()?))).collect()
}

fn is_folder(entry: &OwnedFd) -> Result<bool, Errno> {
    let status = rustix::fs::statat(entry, "", AtFlags::EMPTY_PATH)?;
    Ok(FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

/// Path of a rule without links.
struct Found {
    path: PathBuf,
    /// `true` if a link led to it.
    by_link: bool,
}

/// A tree of mounts.
struct Tree<'a> {
    top: &'a OwnedFd,
    /// Numbers of the mounts whose files other jails may change.
    shared: BTreeSet<u64>,
    reserved: &'a [&'a str],
    /// An empty file, and `true` once it is mounted.
    hidden: (OwnedFd, bool),
}

impl<'a> Tree<'a> {
    fn new(
        top: &'a OwnedFd,
        shared: &[PathBuf],
        reserved: &'a [&'a str],
        hidden: OwnedFd,
    ) -> Result<Tree<'a>, Error> {
        let number = |target: &PathBuf| {
            // As the mount was made: links of the image lead to its target.
            let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            let place =
                rustix::fs::openat2(top, target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within);
            place.and_then(|place| mount_id(&place, "")).map_err(super::at(target, "find the mount"))
        };
        let shared = shared.iter().map(number).collect::<Result<_, _>>()?;
        Ok(Tree { top, shared, reserved, hidden: (hidden, false) })
    }

    /// Opens a path in which there must be no link.
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(self.top, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within)
    }

    /// Finds the path of a rule, or makes an empty file there. `None` for a rule without effect. The error is the reason why
    /// the rule cannot be enforced.
    fn find(&self, rule: &FileRule) -> Result<Option<Found>, String> {
        let mut rest: VecDeque<OsString> = names(&rule.path).collect();
        let (mut here, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                here.pop();
                continue;
            }
            let there = here.join(&name);
            let text = there.display().to_string();
            let fail = |errno: Errno| format!("{text} cannot be looked up: {errno}");
            if OF_KERNEL.iter().any(|own| there.starts_with(own)) {
                return Err(format!("it leads to {text}, where nothing can be closed"));
            }
            let folder = self.open(&here).map_err(fail)?;
            let status = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {
                    rest.push_front(name);
                    let made = self.make(rule, &folder, &here, &rest)?;
                    return Ok(made.map(|path| Found { path, by_link: links > 0 }));
                }
                other => other.map_err(fail)?,
            };
            match FileType::from_raw_mode(status.st_mode) {
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS {
                        return Err(fail(Errno::LOOP));
                    }
                    if self.is_shared(&folder).map_err(fail)? {
                        return Err(format!(
                            "{text} is a symbolic link in a volume, which code inside could replace; name the path of what it leads to"
                        ));
                    }
                    let target = rustix::fs::readlinkat(&folder, &name, Vec::new()).map_err(fail)?;
                    follow(target.as_bytes(), &mut here, &mut rest);
                }
                FileType::Directory => here = there,
                _ if rest.is_empty() => here = there,
                _ => return Err(format!("{text} is not a folder")),
            }
        }
        if std::iter::once(&"/").chain(self.reserved).any(|own| here == Path::new(own)) {
            return Err(format!("{} cannot be closed as a whole", here.display()));
        }
        Ok(Some(Found { path: here, by_link: links > 0 }))
    }

    /// Makes an empty file, so that nothing else can be made at its path, and the folders above it. `rest` are the missing
    /// parts. Returns `None` where nothing can be made, or where the rule closes nothing.
    fn make(
        &self,
        rule: &FileRule,
        folder: &OwnedFd,
        above: &Path,
        rest: &VecDeque<OsString>,
    ) -> Result<Option<PathBuf>, String> {
        let path = rest.iter().fold(above.to_owned(), |path, name| path.join(name));
        let text = path.display().to_string();
        if rule.access == FileAccess::Write {
            return Ok(None);
        }
        if rest.iter().any(|name| name == "..") {
            return Err(format!("{text} leads nowhere"));
        }
        let fail = |errno: Errno| format!("{text} does not exist and cannot be made: {errno}");
        let made = match is_read_only(folder).map_err(fail)? {
            true => Err(Errno::ROFS),
            false => make_file(folder, rest),
        };
        match made {
            Ok(()) => Ok(Some(path)),
            Err(Errno::ROFS) if self.is_shared(folder).map_err(fail)? => Err(format!(
                "{text} does not exist in a read-only volume, where others may make it; make it in the volume before"
            )),
            // It cannot be made later either.
            Err(Errno::ROFS) => Ok(None),
            Err(errno) => Err(fail(errno)),
        }
    }

    fn is_shared(&self, place: &OwnedFd) -> Result<bool, Errno> {
        Ok(self.shared.contains(&mount_id(place, "")?))
    }

    /// Returns a copy of what is at a path, with everything mounted below it.
    fn copy(&self, path: &Path, access: FileAccess) -> Result<OwnedFd, Errno> {
        let copy = open_tree(self.open(path)?, "", CLONE | OpenTreeFlags::AT_RECURSIVE)?;
        if access == FileAccess::Read {
            sys::set_mount_attributes(copy.as_fd(), libc::MOUNT_ATTR_RDONLY, None, true)?;
        }
        Ok(copy)
    }

    /// Returns the mount that hides a path. In it are only mount points of the paths `within`.
    fn empty(&mut self, path: &Path, within: &[(&Path, bool)]) -> Result<OwnedFd, Errno> {
        if !is_folder(&self.open(path)?)? {
            let (file, mounted) = &mut self.hidden;
            return match std::mem::replace(mounted, true) {
                false => Ok(file.try_clone().map_err(|_| Errno::MFILE)?),
                // A mount is copied only where it is mounted.
                true => open_tree(&*file, "", CLONE),
            };
        }
        let folder = tmpfs(SKELETON_BYTES, "0555")?;
        for (inner, is_folder) in within {
            let rest: VecDeque<OsString> = names(inner.strip_prefix(path).unwrap_or(inner)).collect();
            match is_folder {
                true => make_folders(&folder, &rest).map(drop)?,
                false => make_file(&folder, &rest)?,
            }
        }
        sys::set_mount_attributes(folder.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)?;
        Ok(folder)
    }

    /// Mounts the folders on the way to a path over themselves, where they could be moved.
    fn keep_in_place(&self, path: &Path, made: &mut Vec<Planned>) -> Result<(), Errno> {
        let mut folders: Vec<&Path> =
            path.ancestors().skip(1).filter(|folder| *folder != Path::new("/")).collect();
        folders.reverse();
        for folder in folders {
            let place = self.open(folder)?;
            if is_mount_root(&place)? || is_read_only(&place)? {
                continue;
            }
            let copy = open_tree(&place, "", CLONE | OpenTreeFlags::AT_RECURSIVE)?;
            self.attach(&copy, folder, false, made)?;
        }
        Ok(())
    }

    fn attach(
        &self,
        mount: &OwnedFd,
        path: &Path,
        read_only: bool,
        made: &mut Vec<Planned>,
    ) -> Result<(), Errno> {
        let place = self.open(path)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount.as_fd(), "", place.as_fd(), "", flags)?;
        made.push(Planned { id: mount_id(mount, "")?, read_only, with_submounts: true });
        Ok(())
    }
}

/// Returns the names in a path, `..` included.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn is_read_only(place: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatvfs(place)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn is_mount_root(place: &OwnedFd) -> Result<bool, Errno> {
    let found = rustix::fs::statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Makes folders, one in the other, where they are missing. Returns the last one.
fn make_folders<'a>(
    folder: &OwnedFd,
    names: impl IntoIterator<Item = &'a OsString>,
) -> Result<OwnedFd, Errno> {
    let mut here = folder.try_clone().map_err(|_| Errno::MFILE)?;
    for name in names {
        match rustix::fs::mkdirat(&here, name, FOLDER) {
            Ok(()) | Err(Errno::EXIST) => here = open_beneath(&here, name)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(here)
}

/// Makes an empty file and the folders above it.
fn make_file(folder: &OwnedFd, names: &VecDeque<OsString>) -> Result<(), Errno> {
    let Some(name) = names.back() else { return Err(Errno::INVAL) };
    let here = make_folders(folder, names.iter().take(names.len() - 1))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(&here, name, flags, Mode::from_raw_mode(0o644), within).map(drop)
}
