//! Unpacks the tar stream of an untrusted sandbox below one folder.
//!
//! Every step goes through descriptors and follows no link. Set-id bits, owners, devices, and links that lead out of
//! what is copied are not taken.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, ensure};
use hutch_archive::{AbsolutePaths, Entry, Kind, Limits, PathError, ReadError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::LeftOut;

/// Limits of an archive. Each entry takes an inode and some memory, and a sandbox could send empty files without end. Bytes
/// are limited by the free space.
const LIMITS: Limits = Limits {
    entries: 1 << 20,
    header_bytes: 64 << 10,
    content_bytes: u64::MAX,
    absolute: AbsolutePaths::Refused,
};
/// Maximum folders within each other, as in the other direction.
const DEPTH_MAX: usize = 256;
/// Bytes that stay free on the disk: a sandbox can send a file without end, and a full disk stops other programs too.
const SPARE: u64 = 256 << 20;
/// Bytes between two checks of the free space. A smaller copy is not checked.
const CHECK_EVERY: u64 = 16 << 20;
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Destination of a copy: a name (may be empty) in an existing folder.
#[derive(Debug)]
pub(super) struct Destination {
    folder: OwnedFd,
    name: PathBuf,
}

impl Destination {
    /// Uses an existing folder of that path and the name of the source; otherwise the name at the end of the path.
    pub(super) fn open(path: &Path, name: &Path) -> anyhow::Result<Destination> {
        let named = || path.display().to_string();
        let slash = path.as_os_str().as_bytes().ends_with(b"/");
        let (folder, name) = if path.is_dir() {
            (path, name.to_owned())
        } else {
            ensure!(!slash, "{}: no such folder; make it first", named());
            let file = path.file_name().with_context(|| format!("{}: no name for a file", named()))?;
            let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            (folder.unwrap_or(Path::new(".")), PathBuf::from(file))
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())
            .with_context(|| format!("the folder {}", folder.display()))?;
        Ok(Destination { folder, name })
    }
}

/// Creates the entries of the archive below `member` (empty: all).
///
/// # Errors
/// The first entry that is not below `member` or cannot be created; those before it stay.
pub(super) fn unpack(from: impl Read, member: &Path, to: &Destination) -> anyhow::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut taken = Taken::default();
    hutch_archive::read(from, LIMITS, |entry| {
        let shown = entry.shown().to_owned();
        let made =
            beneath(entry.path(), member).and_then(|inner| make(entry, &inner, member, to, &mut taken));
        if let Some(why) = made.with_context(|| format!("entry {shown:?}"))? {
            left_out.add(format!("{shown}: {why}"));
        }
        anyhow::Ok(())
    })
    .map_err(explained)?;
    Ok(left_out)
}

/// Adds to an error of the archive what it means for the copy.
fn explained(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(ReadError::Entries(_)) => error.context("copy a part of it"),
        Some(ReadError::Path { problem: PathError::Upwards | PathError::Absolute, .. }) => {
            error.context("nothing more of this archive is copied")
        }
        _ => error,
    }
}

/// Returns the path below `member`.
fn beneath(path: &Path, member: &Path) -> anyhow::Result<PathBuf> {
    let inner = path.strip_prefix(member).ok();
    let inner = inner.context("it was not requested, so nothing more of this archive is copied")?;
    ensure!(inner.components().count() <= DEPTH_MAX, "it is more than {DEPTH_MAX} folders deep");
    Ok(inner.to_owned())
}

/// Device and inode of a file.
type FileId = (u64, u64);

/// Files of a stream so far.
#[derive(Debug, Default)]
struct Taken {
    files: HashSet<FileId>,
    /// Bytes since the last check of the free space.
    unchecked: u64,
}

impl Taken {
    /// Counts bytes that were written to this file, and checks the free space from time to time.
    fn add(&mut self, bytes: usize, file: &File) -> anyhow::Result<()> {
        self.unchecked += bytes as u64;
        if self.unchecked < CHECK_EVERY {
            return Ok(());
        }
        self.unchecked = 0;
        let disk = rustix::fs::fstatvfs(file)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        ensure!(free >= SPARE, "less than {} MiB would stay free on this disk", SPARE >> 20);
        Ok(())
    }
}

/// Creates an entry. Returns the reason when it is left out.
fn make(
    entry: &mut Entry<'_, impl Read>,
    inner: &Path,
    member: &Path,
    to: &Destination,
    taken: &mut Taken,
) -> anyhow::Result<Option<&'static str>> {
    let target = to.name.join(inner);
    let kind = entry.kind();
    let mode = entry.mode()? & 0o777;
    let Some(name) = target.file_name().map(PathBuf::from) else {
        ensure!(kind == Kind::Folder, "it has no name");
        return Ok(None);
    };
    let parent = || folders(&to.folder, target.parent().unwrap_or(Path::new("")));
    match kind {
        Kind::Folder => {
            folder(&parent()?, &name, mode | 0o700)?;
        }
        Kind::File | Kind::SparseFile => {
            let made = file(entry, &parent()?, &name, mode, taken)?;
            taken.files.insert(made);
        }
        Kind::Symlink => {
            let Some(link) = entry.target().ok().filter(|link| stays_inside(inner, link)) else {
                return Ok(Some("a link that leads out of what is copied"));
            };
            let parent = parent()?;
            let fresh = fresh_name();
            rustix::fs::symlinkat(&link, &parent, &fresh)?;
            put(&parent, &fresh, &name)?;
        }
        Kind::HardLink => {
            let existing = to.name.join(beneath(&entry.linked()?, member)?);
            let existing_name = existing.file_name().context("its link has no name")?;
            let from = folders(&to.folder, existing.parent().unwrap_or(Path::new("")))?;
            let (parent, fresh) = (parent()?, fresh_name());
            rustix::fs::linkat(&from, existing_name, &parent, &fresh, AtFlags::empty())?;
            // Checked under the new name, which is random and cannot be exchanged. A symbolic link would lead elsewhere
            // from here, and a file that existed before the copy gets no second name.
            let linked = id_of(&parent, &fresh);
            if !linked.as_ref().is_ok_and(|id| id.is_some_and(|id| taken.files.contains(&id))) {
                let _ = rustix::fs::unlinkat(&parent, &fresh, AtFlags::empty());
                linked?;
                return Ok(Some("a hard link to something else than a file of this copy"));
            }
            put(&parent, &fresh, &name)?;
            // Two names of one file: the rename above did nothing then.
            let _ = rustix::fs::unlinkat(&parent, &fresh, AtFlags::empty());
        }
        Kind::Special => return Ok(Some("neither a file, nor a folder, nor a link")),
    }
    Ok(None)
}

/// Returns true if a link of this entry can only lead to what is copied: first upwards, at most to the top, then down.
/// A `..` after a name could follow another link to a folder that is less deep.
fn stays_inside(inner: &Path, link: &Path) -> bool {
    let Some(mut depth) = inner.components().count().checked_sub(1) else { return false };
    let mut down = false;
    for part in link.components() {
        match part {
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            Component::ParentDir if !down && depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

/// Opens a folder below this one, and creates missing folders.
fn folders(top: &OwnedFd, path: &Path) -> anyhow::Result<OwnedFd> {
    let mut here = open_folder(top, Path::new("."))?;
    for part in path.components() {
        let name = Path::new(part.as_os_str());
        here = match open_folder(&here, name) {
            Err(Errno::NOENT) => folder(&here, name, 0o755)?,
            other => other.with_context(|| format!("{}: no folder", name.display()))?,
        };
    }
    Ok(here)
}

fn open_folder(at: &OwnedFd, name: &Path) -> Result<OwnedFd, Errno> {
    openat2(at, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), WITHIN)
}

/// Creates a folder, or opens the existing one. A link to a folder is refused.
fn folder(at: &OwnedFd, name: &Path, mode: u32) -> anyhow::Result<OwnedFd> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    open_folder(at, name).context("something else of that name is here; remove it first")
}

/// Returns the id of the regular file of that name, `None` for other kinds. Links are not followed.
fn id_of(at: &OwnedFd, name: &Path) -> Result<Option<FileId>, Errno> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    Ok(is_file.then_some((found.st_dev, found.st_ino)))
}

/// Creates a file. It appears when it is complete.
fn file(
    entry: &mut Entry<'_, impl Read>,
    parent: &OwnedFd,
    name: &Path,
    mode: u32,
    taken: &mut Taken,
) -> anyhow::Result<FileId> {
    let fresh = fresh_name();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    let written = openat2(parent, &fresh, flags, mode, WITHIN)
        .map_err(anyhow::Error::from)
        .and_then(|fd| fill(entry, File::from(fd), taken))
        .and_then(|id| put(parent, &fresh, name).map(|()| id));
    if written.is_err() {
        // The failure that matters is the first.
        let _ = rustix::fs::unlinkat(parent, &fresh, AtFlags::empty());
    }
    written
}

fn fill(entry: &mut Entry<'_, impl Read>, mut file: File, taken: &mut Taken) -> anyhow::Result<FileId> {
    entry.content(|piece| {
        file.write_all(piece)?;
        taken.add(piece.len(), &file)
    })?;
    let made = file.metadata()?;
    Ok((made.dev(), made.ino()))
}

/// Renames a complete file, in place of a file or link of that name.
fn put(parent: impl AsFd, fresh: &Path, name: &Path) -> anyhow::Result<()> {
    rustix::fs::renameat(&parent, fresh, &parent, name).map_err(|errno| {
        let _ = rustix::fs::unlinkat(&parent, fresh, AtFlags::empty());
        anyhow::Error::from(errno)
    })
}

/// Returns a name that the sandbox cannot predict.
fn fresh_name() -> PathBuf {
    PathBuf::from(format!(".hutch-cp-{:016x}", rand::random::<u64>()))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;
