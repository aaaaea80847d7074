//! A part of a volume, found without leaving the volume.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A file or folder of a volume, held open: what a container does to the path afterwards changes nothing.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    fd: Arc<OwnedFd>,
}

impl Held {
    /// A path under which every process of this user finds exactly what is held, as long as it is.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }
}

/// Opens `sub` below a volume that only the node writes. Its files are behind links, which lead to no place outside.
pub(crate) fn open_given(volume: &Path, sub: &str) -> io::Result<Held> {
    if sub.starts_with("..") {
        return Err(outside(sub));
    }
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let path_only = OFlags::PATH | OFlags::CLOEXEC;
    let top = rustix::fs::open(volume, path_only | OFlags::DIRECTORY, Mode::empty())?;
    match rustix::fs::openat2(&top, sub, path_only, Mode::empty(), within) {
        Ok(fd) => Ok(Held { fd: Arc::new(fd) }),
        Err(Errno::NOENT) => open(volume, sub),
        Err(errno) => Err(errno.into()),
    }
}

fn outside(sub: impl std::fmt::Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("subPath {sub:?} must lie within the volume"))
}

/// Opens `sub` below `volume`, and creates missing folders. Links are not followed: a program that writes to the volume
/// could point them anywhere.
pub(crate) fn open(volume: &Path, sub: &str) -> io::Result<Held> {
    let sub = Path::new(sub);
    if !sub.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(outside(sub));
    }
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path_only = OFlags::PATH | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(volume, path_only | OFlags::DIRECTORY, Mode::empty())?;
    for part in sub.components().filter(|part| matches!(part, Component::Normal(_))) {
        let open = || rustix::fs::openat2(&here, part.as_os_str(), path_only, Mode::empty(), within);
        let next = match open() {
            Err(Errno::NOENT) => {
                // Two containers may make it at once.
                match rustix::fs::mkdirat(&here, part.as_os_str(), Mode::from_raw_mode(0o750)) {
                    Ok(()) | Err(Errno::EXIST) => open(),
                    Err(errno) => Err(errno),
                }
            }
            other => other,
        };
        here = next.map_err(|errno| match errno {
            Errno::LOOP => {
                io::Error::new(io::ErrorKind::PermissionDenied, format!("subPath {sub:?} leads over a link"))
            }
            errno => errno.into(),
        })?;
    }
    Ok(Held { fd: Arc::new(here) })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_node_are_followed_within_the_volume() {
        let (volume, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(volume.path().join("..1")).unwrap();
        std::fs::write(volume.path().join("..1/key"), "s").unwrap();
        for (target, link) in [("..1", "..data"), ("..data/key", "key")] {
            std::os::unix::fs::symlink(target, volume.path().join(link)).unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), volume.path().join("out")).unwrap();
        let held = open_given(volume.path(), "key").unwrap();
        assert_eq!(std::fs::read(held.path()).unwrap(), b"s");
        for sub in ["..data/key", "../x", "out", "/etc"] {
            assert!(open_given(volume.path(), sub).is_err(), "{sub}");
        }
        assert!(open_given(volume.path(), "missing").is_ok(), "it is made, as by a kubelet");
    }

    #[test]
    fn nothing_outside_of_the_volume_is_reached() {
        let (volume, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path(), volume.path().join("link")).unwrap();
        for sub in ["../x", "/etc", "a/../../x", "link", "link/secret"] {
            assert!(open(volume.path(), sub).is_err(), "{sub}");
        }
        let held = open(volume.path(), "a/b").unwrap();
        assert!(volume.path().join("a/b").is_dir());
        std::fs::rename(volume.path().join("a"), volume.path().join("c")).unwrap();
        std::os::unix::fs::symlink(outside.path(), volume.path().join("a")).unwrap();
        std::fs::write(held.path().join("f"), "x").unwrap();
        assert!(volume.path().join("c/b/f").is_file(), "what was opened is what is used");
    }
}
