//! A tar stream of a hostile sandbox, made to files below one folder and nowhere else.
//!
//! Every step goes through descriptors and follows no link. Set-id bits, owners, devices, and links that lead out of
//! what is copied are not taken.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use hutch_sandboxd::notes::{NoteError, Notes};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::LeftOut;

/// Longest path or link of an entry, in bytes.
const PATH_MAX: usize = 4096;
/// Maximum folders within each other, as in the other direction.
const DEPTH_MAX: usize = 256;
/// Maximum entries of a stream. Each takes an inode and some memory, and a sandbox could send empty files without end.
const ENTRIES_MAX: usize = 1 << 20;
const COPY_SIZE: usize = 64 << 10;
/// Bytes that stay free on the disk: a sandbox can send a file without end, and a full disk stops other programs too.
const SPARE: u64 = 256 << 20;
/// Bytes between two checks of the free space. A smaller copy is not checked.
const CHECK_EVERY: u64 = 16 << 20;
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Where it goes: a name (empty: none) in a folder that is there.
#[derive(Debug)]
pub(super) struct Destination {
    folder: OwnedFd,
    name: PathBuf,
}

impl Destination {
    /// Into the folder of that path when there is one, under the name that it has inside; else under the path's own.
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

/// Makes what the stream holds of `member` (empty: of everything).
///
/// # Errors
/// At the first entry that is not beneath `member`, or cannot be made; those before it stay.
pub(super) fn unpack(from: impl Read, member: &Path, to: &Destination) -> anyhow::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut notes = Notes::default();
    let mut taken = Taken::default();
    let mut entries = 0;
    let mut archive = Archive::new(from);
    // Raw, because the library would keep a note of any length in memory.
    for entry in archive.entries().context("the tar stream")?.raw(true) {
        let mut entry = entry.context("the tar stream")?;
        entries += 1;
        ensure!(entries <= ENTRIES_MAX, "more than {ENTRIES_MAX} entries; copy a part of it");
        if notes.take(&mut entry).map_err(refused)? {
            continue;
        }
        let Notes { path, link } = std::mem::take(&mut notes);
        let path = path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let link = link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
        let shown = String::from_utf8_lossy(&path).into_owned();
        let inner = beneath(&path, member).with_context(|| format!("entry {shown:?}"))?;
        let made = make(&mut entry, &inner, link.as_deref(), member, to, &mut taken);
        match made.with_context(|| format!("entry {shown:?}"))? {
            None => {}
            Some(why) => left_out.add(format!("{shown}: {why}")),
        }
    }
    Ok(left_out)
}

fn refused(error: NoteError) -> anyhow::Error {
    match error {
        NoteError::Stream(error) => anyhow::Error::new(error).context("the tar stream"),
        NoteError::Pax(error) => anyhow::Error::new(error).context("a pax header"),
        NoteError::Long(bytes) => anyhow!("a name of {bytes} bytes"),
        NoteError::Size => anyhow!("a pax header with a size, which is not supported"),
    }
}

/// The path below `member`.
fn beneath(path: &[u8], member: &Path) -> anyhow::Result<PathBuf> {
    ensure!(path.len() <= PATH_MAX && !path.contains(&0), "a path that is none");
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => bail!("it leads out of the folder, so nothing more of this stream is taken"),
        }
    }
    let inner = clean
        .strip_prefix(member)
        .ok()
        .context("it was not asked for, so nothing more of this stream is taken")?;
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

/// Makes it; or why it was left out.
fn make(
    entry: &mut Entry<'_, impl Read>,
    inner: &Path,
    link: Option<&[u8]>,
    member: &Path,
    to: &Destination,
    taken: &mut Taken,
) -> anyhow::Result<Option<&'static str>> {
    let target = to.name.join(inner);
    let kind = entry.header().entry_type();
    let mode = entry.header().mode().context("its mode")? & 0o777;
    let Some(name) = target.file_name().map(PathBuf::from) else {
        ensure!(kind.is_dir(), "it has no name");
        return Ok(None);
    };
    let parent = || folders(&to.folder, target.parent().unwrap_or(Path::new("")));
    match kind {
        EntryType::Directory => {
            folder(&parent()?, &name, mode | 0o700)?;
        }
        EntryType::Regular | EntryType::Continuous => {
            let made = file(entry, &parent()?, &name, mode, taken)?;
            taken.files.insert(made);
        }
        EntryType::Symlink => {
            let link = link.unwrap_or_default();
            if !stays_inside(inner, link) {
                return Ok(Some("a link that leads out of what is copied"));
            }
            let parent = parent()?;
            let fresh = fresh_name();
            rustix::fs::symlinkat(link, &parent, &fresh)?;
            put(&parent, &fresh, &name)?;
        }
        EntryType::Link => {
            let existing = to.name.join(beneath(link.unwrap_or_default(), member)?);
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
        _ => return Ok(Some("neither a file, nor a folder, nor a link")),
    }
    Ok(None)
}

/// Whether a link, from where it lies, can only lead to what is copied: upwards first, at most to the top, then down.
/// A `..` after a name could follow another link to a place that is less deep.
fn stays_inside(inner: &Path, link: &[u8]) -> bool {
    let Some(mut depth) = inner.components().count().checked_sub(1) else { return false };
    if link.is_empty() || link.len() > PATH_MAX || link.contains(&0) {
        return false;
    }
    let mut down = false;
    for part in Path::new(std::ffi::OsStr::from_bytes(link)).components() {
        match part {
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            Component::ParentDir if !down && depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

/// Opens a folder below this one, making what is missing.
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

/// Makes a folder, or takes the one that is there; a link to one is none.
fn folder(at: &OwnedFd, name: &Path, mode: u32) -> anyhow::Result<OwnedFd> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    open_folder(at, name).context("something else of that name is here; remove it first")
}

/// The file of that name; `None` when it is something else. A link is not followed.
fn id_of(at: &OwnedFd, name: &Path) -> Result<Option<FileId>, Errno> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    Ok(is_file.then_some((found.st_dev, found.st_ino)))
}

/// Makes a file, which appears as a whole.
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
    let mut left = entry.size();
    let mut piece = vec![0; COPY_SIZE];
    while left > 0 {
        let count = entry.read(&mut piece).context("the tar stream")?;
        ensure!(count > 0, io::Error::from(io::ErrorKind::UnexpectedEof));
        left = left.saturating_sub(count as u64);
        file.write_all(&piece[..count])?;
        taken.add(count, &file)?;
    }
    let made = file.metadata()?;
    Ok((made.dev(), made.ino()))
}

/// Gives it its name, in place of a file or link that has it.
fn put(parent: impl AsFd, fresh: &Path, name: &Path) -> anyhow::Result<()> {
    rustix::fs::renameat(&parent, fresh, &parent, name).map_err(|errno| {
        let _ = rustix::fs::unlinkat(&parent, fresh, AtFlags::empty());
        anyhow::Error::from(errno)
    })
}

/// A name that nothing inside can have foreseen.
fn fresh_name() -> PathBuf {
    PathBuf::from(format!(".hutch-cp-{:016x}", rand::random::<u64>()))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;
