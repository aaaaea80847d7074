//! `/etc/machine-id` of a Sandbox that begins with the snapshot of another one. Programs inside have written what they found
//! there, and have shaped the folders on the way: no link is followed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

/// Digits of an id.
const DIGITS: usize = 32;
const FOLDER: &str = "etc";
const FILE: &str = "machine-id";
/// Mark of a folder of an overlay that hides those below it.
const OPAQUE: &str = "user.overlay.opaque";

/// The id of a Sandbox: the same for each of its Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MachineId(String);

/// An entry of a layer.
enum Found {
    Nothing,
    /// Something that is no machine id, and hides what is below it.
    Other,
    File(OwnedFd, Stat),
}

impl MachineId {
    /// Returns the id of the Sandbox of this uid.
    pub(super) fn of(namespace: &str, uid: &str) -> MachineId {
        let digest = Sha256::digest(format!("hutch machine id/{namespace}/{uid}"));
        MachineId(digest.iter().map(|byte| format!("{byte:02x}")).take(DIGITS / 2).collect())
    }

    /// Puts the id in the place of another one that the root with this upper folder and these layers has, topmost first. One
    /// without an id gets none. Blocks.
    pub(super) fn put(&self, upper: &Path, layers: &[impl AsRef<Path>]) -> io::Result<()> {
        let top = match folder(upper) {
            // The container has written nothing.
            Err(Errno::NOENT) => None,
            top => Some(top?),
        };
        let mut is_hidden = false;
        if let Some(top) = &top {
            match find(top, OFlags::RDWR, &mut is_hidden)? {
                Found::File(file, _) => return self.replace(file),
                Found::Other => return Ok(()),
                Found::Nothing => {}
            }
        }
        for layer in layers {
            if is_hidden {
                return Ok(());
            }
            let layer = folder(layer.as_ref())?;
            match find(&layer, OFlags::RDONLY, &mut is_hidden)? {
                Found::File(file, status) => {
                    return match is_id(&mut std::fs::File::from(file))? {
                        true => self.cover(upper, &layer, &status),
                        false => Ok(()),
                    };
                }
                Found::Other => return Ok(()),
                Found::Nothing => {}
            }
        }
        Ok(())
    }

    /// Writes the id over another one of the same length: a program may have the file open.
    fn replace(&self, file: OwnedFd) -> io::Result<()> {
        let mut file = std::fs::File::from(file);
        if !is_id(&mut file)? {
            return Ok(());
        }
        rustix::io::pwrite(&file, self.0.as_bytes(), 0)?;
        file.sync_all()
    }

    /// Makes the file in the upper folder, with the rights of that of a layer.
    fn cover(&self, upper: &Path, layer: &OwnedFd, like: &Stat) -> io::Result<()> {
        std::fs::create_dir_all(upper)?;
        let top = folder(upper)?;
        let below = open(layer, FOLDER, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let of_folder = rustix::fs::fstat(&below)?;
        match rustix::fs::mkdirat(&top, FOLDER, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => {
                made?;
                let made = open(&top, FOLDER, OFlags::RDONLY | OFlags::DIRECTORY)?;
                adopt(&made, &of_folder)?;
            }
        }
        let folder = open(&top, FOLDER, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, FILE, flags, Mode::RUSR | Mode::WUSR)?;
        adopt(&file, like)?;
        let mut file = std::fs::File::from(file);
        writeln!(file, "{}", self.0)
    }
}

/// Gives an entry owner and rights of another one.
fn adopt(entry: &OwnedFd, like: &Stat) -> io::Result<()> {
    rustix::fs::fchown(entry, Some(Uid::from_raw(like.st_uid)), Some(Gid::from_raw(like.st_gid)))?;
    Ok(rustix::fs::fchmod(entry, Mode::from_raw_mode(like.st_mode & 0o7777))?)
}

fn folder(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn open(folder: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(folder, name, flags, Mode::empty(), within)
}

/// Finds the file in a layer. Sets `is_hidden` if the layer hides those below it.
fn find(layer: &OwnedFd, flags: OFlags, is_hidden: &mut bool) -> io::Result<Found> {
    let kind =
        |folder: &OwnedFd, name: &str| match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(|found| Some((FileType::from_raw_mode(found.st_mode), found))),
        };
    match kind(layer, FOLDER)? {
        None => return Ok(Found::Nothing),
        Some((FileType::Directory, _)) => {}
        Some(_) => return Ok(Found::Other),
    }
    let opened = open(layer, FOLDER, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut mark = [0_u8; 1];
    *is_hidden = rustix::fs::fgetxattr(&opened, OPAQUE, &mut mark).is_ok() && mark == *b"y";
    match kind(&opened, FILE)? {
        None => Ok(Found::Nothing),
        Some((FileType::RegularFile, status)) => Ok(Found::File(open(&opened, FILE, flags)?, status)),
        Some(_) => Ok(Found::Other),
    }
}

/// Returns true if a file has an id, and nothing else.
fn is_id(file: &mut std::fs::File) -> io::Result<bool> {
    let mut text = Vec::new();
    file.take(DIGITS as u64 + 2).read_to_end(&mut text)?;
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    Ok(digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const OLD: &str = "0123456789abcdef0123456789abcdef\n";

    struct Root {
        folder: tempfile::TempDir,
    }

    impl Root {
        fn new() -> Root {
            let root = Root { folder: tempfile::tempdir().unwrap() };
            for layer in ["upper", "high", "low"] {
                std::fs::create_dir(root.path(layer)).unwrap();
            }
            root
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, layer: &str, text: &str) {
            std::fs::create_dir_all(self.path(layer).join("etc")).unwrap();
            std::fs::write(self.path(layer).join("etc/machine-id"), text).unwrap();
        }

        fn put(&self) -> Option<String> {
            let layers = [self.path("high"), self.path("low")];
            MachineId::of("n", "u").put(&self.path("upper"), &layers).unwrap();
            std::fs::read_to_string(self.path("upper/etc/machine-id")).ok()
        }
    }

    #[test]
    fn id_is_of_its_sandbox_and_has_the_usual_form() {
        let id = MachineId::of("n", "u");
        assert_eq!(id, MachineId::of("n", "u"));
        assert!(id.0.len() == DIGITS && id.0.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id:?}");
        assert_ne!(id, MachineId::of("n", "v"));
        assert_ne!(id, MachineId::of("m", "u"));
    }

    #[test]
    fn id_is_replaced_in_the_upper_folder_and_covered_in_a_layer() {
        let new = format!("{}\n", MachineId::of("n", "u").0);
        let root = Root::new();
        root.write("upper", OLD);
        root.write("low", OLD);
        assert_eq!(root.put(), Some(new.clone()));
        let root = Root::new();
        root.write("low", OLD);
        std::fs::create_dir(root.path("high/etc")).unwrap();
        assert_eq!(root.put(), Some(new));
        assert_eq!(
            std::fs::read_to_string(root.path("low/etc/machine-id")).unwrap(),
            OLD,
            "layers never change"
        );
    }

    #[test]
    fn root_without_an_id_gets_none() {
        assert_eq!(Root::new().put(), None);
        for text in ["", "uninitialized\n", &format!("{OLD}x"), "0123"] {
            let root = Root::new();
            root.write("upper", text);
            assert_eq!(root.put().as_deref(), Some(text));
            let root = Root::new();
            root.write("high", text);
            assert_eq!(root.put(), None, "{text}");
        }
        // Removed inside.
        let root = Root::new();
        root.write("low", OLD);
        std::fs::create_dir(root.path("upper/etc")).unwrap();
        symlink("/nowhere", root.path("upper/etc/machine-id")).unwrap();
        assert_eq!(root.put(), None);
    }

    #[test]
    fn link_is_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let file = outside.path().join("machine-id");
        for link in ["upper/etc", "high/etc"] {
            std::fs::write(&file, OLD).unwrap();
            let root = Root::new();
            symlink(outside.path(), root.path(link)).unwrap();
            root.put();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD, "{link}");
        }
        let root = Root::new();
        std::fs::create_dir(root.path("upper/etc")).unwrap();
        symlink(&file, root.path("upper/etc/machine-id")).unwrap();
        root.put();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
    }
}
