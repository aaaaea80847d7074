//! Resolves a path below a folder one component at a time, each opened through the folder before it.
//! Concurrent changes of the tree cannot lead outside: there is no check that a use could race.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

/// Maximum symbolic links followed for one path, as in the kernel.
const LINK_LIMIT: usize = 40;
/// Maximum components walked for one path, those of links included. The kernel accepts paths of 4,096 bytes.
const STEP_LIMIT: usize = 4096;

/// Reason why a path was not found below the folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalkError {
    /// The path leads outside.
    #[error("the path leads outside the base folder")]
    Outside,
    /// The system refused a step.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> WalkError {
        WalkError::System(errno.into())
    }
}

/// Result of a walk. Neither name is, or was, a symbolic link: links were followed.
#[derive(Debug)]
pub(crate) enum Place {
    /// An entry with this name in that folder; `.` is the base folder itself.
    Found(OwnedFd, OsString),
    /// Absent: the last existing folder, and the names to create below it (at least one).
    Missing(OwnedFd, Vec<OsString>),
}

struct Walk<'a> {
    base: BorrowedFd<'a>,
    /// Folders entered below the base, with their names.
    entered: Vec<(OwnedFd, OsString)>,
    /// Name of an entry that is not a folder; no path continues below it.
    leaf: Option<OsString>,
    /// Absent names below the last entered folder.
    missing: Vec<OsString>,
    links: usize,
}

/// Resolves `path` relative to `base`, with or without a leading slash. Symbolic links are followed, absolute
/// ones only if they point below `base_path`, the real path of `base`.
pub(crate) fn walk(base: BorrowedFd<'_>, base_path: &Path, path: &Path) -> Result<Place, WalkError> {
    let mut walk = Walk { base, entered: Vec::new(), leaf: None, missing: Vec::new(), links: 0 };
    let mut todo: VecDeque<OsString> = components(path.as_os_str());
    let mut steps = 0;
    while let Some(name) = todo.pop_front() {
        steps += 1;
        if steps > STEP_LIMIT {
            return Err(Errno::NAMETOOLONG.into());
        }
        if let Some(target) = walk.step(name)? {
            let target = Path::new(&target);
            let rest = match target.strip_prefix(base_path) {
                Ok(below) if target.is_absolute() => {
                    walk.entered.clear();
                    below
                }
                _ if target.is_absolute() => return Err(WalkError::Outside),
                _ => target,
            };
            for part in components(rest.as_os_str()).into_iter().rev() {
                todo.push_front(part);
            }
        }
    }
    walk.place()
}

fn components(path: &OsStr) -> VecDeque<OsString> {
    let named = Path::new(path).components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

impl Walk<'_> {
    fn here(&self) -> BorrowedFd<'_> {
        self.entered.last().map_or(self.base, |(folder, _)| folder.as_fd())
    }

    /// Takes one step; returns the target of a symbolic link, to be resolved from the current folder.
    fn step(&mut self, name: OsString) -> Result<Option<OsString>, WalkError> {
        if name == ".." {
            let left =
                self.missing.pop().is_some() || self.leaf.take().is_some() || self.entered.pop().is_some();
            return if left { Ok(None) } else { Err(WalkError::Outside) };
        }
        if !self.missing.is_empty() || self.leaf.is_some() {
            self.missing.push(name);
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(self.here(), name.as_os_str(), flags, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                self.missing.push(name);
                return Ok(None);
            }
            Err(errno) => return Err(errno.into()),
        };
        match FileType::from_raw_mode(fstat(&found)?.st_mode) {
            FileType::Symlink => {
                self.links += 1;
                if self.links > LINK_LIMIT {
                    return Err(Errno::LOOP.into());
                }
                let target = readlinkat(&found, c"", Vec::new())?;
                return Ok(Some(OsString::from_vec(target.into_bytes())));
            }
            FileType::Directory => self.entered.push((found, name)),
            _ => self.leaf = Some(name),
        }
        Ok(None)
    }

    fn place(mut self) -> Result<Place, WalkError> {
        if !self.missing.is_empty() {
            if let Some(file) = self.leaf {
                // A file in the place of a folder: the system reports it when an entry is created below it.
                self.missing.insert(0, file);
            }
            let folder =
                self.entered.pop().map_or_else(|| self.base.try_clone_to_owned(), |(fd, _)| Ok(fd))?;
            return Ok(Place::Missing(folder, self.missing));
        }
        let name = match self.leaf {
            Some(name) => name,
            None => match self.entered.pop() {
                Some((_, name)) => name,
                None => OsStr::from_bytes(b".").to_owned(),
            },
        };
        let folder = self.entered.pop().map_or_else(|| self.base.try_clone_to_owned(), |(fd, _)| Ok(fd))?;
        Ok(Place::Found(folder, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, OwnedFd, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap().join("base");
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("a/file"), "x").unwrap();
        fs::write(base.parent().unwrap().join("secret"), "s").unwrap();
        symlink("../a/file", base.join("a/in")).unwrap();
        symlink(base.join("a"), base.join("absolute")).unwrap();
        symlink("../../secret", base.join("a/out")).unwrap();
        symlink("/etc", base.join("etc")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        symlink("a/new", base.join("dangling")).unwrap();
        let fd = OwnedFd::from(fs::File::open(&base).unwrap());
        (folder, fd, base)
    }

    fn outcome(path: &str) -> String {
        let (_folder, fd, base) = tree();
        match walk(fd.as_fd(), &base, Path::new(path)) {
            Ok(Place::Found(folder, name)) => {
                let at = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&folder)))
                    .unwrap();
                format!("{}", at.join(name).strip_prefix(&base).unwrap().display())
            }
            Ok(Place::Missing(_, names)) => format!("missing {names:?}"),
            Err(WalkError::Outside) => "outside".into(),
            Err(WalkError::System(error)) => format!("{:?}", error.kind()),
        }
    }

    #[test]
    fn paths_below_the_base_are_resolved() {
        for (path, expected) in [
            ("", ""),
            ("/", ""),
            (".", ""),
            ("a", "a"),
            ("/a//./b/", "a/b"),
            ("a/file", "a/file"),
            ("a/b/../file", "a/file"),
            ("a/in", "a/file"),
            ("absolute/b", "a/b"),
            ("no/such/thing", r#"missing ["no", "such", "thing"]"#),
            ("no/../a", "a"),
            ("dangling", r#"missing ["new"]"#),
            ("a/file/x", r#"missing ["file", "x"]"#),
            ("a/file/../b", "a/b"),
        ] {
            assert_eq!(outcome(path), expected, "{path:?}");
        }
    }

    #[test]
    fn paths_that_lead_outside_are_refused() {
        for path in
            ["..", "a/../..", "../base/a", "a/out", "etc", "etc/passwd", "no/../../secret", "a/file/../../.."]
        {
            assert_eq!(outcome(path), "outside", "{path:?}");
        }
        assert_eq!(outcome("loop"), "FilesystemLoop");
        assert_eq!(outcome(&"x".repeat(300)), "InvalidFilename");
    }
}
