//! The workspace of a command: a folder of the caller at the path that it has outside, or an empty one in memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hutch_jail::{CheckedFolder, Link, Mount, MountSource};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::{SCRATCH_BYTES, absolute, is_root, named_folder};
use crate::cli::RunArguments;

/// Path of the empty workspace, and a second path of every other one.
pub(super) const ALIAS: &str = "/workspace";
/// Folder for temporary files, in memory.
pub(super) const TEMPORARY: &str = "/tmp";

/// Folders of the sandbox's own, at or below which there is no workspace.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Folders whose content the sandbox needs. A workspace may lie below them.
const NEEDED: [&str; 2] = ["/etc", "/.hutch"];

/// The workspace of a command.
pub(super) struct Workspace {
    /// The folder; without one, it is empty and in memory.
    pub(super) folder: Option<CheckedFolder>,
    /// Path inside.
    pub(super) path: PathBuf,
}

impl Workspace {
    /// Opens the folder that `--workspace` names, or `--config`, which has it made if it is not there. `taken` are the mounts of
    /// the image.
    pub(super) fn open(arguments: &RunArguments, taken: &[Mount]) -> anyhow::Result<Workspace> {
        let Some(named) = &arguments.workspace else {
            return Ok(Workspace { folder: None, path: ALIAS.into() });
        };
        if arguments.config.is_some() && !arguments.read_only {
            make(named, taken).with_context(|| format!("filesystem.workspace {}", named.display()))?;
        }
        let folder = named_folder("--workspace", named)?;
        ensure!(
            !is_root(&folder)?,
            "--workspace {}: the whole machine cannot be a workspace; name a folder",
            named.display()
        );
        let path = folder.path().to_owned();
        check_place(&path, taken).with_context(|| format!("--workspace {}", named.display()))?;
        Ok(Workspace { folder: Some(folder), path })
    }

    /// Returns the home of the command, which can be written.
    pub(super) fn home(&self, read_only: bool) -> &Path {
        if read_only { Path::new(TEMPORARY) } else { &self.path }
    }

    /// Returns the mount of the workspace, after that of the folder for temporary files if there is one.
    pub(super) fn mounts(&self, read_only: bool) -> Vec<Mount> {
        let tmpfs = |target: &Path, mode| {
            let source = MountSource::Tmpfs { bytes: SCRATCH_BYTES, mode };
            Mount { source, target: target.to_owned(), read_only: false }
        };
        let mut mounts = Vec::new();
        if self.path != Path::new(TEMPORARY) {
            mounts.push(tmpfs(Path::new(TEMPORARY), 0o1777));
        }
        let mut mount = tmpfs(&self.path, 0o777);
        if let Some(folder) = &self.folder {
            mount.source = MountSource::Beneath { folder: folder.clone(), path: PathBuf::new() };
        }
        mounts.push(Mount { read_only, ..mount });
        mounts
    }

    /// Returns the link by which the workspace has a second path, unless that path is on the way to it.
    pub(super) fn links(&self) -> Vec<Link> {
        if self.path.starts_with(ALIAS) {
            return Vec::new();
        }
        vec![Link { name: ALIAS.trim_start_matches('/').to_owned(), target: self.path.clone() }]
    }
}

/// Makes a folder for the caller alone, if it is not there. The folder above it must be, without a link on its path: code of an
/// earlier run may have made one.
fn make(named: &Path, taken: &[Mount]) -> anyhow::Result<()> {
    let path = absolute(named)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    check_place(&path, taken)?;
    let parent = named_folder("the folder above it,", parent)?.open()?;
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).context("cannot be made"),
    }
}

/// Refuses a path at which the sandbox has something of its own.
fn check_place(path: &Path, taken: &[Mount]) -> anyhow::Result<()> {
    let elsewhere = format!("show it elsewhere with --mount {}:/data", path.display());
    if let Some(own) = KERNEL.iter().find(|own| path.starts_with(own)) {
        let shared = Path::new("/dev/shm");
        if path != shared && path.starts_with(shared) {
            return Ok(());
        }
        bail!("a sandbox has its own {own}; use a folder elsewhere, or {elsewhere}");
    }
    let is_taken = taken.iter().any(|mount| mount.target.starts_with(path));
    if is_taken || NEEDED.iter().any(|needed| path == Path::new(needed)) {
        bail!("a sandbox has its own {}; name a folder in it, or {elsewhere}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> Workspace {
        Workspace { folder: None, path: path.into() }
    }

    #[test]
    fn place_is_refused_where_the_sandbox_has_its_own() {
        let usr = Mount {
            source: MountSource::Host { folder: "/usr".into(), file: None },
            target: "/usr".into(),
            read_only: true,
        };
        let place = |path: &str| check_place(Path::new(path), std::slice::from_ref(&usr));
        for path in
            ["/home/u/p", "/tmp", "/tmp/p", "/usr/src/p", "/etc/p", "/dev/shm/p", "/root", "/workspace/p"]
        {
            place(path).unwrap();
        }
        for path in ["/usr", "/etc", "/proc/1", "/sys/fs", "/dev", "/dev/shm", "/dev/x"] {
            let error = place(path).unwrap_err().to_string();
            assert!(error.contains("has its own") && error.contains("--mount"), "{path}: {error}");
        }
    }

    #[test]
    fn second_path_is_a_link_unless_it_is_on_the_way() {
        let link = |path: &str| at(path).links().into_iter().next().map(|link| (link.name, link.target));
        assert_eq!(link("/home/u/p"), Some(("workspace".to_owned(), "/home/u/p".into())));
        assert_eq!((link("/workspace"), link("/workspace/p")), (None, None));
        assert_eq!(at("/tmp").mounts(false).len(), 1, "no folder for temporary files above the workspace");
        assert_eq!(at("/p").home(true), Path::new("/tmp"));
    }
}
