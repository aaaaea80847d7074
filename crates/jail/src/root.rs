//! The root file system of a jail: built on a private tmpfs, entered by `pivot_root`, the old one let go.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use crate::error::Error;
use crate::sources::Sources;
use crate::spec::{MountSource, Root, Spec, Upper};
use crate::{dev, proc, sys};

/// Bound of the tmpfs that carries nothing but mount points.
const SKELETON_BYTES: u64 = 1 << 20;

const FOLDER: Mode = Mode::from_raw_mode(0o755);

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Root { step: step.into(), errno: errno.into() }
}

fn at(target: &Path, step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Mount { target: target.to_owned(), step: step.into(), errno: errno.into() }
}

/// What is mounted inside, once the new root is entered.
enum Ready {
    Tree(OwnedFd),
    Tmpfs { bytes: u64, mode: u32 },
}

/// Builds the root of `spec`, enters it and mounts everything. `proc` and `devices` were taken before.
pub(crate) fn enter(
    spec: &Spec,
    mut sources: Sources,
    proc: OwnedFd,
    devices: Vec<OwnedFd>,
    group_of_terminals: bool,
) -> Result<(), Error> {
    let layers = (0..spec.root.layers.len()).map(|_| sources.next()).collect::<Result<Vec<_>, _>>()?;
    let upper = match spec.root.upper {
        Upper::Dir(_) => Some(sources.next()?),
        Upper::ReadOnly | Upper::Memory { .. } => None,
    };
    let bare = match &layers[..] {
        [layer] => matches!(spec.root.upper, Upper::ReadOnly) && has_all_targets(layer, spec),
        _ => false,
    };
    let overlaid = spec.mounts.iter().any(|m| matches!(m.source, MountSource::Overlay { .. }));
    let ready;
    if bare && !overlaid {
        ready = prepare(spec, &mut sources)?;
        let [layer] = <[OwnedFd; 1]>::try_from(layers).map_err(|_| Error::Spec("one layer".into()))?;
        cover_root(&layer)?;
    } else {
        let stage = stage(&spec.root)?;
        ready = prepare(spec, &mut sources)?;
        if bare {
            attach_in_stage(&layers[0], "root")?;
            rustix::process::chdir("root").map_err(failed("enter the layer"))?;
        } else if !layers.is_empty() {
            overlay_root(&spec.root, &layers, upper.as_ref())?;
        }
        drop(stage);
    }
    pivot()?;
    make_target(Path::new("/proc"), true)?;
    make_target(Path::new("/dev"), true)?;
    dev::build(devices, group_of_terminals)?;
    proc::attach(proc)?;
    attach(spec, ready)?;
    if matches!(spec.root.upper, Upper::ReadOnly) && !bare {
        make_root_read_only()?;
    }
    Ok(())
}

/// Whether every mount point is in the layer itself, so that nothing has to be laid over it.
fn has_all_targets(layer: &OwnedFd, spec: &Spec) -> bool {
    let fixed = [Path::new("/proc"), Path::new("/dev")];
    fixed.into_iter().chain(spec.mounts.iter().map(|m| m.target.as_path())).all(|target| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(layer, target, flags, Mode::empty(), ResolveFlags::IN_ROOT).is_ok()
    })
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

/// Mounts the tmpfs on which the root is put together, and makes it the working directory. It *is* the root when
/// there are no layers.
fn stage(root: &Root) -> Result<OwnedFd, Error> {
    let bytes = match root.upper {
        Upper::Memory { bytes } => bytes,
        Upper::ReadOnly | Upper::Dir(_) => SKELETON_BYTES,
    };
    let stage = tmpfs(bytes, "0755").map_err(failed("tmpfs"))?;
    cover_root(&stage)?;
    Ok(stage)
}

/// Mounts `tree` over `/` of this namespace and goes there. Paths from `/` still lead to the old root.
fn cover_root(tree: &OwnedFd) -> Result<(), Error> {
    move_mount(tree.as_fd(), "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("cover the old root"))?;
    rustix::process::fchdir(tree).map_err(failed("enter"))
}

fn attach_in_stage(tree: &OwnedFd, name: &str) -> Result<(), Error> {
    rustix::fs::mkdirat(CWD, name, FOLDER).map_err(failed("folder for a layer"))?;
    move_mount(tree.as_fd(), "", CWD, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("attach a layer"))
}

/// Makes the upper and work folders of an overlay at `prefix` (relative, ends in `/`, or empty), the upper one with
/// owner and rights of the folder it covers, since the overlay shows those.
fn make_sides(prefix: &str, covered: &OwnedFd) -> Result<(), Error> {
    let fail = failed("folders for the writable side");
    let status = rustix::fs::statat(covered, "", AtFlags::EMPTY_PATH).map_err(&fail)?;
    let upper = format!("{prefix}upper");
    match rustix::fs::mkdirat(CWD, &upper, FOLDER) {
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(fail(errno)),
        Ok(()) => {
            let mode = Mode::from_raw_mode(status.st_mode & 0o7777);
            if mode != FOLDER {
                rustix::fs::chmodat(CWD, &upper, mode, AtFlags::empty()).map_err(&fail)?;
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
        Err(errno) => Err(fail(errno)),
    }
}

/// Stacks the layers on the stage and goes to the result.
fn overlay_root(root: &Root, layers: &[OwnedFd], upper: Option<&OwnedFd>) -> Result<(), Error> {
    let mut names = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let name = format!("l{number}");
        attach_in_stage(layer, &name)?;
        names.push(name);
    }
    let prefix = match upper {
        Some(folder) => {
            attach_in_stage(folder, "u")?;
            "u/"
        }
        None => "",
    };
    make_sides(prefix, &layers[0])?;
    let data = format!("userxattr,lowerdir={},upperdir={prefix}upper,workdir={prefix}work", names.join(":"));
    debug_assert!(!matches!(root.upper, Upper::Dir(_)) || upper.is_some());
    let data = CString::new(data).map_err(|_| failed("overlay")(Errno::INVAL))?;
    rustix::fs::mkdirat(CWD, "root", FOLDER).map_err(failed("folder for the overlay"))?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    sys::mount(c"overlay", c"root", c"overlay", flags, &data).map_err(failed("overlay"))?;
    rustix::process::chdir("root").map_err(failed("enter the overlay"))
}

/// Everything of `spec.mounts` as detached mounts. Overlays are put together on the stage, which must be the working
/// directory when there are any.
fn prepare(spec: &Spec, sources: &mut Sources) -> Result<Vec<Ready>, Error> {
    let mut ready = Vec::with_capacity(spec.mounts.len());
    for (number, mount) in spec.mounts.iter().enumerate() {
        ready.push(match &mount.source {
            MountSource::Bind(_) => Ready::Tree(sources.next()?),
            &MountSource::Tmpfs { bytes, mode } => Ready::Tmpfs { bytes, mode },
            MountSource::Overlay { upper, .. } => {
                let lower = sources.next()?;
                let writes = match upper {
                    Upper::Dir(_) => Some(sources.next()?),
                    Upper::Memory { bytes } => {
                        Some(tmpfs(*bytes, "0755").map_err(at(&mount.target, "tmpfs"))?)
                    }
                    Upper::ReadOnly => None,
                };
                match writes {
                    Some(writes) => {
                        Ready::Tree(overlay(number, &lower, &writes, mount.read_only, &mount.target)?)
                    }
                    None => Ready::Tree(lower),
                }
            }
        });
    }
    Ok(ready)
}

/// One overlay as a detached mount.
fn overlay(
    number: usize,
    lower: &OwnedFd,
    writes: &OwnedFd,
    read_only: bool,
    target: &Path,
) -> Result<OwnedFd, Error> {
    let fail = at(target, "overlay");
    let (low, up, merged) = (format!("ml{number}"), format!("mu{number}"), format!("m{number}"));
    attach_in_stage(lower, &low)?;
    attach_in_stage(writes, &up)?;
    make_sides(&format!("{up}/"), lower)?;
    rustix::fs::mkdirat(CWD, &merged, FOLDER).map_err(&fail)?;
    let text = |text: String| CString::new(text).map_err(|_| fail(Errno::INVAL));
    let data = text(format!("userxattr,lowerdir={low},upperdir={up}/upper,workdir={up}/work"))?;
    let mut flags = libc::MS_NOSUID | libc::MS_NODEV;
    if read_only {
        flags |= libc::MS_RDONLY;
    }
    sys::mount(c"overlay", &text(merged.clone())?, c"overlay", flags, &data).map_err(&fail)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, &merged, clone).map_err(&fail)?;
    // Empty it for what is put there next: nothing of the stage may show when the stage itself is the root.
    for name in [&merged, &up, &low] {
        unmount(name.as_str(), UnmountFlags::DETACH).map_err(&fail)?;
        rustix::fs::unlinkat(CWD, name.as_str(), AtFlags::REMOVEDIR).map_err(&fail)?;
    }
    Ok(tree)
}

/// Makes the working directory the root and lets the old one go.
fn pivot() -> Result<(), Error> {
    rustix::process::pivot_root(".", ".").map_err(failed("pivot_root"))?;
    // The old root lies on top of the new one now; `.` is the old one.
    unmount(".", UnmountFlags::DETACH).map_err(failed("let the old root go"))?;
    rustix::process::chdir("/").map_err(failed("enter the new root"))
}

/// Mounts everything in order, in the new root.
fn attach(spec: &Spec, ready: Vec<Ready>) -> Result<(), Error> {
    for (mount, ready) in spec.mounts.iter().zip(ready) {
        let target = mount.target.as_path();
        match ready {
            Ready::Tree(tree) => attach_tree(&tree, target)?,
            Ready::Tmpfs { bytes, mode } => {
                make_target(target, true)?;
                let text = |text: Vec<u8>| CString::new(text).map_err(|_| at(target, "path")(Errno::INVAL));
                let path = text(target.as_os_str().as_encoded_bytes().to_vec())?;
                let data = text(format!("size={bytes},mode={mode:o}").into_bytes())?;
                let mut flags = libc::MS_NOSUID | libc::MS_NODEV;
                if mount.read_only {
                    flags |= libc::MS_RDONLY;
                }
                sys::mount(c"tmpfs", &path, c"tmpfs", flags, &data).map_err(at(target, "tmpfs"))?;
            }
        }
    }
    Ok(())
}

fn attach_tree(tree: &OwnedFd, target: &Path) -> Result<(), Error> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    match move_mount(tree.as_fd(), "", CWD, target, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(at(target, "attach")(errno)),
    }
    let status = rustix::fs::statat(tree, "", AtFlags::EMPTY_PATH).map_err(at(target, "look at it"))?;
    make_target(target, FileType::from_raw_mode(status.st_mode) == FileType::Directory)?;
    move_mount(tree.as_fd(), "", CWD, target, flags).map_err(at(target, "attach"))
}

/// Makes a mount point and the folders above it, where they are missing.
fn make_target(target: &Path, folder: bool) -> Result<(), Error> {
    let make = |path: &Path, folder: bool| {
        if folder {
            rustix::fs::mkdirat(CWD, path, FOLDER)
        } else {
            rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
        }
    };
    let mut missing: Vec<PathBuf> = vec![target.to_owned()];
    while let Some(path) = missing.last() {
        match make(path, folder || missing.len() > 1) {
            Ok(()) | Err(Errno::EXIST) => {
                missing.pop();
            }
            // Read-only, but there already: what matters is whether something can be mounted on it.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) if path.exists() => {
                missing.pop();
            }
            Err(Errno::NOENT) if path.parent().is_some_and(|parent| parent != Path::new("/")) => {
                let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
                missing.push(parent);
            }
            Err(errno) => return Err(at(target, "make the mount point")(errno)),
        }
    }
    Ok(())
}

fn make_root_read_only() -> Result<(), Error> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open the root"))?;
    sys::set_mount_attributes(root.as_fd(), libc::MOUNT_ATTR_RDONLY, None, false)
        .map_err(failed("make the root read-only"))
}
