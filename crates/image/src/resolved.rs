//! An image on this machine: folders, and what the image says about its program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::{Hold, StopSignal};

/// Where the sandbox runtime is expected inside; who runs an image that wants it puts it there.
pub const SANDBOXD_PATH: &str = "/.hutch/sandboxd";
/// The command of [`crate::BuiltIn::Pause`].
pub const PAUSE: [&str; 2] = [SANDBOXD_PATH, "--pause"];
/// Maximum links that lead to a file.
const LINKS: usize = 40;

/// A resolved image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Identity of the content: `sha256:...` of the manifest, or the name and version of a built-in image.
    pub id: String,
    /// Folders to stack as the root, topmost first. Never to be written.
    pub layers: Vec<PathBuf>,
    /// Parts of this machine that belong to the image, read-only.
    pub mounts: Vec<HostMount>,
    /// The image's program configuration.
    pub config: ImageConfig,
    /// Name of the built-in image that replaces the requested published one.
    pub substituted: Option<&'static str>,
    /// `true` when the sandbox runtime must be mounted at [`SANDBOXD_PATH`].
    pub wants_sandboxd: bool,
    /// Keeps the image from being removed.
    pub hold: Hold,
}

/// Entry of an image.
enum Entry {
    Folder,
    File,
    /// A link, and where it leads.
    Link(PathBuf),
}

impl Resolved {
    /// Returns the path of a file of the image, with no link left on it; `None` if there is no such file. A link never leads
    /// out of the image.
    pub fn find_file(&self, path: &Path) -> Option<PathBuf> {
        let names = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect();
        let (mut left, mut links): (Vec<OsString>, usize) = (names(path), 0);
        let mut here = PathBuf::from("/");
        while let Some(name) = left.pop() {
            match Path::new(&name).components().next() {
                Some(Component::Normal(_)) => {}
                Some(Component::RootDir) => here = PathBuf::from("/"),
                Some(Component::ParentDir) => drop(here.pop()),
                _ => {}
            }
            let Some(Component::Normal(name)) = Path::new(&name).components().next() else { continue };
            #[expect(
                clippy::disallowed_methods,
                reason = "a path in the image, which `entry` looks up inside"
            )]
            let next = here.join(name);
            match self.entry(&next)? {
                Entry::Folder => here = next,
                Entry::File => return left.is_empty().then_some(next),
                Entry::Link(target) => {
                    links += 1;
                    if links > LINKS {
                        return None;
                    }
                    left.extend::<Vec<OsString>>(names(&target));
                }
            }
        }
        None
    }

    /// Looks up a path on whose folders there is no link.
    fn entry(&self, path: &Path) -> Option<Entry> {
        let mount = self.mounts.iter().find(|mount| path.starts_with(&mount.target));
        let roots = mount.map_or(self.layers.as_slice(), |mount| std::slice::from_ref(&mount.source));
        let below = path.strip_prefix(mount.map_or(Path::new("/"), |mount| &mount.target)).ok()?;
        if below.as_os_str().is_empty() {
            return Some(Entry::Folder);
        }
        // The topmost layer that has it. A layer in which a link is on the way has it not.
        let found = roots.iter().find_map(|root| open(root, below).ok())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&found).ok()?.st_mode) {
            FileType::Directory => Some(Entry::Folder),
            FileType::RegularFile => Some(Entry::File),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found, "", Vec::new()).ok()?;
                Some(Entry::Link(OsString::from_vec(target.into_bytes()).into()))
            }
            // Among others the mark that a lower layer's entry is gone.
            _ => None,
        }
    }
}

fn open(root: &Path, below: &Path) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, below, flags, Mode::empty(), within)
}

/// A file or folder of this machine that shows in an image, read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMount {
    /// Path on this machine.
    pub source: PathBuf,
    /// Path in the image.
    pub target: PathBuf,
}

/// Program configuration of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The part of the command that a user's arguments follow.
    pub entrypoint: Vec<String>,
    /// Arguments when the user gives none.
    pub cmd: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub working_dir: Option<PathBuf>,
    /// `user`, `user:group` or numbers; empty is root inside.
    pub user: String,
    /// Signal that ends the program.
    pub stop_signal: StopSignal,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
    fn file_is_found_through_links_and_never_outside_of_the_image() {
        let machine = tempfile::tempdir().unwrap();
        let at = |path: &str| machine.path().join(path);
        for folder in ["top/etc", "low/etc/ssl/certs", "low/etc/pki/pem", "usr/share"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["low/etc/ssl/certs/real", "low/etc/pki/pem/real", "usr/share/real", "outside"] {
            fs::write(at(file), "").unwrap();
        }
        for (target, link) in [
            ("certs/real", "low/etc/ssl/relative"),
            ("/etc/pki/pem", "top/etc/folder"),
            ("../../../../usr/share/real", "low/etc/ssl/up"),
            ("missing", "low/etc/ssl/dangling"),
            ("loop", "low/etc/ssl/loop"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("outside"), at("low/etc/ssl/outside")).unwrap();
        symlink(machine.path(), at("low/etc/away")).unwrap();
        let image = Resolved {
            id: String::new(),
            layers: vec![at("top"), at("low")],
            mounts: vec![HostMount { source: at("usr"), target: "/usr".into() }],
            config: ImageConfig::default(),
            substituted: None,
            wants_sandboxd: false,
            hold: Hold::default(),
        };
        for (path, found) in [
            ("/etc/ssl/certs/real", Some("/etc/ssl/certs/real")),
            ("/etc/ssl/relative", Some("/etc/ssl/certs/real")),
            ("/etc/folder/real", Some("/etc/pki/pem/real")),
            ("/etc/ssl/up", Some("/usr/share/real")),
            ("/etc/ssl/dangling", None),
            ("/etc/ssl/loop", None),
            ("/etc/ssl/outside", None),
            ("/etc/away/outside", None),
            ("/etc/ssl", None),
            ("/etc/ssl/certs/real/more", None),
            ("/none", None),
        ] {
            assert_eq!(image.find_file(Path::new(path)).as_deref(), found.map(Path::new), "{path}");
        }
    }
}
