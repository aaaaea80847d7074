//! Packs and unpacks folders as tar streams, without compression.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use tar::{Archive, Builder, Entry, EntryType, Header};

use crate::files::{FileError, Root, names};
use crate::notes::{NoteError, Notes};

/// Maximum depth of packed folders. Each is held open while its content is packed.
pub(crate) const DEPTH_LIMIT: usize = 128;

const COPY_SIZE: usize = 64 << 10;

/// Reason why a stream was not unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    /// Not a tar stream, or it broke off.
    #[error("the tar stream cannot be read: {0}")]
    Stream(io::Error),
    /// Rejected PAX or GNU header.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// Unsupported kind of entry.
    #[error("entry {entry:?} is {what}; files, folders and symbolic links are taken")]
    Kind {
        /// Path of the entry.
        entry: String,
        /// Kind of the entry.
        what: &'static str,
    },
    /// Entry that could not be created.
    #[error("entry {entry:?}: {source}")]
    Entry {
        /// Path of the entry.
        entry: String,
        /// Error of the system.
        source: FileError,
    },
}

/// Writes the files, folders and symbolic links of a folder as a tar stream; other entries are left out.
///
/// # Errors
/// Something cannot be read, or the stream cannot be written; the stream is then incomplete.
pub(crate) fn pack(root: &Root, path: &Path, to: impl Write) -> io::Result<()> {
    let top = root.folder(path).map_err(io::Error::other)?;
    let mut builder = Builder::new(to);
    let mut open = vec![(names(&top)?, top, PathBuf::new())];
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
        let path = prefix.join(name);
        // An entry that was removed meanwhile is left out.
        let Ok(stat) = statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let mut header = header(&stat);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, path.join(""), io::empty())?;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let Ok(inner) = openat(&*folder, name, flags, Mode::empty()) else { continue };
                if open.len() >= DEPTH_LIMIT {
                    let text = format!("{} is more than {DEPTH_LIMIT} folders deep", path.display());
                    return Err(io::Error::other(text));
                }
                open.push((names(&inner)?, inner, path));
            }
            FileType::Symlink => {
                header.set_entry_type(EntryType::Symlink);
                let Ok(target) = readlinkat(&*folder, name, Vec::new()) else { continue };
                builder.append_link(&mut header, path, OsStr::from_bytes(target.to_bytes()))?;
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(openat(&*folder, name, flags, Mode::empty())?);
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                header.set_size(size);
                // A file that shrinks meanwhile is padded: the header has announced its length.
                builder.append_data(&mut header, path, file.chain(io::repeat(0)).take(size))?;
            }
            _ => {}
        }
    }
    builder.into_inner()?.flush()
}

#[allow(clippy::unnecessary_cast, clippy::useless_conversion)] // The fields' types differ between architectures.
fn header(stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime as i64).unwrap_or(0));
    header.set_size(0);
    header
}

/// Creates the entries of a tar stream below a folder. Each file appears as a whole; owners and times are
/// ignored.
///
/// # Errors
/// The first entry that is unsupported or cannot be created; those before it stay.
pub(crate) fn unpack(root: &Root, path: &Path, from: impl Read) -> Result<(), UnpackError> {
    let mut archive = Archive::new(from);
    let mut notes = Notes::default();
    let mut begun = false;
    // Raw, because the library would hold a PAX or GNU header of any length in memory.
    for entry in archive.entries().map_err(UnpackError::Stream)?.raw(true) {
        let mut entry = entry.map_err(UnpackError::Stream)?;
        if notes.take(&mut entry)? {
            continue;
        }
        if !std::mem::replace(&mut begun, true) {
            root.make_folder(path, 0o755).map_err(|source| refused(path, source))?;
        }
        make(root, path, &mut entry, std::mem::take(&mut notes))?;
    }
    if !begun {
        root.make_folder(path, 0o755).map_err(|source| refused(path, source))?;
    }
    Ok(())
}

fn refused(entry: &Path, source: FileError) -> UnpackError {
    UnpackError::Entry { entry: entry.display().to_string(), source }
}

/// Creates an entry below the folder of that path.
fn make(root: &Root, path: &Path, entry: &mut Entry<'_, impl Read>, notes: Notes) -> Result<(), UnpackError> {
    let name = notes.path.unwrap_or_else(|| entry.path_bytes().into_owned());
    let name = PathBuf::from(OsStr::from_bytes(&name));
    let inner = below(&name).ok_or_else(|| refused(&name, FileError::Outside))?;
    let target = path.join(inner);
    let mode = entry.header().mode().map_err(UnpackError::Stream)? & 0o777;
    match entry.header().entry_type() {
        EntryType::Directory => root.make_folder(&target, mode | 0o700).map_err(|e| refused(&name, e)),
        EntryType::Regular | EntryType::Continuous => {
            let mut draft = root.draft(&target, Some(mode)).map_err(|e| refused(&name, e))?;
            let mut piece = vec![0; COPY_SIZE];
            let mut left = entry.size();
            while left > 0 {
                let count = entry.read(&mut piece).map_err(UnpackError::Stream)?;
                if count == 0 {
                    return Err(UnpackError::Stream(io::ErrorKind::UnexpectedEof.into()));
                }
                left = left.saturating_sub(count as u64);
                draft.write(&piece[..count]).map_err(|e| refused(&name, e))?;
            }
            draft.keep().map_err(|e| refused(&name, e))
        }
        EntryType::Symlink => {
            let to = notes.link.or_else(|| entry.link_name_bytes().map(|name| name.into_owned()));
            let to = PathBuf::from(OsStr::from_bytes(&to.unwrap_or_default()));
            root.link(&target, to).map_err(|e| refused(&name, e))
        }
        other => {
            let what = match other {
                EntryType::Link => "a hard link",
                EntryType::GNUSparse => "a sparse file",
                _ => "a special file",
            };
            Err(UnpackError::Kind { entry: name.display().to_string(), what })
        }
    }
}

/// Returns the path of an entry below the folder; `None` if it contains `..`.
fn below(name: &Path) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) if !part.as_bytes().contains(&0) => path.push(part),
            Component::RootDir | Component::CurDir => {}
            _ => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn root() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("base")).unwrap();
        (folder, root)
    }

    #[test]
    fn a_packed_folder_unpacks_to_the_same_content() {
        let (folder, root) = root();
        let base = folder.path().join("base");
        let long = "n".repeat(200);
        fs::create_dir_all(base.join("one/deep/empty")).unwrap();
        fs::write(base.join("one/run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(base.join("one/run.sh"), fs::Permissions::from_mode(0o750)).unwrap();
        fs::write(base.join("one/deep").join(&long), vec![7; 100_000]).unwrap();
        symlink("../run.sh", base.join("one/deep/link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, base.join("one/pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let mut stream = Vec::new();
        pack(&root, Path::new("one"), &mut stream).unwrap();
        unpack(&root, Path::new("two/down"), &stream[..]).unwrap();
        let two = base.join("two/down");
        assert_eq!(two.join("run.sh").metadata().unwrap().permissions().mode() & 0o7777, 0o750);
        assert_eq!(fs::read(two.join("deep").join(&long)).unwrap(), vec![7; 100_000]);
        assert_eq!(fs::read_link(two.join("deep/link")).unwrap(), Path::new("../run.sh"));
        assert!(two.join("deep/empty").is_dir() && !two.join("pipe").exists());
    }

    fn stream(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.as_gnu_mut().unwrap().set_real_size(0);
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_link_name_literal(content).unwrap();
                header.set_size(0);
            } else {
                header.set_size(content.len() as u64);
            }
            header.set_cksum();
            let content = if header.size().unwrap() > 0 { content.as_bytes() } else { b"" };
            builder.append(&header, content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn nothing_is_unpacked_outside() {
        let (folder, root) = root();
        let outside =
            |entries: &[_]| unpack(&root, Path::new("in"), &stream(entries)[..]).unwrap_err().to_string();
        let file = EntryType::Regular;
        assert!(outside(&[("../evil", file, "x")]).contains("outside"));
        assert!(outside(&[("a/../../evil", file, "x")]).contains("outside"));
        assert!(outside(&[("up", EntryType::Symlink, "../.."), ("up/evil", file, "x")]).contains("outside"));
        assert!(outside(&[("abs", EntryType::Symlink, "/"), ("abs/evil", file, "x")]).contains("outside"));
        assert!(outside(&[("h", EntryType::Link, "/etc/passwd")]).contains("a hard link"));
        assert!(outside(&[("dev", EntryType::Block, "")]).contains("a special file"));
        assert!(outside(&[("holes", EntryType::GNUSparse, "")]).contains("a sparse file"));
        unpack(&root, Path::new("in"), &stream(&[("/absolute", file, "x")])[..]).unwrap();
        assert!(folder.path().join("base/in/absolute").is_file());
        assert!(!folder.path().join("evil").exists());
    }

    /// Entry of that kind and length, whose content is generated only as far as it is read.
    fn noted(kind: EntryType, length: u64) -> impl Read {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(length);
        header.set_cksum();
        io::Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(b'n').take(length))
    }

    #[test]
    fn an_oversized_name_is_refused_early() {
        let (folder, root) = root();
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            let mut sent = noted(kind, 10 << 20);
            let said = unpack(&root, Path::new("in"), &mut sent).unwrap_err().to_string();
            let wanted = "the tar stream has a name or header of 10485760 bytes; at most 65536 are taken";
            assert_eq!(said, wanted, "{kind:?}");
            let unread = io::copy(&mut sent, &mut io::sink()).unwrap();
            assert!(unread > 9 << 20, "{kind:?}: {unread} bytes are left");
        }
        assert_eq!(fs::read_dir(folder.path().join("base")).unwrap().count(), 0);
    }

    #[test]
    fn names_come_from_gnu_and_pax_headers() {
        let (folder, root) = root();
        let long = format!("{}/{}", "d".repeat(150), "n".repeat(200));
        // GNU format.
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(1);
        builder.append_data(&mut header, &long, &b"1"[..]).unwrap();
        unpack(&root, Path::new("gnu"), &builder.into_inner().unwrap()[..]).unwrap();
        assert_eq!(fs::read(folder.path().join("base/gnu").join(&long)).unwrap(), b"1");
        // PAX format.
        let mut builder = Builder::new(Vec::new());
        let mut link = Header::new_ustar();
        link.set_entry_type(EntryType::Symlink);
        link.set_size(0);
        link.set_mode(0o777);
        link.set_path("short").unwrap();
        link.set_cksum();
        let long = "l".repeat(200);
        builder.append_pax_extensions([("path", long.as_bytes()), ("linkpath", &b"to"[..])]).unwrap();
        builder.append(&link, io::empty()).unwrap();
        unpack(&root, Path::new("pax"), &builder.into_inner().unwrap()[..]).unwrap();
        assert_eq!(fs::read_link(folder.path().join("base/pax").join(&long)).unwrap(), Path::new("to"));
        let mut builder = Builder::new(Vec::new());
        builder.append_pax_extensions([("size", &b"1"[..])]).unwrap();
        let said = unpack(&root, Path::new("pax"), &builder.into_inner().unwrap()[..]).unwrap_err();
        assert!(said.to_string().contains("a size in a pax header"), "{said}");
    }

    proptest! {
        #[test]
        fn any_input_is_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let (folder, root) = root();
            let _ = unpack(&root, Path::new(""), &bytes[..]);
            prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
