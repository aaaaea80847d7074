//! Repositories of git in a writable folder that are not in a folder `.git`: the one that a file `.git` names, as in a folder of
//! worktrees, and a bare one.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use super::{PROTECTED, Placeholder, Protection};

/// Maximum bytes of a file that names a folder.
const NAME_BYTES: u64 = 8192;
/// Entries of every repository.
const OF_BARE: [&str; 3] = ["HEAD", "objects", "refs"];

impl Protection {
    /// Returns the entries to protect for repositories in the folder, which has this path: the whole repository that a file
    /// `.git` names, and what git reads or runs in the folder if that is a repository itself.
    pub(super) fn repository(&self, folder: &Path) -> Vec<(PathBuf, Placeholder)> {
        let mut found: Vec<PathBuf> = Vec::new();
        if let Some(named) = self.named_in(folder, Path::new(".git"), b"gitdir:") {
            // The repository of which that is a worktree, or a submodule.
            found.extend(within(folder, &named).and_then(|path| {
                let common = self.named_in(folder, &path.join("commondir"), b"")?;
                within(folder, &common)
            }));
            found.extend(within(folder, &named));
        }
        let is_bare = OF_BARE.iter().all(|name| self.open(Path::new(name), OFlags::PATH).is_ok());
        let is_itself = is_bare || found.iter().any(|path| path.as_os_str().is_empty());
        found.retain(|path| !path.as_os_str().is_empty());
        let own =
            PROTECTED.iter().filter_map(|(path, kind)| Some((path.strip_prefix(".git/")?.into(), *kind)));
        let own = own.filter(|_| is_itself);
        own.chain(found.into_iter().map(|path| (path, Placeholder::Folder))).collect()
    }

    /// Returns the path that a file of the folder names after a prefix; a relative one is that of the file's folder.
    fn named_in(&self, folder: &Path, file: &Path, prefix: &[u8]) -> Option<PathBuf> {
        let mut text = Vec::new();
        let file_of = std::fs::File::from(self.open(file, OFlags::RDONLY).ok()?);
        file_of.metadata().ok().filter(std::fs::Metadata::is_file)?;
        file_of.take(NAME_BYTES).read_to_end(&mut text).ok()?;
        let named = text.strip_prefix(prefix)?.trim_ascii();
        (!named.is_empty()).then(|| folder.join(file.parent().unwrap_or(file)).join(OsStr::from_bytes(named)))
    }
}

/// Returns a path below a folder relative to it, by its name or without links.
fn within(folder: &Path, path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::Normal(name) => plain.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    let without_links = path.canonicalize().ok();
    let names = [Some(plain), without_links].into_iter().flatten();
    names.filter_map(|name| Some(name.strip_prefix(folder).ok()?.to_owned())).next()
}
