//! Mounts of the jail around a runtime, in a tree of mounts that is a copy of the machine's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use super::closed::Means;
use super::private::{CLONE, hidden, hidden_file, image, layered, no_copy};
use super::{ROOT, SKELETON_BYTES, Top, at, attach_tree, closed, failed, memory, stack, tmpfs};
use crate::error::Error;
use crate::files::FileRules;
use crate::folder::open_without_links;
use crate::sources::Sources;
use crate::spec::{Mount, MountSource, RuntimeRoot, Spec, Upper};

/// Where the stage is: a folder that is always there, and that nothing needs meanwhile.
const STAGE: &str = "/proc";
/// Folder over which runsc mounts memory where it is empty.
const MEMORY: &str = "/tmp";

const WHOLE: OpenTreeFlags = CLONE.union(OpenTreeFlags::AT_RECURSIVE).union(OpenTreeFlags::AT_EMPTY_PATH);

/// Mounts that are mounted nowhere yet.
struct Ready {
    mounts: Vec<OwnedFd>,
    /// The root of the runtime, and the root without what earlier jails wrote to it.
    root: Option<(OwnedFd, Option<OwnedFd>)>,
    hidden: Option<OwnedFd>,
}

/// Mounts everything that the runtime is given.
pub(crate) fn build(spec: &Spec, sources: &mut Sources) -> Result<(), Error> {
    let host = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open the root"))?;
    let ready = prepare(spec, sources)?;
    let mut attached: Vec<(&Path, OwnedFd)> = Vec::new();
    for (mount, tree) in spec.mounts.iter().zip(ready.mounts) {
        attach_tree(&host, &attached, &tree, mount)?;
        attached.push((&mount.target, tree));
    }
    let (Some(root), Some((tree, image))) = (&spec.runtime_root, ready.root) else { return Ok(()) };
    attach(&tree, &root.folder)?;
    match ready.hidden {
        Some(hidden) => close(root, &tree, &spec.files, Means { hidden, image, reserved: &[] }),
        None => Ok(()),
    }
}

/// Makes everything, on a stage where one is needed.
fn prepare(spec: &Spec, sources: &mut Sources) -> Result<Ready, Error> {
    let needs_stage =
        |mount: &Mount| matches!(mount.source, MountSource::Layered { .. } | MountSource::Hidden { .. });
    let staged = spec.runtime_root.is_some() || spec.mounts.iter().any(needs_stage);
    if staged {
        let stage = tmpfs(SKELETON_BYTES, "0755").map_err(failed("tmpfs"))?;
        move_mount(stage.as_fd(), "", CWD, STAGE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed("attach the stage"))?;
        rustix::process::fchdir(&stage).map_err(failed("enter the stage"))?;
    }
    let root = spec.runtime_root.is_some().then(|| make_root(spec, sources)).transpose()?;
    let mounts = spec.mounts.iter().enumerate().map(|(number, mount)| {
        let failed = |step: &'static str| at(&mount.target, step);
        match &mount.source {
            MountSource::Bind(_) | MountSource::Beneath { .. } => sources.next(),
            MountSource::Layered { folder, bytes } => {
                layered(number, &sources.next()?, *bytes).map_err(no_copy(folder))
            }
            MountSource::Hidden { folder } => hidden(*folder).map_err(failed("hide")),
            MountSource::Tmpfs { bytes, mode } => memory(mount, *bytes, *mode),
            MountSource::Host { .. } => Err(Error::Spec("no overlays around a runtime".into())),
        }
    });
    let mounts = mounts.collect::<Result<_, _>>()?;
    let hidden = hidden_file(&spec.files)?;
    if staged {
        rustix::process::chdir("/").map_err(failed("leave the stage"))?;
        unmount(STAGE, UnmountFlags::DETACH).map_err(failed("let the stage go"))?;
    }
    Ok(Ready { mounts, root, hidden })
}

/// Returns the root of the runtime, and the root without what earlier jails wrote to it. The stage must be the working
/// directory.
fn make_root(spec: &Spec, sources: &mut Sources) -> Result<(OwnedFd, Option<OwnedFd>), Error> {
    let layers = (0..spec.root.layers.len()).map(|_| sources.next()).collect::<Result<Vec<_>, _>>()?;
    let upper = match spec.root.upper {
        Upper::Dir(_) => Some(sources.next()?),
        Upper::ReadOnly | Upper::Memory { .. } => None,
    };
    stack(&layers, upper.as_ref(), &[])?;
    let root = open_tree(CWD, ROOT, CLONE).map_err(failed("take the root"))?;
    Ok((root, image(spec)?))
}

/// Mounts over a folder of the machine that no jail can replace.
fn attach(tree: &OwnedFd, folder: &Path) -> Result<(), Error> {
    let place = open_without_links(folder).map_err(at(folder, "find the mount point"))?;
    attach_over(tree, &place).map_err(at(folder, "attach"))
}

fn attach_over(tree: &OwnedFd, place: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree.as_fd(), "", place.as_fd(), "", flags)
}

/// Closes files in the root and in the mounts that the runtime makes in it: these are mounted there, all of it is closed, and
/// the runtime is given what is there then.
fn close(root: &RuntimeRoot, tree: &OwnedFd, files: &FileRules, means: Means<'_>) -> Result<(), Error> {
    let mut within: Vec<(&Path, OwnedFd)> = Vec::new();
    for (inside, place) in &root.shown {
        let failed = |step: &'static str| at(inside, step);
        let copy = open_place(place).and_then(|place| open_tree(place, "", WHOLE)).map_err(failed("copy"))?;
        let source = MountSource::Bind(place.clone());
        attach_tree(tree, &within, &copy, &Mount { source, target: inside.clone(), read_only: false })?;
        within.push((inside, copy));
    }
    let is_memory = !root.shown.iter().any(|(inside, _)| inside == Path::new(MEMORY));
    let reserved: &[&str] = if is_memory { &[MEMORY] } else { &[] };
    closed::close(tree, files, Means { reserved, ..means })?;
    let top = Top { folder: tree, links: ResolveFlags::empty() };
    for (inside, place) in &root.shown {
        let copy = top.open(inside).and_then(|found| open_tree(found, "", WHOLE));
        let copy = copy.map_err(at(inside, "find it among closed files"))?;
        let place = open_place(place).map_err(at(inside, "find its mount"))?;
        attach_over(&copy, &place).map_err(at(inside, "show it"))?;
    }
    Ok(())
}

/// Opens the target of a mount of the jail, which no jail can replace. It may be a file.
fn open_place(place: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(CWD, place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}
