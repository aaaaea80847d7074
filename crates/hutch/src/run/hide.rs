//! `--deny-read`: files and folders that the command cannot read although they are in what it sees.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hutch_jail::{Ids, Mount, MountSource, Spec};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::place::{Mounted, mounted};

/// Mounts that hide paths.
pub(super) struct Hidden {
    pub(super) mounts: Vec<Mount>,
    /// Targets of those that were named: the folders above them must not be moved, or the next run would show what is there.
    pub(super) named: Vec<PathBuf>,
}

/// Returns the mounts that hide these paths of the machine, wherever the mounts of the jail show them: those that were named, and
/// those that match a pattern now. A path that the jail does not show needs none.
pub(super) fn mounts(
    named: &[PathBuf],
    matching: &[PathBuf],
    spec: &Spec,
    workspace: &Path,
) -> anyhow::Result<Hidden> {
    let mut hidden = Hidden { mounts: Vec::new(), named: Vec::new() };
    let mounted = mounted();
    for (path, is_named) in
        named.iter().map(|path| (path, true)).chain(matching.iter().map(|path| (path, false)))
    {
        let flag = || format!("--deny-read {}", path.display());
        let path = std::path::absolute(path).with_context(flag)?;
        if is_named && let Some(link) = replaceable(&path, spec) {
            let link = link.display();
            bail!(
                "{}: {link} is a symbolic link that the command could replace; name the path of what it leads to",
                flag()
            );
        }
        let in_image = in_layers(&path, spec, mounted);
        let found = match path.canonicalize() {
            Ok(path) => vec![path],
            // The command may be the owner of the folder that cannot be entered, and open it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                vec![closed(&path).with_context(flag)?]
            }
            Err(_) if !in_image.is_empty() => Vec::new(),
            Err(error) => return Err(error).with_context(flag),
        };
        let mut shown = Vec::new();
        for path in found.iter().chain(&in_image) {
            let is_folder = path.metadata().with_context(flag)?.is_dir();
            shown.extend(places(path, is_folder, spec, mounted));
        }
        for (target, folder) in shown {
            if target == workspace {
                bail!("{}: the workspace is in it, so the command could read nothing of that", flag());
            }
            if !hidden.mounts.iter().any(|mount| target.starts_with(&mount.target)) {
                hidden.named.extend(is_named.then(|| target.clone()));
                let source = MountSource::Hidden { folder };
                hidden.mounts.push(Mount { source, target, read_only: true });
            }
        }
    }
    Ok(hidden)
}

/// Returns what a path below a folder of the image leads to for the command, for which links begin at the image's root.
fn in_layers(path: &Path, spec: &Spec, mounted: &Mounted) -> Vec<PathBuf> {
    let resolved = |layer: &PathBuf| {
        let rest = mounted.within(path, layer, false).into_iter().next()?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let top = rustix::fs::open(layer, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = rustix::fs::openat2(&top, rest, flags, Mode::empty(), resolve).ok()?;
        std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()
    };
    spec.root.layers.iter().filter_map(resolved).collect()
}

/// Returns what can be found on the way to a path that cannot be reached, also behind links: the folder that cannot be entered.
fn closed(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let found = path.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
        match found.read_link() {
            Ok(to) => path = found.parent().unwrap_or(found).join(to),
            Err(_) => return found.canonicalize(),
        }
    }
    Err(ErrorKind::InvalidInput.into())
}

/// Maximum links on the way to a path.
const MAX_LINKS: usize = 64;

/// Returns the first link on the way to a path that a mount shows for writing.
pub(super) fn replaceable(path: &Path, spec: &Spec) -> Option<PathBuf> {
    let shows = |mount: &Mount, path: &Path| {
        let discards = matches!(mount.source, MountSource::Layered { .. });
        let is_in = |(source, _): (PathBuf, bool)| mounted().is_within(path, &source);
        !mount.read_only && !discards && source(mount).is_some_and(is_in)
    };
    let (mut here, mut links) = (PathBuf::from("/"), 0);
    let mut rest: Vec<PathBuf> = path.components().rev().map(|part| part.as_os_str().into()).collect();
    while let Some(part) = rest.pop() {
        let next = here.join(&part);
        match next.read_link() {
            _ if part == Path::new("..") => drop(here.pop()),
            Ok(_) if spec.mounts.iter().any(|mount| shows(mount, &next)) => return Some(next),
            Ok(to) if links < MAX_LINKS => {
                links += 1;
                rest.extend(to.components().rev().map(|part| PathBuf::from(part.as_os_str())));
            }
            _ => here = next,
        }
    }
    None
}

/// Returns a path inside at which a file of the machine can be read, unless a hidden mount lies over it.
pub(super) fn shown(file: &Path, spec: &Spec, hidden: &[Mount]) -> Option<PathBuf> {
    let path = file.canonicalize().ok()?;
    let is_hidden = |target: &Path| hidden.iter().any(|mount| target.starts_with(&mount.target));
    places(&path, false, spec, mounted())
        .into_iter()
        .map(|(target, _)| target)
        .find(|target| !is_hidden(target))
}

/// Returns the paths inside at which a file or folder of the machine shows, each with `true` for a folder. A mount that
/// shows only a part of it is such a path itself.
fn places(path: &Path, is_folder: bool, spec: &Spec, mounted: &Mounted) -> Vec<(PathBuf, bool)> {
    let layers = spec.root.layers.iter();
    let of_image = layers.flat_map(|layer| mounted.within(path, layer, false));
    let of_image = of_image.filter(|rest| rest != Path::new(""));
    let mut places: Vec<_> = of_image.map(|rest| (Path::new("/").join(rest), is_folder)).collect();
    for mount in &spec.mounts {
        let Some((source, shows_folder)) = source(mount) else { continue };
        let shows_mounts = matches!(spec.ids, Ids::Caller);
        let rests = mounted.within(path, &source, shows_mounts).into_iter();
        let found: Vec<_> = rests.filter(|rest| !is_covered(mount, rest, spec)).collect();
        // It shows a part of the path alone.
        if found.is_empty() && mounted.is_within(&source, path) {
            places.push((mount.target.clone(), shows_folder));
        }
        places.extend(found.into_iter().map(|rest| match rest == Path::new("") {
            true => (mount.target.clone(), shows_folder),
            false => (mount.target.join(rest), is_folder),
        }));
    }
    places
}

/// Returns true if a path in a folder is on another mount there, which a jail of root does not show, and there is nothing at the
/// path below that mount.
fn is_covered(mount: &Mount, rest: &Path, spec: &Spec) -> bool {
    let folder = match &mount.source {
        MountSource::Beneath { folder, path } if path == Path::new("") => folder,
        MountSource::Layered { folder, .. } => folder,
        _ => return false,
    };
    if matches!(spec.ids, Ids::Caller) || rest == Path::new("") {
        return false;
    }
    let folder = folder.clone().without_mounts();
    let find = |top: &OwnedFd| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(top, rest, flags, Mode::empty(), folder.within())
    };
    let Ok(open) = folder.open() else { return false };
    if !matches!(find(&open), Err(Errno::XDEV)) {
        return false;
    }
    let clone =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let below = open_tree(&open, "", clone).and_then(|tree| find(&tree));
    matches!(below, Err(Errno::NOENT | Errno::NOTDIR))
}

/// Returns the path of the machine that a mount shows, with `true` for a folder.
fn source(mount: &Mount) -> Option<(PathBuf, bool)> {
    match &mount.source {
        MountSource::Bind(path) => Some((path.clone(), path.is_dir())),
        MountSource::Beneath { folder, path } if path == Path::new("") => {
            Some((folder.path().to_owned(), true))
        }
        MountSource::Beneath { folder, path } => Some((folder.path().join(path), false)),
        MountSource::Layered { folder, .. } => Some((folder.path().to_owned(), true)),
        MountSource::Host { folder, file: None } => Some((folder.clone(), true)),
        MountSource::Host { folder, file: Some(file) } => Some((folder.join(file), false)),
        MountSource::Tmpfs { .. } | MountSource::Hidden { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use hutch_jail::{CheckedFolder, Ids, Limits, Network, NetworkPlan, Profile, Root, Upper};

    use super::*;

    fn spec(folder: &Path) -> Spec {
        let mount = |name: &str, target: &str, read_only| {
            let folder = CheckedFolder::look(&folder.join(name)).unwrap();
            Mount {
                source: MountSource::Beneath { folder, path: PathBuf::new() },
                target: target.into(),
                read_only,
            }
        };
        Spec {
            id: "a".into(),
            hostname: "a".into(),
            profile: Profile::Native,
            root: Root { layers: vec![folder.join("image")], upper: Upper::ReadOnly },
            mounts: vec![
                mount("work", "/work", false),
                mount("data", "/one", true),
                mount("data", "/two", true),
            ],
            links: Vec::new(),
            files: hutch_jail::FileRules::default(),
            runtime_root: None,
            ids: Ids::Caller,
            network: Network::New(NetworkPlan::closed(Vec::new())),
            capabilities: hutch_jail::Capabilities::NONE,
            limits: Limits::default(),
            deny_set_id_bits: false,
            freezable: false,
        }
    }

    #[test]
    fn path_is_hidden_wherever_it_shows() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        for name in ["work/sub", "data/deep", "image/etc", "elsewhere"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        for name in ["work/sub/key", "data/deep/key", "image/etc/key"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(folder.join("work/sub"), folder.join("link")).unwrap();
        let spec = spec(&folder);
        let hidden = |names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
            let hidden =
                mounts(&paths, &[], &spec, Path::new("/work")).map_err(|error| format!("{error:#}"))?;
            let shown = hidden.mounts.iter().map(|mount| {
                let folder = matches!(mount.source, MountSource::Hidden { folder: true });
                format!("{}{}", mount.target.display(), if folder { "/" } else { "" })
            });
            Ok::<_, String>(shown.collect::<Vec<_>>())
        };
        assert_eq!(hidden(&["work/sub/key"]).unwrap(), ["/work/sub/key"]);
        assert_eq!(hidden(&["link/key"]).unwrap(), ["/work/sub/key"], "by its own path");
        assert_eq!(hidden(&["work/sub", "work/sub/key"]).unwrap(), ["/work/sub/"], "once");
        // Links that the command could replace: on the way, at the end, and behind another one.
        std::os::unix::fs::symlink("sub", folder.join("work/inner")).unwrap();
        std::os::unix::fs::symlink(folder.join("work/inner"), folder.join("outer")).unwrap();
        for name in ["work/inner", "work/inner/key", "outer/key", "outer"] {
            let error = hidden(&[name]).unwrap_err();
            assert!(error.contains("work/inner is a symbolic link"), "{name}: {error}");
        }
        let matching = super::mounts(&[], &[folder.join("work/inner")], &spec, Path::new("/work")).unwrap();
        assert_eq!(matching.mounts.len(), 1, "a pattern matches what is there at the start");
        let shown = |name: &str, hidden: &[Mount]| super::shown(&folder.join(name), &spec, hidden);
        assert_eq!(shown("link/key", &[]), Some("/work/sub/key".into()), "a link leads into a mount");
        assert_eq!(shown("image/etc/key", &[]), Some("/etc/key".into()));
        let over = super::mounts(&[folder.join("work/sub")], &[], &spec, Path::new("/work")).unwrap().mounts;
        assert_eq!(shown("work/sub/key", &over), None);
        assert_eq!(shown("elsewhere", &[]), None);
        assert_eq!(hidden(&["data/deep"]).unwrap(), ["/one/deep/", "/two/deep/"], "in both mounts");
        assert_eq!(hidden(&["data"]).unwrap(), ["/one/", "/two/"]);
        assert_eq!(hidden(&["image/etc/key"]).unwrap(), ["/etc/key"]);
        assert_eq!(hidden(&["elsewhere"]).unwrap(), [""; 0], "not shown anyway");
        for (name, says) in [("missing", "No such file"), ("work", "workspace"), ("", "workspace")] {
            let error = hidden(&[name]).unwrap_err();
            assert!(error.starts_with("--deny-read") && error.contains(says), "{name}: {error}");
        }
    }
}
