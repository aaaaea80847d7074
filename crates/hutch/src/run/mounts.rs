//! `--mount`: further files and folders of this machine.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hutch_jail::{Mount, MountSource};

use super::{absolute, named_folder};
use crate::mount::MountArgument;
use crate::place::Mounted;

/// Folders of the jail's own, at or below which nothing is mounted.
const RESERVED: [&str; 4] = ["/workspace", "/proc", "/sys", "/dev"];

/// Returns the mounts of these flags. `taken` are the mounts that the jail has already; the source of one that is writable
/// must not be within another, which would be a second way to its protected files.
pub(super) fn mounts(arguments: &[MountArgument], taken: &[Mount]) -> anyhow::Result<Vec<Mount>> {
    let (mut mounts, mounted): (Vec<Mount>, _) = (Vec::new(), Mounted::read());
    for argument in arguments {
        let named = || format!("--mount {}", argument.source.display());
        let mount = mount(argument).with_context(named)?;
        check_target(&mount.target, taken.iter().chain(&mounts)).with_context(named)?;
        check_source(&mount, taken.iter().chain(&mounts), &mounted).with_context(named)?;
        mounts.push(mount);
    }
    Ok(mounts)
}

/// Returns writable mounts of paths within a read-only workspace over themselves.
pub(super) fn within(paths: &[PathBuf]) -> anyhow::Result<Vec<Mount>> {
    let writable = |path: &PathBuf| {
        let argument = MountArgument { source: path.clone(), target: None, read_only: false };
        mount(&argument).with_context(|| path.display().to_string())
    };
    paths.iter().map(writable).collect()
}

fn mount(argument: &MountArgument) -> anyhow::Result<Mount> {
    let absolute = absolute(&argument.source)?;
    let found = absolute.symlink_metadata()?;
    let source = match (found.is_file(), absolute.parent(), absolute.file_name()) {
        (true, Some(parent), Some(name)) => {
            MountSource::Beneath { folder: named_folder("--mount", parent)?, path: name.into() }
        }
        _ if found.is_dir() || found.is_symlink() => {
            let folder = named_folder("--mount", &absolute)?;
            ensure!(folder.path() != Path::new("/"), "the whole machine cannot be mounted; name a folder");
            MountSource::Beneath { folder, path: PathBuf::new() }
        }
        _ => bail!("neither a file nor a folder; a socket or a device would lead out of the sandbox"),
    };
    let target = argument.target.clone().unwrap_or(absolute);
    Ok(Mount { source, target, read_only: argument.read_only })
}

fn check_target<'a>(target: &Path, mut taken: impl Iterator<Item = &'a Mount>) -> anyhow::Result<()> {
    let mut parts = target.components();
    let absolute = parts.next() == Some(Component::RootDir);
    ensure!(
        absolute && parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_))),
        "{}: the path inside must be absolute, below / and without `..`",
        target.display()
    );
    if let Some(reserved) = RESERVED.iter().find(|reserved| target.starts_with(reserved)) {
        bail!("{}: nothing is mounted at or below {reserved}; choose another DST", target.display());
    }
    // A mount point within a folder of the caller would have to be made there.
    let in_the_way = |mount: &&Mount| match path_of(mount) {
        Some(_) => mount.target.starts_with(target) || target.starts_with(&mount.target),
        None => mount.target == target,
    };
    match taken.find(in_the_way) {
        Some(other) => {
            bail!("{}: {} is mounted already; choose another DST", target.display(), other.target.display())
        }
        None => Ok(()),
    }
}

fn check_source<'a>(
    mount: &Mount,
    taken: impl Iterator<Item = &'a Mount>,
    mounted: &Mounted,
) -> anyhow::Result<()> {
    let Some(source) = path_of(mount) else { return Ok(()) };
    let shows_mounts = !rustix::process::geteuid().is_root();
    for other in taken.filter(|other| !(mount.read_only && other.read_only)) {
        let Some(path) = path_of(other) else { continue };
        // A bind mount may show one in the other although their paths differ.
        let meet = |one: &Path, two: &Path| !mounted.within(one, two, shows_mounts).is_empty();
        ensure!(
            !meet(&source, &path) && !meet(&path, &source),
            "it overlaps with {}, which can be written in one of the two places only; make both read-only",
            path.display()
        );
    }
    Ok(())
}

/// Returns the path of the caller's file or folder that is mounted.
fn path_of(mount: &Mount) -> Option<PathBuf> {
    match &mount.source {
        MountSource::Beneath { folder, path } => Some(folder.path().join(path)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_a_place_of_its_own() {
        let target = |path: &str| check_target(Path::new(path), std::iter::empty());
        for path in ["/data", "/tmp/x", "/home/u/.cargo", "/usr/local/share"] {
            target(path).unwrap();
        }
        for path in [
            "/",
            "data",
            "/a/../proc",
            "/proc",
            "/proc/self",
            "/sys",
            "/dev/shm",
            "/workspace/x",
            "/workspace",
        ] {
            assert!(target(path).is_err(), "{path}");
        }
    }
}
