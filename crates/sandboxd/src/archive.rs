//! Packs and unpacks folders as tar streams, without compression.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use hutch_archive::{AbsolutePaths, Builder, Entry, Kind, Limits, Packing, PathError, ReadError};

use crate::files::{FileError, Root};

/// Packs up to 128 folders within each other.
const PACKING: Packing = Packing { depth: 128, bytes: u64::MAX, modes: 0o7777, owners: false, layer: false };
/// Limits of an archive that is unpacked. Bytes are limited by the disk of the sandbox.
const LIMITS: Limits = Limits {
    entries: 1 << 20,
    header_bytes: 64 << 10,
    content_bytes: u64::MAX,
    absolute: AbsolutePaths::Relative,
};

/// Reason why a stream was not unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    /// Not a tar stream, above a limit, or it broke off.
    #[error(transparent)]
    Read(ReadError),
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

impl From<ReadError> for UnpackError {
    fn from(error: ReadError) -> UnpackError {
        match error {
            ReadError::Path { entry, problem: PathError::Upwards } => {
                UnpackError::Entry { entry, source: FileError::Outside }
            }
            error => UnpackError::Read(error),
        }
    }
}

/// Writes the files, folders and symbolic links of a folder as a tar stream; other entries are left out.
///
/// # Errors
/// Something cannot be read, or the stream cannot be written; the stream is then incomplete.
pub(crate) fn pack(root: &Root, path: &Path, to: impl Write) -> io::Result<()> {
    let top = root.folder(path).map_err(io::Error::other)?;
    let mut builder = Builder::new(to);
    hutch_archive::pack(top, Path::new(""), PACKING, &mut builder, |_, _| Ok(()))?;
    builder.into_inner()?.flush()
}

/// Creates the entries of a tar stream below a folder. Each file appears as a whole; owners and times are
/// ignored.
///
/// # Errors
/// The first entry that is unsupported or cannot be created; those before it stay.
pub(crate) fn unpack(root: &Root, path: &Path, from: impl Read) -> Result<(), UnpackError> {
    let mut begun = false;
    let top = || root.make_folder(path, 0o755).map_err(|e| refused(&path.display().to_string(), e));
    hutch_archive::read(from, LIMITS, |entry| {
        if !std::mem::replace(&mut begun, true) {
            top()?;
        }
        make(root, path, entry)
    })?;
    if begun { Ok(()) } else { top() }
}

fn refused(entry: &str, source: FileError) -> UnpackError {
    UnpackError::Entry { entry: entry.to_owned(), source }
}

/// Creates an entry below the folder of that path.
fn make(root: &Root, path: &Path, entry: &mut Entry<'_, impl Read>) -> Result<(), UnpackError> {
    let shown = entry.shown().to_owned();
    let refused = |source| refused(&shown, source);
    let target: PathBuf = path.join(entry.path());
    let mode = entry.mode()? & 0o777;
    let what = match entry.kind() {
        Kind::Folder => return root.make_folder(&target, mode | 0o700).map_err(refused),
        Kind::File => {
            let mut draft = root.draft(&target, Some(mode)).map_err(refused)?;
            entry.content(|piece| draft.write(piece).map_err(refused))?;
            return draft.keep().map_err(refused);
        }
        Kind::Symlink => return root.link(&target, entry.target()?).map_err(refused),
        Kind::HardLink => "a hard link",
        Kind::SparseFile => "a sparse file",
        Kind::Special => "a special file",
    };
    Err(UnpackError::Kind { entry: shown, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::Mode;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tar::{EntryType, Header};

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

    proptest! {
        #[test]
        fn any_input_is_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let (folder, root) = root();
            let _ = unpack(&root, Path::new(""), &bytes[..]);
            prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
