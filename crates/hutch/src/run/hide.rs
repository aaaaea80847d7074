//! `--deny-read`: files and folders that the command cannot read although they are in what it sees.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hutch_jail::{Mount, MountSource, Spec};

/// Returns the mounts that hide these paths of the machine, wherever the mounts of the jail show them. A path that the jail
/// does not show needs none.
pub(super) fn mounts(paths: &[PathBuf], spec: &Spec, workspace: &Path) -> anyhow::Result<Vec<Mount>> {
    let mut mounts: Vec<Mount> = Vec::new();
    for path in paths {
        let named = || format!("--deny-read {}", path.display());
        let path = std::path::absolute(path).with_context(named)?;
        if let Some(link) = path.ancestors().find(|path| path.is_symlink() && is_writable(path, spec)) {
            bail!(
                "{}: {} is a symbolic link that the command could replace; name the path of what it leads to",
                named(),
                link.display()
            );
        }
        let path = match path.canonicalize() {
            Ok(path) => path,
            // The command may be the owner of the folder that cannot be entered, and open it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => match closed(&path) {
                Some(folder) => folder,
                None => continue,
            },
            Err(error) => return Err(error).with_context(named),
        };
        let is_folder = path.metadata().with_context(named)?.is_dir();
        for (target, folder) in places(&path, is_folder, spec) {
            if target == workspace {
                bail!("{}: the workspace is in it, so the command could read nothing of that", named());
            }
            if !mounts.iter().any(|mount| target.starts_with(&mount.target)) {
                let source = MountSource::Hidden { folder };
                mounts.push(Mount { source, target, read_only: true });
            }
        }
    }
    Ok(mounts)
}

/// Returns the folder on the way to a path that cannot be entered.
fn closed(path: &Path) -> Option<PathBuf> {
    let entered = path.ancestors().skip(1).find(|folder| folder.symlink_metadata().is_ok())?;
    entered.canonicalize().ok()
}

/// Returns true if a mount shows a path for writing.
fn is_writable(path: &Path, spec: &Spec) -> bool {
    let shows = |mount: &Mount| source(mount).is_some_and(|(source, _)| path.starts_with(source));
    spec.mounts.iter().any(|mount| !mount.read_only && shows(mount))
}

/// Returns a path inside at which a file of the machine can be read, unless a hidden mount lies over it.
pub(super) fn shown(file: &Path, spec: &Spec, hidden: &[Mount]) -> Option<PathBuf> {
    let path = file.canonicalize().ok()?;
    let is_hidden = |target: &Path| hidden.iter().any(|mount| target.starts_with(&mount.target));
    places(&path, false, spec).into_iter().map(|(target, _)| target).find(|target| !is_hidden(target))
}

/// Returns the paths inside at which a file or folder of the machine shows, each with `true` for a folder. A mount that
/// shows only a part of it is such a path itself.
fn places(path: &Path, is_folder: bool, spec: &Spec) -> Vec<(PathBuf, bool)> {
    let layers = spec.root.layers.iter();
    let of_image = layers.filter_map(|layer| path.strip_prefix(layer).ok());
    let of_image = of_image.filter(|rest| *rest != Path::new(""));
    let mut places: Vec<_> = of_image.map(|rest| (Path::new("/").join(rest), is_folder)).collect();
    for mount in &spec.mounts {
        let Some((source, shows_folder)) = source(mount) else { continue };
        match path.strip_prefix(&source) {
            Ok(rest) if rest == Path::new("") => places.push((mount.target.clone(), shows_folder)),
            Ok(rest) => places.push((mount.target.join(rest), is_folder)),
            Err(_) if source.starts_with(path) => places.push((mount.target.clone(), shows_folder)),
            Err(_) => {}
        }
    }
    places
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
            let mounts = mounts(&paths, &spec, Path::new("/work")).map_err(|error| format!("{error:#}"))?;
            let shown = mounts.iter().map(|mount| {
                let folder = matches!(mount.source, MountSource::Hidden { folder: true });
                format!("{}{}", mount.target.display(), if folder { "/" } else { "" })
            });
            Ok::<_, String>(shown.collect::<Vec<_>>())
        };
        assert_eq!(hidden(&["work/sub/key"]).unwrap(), ["/work/sub/key"]);
        assert_eq!(hidden(&["link/key"]).unwrap(), ["/work/sub/key"], "by its own path");
        assert_eq!(hidden(&["work/sub", "work/sub/key"]).unwrap(), ["/work/sub/"], "once");
        let shown = |name: &str, hidden: &[Mount]| super::shown(&folder.join(name), &spec, hidden);
        assert_eq!(shown("link/key", &[]), Some("/work/sub/key".into()), "a link leads into a mount");
        assert_eq!(shown("image/etc/key", &[]), Some("/etc/key".into()));
        let over = super::mounts(&[folder.join("work/sub")], &spec, Path::new("/work")).unwrap();
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
