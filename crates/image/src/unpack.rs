//! Unpacks one verified layer into a folder of its own, in the form that an overlay mount reads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sha2::{Digest, Sha256};
use tar::EntryType;

use crate::Error;
use crate::beneath::{Attributes, Folder, relative, set_attributes};

/// Most bytes that one layer may unpack to: above the largest layers of images in wide use (CUDA: about 6 GiB).
pub(crate) const MAX_LAYER_BYTES: u64 = 16 << 30;
/// Most entries of one layer.
const MAX_ENTRIES: u64 = 2_000_000;
/// Largest text of a link, in bytes, as the kernel has it.
const MAX_LINK_BYTES: usize = 4095;
/// Most bytes of headers before one entry: its name, the text of a link, extended attributes, the parts of a sparse file.
/// The library reads them into memory without a bound of its own.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Read ahead, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// How a layer's blob is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// The two digests of a layer that was read to its end, in hexadecimal.
#[derive(Debug)]
pub(crate) struct Digests {
    /// Of the blob as stored.
    pub(crate) blob: String,
    /// Of the archive in it.
    pub(crate) archive: String,
}

/// Reads the blob, writes its entries below `target`, and returns both digests. The caller compares them, and
/// removes the folder on a mismatch.
pub(crate) fn unpack(blob: File, packing: Packing, target: &Path) -> Result<Digests, Error> {
    let root = Folder::open(target).map_err(Error::file("open", target))?;
    let blob_hash = Rc::new(RefCell::new(Sha256::new()));
    let archive_hash = Rc::new(RefCell::new(Sha256::new()));
    let stored = BufReader::with_capacity(
        BUFFER_BYTES,
        Hashing { inner: blob, hash: blob_hash.clone(), left: MAX_LAYER_BYTES },
    );
    let plain: Box<dyn Read> = match packing {
        Packing::Plain => Box::new(stored),
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(stored)),
        Packing::Zstd => {
            Box::new(zstd::stream::read::Decoder::with_buffer(stored).map_err(Error::file("unpack", target))?)
        }
    };
    let archive = Hashing { inner: plain, hash: archive_hash.clone(), left: MAX_LAYER_BYTES };
    let left = Rc::new(Cell::new(u64::MAX));
    let mut archive = tar::Archive::new(Bounded { inner: archive, left: left.clone() });
    Layer { root, own: rustix::process::geteuid().is_root(), folders: BTreeMap::new() }.fill(
        &mut archive,
        &left,
        target,
    )?;
    // The digest covers what follows the archive's end mark as well.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(Error::file("read", target))?;
    let hex = |hash: Rc<RefCell<Sha256>>| hex(&hash.borrow().clone().finalize());
    Ok(Digests { blob: hex(blob_hash), archive: hex(archive_hash) })
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
struct Hashing<R> {
    inner: R,
    hash: Rc<RefCell<Sha256>>,
    left: u64,
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

/// Fails after so many bytes.
struct Bounded<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64).ok_or_else(|| {
            let why = format!("headers of more than {MAX_HEADER_BYTES} bytes before one entry");
            io::Error::new(io::ErrorKind::FileTooLarge, why)
        })?;
        self.left.set(left);
        Ok(count)
    }
}

struct Layer {
    root: Folder,
    /// `true` when file owners can be set.
    own: bool,
    /// Folders' attributes, set at the end: a folder may be read-only and hold something.
    folders: BTreeMap<PathBuf, Attributes>,
}

impl Layer {
    /// Unpacks all entries. `left` is the number of bytes that may still be read.
    fn fill<R: Read>(
        &mut self,
        archive: &mut tar::Archive<R>,
        left: &Cell<u64>,
        target: &Path,
    ) -> Result<(), Error> {
        let mut entries = archive.entries().map_err(Error::file("read", target))?;
        let mut count = 0;
        loop {
            left.set(MAX_HEADER_BYTES);
            let entry = entries.next();
            left.set(u64::MAX);
            let Some(entry) = entry else { break };
            count += 1;
            if count > MAX_ENTRIES {
                return Err(Error::TooLarge {
                    what: "layer".into(),
                    limit: format!("{MAX_ENTRIES} entries"),
                });
            }
            let mut entry = entry.map_err(Error::file("read a layer for", target))?;
            self.add(&mut entry)?;
            // Content that was not unpacked is no header of the next entry.
            io::copy(&mut entry, &mut io::sink()).map_err(Error::file("read a layer for", target))?;
        }
        for (path, attributes) in self.folders.iter().rev() {
            let set = self.root.folder(path).and_then(|folder| folder.set_attributes(*attributes));
            set.map_err(Error::file("set attributes of", path))?;
        }
        Ok(())
    }

    fn add<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), Error> {
        let raw = PathBuf::from(std::ffi::OsStr::from_bytes(&entry.path_bytes()));
        let hostile = |reason| Error::HostileEntry { entry: shown(&raw), reason };
        let path = relative(&raw).map_err(hostile)?;
        let attributes = self.attributes(entry, &raw)?;
        let Some(name) = path.file_name().map(PathBuf::from) else {
            self.folders.insert(path, attributes);
            return Ok(());
        };
        let made = |errno| match errno {
            rustix::io::Errno::LOOP => hostile("a link is on its path"),
            rustix::io::Errno::XDEV => hostile("its path leads out of the layer"),
            rustix::io::Errno::NOTDIR | rustix::io::Errno::ISDIR => hostile("it is both a folder and a file"),
            errno => Error::File { action: "unpack", path: raw.clone(), source: errno.into() },
        };
        let parent = self.root.make_folders(path.parent().unwrap_or(Path::new(""))).map_err(made)?;
        if let Some(hidden) = name.as_os_str().as_bytes().strip_prefix(b".wh.") {
            return white_out(&parent, hidden).map_err(made)?.map_err(hostile);
        }
        match entry.header().entry_type() {
            EntryType::Directory => {
                parent.make_folders(&name).map_err(made)?;
                self.folders.insert(path, attributes);
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mut file = parent.create_file(&name).map_err(made)?;
                io::copy(entry, &mut file).map_err(Error::file("unpack", &raw))?;
                file.flush().map_err(Error::file("unpack", &raw))?;
                set_attributes(&file, attributes).map_err(made)?;
            }
            EntryType::Symlink => {
                let text = link_text(entry).map_err(hostile)?;
                parent.symlink(&text, &name).map_err(made)?;
                parent.set_link_owner(&name, attributes.owner).map_err(made)?;
            }
            EntryType::Link => {
                let existing = relative(&link_text(entry).map_err(hostile)?).map_err(hostile)?;
                let file = existing.file_name().ok_or_else(|| hostile("it links to a folder"))?;
                let folder = self.root.folder(existing.parent().unwrap_or(Path::new(""))).map_err(made)?;
                if existing != path {
                    parent.hard_link(&folder, Path::new(file), &name).map_err(made)?;
                }
            }
            // Device nodes and pipes have no business in a sandbox, which gets a /dev of its own.
            _ => {}
        }
        Ok(())
    }

    fn attributes<R: Read>(&self, entry: &tar::Entry<'_, R>, raw: &Path) -> Result<Attributes, Error> {
        let header = entry.header();
        let bad = |_| Error::HostileEntry { entry: shown(raw), reason: "its header is malformed" };
        let id = |id: io::Result<u64>| {
            id.map_err(bad)?
                .try_into()
                .map_err(|_| Error::HostileEntry { entry: shown(raw), reason: "its owner is out of range" })
        };
        let owner = if self.own { Some((id(header.uid())?, id(header.gid())?)) } else { None };
        let mtime = i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0);
        Ok(Attributes { mode: header.mode().map_err(bad)?, owner, mtime })
    }
}

/// Turns a whiteout entry into the overlay's form. The inner error is what is wrong with the entry.
fn white_out(parent: &Folder, hidden: &[u8]) -> Result<Result<(), &'static str>, rustix::io::Errno> {
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

fn link_text<R: Read>(entry: &tar::Entry<'_, R>) -> Result<PathBuf, &'static str> {
    let text = entry.link_name_bytes().ok_or("it is a link to nothing")?;
    if text.is_empty() || text.len() > MAX_LINK_BYTES || text.contains(&0) {
        return Err("its link text is not valid");
    }
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&text)))
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(200).collect()
}
