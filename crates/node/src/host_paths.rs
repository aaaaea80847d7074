//! Folders of the machine that Pods may mount as `hostPath`.
//!
//! A Pod names a path, and code in other Pods may replace files below a folder. So each path is looked up below the open
//! folder, without links, when it is checked and again when it is mounted.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use hutch_jail::CheckedFolder;
use k8s_openapi::api::core::v1::HostPathVolumeSource;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::Error;
use crate::config::HostPath;

/// File systems of the kernel, of which nothing is mounted.
const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// The folders that the administrator allows.
#[derive(Debug, Default)]
pub(crate) struct HostPaths(Vec<Allowed>);

#[derive(Debug)]
struct Allowed {
    /// As the administrator and Pods name it.
    name: PathBuf,
    folder: CheckedFolder,
    writable: bool,
}

/// A path of the machine that a Pod mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnHost {
    pub(crate) folder: CheckedFolder,
    /// Path below the folder.
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
}

impl HostPaths {
    /// Opens the folders. None of them may hold one of the node's own folders or lie in one. Blocks.
    pub(crate) fn open(given: &[HostPath], own: &[&Path]) -> Result<HostPaths, Error> {
        let allow = |given: &HostPath| allow(given, own).map_err(Error::folder("allow", &*given.folder));
        given.iter().map(allow).collect::<Result<_, _>>().map(HostPaths)
    }

    /// Finds the path of a volume of type `hostPath`, and makes it where its type says so. The error is for the author of the
    /// Pod. Blocks.
    pub(crate) fn find(&self, source: &HostPathVolumeSource) -> Result<OnHost, String> {
        let path = Path::new(&source.path);
        let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let matching = self.0.iter().filter(|allowed| plain && path.starts_with(&allowed.name));
        let allowed = matching.max_by_key(|allowed| allowed.name.components().count()).ok_or_else(|| {
            format!("hostPath {path:?} is not beneath a folder that `hutch up --host-path` allows")
        })?;
        let rest = path.strip_prefix(&allowed.name).unwrap_or(Path::new("")).to_owned();
        let found = OnHost { folder: allowed.folder.clone(), path: rest, read_only: !allowed.writable };
        let kind = source.type_.as_deref().unwrap_or("");
        found.check(kind, allowed.writable).map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::LOOP.raw_os_error() => {
                format!("hostPath {path:?} leads over a link")
            }
            Some(code) if code == Errno::XDEV.raw_os_error() => {
                format!("hostPath {path:?} leads to something that is mounted below the allowed folder: allow that too")
            }
            _ => format!("hostPath type check failed: {path:?}: {error}"),
        })?;
        Ok(found)
    }
}

fn allow(given: &HostPath, own: &[&Path]) -> io::Result<Allowed> {
    let name: PathBuf = std::path::absolute(&given.folder)?.components().collect();
    if name.components().any(|part| part == Component::ParentDir) {
        return Err(io::Error::other("name it without `..`"));
    }
    let real = std::fs::canonicalize(&name)?;
    if OF_KERNEL.iter().any(|kernel| real.starts_with(kernel)) {
        return Err(io::Error::other("it is of the kernel"));
    }
    for own in own {
        let Ok(own) = std::fs::canonicalize(own) else { continue };
        // By inode, so that another mount of the same folder is found too.
        if holds(&real, &own)? || holds(&own, &real)? {
            return Err(io::Error::other(format!("it holds {} or lies in it", own.display())));
        }
    }
    Ok(Allowed { name, folder: CheckedFolder::look(&real)?.without_mounts(), writable: given.writable })
}

/// Returns true if `outer` is `inner` or a folder around it.
fn holds(outer: &Path, inner: &Path) -> io::Result<bool> {
    let of = |path: &Path| rustix::fs::stat(path).map(|found| (found.st_dev, found.st_ino));
    let outer = of(outer)?;
    for folder in inner.ancestors() {
        if of(folder)? == outer {
            return Ok(true);
        }
    }
    Ok(false)
}

impl OnHost {
    /// Checks the type of what is there, and makes it where its type says so and Pods can write.
    fn check(&self, kind: &str, writable: bool) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::other(format!("is not a {what}")));
        let make = kind.ends_with("OrCreate");
        let found = match self.open() {
            Err(Errno::NOENT) if make && writable => self.make(kind)?,
            other => other?,
        };
        let file_type = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
        match (kind, file_type) {
            ("" | "Directory" | "DirectoryOrCreate", FileType::Directory)
            | ("" | "File" | "FileOrCreate", FileType::RegularFile) => Ok(()),
            ("Directory" | "DirectoryOrCreate", _) => wrong("directory"),
            ("File" | "FileOrCreate", _) => wrong("file"),
            ("", _) => wrong("file or directory"),
            _ => Err(io::Error::other(format!("the type {kind} is not supported"))),
        }
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        let top = self.folder.open().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if self.path == Path::new("") {
            return Ok(top);
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(top, &self.path, flags, Mode::empty(), self.folder.within())
    }

    fn make(&self, kind: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let within = self.folder.within();
        let mut here = self.folder.open()?;
        let mut parts = self.path.iter().peekable();
        while let Some(name) = parts.next() {
            let made = if kind == "FileOrCreate" && parts.peek().is_none() {
                let create =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat2(&here, name, create, Mode::from_raw_mode(0o644), within).map(drop)
            } else {
                rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o755))
            };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            here = rustix::fs::openat2(&here, name, flags, Mode::empty(), within)?;
        }
        Ok(here)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    fn source(path: &Path, kind: &str) -> HostPathVolumeSource {
        HostPathVolumeSource { path: path.display().to_string(), type_: Some(kind.into()) }
    }

    fn open(folder: &Path, writable: bool, own: &[&Path]) -> Result<HostPaths, Error> {
        HostPaths::open(&[HostPath { folder: folder.into(), writable }], own)
    }

    #[test]
    fn only_paths_beneath_an_allowed_folder_are_found() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/file"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("a/link")).unwrap();
        let paths = open(&dir.path().join("a"), false, &[]).unwrap();
        let find = |name: &str, kind: &str| paths.find(&source(&dir.path().join(name), kind));
        for (name, kind) in
            [("a", "Directory"), ("a/b", ""), ("a/file", "File"), ("a/b", "DirectoryOrCreate")]
        {
            let found = find(name, kind).unwrap();
            assert!(found.read_only && found.path == Path::new(name).strip_prefix("a").unwrap());
        }
        for (name, kind, part) in [
            ("", "", "--host-path"),
            ("ab", "", "--host-path"),
            ("a/../c", "", "--host-path"),
            ("a/link", "", "leads over a link"),
            ("a/link/x", "", "leads over a link"),
            ("a/file", "Directory", "is not a directory"),
            ("a/b", "File", "is not a file"),
            ("a/b", "Socket", "not supported"),
            ("a/new", "DirectoryOrCreate", "type check failed"),
            ("a/new", "", "type check failed"),
        ] {
            let error = find(name, kind).unwrap_err();
            assert!(error.contains(part), "{name} {kind}: {error}");
        }
        assert!(!dir.path().join("a/new").exists(), "nothing is made in a folder that is read-only");
        assert!(HostPaths::default().find(&source(dir.path(), "")).is_err());
    }

    #[test]
    fn what_is_mounted_below_an_allowed_folder_is_not_found() {
        hutch_testkit::require!(root);
        let dir = tempfile::tempdir().unwrap();
        let mounted = dir.path().join("mounted");
        std::fs::create_dir(&mounted).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("proc", &mounted, "proc", flags, None).unwrap();
        let paths = open(dir.path(), false, &[]).unwrap();
        let errors = ["mounted", "mounted/1"].map(|name| paths.find(&source(&dir.path().join(name), "")));
        rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::DETACH).unwrap();
        for error in errors {
            let error = error.unwrap_err();
            assert!(error.contains("is mounted below the allowed folder"), "{error}");
        }
    }

    #[test]
    fn missing_paths_are_made_in_a_folder_that_can_be_written() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let paths = open(dir.path(), true, &[]).unwrap();
        let find = |name: &str, kind: &str| paths.find(&source(&dir.path().join(name), kind));
        assert!(!find("new/folder", "DirectoryOrCreate").unwrap().read_only);
        find("new/file", "FileOrCreate").unwrap();
        assert!(dir.path().join("new/folder").is_dir() && dir.path().join("new/file").is_file());
        assert!(find("link/new", "DirectoryOrCreate").is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn folders_around_and_within_those_of_hutch_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("data/inner")).unwrap();
        std::fs::create_dir_all(dir.path().join("beside")).unwrap();
        std::os::unix::fs::symlink("data", dir.path().join("link")).unwrap();
        let data = dir.path().join("data");
        for name in ["data", "data/inner", "link", "link/inner"] {
            assert!(open(&dir.path().join(name), false, &[&data]).is_err(), "{name}");
        }
        for path in [dir.path(), Path::new("/"), Path::new("/proc/self"), Path::new("/missing")] {
            assert!(open(path, false, &[&data]).is_err(), "{path:?}");
        }
        assert!(open(&dir.path().join("beside"), false, &[&data]).is_ok());
    }
}
