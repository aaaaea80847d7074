//! Unpacks one verified layer into a folder of its own, in the form that an overlay mount reads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hutch_archive::{AbsolutePaths, Entry, Kind, Limits, ReadError, Unpacked};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::beneath::{Attributes, Folder, set_attributes, set_extended};
use crate::reserve::{Reserve, check};

/// Most bytes that one layer may unpack to: above the largest layers of images in wide use (CUDA: about 6 GiB).
pub const MAX_LAYER_BYTES: u64 = 16 << 30;
/// Maximum entries of one layer.
pub(crate) const MAX_ENTRIES: u64 = 2_000_000;
/// Maximum bytes of the paths of all entries of one layer. Some are held in memory.
pub(crate) const MAX_PATH_BYTES: u64 = 256 << 20;
/// Limits of one layer.
const LIMITS: Limits = Limits {
    entries: MAX_ENTRIES,
    header_bytes: 1 << 20,
    content_bytes: MAX_LAYER_BYTES,
    absolute: AbsolutePaths::Refused,
};
/// Read ahead, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// How a layer's blob is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// Name in the arguments of a process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Packing::Plain => "plain",
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        }
    }

    /// Reads such a name.
    pub(crate) fn parse(name: &str) -> Option<Packing> {
        [Packing::Plain, Packing::Gzip, Packing::Zstd].into_iter().find(|packing| packing.name() == name)
    }
}

/// Receives an entry and its owner.
type Report<'a> = Box<dyn FnMut(&Path, (u32, u32)) -> io::Result<()> + 'a>;

/// Use of the owners that an archive names.
pub(crate) enum Owners<'a> {
    /// They are left out.
    Ignore,
    /// They are set, which only root can.
    Set,
    /// They are reported.
    Report(Report<'a>),
}

impl Owners<'_> {
    /// Sets them, if this process can.
    pub(crate) fn of_this_process() -> Owners<'static> {
        if rustix::process::geteuid().is_root() { Owners::Set } else { Owners::Ignore }
    }
}

/// The two digests of a layer that was read to its end, in hexadecimal.
#[derive(Debug)]
pub(crate) struct Digests {
    /// Of the blob as stored.
    pub(crate) blob: String,
    /// Of the archive in it.
    pub(crate) archive: String,
}

/// Reads the blob, which has so many bytes, writes its entries below `target`, and returns both digests. The caller compares
/// them, and removes the folder on a mismatch.
pub(crate) fn unpack(
    (blob, size): (File, u64),
    packing: Packing,
    target: &Path,
    owners: Owners<'_>,
) -> Result<Digests, Error> {
    let root = Folder::open(target).map_err(Error::file("open", target))?;
    let (stored, blob_hash) = Hashing::new(blob);
    let stored = BufReader::with_capacity(BUFFER_BYTES, stored);
    let plain: Box<dyn Read> = match packing {
        Packing::Plain => Box::new(stored),
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(stored)),
        Packing::Zstd => {
            Box::new(zstd::stream::read::Decoder::with_buffer(stored).map_err(Error::file("unpack", target))?)
        }
    };
    let (archive, archive_hash) = Hashing::new(Unpacked::new(plain, size));
    let mut layer = Layer::new(root, owners, true);
    let mut rest =
        hutch_archive::read(archive, LIMITS, |entry| layer.add(entry)).map_err(|fault| fault.at(target))?;
    layer.finish()?;
    // The digest covers what follows the archive's end mark as well.
    io::copy(&mut rest, &mut io::sink()).map_err(Error::file("read", target))?;
    let hex = |hash: Rc<RefCell<Sha256>>| hex(&hash.borrow().clone().finalize());
    Ok(Digests { blob: hex(blob_hash), archive: hex(archive_hash) })
}

/// Writes the entries of an archive below a folder that code in sandboxes may change meanwhile: names lead to no place outside.
/// Files of the same names are replaced. Owners are set, which only root can; set-user-ID bits are left out.
///
/// # Errors
/// When the archive is malformed, has more than `content_bytes` of files, or cannot be written. What was written stays.
pub fn import(archive: impl Read, target: &Path, content_bytes: u64) -> Result<(), Error> {
    let root = Folder::open(target).map_err(Error::file("open", target))?;
    let mut layer = Layer::new(root, Owners::of_this_process(), false);
    let limits = Limits { content_bytes, ..LIMITS };
    hutch_archive::read(archive, limits, |entry| layer.add(entry)).map_err(|fault| fault.at(target))?;
    layer.finish()
}

/// Copies a blob, and returns the digest of what was copied.
pub(crate) fn copy_hashed(blob: impl Read, mut to: impl Write) -> io::Result<String> {
    let (mut blob, hash) = Hashing::new(blob);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = blob.read(&mut buffer)?;
        if count == 0 {
            return Ok(hex(&hash.take().finalize()));
        }
        to.write_all(&buffer[..count])?;
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Hashes what passes through and stops after so many bytes.
pub(crate) struct Hashing<R> {
    inner: R,
    hash: Rc<RefCell<Sha256>>,
    left: u64,
}

impl<R> Hashing<R> {
    /// Returns the reader, and the hash of what it has read so far.
    pub(crate) fn new(inner: R) -> (Hashing<R>, Rc<RefCell<Sha256>>) {
        let hash = Rc::new(RefCell::new(Sha256::new()));
        (Hashing { inner, hash: hash.clone(), left: MAX_LAYER_BYTES }, hash)
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {MAX_LAYER_BYTES} bytes"))
        })?;
        self.hash.borrow_mut().update(&buffer[..count]);
        Ok(count)
    }
}

struct Layer<'a> {
    root: Folder,
    owners: Owners<'a>,
    /// Folders' attributes, set at the end: a folder may be read-only and hold something.
    folders: BTreeMap<PathBuf, Attributes>,
    /// Bytes of paths that may still follow.
    path_bytes: u64,
    reserve: Reserve,
    /// `true` for a layer of an image: some names are whiteouts, and no entry is a sparse file.
    of_image: bool,
}

/// Reason why a layer was not unpacked.
enum Fault {
    Read(ReadError),
    Made(Error),
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Fault {
        Fault::Read(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Made(error)
    }
}

impl Fault {
    /// Returns the error for a layer that was to be unpacked into this folder.
    fn at(self, target: &Path) -> Error {
        match self {
            Fault::Made(error) => error,
            Fault::Read(ReadError::Stream(source)) => Error::file("read a layer for", target)(source),
            Fault::Read(ReadError::Entries(limit)) => {
                Error::TooLarge { what: "layer".into(), limit: format!("{limit} entries") }
            }
            Fault::Read(ReadError::Content(limit)) => {
                Error::TooLarge { what: "layer".into(), limit: format!("{limit} bytes") }
            }
            Fault::Read(ReadError::Path { entry, problem }) => {
                Error::HostileEntry { entry, reason: problem.to_string().into() }
            }
            Fault::Read(ReadError::Malformed { entry, problem }) => {
                Error::HostileEntry { entry, reason: problem.into() }
            }
        }
    }
}

impl<'a> Layer<'a> {
    fn new(root: Folder, owners: Owners<'a>, of_image: bool) -> Layer<'a> {
        Layer {
            root,
            owners,
            folders: BTreeMap::new(),
            path_bytes: MAX_PATH_BYTES,
            reserve: Reserve::default(),
            of_image,
        }
    }

    fn add<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), Fault> {
        let shown = entry.shown().to_owned();
        let path = entry.path().to_owned();
        let hostile =
            |reason: &'static str| Error::HostileEntry { entry: shown.clone(), reason: reason.into() };
        let file_error = |source: io::Error| Error::file("unpack", Path::new(&shown))(source);
        if self.of_image && entry.kind() == Kind::SparseFile {
            // Its holes are written as zeros, which no limit for the unpacked archive counts.
            return Err(hostile("it is a sparse file").into());
        }
        let path_bytes = self.path_bytes.checked_sub(path.as_os_str().len() as u64);
        self.path_bytes = path_bytes.ok_or_else(|| Error::TooLarge {
            what: "layer".into(),
            limit: format!("{MAX_PATH_BYTES} bytes of paths"),
        })?;
        self.reserve.spend_on_entry(&path, &self.root).map_err(file_error)?;
        let attributes = self.attributes(entry)?;
        self.report(&path, entry)?;
        let Some(name) = path.file_name().map(PathBuf::from) else {
            self.folders.insert(path, attributes);
            return Ok(());
        };
        let made = |errno| match errno {
            Errno::LOOP => hostile("a link is on its path"),
            Errno::XDEV => hostile("its path leads out of the layer"),
            Errno::NOTDIR | Errno::ISDIR => hostile("it is both a folder and a file"),
            errno => file_error(errno.into()),
        };
        let parent = self.root.make_folders(path.parent().unwrap_or(Path::new(""))).map_err(made)?;
        if let Some(hidden) = name.as_os_str().as_bytes().strip_prefix(b".wh.").filter(|_| self.of_image) {
            white_out(&parent, hidden).map_err(made)?.map_err(hostile)?;
            return Ok(());
        }
        match entry.kind() {
            Kind::Folder => {
                let folder = parent.make_folders(&name).map_err(made)?;
                self.keep_extended(entry, |name, value| folder.set_extended(name, value))
                    .map_err(file_error)?;
                self.folders.insert(path, attributes);
            }
            Kind::File | Kind::SparseFile => {
                let mut file = parent.create_file(&name).map_err(made)?;
                entry.content(|piece| {
                    let spent = self.reserve.spend(piece.len() as u64, &self.root);
                    spent.and_then(|()| file.write_all(piece)).map_err(|e| Fault::Made(file_error(e)))
                })?;
                self.keep_extended(entry, |name, value| set_extended(&file, name, value))
                    .map_err(file_error)?;
                set_attributes(&file, attributes).map_err(made)?;
            }
            Kind::Symlink => {
                parent.symlink(&entry.target()?, &name).map_err(made)?;
                parent.set_link_owner(&name, attributes.owner).map_err(made)?;
            }
            Kind::HardLink => {
                let existing = entry.linked()?;
                let file = existing.file_name().ok_or_else(|| hostile("it links to a folder"))?;
                let folder = self.root.folder(existing.parent().unwrap_or(Path::new(""))).map_err(made)?;
                if existing != path {
                    parent.hard_link(&folder, Path::new(file), &name).map_err(made)?;
                }
            }
            // Device nodes and pipes have no business in a sandbox, which gets a /dev of its own.
            Kind::Special => {}
        }
        Ok(())
    }

    fn attributes<R: Read>(&self, entry: &Entry<'_, R>) -> Result<Attributes, ReadError> {
        let owner = if matches!(self.owners, Owners::Set) { Some(entry.owner()?) } else { None };
        Ok(Attributes { mode: entry.mode()?, owner, mtime: entry.modified() })
    }

    /// Sets the extended attributes that are kept. One for which the file system has no room is left out, unless the disk
    /// itself is full.
    fn keep_extended<R: Read>(
        &mut self,
        entry: &Entry<'_, R>,
        set: impl Fn(&OsStr, &[u8]) -> Result<(), Errno>,
    ) -> io::Result<()> {
        for (name, value) in kept_attributes(entry) {
            self.reserve.spend((name.len() + value.len()) as u64, &self.root)?;
            match set(name, value) {
                // ext4 has a block for all attributes of a file, and reports a full one as a full disk.
                Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::DQUOT) => check(&self.root)?,
                set => set?,
            }
        }
        Ok(())
    }

    /// Reports the owner of an entry that has one of its own.
    fn report<R: Read>(&mut self, path: &Path, entry: &Entry<'_, R>) -> Result<(), Fault> {
        let Owners::Report(report) = &mut self.owners else { return Ok(()) };
        if matches!(entry.kind(), Kind::HardLink | Kind::Special) {
            return Ok(());
        }
        report(path, entry.owner()?).map_err(|e| Fault::Made(Error::file("report", path)(e)))
    }

    /// Sets the attributes of the folders.
    fn finish(&self) -> Result<(), Error> {
        for (path, attributes) in self.folders.iter().rev() {
            let set = self.root.folder(path).and_then(|folder| folder.set_attributes(*attributes));
            set.map_err(Error::file("set attributes of", path))?;
        }
        Ok(())
    }
}

/// Extended attributes of an entry that are kept: those of users, without those that have a meaning for an overlay. Others,
/// such as the capabilities of a file, would give rights, or need rights that the process does not have.
fn kept_attributes<'a, R: Read>(entry: &'a Entry<'_, R>) -> impl Iterator<Item = (&'a OsStr, &'a [u8])> {
    let is_kept = |name: &OsStr| {
        let name = name.as_bytes();
        name.strip_prefix(b"user.").is_some_and(|rest| !rest.is_empty() && !rest.starts_with(b"overlay."))
    };
    entry.extended_attributes().filter(move |(name, _)| is_kept(name))
}

/// Turns a whiteout entry into the overlay's form. The inner error is what is wrong with the entry.
fn white_out(parent: &Folder, hidden: &[u8]) -> Result<Result<(), &'static str>, Errno> {
    if hidden == b".wh..opq" {
        return parent.set_opaque().map(Ok);
    }
    // Other names with the doubled prefix are private marks of aufs.
    if hidden.starts_with(b".wh.") {
        return Ok(Ok(()));
    }
    if hidden.is_empty() || hidden == b"." || hidden == b".." {
        return Ok(Err("it is a whiteout of nothing"));
    }
    let hidden = Path::new(std::ffi::OsStr::from_bytes(hidden));
    // A whiteout speaks of lower layers only; what this layer itself has stays.
    if !parent.has(hidden) {
        parent.white_out(hidden)?;
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of one file that has an extended attribute of so many bytes.
    fn archive(bytes: usize) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let value = vec![b'v'; bytes];
        builder.append_pax_extensions([("SCHILY.xattr.user.kept", &value[..])]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, "entry", io::empty()).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn bytes_of_extended_attributes_count_against_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let left = |bytes| {
            let bytes = archive(bytes);
            let mut layer = Layer::new(Folder::open(dir.path()).unwrap(), Owners::Ignore, true);
            assert!(hutch_archive::read(&bytes[..], LIMITS, |entry| layer.add(entry)).is_ok());
            layer.reserve.left()
        };
        assert_eq!(left(10) - left(1010), 1000);
    }
}
