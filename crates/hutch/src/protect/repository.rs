//! Repositories of git in a writable folder that are not in a folder `.git`: the one that a file `.git` names, as in a folder of
//! worktrees, and a bare one.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::paths::absolute;
use crate::place::mounted;

use super::{PROTECTED, Placeholder, Protection, linked};

/// Maximum worktrees that are protected one by one: a jail has a bounded number of mounts.
const MAX_WORKTREES: usize = 16;
/// Maximum bytes of a file that names a folder.
const NAME_BYTES: u64 = 8192;
/// Folders of every repository.
const OF_BARE: [&str; 2] = ["objects", "refs"];
/// Folder of the repositories of worktrees in that of all, the file there that names the latter, and what git reads there first.
const WORKTREES: &str = "worktrees";
const COMMON: &str = "commondir";
const OF_WORKTREE: [&str; 3] = [COMMON, "gitdir", "config.worktree"];

/// An entry to protect, and its placeholder.
pub(super) type Entry = (PathBuf, Placeholder);

/// Returns the protected entries of a repository, without its worktrees.
fn entries(repository: &Path) -> impl Iterator<Item = Entry> + use<> {
    let repository = repository.to_owned();
    let of_git = PROTECTED.iter().filter_map(|(path, kind)| Some((path.strip_prefix(".git/")?, *kind)));
    of_git.filter(|(path, _)| *path != WORKTREES).map(move |(path, kind)| (repository.join(path), kind))
}

impl Protection {
    /// Returns the entries to protect for repositories in the folder, which has this path, and folders that must not be moved, or
    /// the next run would not know the repository again.
    ///
    /// # Errors
    /// A folder of a bare repository is a link, which could be replaced, or one cannot be read.
    pub(super) fn repository(&self, folder: &Path) -> anyhow::Result<(Vec<Entry>, Vec<PathBuf>)> {
        let (mut found, mut held) = (Vec::new(), Vec::new());
        if let Some(link) = self.bare() {
            link.map_or(Ok(()), |link| Err(linked(Path::new(link))))?;
            found.extend(self.all_entries(Path::new(""))?);
            held.extend(OF_BARE.map(PathBuf::from));
        }
        let git = Path::new(".git");
        let own = match self.named_in(folder, git, b"gitdir: ") {
            Some(named) => within(folder, &named),
            None => vec![git.to_owned()],
        };
        for own in own {
            found.extend(self.entries_of(folder, &own)?);
        }
        Ok((found, held))
    }

    /// Returns whether the folder is a bare repository, and a folder of it that is a link. Also one without `HEAD` or
    /// `config`, which can be moved away and back.
    fn bare(&self) -> Option<Option<&'static str>> {
        let kind = |name: &str| match self.open(Path::new(name), OFlags::PATH) {
            Ok(entry) => Some(FileType::from_raw_mode(rustix::fs::fstat(&entry).ok()?.st_mode)),
            Err(Errno::LOOP) => Some(FileType::Symlink),
            // On another mount, which may be gone at the next run.
            Err(Errno::XDEV) => Some(FileType::Directory),
            Err(_) => None,
        };
        let has_config = matches!(kind("config"), Some(FileType::RegularFile | FileType::Symlink));
        let is_one = (has_config || kind("HEAD").is_some())
            && OF_BARE.iter().all(|name| matches!(kind(name), Some(FileType::Directory | FileType::Symlink)));
        is_one.then(|| OF_BARE.into_iter().find(|name| kind(name) == Some(FileType::Symlink)))
    }

    /// Returns the entries to protect for the repository `own`, and for that of all worktrees if it is one of a worktree.
    fn entries_of(&self, folder: &Path, own: &Path) -> anyhow::Result<Vec<Entry>> {
        let common = self.named_in(folder, &own.join(COMMON), b"");
        let mut all = common.map(|common| within(folder, &common)).unwrap_or_default();
        let is_of_worktree = all.iter().any(|common| own.starts_with(common.join(WORKTREES)));
        all.retain(|common| common != own);
        // Those of a folder `.git` are among the fixed ones.
        if own != Path::new(".git") && !is_of_worktree {
            all.push(own.to_owned());
        }
        let mut found = Vec::new();
        for repository in &all {
            found.extend(self.all_entries(repository)?);
        }
        Ok(found)
    }

    /// Returns the entries to protect for a repository and its worktrees, in which git works unless they are many.
    fn all_entries(&self, repository: &Path) -> anyhow::Result<Vec<Entry>> {
        let folder = repository.join(WORKTREES);
        let worktrees = self.names(&folder).with_context(|| folder.display().to_string())?;
        let mut all: Vec<Entry> = entries(repository).collect();
        match worktrees.len() > MAX_WORKTREES {
            true => all.push((folder, Placeholder::Folder)),
            false => {
                let files = worktrees.iter().flat_map(|path| OF_WORKTREE.map(|name| path.join(name)));
                all.extend(files.map(|path| (path, Placeholder::File(""))));
            }
        }
        Ok(all)
    }

    /// Returns the paths in a folder, none if there is no such folder.
    fn names(&self, path: &Path) -> Result<Vec<PathBuf>, Errno> {
        let folder = match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            folder => folder?,
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&folder)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(path.join(name));
            }
        }
        Ok(names)
    }

    /// Returns the path that a file of the folder names after a prefix; a relative one is that of the file's folder.
    fn named_in(&self, folder: &Path, file: &Path, prefix: &[u8]) -> Option<PathBuf> {
        let mut text = Vec::new();
        let file_of = std::fs::File::from(self.open(file, OFlags::RDONLY).ok()?);
        file_of.metadata().ok().filter(std::fs::Metadata::is_file)?;
        file_of.take(NAME_BYTES).read_to_end(&mut text).ok()?;
        // As git reads it: spaces are part of the path.
        let named = text.strip_prefix(prefix)?;
        let end = named.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
        let named = &named[..=end];
        (!named.is_empty()).then(|| folder.join(file.parent().unwrap_or(file)).join(OsStr::from_bytes(named)))
    }
}

/// Returns a path below a folder relative to it: by its name, without links, and by bind mounts.
fn within(folder: &Path, path: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = absolute(path).ok().into_iter().collect();
    names.extend(path.canonicalize().ok().iter().flat_map(|plain| mounted().names(plain)));
    names.dedup();
    names.iter().filter_map(|name| Some(name.strip_prefix(folder).ok()?.to_owned())).collect()
}
