//! Filled folders take the place of the volumes of a Pod: of all of them, or of none.
//!
//! These lie beside the folder `UID` of a volume:
//!
//! | Name | Content |
//! |---|---|
//! | `UID.filling`, `UID.filled-new` | the new content and its record, while they are not in their places |
//! | `UID.held` | the former content, from the time at which it is moved to the end of the journal |
//! | `UID.before` | the content before the last fill that was completed |
//! | `UID.filled` | the record of the last fill |
//! | `UID.fill-open`, `UID.fill-done` | the journal of a fill, named after the first of its volumes |
//!
//! Volumes are moved only while there is a journal. A node that is killed undoes an open one at its next start, and completes one
//! that is done. Both decide by the names that exist, so they may be repeated after any step. The former content of a volume is
//! never removed: it is in `UID` or `UID.held`, and after that in `UID.before`, which is removed before a volume is moved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hutch_image::PathSegment;
use hutch_snapshot::{Image, TreeName};
use rustix::fs::{CWD, RenameFlags};

use crate::folders::{make_folder, make_volume, open_folder, remove_limited, sync, write_durable};

const FILLING: &str = ".filling";
const HELD: &str = ".held";
const BEFORE: &str = ".before";
const RECORD: &str = ".filled";
const NEW_RECORD: &str = ".filled-new";
const OPEN: &str = ".fill-open";
const DONE: &str = ".fill-done";
/// End of the name of a journal that is being written.
const NEW_JOURNAL: &str = ".fill-new";

/// Volume that may be filled.
pub(crate) struct Target {
    uid: String,
    /// Its folder.
    path: PathBuf,
    parent: PathBuf,
    filling: PathBuf,
    held: PathBuf,
    before: PathBuf,
    record: PathBuf,
    new_record: PathBuf,
}

impl Target {
    /// Returns the volume with this folder; `None` if its name is not the uid of a claim.
    pub(crate) fn of(path: PathBuf) -> Option<Target> {
        let uid = path.file_name()?.to_str()?.to_owned();
        let parent = path.parent()?.to_owned();
        let beside = |end: &str| beside(&parent, &uid, end);
        let (filling, held, before) = (beside(FILLING)?, beside(HELD)?, beside(BEFORE)?);
        let (record, new_record) = (beside(RECORD)?, beside(NEW_RECORD)?);
        Some(Target { uid, path, parent, filling, held, before, record, new_record })
    }

    /// Returns true if the volume is to be filled: it is empty and never was filled, or the text `again` is new. If it is not, a
    /// record keeps that so.
    pub(crate) fn wants(&self, again: &str, record: &str) -> io::Result<bool> {
        let found = match std::fs::read_to_string(&self.record) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let wants = !again.is_empty() || is_empty(&self.path)?;
                let write = || write_durable(&self.record, &self.new_record, record.as_bytes());
                return if wants { Ok(true) } else { write().map(|()| false) };
            }
            Err(error) => return Err(error),
        };
        let last = found.split_once('\n').map_or("", |(_, last)| last);
        Ok(!again.is_empty() && again != last)
    }

    /// Copies a volume, which has at most so many bytes, and its record beside this one, on the disk too. Blocks.
    pub(crate) fn stage(
        &self,
        (image, tree): (&Image, &TreeName),
        capacity: Option<u64>,
        record: &str,
    ) -> Result<(), String> {
        let bytes = image.tree_bytes(tree).ok_or("its image does not have it")?;
        if let Some(capacity) = capacity.filter(|capacity| bytes > *capacity) {
            return Err(format!(
                "it holds {bytes} bytes in the snapshot, and its claim requests {capacity}: request more storage"
            ));
        }
        self.begin(bytes, capacity).map_err(|error| error.to_string())?;
        image.copy_out(tree, &self.filling).map_err(|error| error.to_string())?;
        self.write_new_record(record).map_err(|error| error.to_string())
    }

    /// Makes the folder that is filled.
    fn begin(&self, bytes: u64, capacity: Option<u64>) -> io::Result<()> {
        remove_limited(&self.filling)?;
        make_folder(&self.filling, 0o700, capacity)?;
        hutch_image::check_room(&self.parent, bytes)
    }

    /// Writes the record, so that nothing after it needs room, and everything to the disk.
    fn write_new_record(&self, record: &str) -> io::Result<()> {
        std::fs::write(&self.new_record, record)?;
        Ok(rustix::fs::syncfs(open_folder(&self.filling)?)?)
    }

    /// Moves the former content back, if it was moved.
    fn undo(&self) -> io::Result<()> {
        if !exists(&self.held)? {
            return Ok(());
        }
        if exists(&self.path)? && !exists(&self.filling)? {
            rename(&self.path, &self.filling)?;
        }
        if !exists(&self.path)? {
            rename(&self.held, &self.path)?;
        }
        Ok(())
    }

    /// Removes what is not in its place. The next start of the node removes what cannot be removed now.
    fn drop_new(&self) {
        let _ = remove_limited(&self.filling);
        let _ = std::fs::remove_file(&self.new_record);
    }
}

/// Operation of a fill.
enum Step<'a> {
    /// Removes what an earlier fill has left beside a volume that has files.
    DropBefore(&'a Target),
    /// Writes the journal. From here on, the fill is undone unless it is done.
    Open,
    /// Moves the former content of a volume.
    MoveAway(&'a Target),
    /// Moves the new content to its place.
    Place(&'a Target),
    /// Writes that all volumes have their new content. From here on, the fill is completed.
    Commit,
    /// Keeps the former content of a volume beside it.
    Keep(&'a Target),
    /// Moves the record to its place.
    Record(&'a Target),
    /// Removes the journal.
    End,
}

/// Fill of the volumes of one Pod.
pub(crate) struct Journal {
    all: Vec<Target>,
    parent: PathBuf,
    open: PathBuf,
    done: PathBuf,
    new: PathBuf,
}

impl Journal {
    /// Returns that of volumes that are staged, all in one folder; `None` for an empty list.
    pub(crate) fn of(all: Vec<Target>) -> Option<Journal> {
        let first = all.first()?;
        let parent = first.parent.clone();
        let beside = |end: &str| beside(&parent, &first.uid, end);
        let (open, done, new) = (beside(OPEN)?, beside(DONE)?, beside(NEW_JOURNAL)?);
        Some(Journal { all, parent, open, done, new })
    }

    /// Reads one from the disk.
    fn read(file: &Path) -> io::Result<Journal> {
        let text = std::fs::read_to_string(file)?;
        let parent = file.parent().ok_or(io::ErrorKind::InvalidData)?;
        let all: Option<Vec<Target>> = text.lines().map(|uid| Target::of(beside(parent, uid, "")?)).collect();
        all.and_then(Journal::of).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Puts the staged folders in the places of the volumes. If that fails, the volumes are as before, or the journal is added to
    /// `unsettled`. Blocks.
    pub(crate) fn place(self, unsettled: &Unsettled) -> io::Result<()> {
        let Err(error) = self.steps().try_for_each(|step| self.run(&step)) else { return Ok(()) };
        match self.settle() {
            Ok(true) => Ok(()),
            Ok(false) => Err(error),
            Err(also) => {
                unsettled.all().push(self);
                Err(io::Error::new(error.kind(), format!("{error}; it cannot be undone yet: {also}")))
            }
        }
    }

    fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let moves = self.all.iter().flat_map(|one| [Step::MoveAway(one), Step::Place(one)]);
        let before = self.all.iter().map(Step::DropBefore);
        before.chain([Step::Open]).chain(moves).chain([Step::Commit]).chain(self.last_steps())
    }

    /// Steps after the commit, which may be repeated.
    fn last_steps(&self) -> impl Iterator<Item = Step<'_>> {
        let each = self.all.iter().flat_map(|one| [Step::Keep(one), Step::Record(one)]);
        each.chain([Step::End])
    }

    fn run(&self, step: &Step<'_>) -> io::Result<()> {
        let of = |one: &Target, done: io::Result<()>| {
            done.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", one.path.display())))
        };
        match *step {
            Step::DropBefore(one) => of(one, drop_before(one)),
            Step::Open => {
                let uids: Vec<&str> = self.all.iter().map(|one| one.uid.as_str()).collect();
                write_durable(&self.open, &self.new, uids.join("\n").as_bytes())
            }
            Step::MoveAway(one) => of(one, move_away(one)),
            Step::Place(one) => of(one, rename(&one.filling, &one.path)),
            Step::Commit => {
                sync(&self.parent)?;
                rename(&self.open, &self.done)?;
                sync(&self.parent)
            }
            Step::Keep(one) => of(one, keep(one)),
            Step::Record(one) => of(one, keep_record(one)),
            Step::End => self.end(&self.done),
        }
    }

    /// Removes the journal, after everything that was moved is on the disk.
    fn end(&self, file: &Path) -> io::Result<()> {
        sync(&self.parent)?;
        std::fs::remove_file(file)?;
        sync(&self.parent)
    }

    /// Completes or undoes a fill that was interrupted, and returns true if the volumes are filled.
    fn settle(&self) -> io::Result<bool> {
        if exists(&self.done)? {
            self.last_steps().try_for_each(|step| self.run(&step))?;
            return Ok(true);
        }
        if exists(&self.open)? {
            self.all.iter().try_for_each(Target::undo)?;
            self.end(&self.open)?;
        }
        self.all.iter().for_each(Target::drop_new);
        Ok(false)
    }
}

fn drop_before(one: &Target) -> io::Result<()> {
    if is_empty(&one.path)? { Ok(()) } else { remove_limited(&one.before) }
}

/// A volume without a folder gets one, so that `UID.held` exists for each volume that was moved.
fn move_away(one: &Target) -> io::Result<()> {
    if !exists(&one.path)? {
        make_volume(&one.path, None)?;
    }
    rename(&one.path, &one.held)
}

fn keep(one: &Target) -> io::Result<()> {
    if !exists(&one.held)? {
        return Ok(());
    }
    if is_empty(&one.held)? {
        return remove_limited(&one.held);
    }
    // That of an earlier fill: what this one has moved is still in its own place.
    remove_limited(&one.before)?;
    rename(&one.held, &one.before)
}

fn keep_record(one: &Target) -> io::Result<()> {
    if exists(&one.new_record)? { std::fs::rename(&one.new_record, &one.record) } else { Ok(()) }
}

/// Fills that could be neither completed nor undone. No Pod uses their volumes before that.
#[derive(Default)]
pub(crate) struct Unsettled(Mutex<Vec<Journal>>);

impl Unsettled {
    /// Settles what a killed node left, and removes what it has only begun. Blocks.
    pub(crate) fn open(volumes: &Path) -> Unsettled {
        let unsettled = Unsettled::default();
        for namespace in std::fs::read_dir(volumes).into_iter().flatten().flatten() {
            let problem = unsettled.open_namespace(&namespace.path()).err();
            if let Some(error) = problem.filter(|error| error.kind() != io::ErrorKind::NotADirectory) {
                let folder = namespace.path();
                tracing::error!(folder = %folder.display(), %error, "failed to read fills of volumes");
            }
        }
        unsettled
    }

    fn open_namespace(&self, folder: &Path) -> io::Result<()> {
        let files = std::fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        let paths: Vec<PathBuf> = files.iter().map(std::fs::DirEntry::path).collect();
        let ends = |path: &Path, ends: &[&str]| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            ends.iter().any(|end| name.ends_with(end))
        };
        for file in paths.iter().filter(|path| ends(path, &[OPEN, DONE])) {
            let journal = Journal::read(file)?;
            if let Err(error) = journal.settle() {
                tracing::error!(journal = %file.display(), %error, "failed to settle a fill of volumes");
                self.all().push(journal);
            }
        }
        let unsettled = self.claims();
        for path in paths.iter().filter(|path| ends(path, &[FILLING, NEW_RECORD, NEW_JOURNAL])) {
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            let is_kept = unsettled.iter().any(|uid| uid == crate::persistent::uid_of(&name));
            if !is_kept && let Err(error) = remove_limited(path) {
                tracing::warn!(path = %path.display(), %error, "failed to remove an unfinished volume");
            }
        }
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, Vec<Journal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the uids of their claims.
    pub(crate) fn claims(&self) -> Vec<String> {
        self.all().iter().flat_map(|journal| &journal.all).map(|one| one.uid.clone()).collect()
    }

    /// Settles the fill of a claim, so that its volume may be used. Blocks.
    ///
    /// # Errors
    /// It still cannot be completed or undone.
    pub(crate) fn settle(&self, claim: &str) -> io::Result<()> {
        let mut all = self.all();
        let found = all.iter().position(|journal| journal.all.iter().any(|one| one.uid == claim));
        if let Some(found) = found {
            all[found].settle()?;
            all.remove(found);
        }
        Ok(())
    }
}

/// Returns the path of what lies beside the folder of a claim.
fn beside(parent: &Path, uid: &str, end: &str) -> Option<PathBuf> {
    PathSegment::new(format!("{uid}{end}")).map(|name| name.below(parent))
}

fn exists(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_empty(folder: &Path) -> io::Result<bool> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Renames, unless there is something of the new name.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(test)]
mod tests;
