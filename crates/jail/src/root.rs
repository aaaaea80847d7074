//! The root file system of a jail: built on a private tmpfs, entered by `pivot_root`, the old one let go.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use crate::error::Error;
use crate::invariants::{Planned, mount_id};
use crate::sources::Sources;
use crate::spec::{Ids, Link, Mount, MountSource, Root, Spec, Upper};
use crate::{dev, proc, sys};
use closed::Means;

pub(crate) mod closed;
mod private;
pub(crate) mod runtime;

/// Bound of the tmpfs that carries nothing but mount points.
const SKELETON_BYTES: u64 = 1 << 20;

/// Folder of the stage that becomes the root.
const ROOT: &str = "root";
/// Folder of the stage that stays empty.
const EMPTY: &str = "empty";

const FOLDER: Mode = Mode::from_raw_mode(0o755);

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Root { step: step.into(), errno: errno.into() }
}

fn at(target: &Path, step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Mount { target: target.to_owned(), step: step.into(), errno: errno.into() }
}

/// Builds the root of `spec`, enters it and mounts everything. `proc` and `devices` were taken before.
///
/// `/dev` and `/proc` come after the mounts of the Pod, so that no link of an image and no volume leads into them;
/// only what belongs below `/dev` comes after it. Returns what the kernel must list as mounted: the root, and the rest.
pub(crate) fn enter(
    spec: &Spec,
    mut sources: Sources,
    proc: OwnedFd,
    devices: Vec<OwnedFd>,
    group_of_terminals: bool,
) -> Result<(Planned, Vec<Planned>), Error> {
    let layers = (0..spec.root.layers.len()).map(|_| sources.next()).collect::<Result<Vec<_>, _>>()?;
    let upper = match spec.root.upper {
        Upper::Dir(_) => Some(sources.next()?),
        Upper::ReadOnly | Upper::Memory { .. } => None,
    };
    stage(&spec.root)?;
    let ready = prepare(spec, &mut sources)?;
    let hidden = private::hidden_file(&spec.files)?;
    let made = match &layers[..] {
        [] => Made::Fresh,
        [layer]
            if matches!(spec.root.upper, Upper::ReadOnly)
                && spec.links.is_empty()
                && has_all_targets(layer, spec) =>
        {
            Made::Complete
        }
        _ => Made::Stacked,
    };
    let mut image = None;
    match made {
        Made::Fresh => fresh_root(spec)?,
        Made::Complete => read_only_root(&layers[0])?,
        Made::Stacked => {
            stack(&layers, upper.as_ref(), &spec.links)?;
            image = private::image(spec)?;
            rustix::process::chdir(ROOT).map_err(failed("enter the overlay"))?;
        }
    }
    pivot()?;
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open the root"))?;
    let ready: Vec<_> = spec.mounts.iter().zip(ready).collect();
    let mut planned: Vec<Planned> =
        ready.iter().map(|(mount, tree)| plan(spec, mount, tree)).collect::<Result<_, _>>()?;
    let (below_dev, others): (Vec<_>, Vec<_>) =
        ready.into_iter().partition(|(mount, _)| mount.target.starts_with("/dev"));
    let mut attached = Vec::new();
    attach(&root, &mut attached, others)?;
    make_folder(&root, "proc")?;
    make_folder(&root, "dev")?;
    dev::build(devices, group_of_terminals)?;
    proc::attach(proc)?;
    attach(&root, &mut attached, below_dev)?;
    drop(attached);
    let read_only = matches!(spec.root.upper, Upper::ReadOnly);
    if read_only && !matches!(made, Made::Complete) {
        make_root_read_only(&root)?;
    }
    let id = mount_id(&root, "").map_err(failed("look at the root"))?;
    if let Some(hidden) = hidden {
        let made = closed::close(&root, &spec.files, Means { hidden, image, reserved: &[] })?;
        let copied = copies(&root, &spec.mounts, &planned);
        planned.extend(made.into_iter().chain(copied));
    }
    Ok((Planned { id, read_only, with_submounts: false }, planned))
}

/// Returns the mount that the kernel must list.
fn plan(spec: &Spec, mount: &Mount, tree: &OwnedFd) -> Result<Planned, Error> {
    let (read_only, may_bring) = match mount.source {
        MountSource::Host { .. } => (true, true),
        MountSource::Bind(_) | MountSource::Beneath { .. } => (mount.read_only, true),
        MountSource::Tmpfs { .. } | MountSource::Layered { .. } => (mount.read_only, false),
        MountSource::Hidden { .. } => (true, false),
    };
    let id = mount_id(tree, "").map_err(at(&mount.target, "look at it"))?;
    Ok(Planned { id, read_only, with_submounts: may_bring && matches!(spec.ids, Ids::Caller) })
}

/// Returns the mounts that are now at the targets of read-only ones, where folders on the way were mounted over themselves.
fn copies(root: &OwnedFd, mounts: &[Mount], planned: &[Planned]) -> Vec<Planned> {
    let top = Top { folder: root, links: ResolveFlags::empty() };
    let read_only = mounts.iter().zip(planned).filter(|(_, plan)| plan.read_only);
    let copies = read_only.filter_map(|(mount, plan)| {
        // A mount that is hidden has no path.
        let id = top.open(&mount.target).and_then(|place| mount_id(&place, "")).ok()?;
        (id != plan.id).then_some(Planned { id, read_only: true, with_submounts: true })
    });
    copies.collect()
}

/// How the root is made.
#[derive(Clone, Copy)]
enum Made {
    /// Empty memory: there is no layer.
    Fresh,
    /// From one layer that has every mount point: nothing is ever written.
    Complete,
    /// From layers under a writable side, which also holds mount points that are missing.
    Stacked,
}

/// `true` when every mount point is in the layer or in an earlier mount, so that it needs no skeleton layer.
fn has_all_targets(layer: &OwnedFd, spec: &Spec) -> bool {
    let fixed = [Path::new("/proc"), Path::new("/dev")];
    let all: Vec<&Path> = spec.mounts.iter().map(|mount| mount.target.as_path()).collect();
    let in_layer = |(number, target): (usize, &Path)| {
        !target.starts_with("/dev") && !all[..number].iter().any(|earlier| target.starts_with(earlier))
    };
    let targets = (0..all.len()).filter(|number| in_layer((*number, all[*number]))).map(|number| all[number]);
    let top = Top { folder: layer, links: ResolveFlags::empty() };
    fixed.into_iter().chain(targets).all(|target| top.open(target).is_ok())
}

/// A tmpfs that is mounted nowhere yet.
pub(crate) fn tmpfs(bytes: u64, mode: &str) -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", bytes.to_string())?;
    fsconfig_set_string(context.as_fd(), "mode", mode)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Mounts the tmpfs on which the root is put together somewhere in the old root, with which it goes later, and makes it
/// the working directory. Holds the writable side of the root, where that is in memory.
fn stage(root: &Root) -> Result<(), Error> {
    let bytes = match root.upper {
        Upper::Memory { bytes } if !root.layers.is_empty() => bytes,
        _ => SKELETON_BYTES,
    };
    let stage = tmpfs(bytes, "0755").map_err(failed("tmpfs"))?;
    // The one folder that is always there; the old one's files are not needed any more.
    move_mount(stage.as_fd(), "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("attach the stage"))?;
    rustix::process::fchdir(&stage).map_err(failed("enter"))
}

/// Mounts empty memory as the root and goes there.
fn fresh_root(spec: &Spec) -> Result<(), Error> {
    let bytes = match spec.root.upper {
        Upper::Memory { bytes } => bytes,
        Upper::ReadOnly | Upper::Dir(_) => SKELETON_BYTES,
    };
    let tree = tmpfs(bytes, "0755").map_err(failed("tmpfs"))?;
    attach_in_stage(&tree, ROOT)?;
    rustix::process::chdir(ROOT).map_err(failed("enter the root"))?;
    make_links(&spec.links, "")
}

/// Makes the links in a folder that becomes the top of the root. `prefix` is relative and ends in `/`, or is empty.
fn make_links(links: &[Link], prefix: &str) -> Result<(), Error> {
    let make = |link: &Link| rustix::fs::symlinkat(&link.target, CWD, format!("{prefix}{}", link.name));
    links.iter().try_for_each(make).map_err(failed("links"))
}

fn attach_in_stage(tree: &OwnedFd, name: &str) -> Result<(), Error> {
    rustix::fs::mkdirat(CWD, name, FOLDER).map_err(failed("folder for a layer"))?;
    move_mount(tree.as_fd(), "", CWD, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("attach a layer"))
}

/// Makes the upper and work folders of an overlay at `prefix` (relative, ends in `/`, or empty), the upper one with
/// owner and rights of the folder it covers, since the overlay shows those.
fn make_sides(prefix: &str, covered: &OwnedFd) -> Result<(), Errno> {
    let status = rustix::fs::statat(covered, "", AtFlags::EMPTY_PATH)?;
    let upper = format!("{prefix}upper");
    match rustix::fs::mkdirat(CWD, &upper, FOLDER) {
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
        Ok(()) => {
            let mode = Mode::from_raw_mode(status.st_mode & 0o7777);
            if mode != FOLDER {
                rustix::fs::chmodat(CWD, &upper, mode, AtFlags::empty())?;
            }
            if (status.st_uid, status.st_gid) != (0, 0) {
                let owner = rustix::process::Uid::from_raw(status.st_uid);
                let group = rustix::process::Gid::from_raw(status.st_gid);
                // An owner that has no id inside cannot be given; the folder is then root's, as it was made.
                let _ = rustix::fs::chownat(CWD, &upper, Some(owner), Some(group), AtFlags::empty());
            }
        }
    }
    match rustix::fs::mkdirat(CWD, format!("{prefix}work"), FOLDER) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns the names on the stage of so many layers.
fn names_of_layers(number: usize) -> Vec<String> {
    (0..number).map(|number| format!("l{number}")).collect()
}

/// Stacks the layers on the stage, which is the working directory.
fn stack(layers: &[OwnedFd], upper: Option<&OwnedFd>, links: &[Link]) -> Result<(), Error> {
    let names = names_of_layers(layers.len());
    for (layer, name) in layers.iter().zip(&names) {
        attach_in_stage(layer, name)?;
    }
    let prefix = match upper {
        Some(folder) => {
            attach_in_stage(folder, "u")?;
            "u/"
        }
        None => "",
    };
    make_sides(prefix, &layers[0]).map_err(failed("folders for the writable side"))?;
    // Before the overlay is made: there they would have to replace what the layers have.
    make_links(links, &format!("{prefix}upper/"))?;
    let data = format!("userxattr,lowerdir={},upperdir={prefix}upper,workdir={prefix}work", names.join(":"));
    overlay(ROOT, &data, 0).map_err(failed("overlay"))
}

/// Lays an overlay that is never written over one layer, and goes there. It keeps locks, watches and sockets inside
/// from reaching the layer, which other jails use too.
fn read_only_root(layer: &OwnedFd) -> Result<(), Error> {
    attach_in_stage(layer, "l0")?;
    read_only_overlay("l0", ROOT).map_err(failed("overlay"))?;
    rustix::process::chdir(ROOT).map_err(failed("enter the overlay"))
}

/// Mounts an overlay at a new folder of the stage.
fn overlay(name: &str, data: &str, flags: libc::c_ulong) -> Result<(), Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::INVAL);
    rustix::fs::mkdirat(CWD, name, FOLDER)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | flags;
    sys::mount(c"overlay", &text(name)?, c"overlay", flags, &text(data)?)
}

/// An overlay that is never written, of one layer or several (`a:b`). The kernel makes it of no less than two: one more is empty.
fn read_only_overlay(lower: &str, name: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(CWD, EMPTY, FOLDER) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    overlay(name, &format!("userxattr,lowerdir={lower}:{EMPTY}"), libc::MS_RDONLY)
}

/// Everything of `spec.mounts` as detached mounts. The stage must be the working directory.
fn prepare(spec: &Spec, sources: &mut Sources) -> Result<Vec<OwnedFd>, Error> {
    let mut ready = Vec::with_capacity(spec.mounts.len());
    for (number, mount) in spec.mounts.iter().enumerate() {
        ready.push(match &mount.source {
            MountSource::Bind(_) | MountSource::Beneath { .. } => sources.next()?,
            MountSource::Host { file, .. } => {
                let folder = sources.next()?;
                let may_share = matches!(spec.ids, Ids::Caller);
                host(number, &folder, file.as_deref(), may_share).map_err(at(&mount.target, "overlay"))?
            }
            MountSource::Layered { folder, bytes } => {
                private::layered(number, &sources.next()?, *bytes).map_err(private::no_copy(folder))?
            }
            MountSource::Hidden { folder } => private::hidden(*folder).map_err(at(&mount.target, "hide"))?,
            MountSource::Tmpfs { bytes, mode } => memory(mount, *bytes, *mode)?,
        });
    }
    Ok(ready)
}

/// The detached tmpfs of a mount, with a bound in bytes and the permission bits of its top.
pub(crate) fn memory(mount: &Mount, bytes: u64, mode: u32) -> Result<OwnedFd, Error> {
    let tree = tmpfs(bytes, &format!("{mode:o}")).map_err(at(&mount.target, "tmpfs"))?;
    if mount.read_only {
        sys::set_mount_attributes(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)
            .map_err(at(&mount.target, "make it read-only"))?;
    }
    Ok(tree)
}

/// A folder of the host, or a file of it, under a read-only overlay. With `may_share` it comes without when the kernel
/// refuses the overlay because of mounts below the folder: those it lets no ordinary user uncover.
fn host(number: usize, folder: &OwnedFd, file: Option<&str>, may_share: bool) -> Result<OwnedFd, Errno> {
    let (lower, merged) = (format!("h{number}"), format!("m{number}"));
    rustix::fs::mkdirat(CWD, &lower, FOLDER)?;
    move_mount(folder.as_fd(), "", CWD, &lower, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let below = |folder: &str| file.map_or_else(|| folder.to_owned(), |file| format!("{folder}/{file}"));
    match read_only_overlay(&lower, &merged) {
        Ok(()) => open_tree(CWD, below(&merged), clone),
        Err(Errno::INVAL) if may_share => open_tree(CWD, below(&lower), clone | OpenTreeFlags::AT_RECURSIVE),
        Err(errno) => Err(errno),
    }
}

/// Makes the working directory the root and lets the old one go, with the stage in it.
///
/// At once: the old root lies on top of the new one, and `..` of a link in a volume would lead into it.
fn pivot() -> Result<(), Error> {
    rustix::process::pivot_root(".", ".").map_err(failed("pivot_root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("let the old root go"))?;
    rustix::process::chdir("/").map_err(failed("enter the new root"))
}

/// Mounts in order, in the new root.
fn attach<'a>(
    root: &OwnedFd,
    attached: &mut Vec<(&'a Path, OwnedFd)>,
    ready: Vec<(&'a Mount, OwnedFd)>,
) -> Result<(), Error> {
    for (mount, tree) in ready {
        attach_tree(root, attached, &tree, mount)?;
        if !matches!(mount.source, MountSource::Host { .. }) {
            attached.push((&mount.target, tree));
        }
    }
    Ok(())
}

/// Mounts at a path in `root`, which no link leads out of; makes the mount point and the folders above it where they are
/// missing.
///
/// `attached` is what was mounted there before in which code of this or another jail may write: below such a mount no link
/// is followed, so a symlink made there cannot choose what is covered.
fn attach_tree(
    root: &OwnedFd,
    attached: &[(&Path, OwnedFd)],
    tree: &OwnedFd,
    mount: &Mount,
) -> Result<(), Error> {
    let target = mount.target.as_path();
    let above = attached.iter().find_map(|(above, top)| {
        let rest = target.strip_prefix(above).ok().filter(|rest| *rest != Path::new(""))?;
        Some((Top { folder: top, links: ResolveFlags::NO_SYMLINKS }, Path::new("/").join(rest)))
    });
    let whole = || (Top { folder: root, links: ResolveFlags::empty() }, target.to_owned());
    let may_make = above.is_none() || !matches!(mount.source, MountSource::Hidden { .. });
    let (top, path) = above.unwrap_or_else(whole);
    let place = match top.open(&path) {
        // What is hidden was there a moment ago. Nothing is made in a folder of the caller for it.
        Err(Errno::NOENT) if may_make => {
            let status =
                rustix::fs::statat(tree, "", AtFlags::EMPTY_PATH).map_err(at(target, "look at it"))?;
            let folder = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
            make_target(top, &path, folder).map_err(at(target, "make the mount point"))?
        }
        other => other.map_err(at(target, "find the mount point"))?,
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree.as_fd(), "", place.as_fd(), "", flags).map_err(at(target, "attach"))
}

/// Where a mount point is looked up.
#[derive(Clone, Copy)]
struct Top<'a> {
    folder: &'a OwnedFd,
    /// Flags that refuse more than leaving it.
    links: ResolveFlags,
}

impl Top<'_> {
    /// Looks up a path as code inside would, but without magic links.
    fn open(self, path: &Path) -> Result<OwnedFd, Errno> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | self.links;
        rustix::fs::openat2(self.folder, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within)
    }
}

/// Makes a mount point and the folders above it, where they are missing. Each part is looked up once more after it was
/// made, without following links, so a link that leads nowhere is refused.
fn make_target(top: Top<'_>, target: &Path, folder: bool) -> Result<OwnedFd, Errno> {
    let mut here = PathBuf::from("/");
    let mut opened = top.open(&here)?;
    let names: Vec<&OsStr> = target.components().skip(1).map(Component::as_os_str).collect();
    for (number, name) in names.iter().enumerate() {
        here.push(name);
        opened = match top.open(&here) {
            Err(Errno::NOENT) if folder || number + 1 < names.len() => {
                rustix::fs::mkdirat(&opened, *name, FOLDER)?;
                open_beneath(&opened, name)?
            }
            Err(Errno::NOENT) => {
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(&opened, *name, FileType::RegularFile, mode, 0)?;
                open_beneath(&opened, name)?
            }
            other => other?,
        };
    }
    Ok(opened)
}

fn open_beneath(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(folder, name, flags, Mode::empty(), within)
}

/// Makes a folder at the top of the root where it is missing. A link in its place is refused: what is mounted there
/// would be elsewhere.
fn make_folder(root: &OwnedFd, name: &str) -> Result<(), Error> {
    let fail = |errno| at(&Path::new("/").join(name), "a folder is needed there")(errno);
    match rustix::fs::mkdirat(root, name, FOLDER) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST | Errno::ROFS) => {}
        Err(errno) => return Err(fail(errno)),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, name, flags, Mode::empty(), within).map(drop).map_err(fail)
}

fn make_root_read_only(root: &OwnedFd) -> Result<(), Error> {
    sys::set_mount_attributes(root.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)
        .map_err(failed("make the root read-only"))
}
