//! Reads the entries of an untrusted archive.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tar::EntryType;

use crate::path::{AbsolutePaths, PathError, relative};

/// Maximum length of the target of a link, in bytes: the kernel's.
const LINK_LIMIT: usize = 4095;
/// Maximum bytes of an entry's path in a message.
const SHOWN: usize = 200;
const PIECE_SIZE: usize = 64 << 10;
/// Start of the names of PAX headers with an extended attribute.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Limits of an archive.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of entries. Each takes an inode.
    pub entries: u64,
    /// Maximum bytes of the headers of one entry: its path, the target of a link, extended attributes, the parts of a
    /// sparse file. They are held in memory.
    pub header_bytes: u64,
    /// Maximum bytes of the content of all entries that is read. A sparse entry of a few bytes has up to 8 GiB.
    pub content_bytes: u64,
    /// Treatment of absolute paths.
    pub absolute: AbsolutePaths,
}

/// Reason why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not a tar archive, above the limit of its headers, or it broke off.
    #[error("the tar stream cannot be read: {0}")]
    Stream(io::Error),
    /// More entries than [`Limits::entries`].
    #[error("the tar stream has more than {0} entries")]
    Entries(u64),
    /// More content than [`Limits::content_bytes`].
    #[error("the files of the tar stream have more than {0} bytes")]
    Content(u64),
    /// Path that is not below the folder.
    #[error("entry {entry:?}: {problem}")]
    Path {
        /// Path of the entry, shortened.
        entry: String,
        /// The problem.
        problem: PathError,
    },
    /// Malformed part of an entry.
    #[error("entry {entry:?}: {problem}")]
    Malformed {
        /// Path of the entry, shortened.
        entry: String,
        /// The problem.
        problem: &'static str,
    },
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Regular file that is stored without its holes. Its content is read with them.
    SparseFile,
    /// Folder.
    Folder,
    /// Symbolic link.
    Symlink,
    /// Further name of an entry.
    HardLink,
    /// Device, pipe or unknown.
    Special,
}

/// Entry of an archive.
pub struct Entry<'a, R: Read> {
    inner: tar::Entry<'a, Limited<R>>,
    shown: String,
    path: PathBuf,
    kind: Kind,
    attributes: Attributes,
    limits: Limits,
    /// Content that may still be read, in bytes.
    content_left: Rc<Cell<u64>>,
}

impl<R: Read> std::fmt::Debug for Entry<'_, R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Entry")
            .field("path", &self.path)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl<R: Read> Entry<'_, R> {
    /// Returns the path below the folder; empty for the folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path for messages, shortened.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns names and values of the extended attributes, as stored.
    pub fn extended_attributes(&self) -> impl Iterator<Item = (&OsStr, &[u8])> {
        self.attributes.iter().map(|(name, value)| (OsStr::from_bytes(name), value.as_slice()))
    }

    /// Returns the permission bits, with set-id and sticky bits.
    ///
    /// # Errors
    /// The header has no number there.
    pub fn mode(&self) -> Result<u32, ReadError> {
        let mode = self.inner.header().mode().map_err(|_| self.malformed("its mode is not a number"))?;
        Ok(mode & 0o7777)
    }

    /// Returns the user id and group id.
    ///
    /// # Errors
    /// The header has no number there, or one above 2³²−2: the kernel takes 2³²−1 for no change.
    pub fn owner(&self) -> Result<(u32, u32), ReadError> {
        let id = |id: io::Result<u64>| {
            let id = id.map_err(|_| self.malformed("its owner is not a number"))?;
            let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
            id.ok_or_else(|| self.malformed("its owner is out of range"))
        };
        let header = self.inner.header();
        Ok((id(header.uid())?, id(header.gid())?))
    }

    /// Returns the modification time in seconds since 1970; 0 when the header has none.
    pub fn modified(&self) -> i64 {
        self.inner.header().mtime().ok().and_then(|time| time.try_into().ok()).unwrap_or(0)
    }

    /// Returns the target of a symbolic link as stored, which may lead anywhere.
    ///
    /// # Errors
    /// The target is absent, contains a NUL byte, or is longer than 4095 bytes.
    pub fn target(&self) -> Result<PathBuf, ReadError> {
        match self.link() {
            Some(target) if !target.is_empty() && target.len() <= LINK_LIMIT && !target.contains(&0) => {
                Ok(PathBuf::from(OsStr::from_bytes(&target)))
            }
            _ => Err(self.malformed("the target of its link is not a path")),
        }
    }

    /// Returns the path of the entry that a hard link names.
    ///
    /// # Errors
    /// As for the path of an entry.
    pub fn linked(&self) -> Result<PathBuf, ReadError> {
        let target = self.link().unwrap_or_default();
        match relative(&target, self.limits.absolute) {
            Ok(path) if path.as_os_str().is_empty() => {
                Err(self.malformed("the target of its link is not a path"))
            }
            Ok(path) => Ok(path),
            Err(problem) => Err(ReadError::Path { entry: shown(&target), problem }),
        }
    }

    /// Passes the content on, in pieces of at most 64 KiB.
    ///
    /// # Errors
    /// The archive breaks off or has too much content, or an error of `take`.
    pub fn content<E: From<ReadError>>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut piece = vec![0; PIECE_SIZE];
        let mut left = self.inner.size();
        let content_left = self.content_left.get().checked_sub(left);
        self.content_left.set(content_left.ok_or(ReadError::Content(self.limits.content_bytes))?);
        while left > 0 {
            let count = self.inner.read(&mut piece).map_err(ReadError::Stream)?;
            if count == 0 {
                return Err(ReadError::Stream(io::ErrorKind::UnexpectedEof.into()).into());
            }
            left = left.saturating_sub(count as u64);
            take(&piece[..count])?;
        }
        Ok(())
    }

    /// Returns the error for a malformed part of this entry.
    pub fn malformed(&self, problem: &'static str) -> ReadError {
        ReadError::Malformed { entry: self.shown.clone(), problem }
    }

    fn link(&self) -> Option<Cow<'_, [u8]>> {
        self.inner.link_name_bytes()
    }
}

/// Passes all entries to `take` in order, and returns the reader after the end marker of the archive.
///
/// # Errors
/// [`ReadError`] for the first invalid entry, or the first error of `take`. Nothing is read after that.
pub fn read<R: Read, E: From<ReadError>>(
    from: R,
    limits: Limits,
    mut take: impl FnMut(&mut Entry<'_, R>) -> Result<(), E>,
) -> Result<R, E> {
    let left = Rc::new(Cell::new(u64::MAX));
    let content_left = Rc::new(Cell::new(limits.content_bytes));
    let from = Limited { inner: from, left: left.clone(), limit: limits.header_bytes };
    let mut archive = tar::Archive::new(from);
    let mut entries = archive.entries().map_err(ReadError::Stream)?;
    let mut count = 0;
    loop {
        left.set(limits.header_bytes);
        let entry = entries.next();
        left.set(u64::MAX);
        let Some(entry) = entry else { break };
        count += 1;
        if count > limits.entries {
            return Err(ReadError::Entries(limits.entries).into());
        }
        let mut inner = entry.map_err(ReadError::Stream)?;
        let Some((kind, attributes)) = kind(&mut inner)? else { continue };
        let raw = inner.path_bytes();
        let shown = shown(&raw);
        let path = relative(&raw, limits.absolute)
            .map_err(|problem| ReadError::Path { entry: shown.clone(), problem })?;
        drop(raw);
        let mut entry =
            Entry { inner, shown, path, kind, attributes, limits, content_left: content_left.clone() };
        take(&mut entry)?;
        // Content that was not read must not count as a header of the next entry.
        io::copy(&mut entry.inner, &mut io::sink()).map_err(ReadError::Stream)?;
    }
    Ok(archive.into_inner().inner)
}

/// Extended attributes.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the kind and the extended attributes; `None` for headers of the whole archive, which have no meaning here.
fn kind<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<Option<(Kind, Attributes)>, ReadError> {
    let mut attributes = Vec::new();
    let kind = match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::GNUSparse => Kind::SparseFile,
        EntryType::Directory => Kind::Folder,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Link => Kind::HardLink,
        EntryType::XGlobalHeader => return Ok(None),
        _ => return Ok(Some((Kind::Special, attributes))),
    };
    // Only for these kinds, whose PAX headers were read within the limit: the library would hold the content of a PAX
    // header itself, of any length. It skips malformed lines.
    for extension in entry.pax_extensions().map_err(ReadError::Stream)?.into_iter().flatten() {
        let extension = extension.map_err(ReadError::Stream)?;
        if let Some(name) = extension.key_bytes().strip_prefix(ATTRIBUTE) {
            attributes.push((name.to_owned(), extension.value_bytes().to_owned()));
        }
    }
    Ok(Some((kind, attributes)))
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(&path[..path.len().min(SHOWN)]).into_owned()
}

/// Fails after so many bytes. The library has no limit for the headers that it holds in memory.
struct Limited<R> {
    inner: R,
    left: Rc<Cell<u64>>,
    limit: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64).ok_or_else(|| {
            let problem = format!("headers of more than {} bytes before one entry", self.limit);
            io::Error::new(io::ErrorKind::FileTooLarge, problem)
        })?;
        self.left.set(left);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
