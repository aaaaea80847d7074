//! Packs folders.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

/// Start of the name of a file that removes an entry of a lower layer.
const WHITEOUT: &[u8] = b".wh.";
/// Name of a file that hides what lower layers have in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Limits of an archive that is packed.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// Maximum folders within each other. Each is held open while its content is packed.
    pub depth: usize,
    /// Maximum bytes of all files together. A file may announce more than a disk has.
    pub bytes: u64,
    /// Mode bits that are packed.
    pub modes: u32,
    /// `true` if owners are packed, as numbers.
    pub owners: bool,
    /// `true` if the folder is the upperdir of an overlay and its changes are packed as a layer of the OCI does: a file of
    /// size 0 named `.wh.NAME` for an entry that was removed, and `.wh..wh..opq` in a folder that replaces another.
    pub layer: bool,
}

/// Entry that is not packed as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Neither file, folder nor symbolic link. It is left out.
    Special,
    /// File that became shorter while it was packed. Zeros follow its content, because its header announced the length.
    Shorter,
}

/// Packs the entries of a folder under `prefix`: files, folders, and links as links. Each entry of
/// which [`Notice`] speaks is passed to `notice`, with its path in the archive; an error of it ends the archive.
///
/// # Errors
/// Something cannot be read, or the archive cannot be written; the error names the path. The archive is then incomplete.
pub fn pack<W: Write>(
    folder: OwnedFd,
    prefix: &Path,
    packing: Packing,
    to: &mut Builder<W>,
    mut notice: impl FnMut(&Path, Notice) -> io::Result<()>,
) -> io::Result<()> {
    let mut open = vec![(names(&folder)?, folder, prefix.to_owned())];
    let mut left = packing.bytes;
    while let Some((entries, folder, prefix)) = open.last_mut() {
        let Some(entry) = entries.read() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        #[expect(clippy::disallowed_methods, reason = "a path in the archive, which is not opened")]
        let path = prefix.join(name);
        let named = |error: io::Error| name_error(&path, error);
        // An entry that was removed meanwhile is left out.
        let Ok(stat) = statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if packing.layer && name.as_bytes().starts_with(WHITEOUT) {
            // It would remove something.
            notice(&path, Notice::Special)?;
            continue;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let Ok(inner) = openat(&*folder, name, flags, Mode::empty()) else { continue };
                append_folder(&inner, &path, packing, to).map_err(named)?;
                if open.len() >= packing.depth {
                    let problem = format!("{} is more than {} folders deep", path.display(), packing.depth);
                    return Err(io::Error::other(problem));
                }
                let entries = names(&inner).map_err(|errno| named(errno.into()))?;
                if packing.layer && is_opaque(&entries, &path)? {
                    append_whiteout(&path, OPAQUE, to).map_err(named)?;
                }
                open.push((entries, inner, path));
            }
            FileType::Symlink => {
                let mut header = header(&stat, packing, EntryType::Symlink);
                let Ok(target) = readlinkat(&*folder, name, Vec::new()) else { continue };
                to.append_link(&mut header, &path, OsStr::from_bytes(target.to_bytes())).map_err(named)?;
            }
            FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                left = left.checked_sub(size).ok_or_else(|| too_large(&path, packing.bytes))?;
                // A pipe that has taken its place must not block.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = match openat(&*folder, name, flags, Mode::empty()) {
                    // Removed or replaced meanwhile.
                    Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => continue,
                    opened => opened.map_err(|errno| named(errno.into()))?,
                };
                append_file(File::from(file), &path, packing, to, &mut notice).map_err(named)?;
            }
            FileType::CharacterDevice if packing.layer && stat.st_rdev == 0 => {
                append_whiteout(prefix, &[WHITEOUT, name.as_bytes()].concat(), to).map_err(named)?;
            }
            _ => notice(&path, Notice::Special)?,
        }
    }
    Ok(())
}

/// Returns `true` if a folder of an upperdir hides what is below it.
///
/// # Errors
/// It shows what is below another path, which a layer cannot say.
fn is_opaque(folder: &Dir, path: &Path) -> io::Result<bool> {
    let fd = folder.fd()?;
    let has = |name: &str| {
        let mut value = [0; 1];
        let names = [format!("user.overlay.{name}"), format!("trusted.overlay.{name}")];
        { names }.iter().any(|name| {
            !matches!(rustix::fs::fgetxattr(fd, name, &mut value), Err(Errno::NODATA | Errno::NOTSUP))
        })
    };
    match has("redirect") {
        true => {
            Err(io::Error::other(format!("{} was renamed where the kernel copies nothing", path.display())))
        }
        false => Ok(has("opaque")),
    }
}

fn append_whiteout<W: Write>(folder: &Path, name: &[u8], to: &mut Builder<W>) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a path in the archive, which is not opened")]
    let path = folder.join(OsStr::from_bytes(name));
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    to.append_data(&mut header, path, io::empty())
}

/// Packs the folder itself, without its entries, under this path.
///
/// # Errors
/// It cannot be inspected, or the archive cannot be written.
pub fn append_folder<W: Write>(
    folder: impl AsFd,
    path: &Path,
    packing: Packing,
    to: &mut Builder<W>,
) -> io::Result<()> {
    let mut header = header(&fstat(folder)?, packing, EntryType::Directory);
    #[expect(clippy::disallowed_methods, reason = "a slash at the end")]
    let path = path.join("");
    to.append_data(&mut header, path, io::empty())
}

/// Packs an open file under this path, up to the length that it has now. Anything but a regular file is left out.
///
/// # Errors
/// The file cannot be read, the archive cannot be written, or an error of `notice`.
pub fn append_file<W: Write>(
    file: File,
    path: &Path,
    packing: Packing,
    to: &mut Builder<W>,
    mut notice: impl FnMut(&Path, Notice) -> io::Result<()>,
) -> io::Result<()> {
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return notice(path, Notice::Special);
    }
    let mut header = header(&stat, packing, EntryType::Regular);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    header.set_size(size);
    let mut content = Padded { file, left: size, is_shorter: false };
    to.append_data(&mut header, path, &mut content)?;
    if content.is_shorter { notice(path, Notice::Shorter) } else { Ok(()) }
}

/// Content of a file of an announced length, with zeros for what is missing at its end.
struct Padded {
    file: File,
    left: u64,
    is_shorter: bool,
}

impl Read for Padded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let mut count = if self.is_shorter { 0 } else { self.file.read(&mut buffer[..wanted])? };
        if count == 0 && wanted > 0 {
            self.is_shorter = true;
            buffer[..wanted].fill(0);
            count = wanted;
        }
        self.left -= count as u64;
        Ok(count)
    }
}

#[allow(clippy::unnecessary_cast, clippy::useless_conversion)] // The fields' types differ between architectures.
fn header(stat: &Stat, packing: Packing, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & packing.modes);
    header.set_mtime(u64::try_from(stat.st_mtime as i64).unwrap_or(0));
    header.set_size(0);
    if packing.owners {
        header.set_uid(stat.st_uid.into());
        header.set_gid(stat.st_gid.into());
    }
    header
}

/// Lists the names in a folder, which need not be open for reading.
fn names(folder: impl AsFd) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(openat(folder, c".", flags, Mode::empty())?)
}

fn too_large(path: &Path, most: u64) -> io::Error {
    let text = format!("with {}, the files have more than {most} bytes", path.display());
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

fn name_error(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    type Notices = Vec<(PathBuf, Notice)>;

    fn packed(folder: &Path, packing: Packing) -> io::Result<(Vec<String>, Notices)> {
        let mut notices = Notices::new();
        let mut to = Builder::new(Vec::new());
        append_folder(open(folder), Path::new("top"), packing, &mut to)?;
        pack(open(folder), Path::new("top"), packing, &mut to, |path, notice| {
            notices.push((path.to_owned(), notice));
            Ok(())
        })?;
        let archive = to.into_inner()?;
        let mut archive = tar::Archive::new(&archive[..]);
        let mut entries: Vec<_> = archive
            .entries()?
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut content = String::new();
                entry.read_to_string(&mut content).unwrap();
                let link = entry.link_name_bytes().map(|l| String::from_utf8(l.into_owned()).unwrap());
                let (path, mode) =
                    (String::from_utf8(entry.path_bytes().into_owned()), entry.header().mode());
                format!("{} {:o} {}", path.unwrap(), mode.unwrap(), link.unwrap_or(content))
            })
            .collect();
        entries.sort();
        Ok((entries, notices))
    }

    #[test]
    fn files_folders_and_links_are_packed() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        fs::create_dir_all(base.join("deep/empty")).unwrap();
        fs::write(base.join("deep/run"), "text").unwrap();
        for (path, mode) in [("", 0o755), ("deep", 0o755), ("deep/empty", 0o1777), ("deep/run", 0o4750)] {
            fs::set_permissions(base.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("../any", base.join("deep/link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, base.join("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let (entries, notices) =
            packed(base, Packing { depth: 3, bytes: u64::MAX, modes: 0o777, owners: false, layer: false })
                .unwrap();
        let expected = [
            "top/ 755 ",
            "top/deep/ 755 ",
            "top/deep/empty/ 777 ",
            "top/deep/link 777 ../any",
            "top/deep/run 750 text",
        ];
        assert_eq!(entries, expected);
        assert_eq!(notices, [(PathBuf::from("top/pipe"), Notice::Special)]);
        let (entries, _) =
            packed(base, Packing { depth: 3, bytes: u64::MAX, modes: 0o7777, owners: false, layer: false })
                .unwrap();
        assert!(entries.iter().any(|entry| entry == "top/deep/run 4750 text"), "{entries:?}");
        let small = Packing { depth: 3, bytes: 3, modes: 0o777, owners: false, layer: false };
        let error = packed(base, small).unwrap_err().to_string();
        assert_eq!(error, "with top/deep/run, the files have more than 3 bytes");
        let error =
            packed(base, Packing { depth: 2, bytes: u64::MAX, modes: 0o777, owners: false, layer: false })
                .unwrap_err()
                .to_string();
        assert_eq!(error, "top/deep/empty is more than 2 folders deep");
    }

    #[test]
    fn file_that_becomes_shorter_is_padded_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![b'x'; 1000]).unwrap();
        let mut content = Padded { file: File::open(&path).unwrap(), left: 1000, is_shorter: false };
        fs::write(&path, "short").unwrap();
        let mut read = Vec::new();
        content.read_to_end(&mut read).unwrap();
        assert_eq!(read, [&b"short"[..], &[0; 995]].concat());
        assert!(content.is_shorter);
    }

    #[test]
    fn devices_are_left_out() {
        let mut to = Builder::new(Vec::new());
        let mut notices = Vec::new();
        let packing = Packing { depth: 1, bytes: u64::MAX, modes: 0o777, owners: false, layer: false };
        append_file(File::open("/dev/null").unwrap(), Path::new("null"), packing, &mut to, |path, notice| {
            notices.push((path.to_owned(), notice));
            Ok(())
        })
        .unwrap();
        assert_eq!(notices, [(PathBuf::from("null"), Notice::Special)]);
    }

    #[test]
    fn upperdir_is_packed_as_a_layer() {
        hutch_testkit::require!(root);
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["replaced", "kept"] {
            fs::create_dir(base.join(name)).unwrap();
            fs::write(base.join(name).join("new"), "text").unwrap();
        }
        let at = rustix::fs::CWD;
        rustix::fs::mknodat(at, base.join("kept/gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        let device = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(at, base.join("null"), FileType::CharacterDevice, Mode::empty(), device).unwrap();
        fs::write(base.join("kept/.wh.forged"), "").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(base.join("replaced"), "trusted.overlay.opaque", b"y", flags).unwrap();
        let packing = Packing { depth: 3, bytes: u64::MAX, modes: 0o777, owners: true, layer: true };
        let (entries, notices) = packed(base, packing).unwrap();
        let expected = [
            "top/ 755 ",
            "top/kept/ 755 ",
            "top/kept/.wh.gone 600 ",
            "top/kept/new 644 text",
            "top/replaced/ 755 ",
            "top/replaced/.wh..wh..opq 600 ",
            "top/replaced/new 644 text",
        ];
        assert_eq!(entries, expected);
        assert_eq!(notices.len(), 2, "{notices:?}");
        rustix::fs::setxattr(base.join("kept"), "trusted.overlay.redirect", b"/old", flags).unwrap();
        let error = packed(base, packing).unwrap_err().to_string();
        assert!(error.contains("top/kept was renamed"), "{error}");
    }
}
