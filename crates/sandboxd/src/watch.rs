//! Reports changes below a folder as they happen.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::files::work;
use crate::files::{FileError, Root, names};
use crate::readiness::register;

/// Maximum number of folders of one watch.
pub(crate) const FOLDER_LIMIT: usize = 4096;
/// Maximum number of unreported changes. The kernel queues more; on overflow it drops them and reports that.
const WAITING_LIMIT: usize = 1024;
const READ_SIZE: usize = 16 << 10;

/// Kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// Created.
    Create,
    /// Content changed.
    Write,
    /// Permissions, owner or times changed.
    Attributes,
    /// Removed.
    Remove,
    /// Renamed, or moved elsewhere.
    MovedFrom,
    /// Result of a rename.
    MovedTo,
    /// Changes were lost, or there are too many folders to watch: the client must list the folder again.
    Overflow,
}

/// Change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// Kind of change.
    pub r#type: What,
    /// Path from the base folder on; invalid UTF-8 is replaced.
    pub path: String,
    /// True for a folder.
    pub directory: bool,
    /// The same number in both halves of a move, 0 otherwise.
    pub cookie: u32,
}

impl Change {
    fn new(what: What, path: &Path, directory: bool, cookie: u32) -> Change {
        Change { r#type: what, path: format!("/{}", path.display()), directory, cookie }
    }
}

/// Watched folder, recursive if configured. Links are not followed.
#[derive(Debug)]
pub(crate) struct Watch {
    notify: Arc<AsyncFd<OwnedFd>>,
    tree: Option<Tree>,
    waiting: VecDeque<Change>,
    /// New folders that are not watched yet, and whether their content is reported as created.
    fresh: Vec<(PathBuf, bool)>,
}

#[derive(Debug)]
struct Tree {
    notify: Arc<AsyncFd<OwnedFd>>,
    root: Arc<Root>,
    recursive: bool,
    folders: HashMap<i32, PathBuf>,
}

impl Watch {
    /// Watches the folder at `path`. Every later change is reported.
    ///
    /// # Errors
    /// Not a folder, or more than [`FOLDER_LIMIT`] folders below it.
    pub(crate) async fn new(root: Arc<Root>, path: PathBuf, recursive: bool) -> Result<Watch, FileError> {
        let refused = |source: std::io::Error| FileError::System { path: path.clone(), source };
        let descriptor = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let notify = register(descriptor.map_err(|errno| refused(errno.into()))?, Interest::READABLE)
            .map_err(refused)?;
        let notify = Arc::new(notify);
        let mut tree = Tree { notify: notify.clone(), root, recursive, folders: HashMap::new() };
        let tree = work::on_files(move || {
            let (_, whole) = tree.follow(&path)?;
            if whole { Ok(tree) } else { Err(FileError::TooMany) }
        });
        Ok(Watch { notify, tree: Some(tree.await?), waiting: VecDeque::new(), fresh: Vec::new() })
    }

    /// Returns the next change.
    ///
    /// # Errors
    /// The kernel reports no more changes.
    pub(crate) async fn next(&mut self) -> Result<Change, FileError> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Ok(change);
            }
            if let Some((path, news)) = self.fresh.pop() {
                self.follow(path, news).await?;
                continue;
            }
            let notify = self.notify.clone();
            let io = |source| FileError::System { path: PathBuf::new(), source };
            let mut guard = notify.readable().await.map_err(io)?;
            match guard.try_io(|descriptor| Ok(self.read(descriptor.get_ref())?)) {
                Ok(read) => read.map_err(io)?,
                Err(_would_block) => {}
            }
        }
    }

    async fn follow(&mut self, path: PathBuf, news: bool) -> Result<(), FileError> {
        let Some(mut tree) = self.tree.take() else { return Err(FileError::NotFound) };
        let (tree, found) = work::on_files(move || {
            // The folder may be removed again.
            let found = tree.follow(&path).unwrap_or((Vec::new(), true));
            Ok((tree, found))
        })
        .await?;
        self.tree = Some(tree);
        let (entries, whole) = found;
        if news {
            self.waiting.extend(entries);
        }
        if !whole {
            self.waiting.push_back(Change::new(What::Overflow, Path::new(""), true, 0));
        }
        Ok(())
    }

    /// Reads the kernel's events, up to a bound.
    fn read(&mut self, descriptor: &OwnedFd) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); READ_SIZE];
        let mut reader = inotify::Reader::new(descriptor, &mut buffer);
        loop {
            // Events in the buffer are no longer in the kernel.
            if reader.is_buffer_empty() && self.waiting.len() >= WAITING_LIMIT {
                return Ok(());
            }
            match reader.next() {
                Ok(event) => {
                    let name =
                        event.file_name().map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned());
                    take(self.tree.as_mut(), &mut self.waiting, &mut self.fresh, &event, name);
                }
                Err(Errno::AGAIN) if !self.waiting.is_empty() || !self.fresh.is_empty() => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn take(
    tree: Option<&mut Tree>,
    waiting: &mut VecDeque<Change>,
    fresh: &mut Vec<(PathBuf, bool)>,
    event: &inotify::Event<'_>,
    name: Option<std::ffi::OsString>,
) {
    let (Some(tree), flags) = (tree, event.events()) else { return };
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        waiting.push_back(Change::new(What::Overflow, Path::new(""), true, 0));
        return;
    }
    if flags.contains(ReadFlags::IGNORED) {
        tree.folders.remove(&event.wd());
        return;
    }
    let Some(folder) = tree.folders.get(&event.wd()) else { return };
    let directory = flags.contains(ReadFlags::ISDIR) || name.is_none();
    let path = name.map_or_else(|| folder.clone(), |name| folder.join(name));
    let what = if flags.contains(ReadFlags::CREATE) {
        What::Create
    } else if flags.contains(ReadFlags::MODIFY) {
        What::Write
    } else if flags.contains(ReadFlags::ATTRIB) {
        What::Attributes
    } else if flags.contains(ReadFlags::MOVED_FROM) {
        What::MovedFrom
    } else if flags.contains(ReadFlags::MOVED_TO) {
        What::MovedTo
    } else if flags.intersects(ReadFlags::DELETE | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
        What::Remove
    } else {
        return;
    };
    if directory && tree.recursive {
        match what {
            What::MovedFrom => tree.forget(&path),
            What::Create => fresh.push((path.clone(), true)),
            What::MovedTo => fresh.push((path.clone(), false)),
            _ => {}
        }
    }
    // The removal of a folder below is reported by its parent folder.
    let told_above =
        flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) && !tree.is_top(event.wd());
    if !told_above {
        waiting.push_back(Change::new(what, &path, directory, event.cookie()));
    }
}

impl Tree {
    fn is_top(&self, watch: i32) -> bool {
        let length = |path: &PathBuf| path.components().count();
        let shortest = self.folders.values().map(length).min();
        self.folders.get(&watch).map(length) == shortest
    }

    fn forget(&mut self, path: &Path) {
        let notify = self.notify.clone();
        self.folders.retain(|watch, folder| {
            let kept = !folder.starts_with(path);
            if !kept {
                // Its last event, `IN_IGNORED`, then finds no entry.
                let _ = inotify::remove_watch(notify.get_ref(), *watch);
            }
            kept
        });
    }

    /// Watches a folder, recursively if configured. Returns its entries, and whether all of them are
    /// watched.
    fn follow(&mut self, path: &Path) -> Result<(Vec<Change>, bool), FileError> {
        let mut found = Vec::new();
        let mut open = vec![(self.root.folder(path)?, path.to_owned())];
        while let Some((folder, path)) = open.pop() {
            if self.folders.len() >= FOLDER_LIMIT {
                return Ok((found, false));
            }
            self.add(&folder, path.clone())?;
            if !self.recursive {
                break;
            }
            let refused = |errno: Errno| FileError::System { path: path.clone(), source: errno.into() };
            for entry in names(&folder).map_err(refused)? {
                let entry = entry.map_err(refused)?;
                let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let inner = path.join(name);
                let directory = entry.file_type() == FileType::Directory;
                if found.len() < WAITING_LIMIT {
                    found.push(Change::new(What::Create, &inner, directory, 0));
                }
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // The entry is gone, or not a folder.
                if let Some(opened) =
                    directory.then(|| openat(&folder, name, flags, Mode::empty()).ok()).flatten()
                {
                    if open.len() >= WAITING_LIMIT {
                        return Ok((found, false));
                    }
                    open.push((opened, inner));
                }
            }
        }
        Ok((found, true))
    }

    fn add(&mut self, folder: &OwnedFd, path: PathBuf) -> Result<(), FileError> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // The descriptor's link in /proc leads to the opened folder, even after a rename.
        let own = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let watch = inotify::add_watch(self.notify.get_ref(), own, flags)
            .map_err(|errno| FileError::System { path: path.clone(), source: errno.into() })?;
        self.folders.insert(watch, path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    async fn until(watch: &mut Watch, what: What, path: &str) -> Change {
        loop {
            let change = tokio::time::timeout(std::time::Duration::from_secs(10), watch.next()).await;
            let change = change.unwrap_or_else(|_| panic!("no {what:?} of {path}")).unwrap();
            if change.r#type == what && change.path == path {
                return change;
            }
        }
    }

    #[tokio::test]
    async fn deep_changes_are_reported_after_a_move() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        let root = Arc::new(Root::open(&base).unwrap());
        fs::create_dir_all(base.join("top/old/deep")).unwrap();
        let mut watch = Watch::new(root, "top".into(), true).await.unwrap();
        fs::write(base.join("top/old/deep/a"), "1").unwrap();
        until(&mut watch, What::Write, "/top/old/deep/a").await;
        fs::create_dir_all(base.join("top/new/x/y")).unwrap();
        fs::write(base.join("top/new/x/y/b"), "1").unwrap();
        until(&mut watch, What::Create, "/top/new/x/y/b").await;
        fs::rename(base.join("top/old"), base.join("top/moved")).unwrap();
        let from = until(&mut watch, What::MovedFrom, "/top/old").await;
        let to = until(&mut watch, What::MovedTo, "/top/moved").await;
        assert!(from.cookie == to.cookie && from.cookie != 0 && to.directory);
        fs::remove_file(base.join("top/moved/deep/a")).unwrap();
        // The folder is watched under its new name once the move was reported.
        fs::write(base.join("top/moved/deep/later"), "1").unwrap();
        let told = tokio::time::timeout(std::time::Duration::from_secs(10), async {
            loop {
                fs::write(base.join("top/moved/deep/c"), "1").unwrap();
                let next = tokio::time::timeout(std::time::Duration::from_millis(50), watch.next()).await;
                if next.is_ok_and(|change| change.unwrap().path == "/top/moved/deep/c") {
                    return;
                }
            }
        });
        told.await.unwrap();
        fs::remove_dir_all(base.join("top")).unwrap();
        until(&mut watch, What::Remove, "/top").await;
    }

    #[tokio::test]
    async fn non_recursive_watches_report_only_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open(folder.path()).unwrap());
        fs::create_dir(folder.path().join("inner")).unwrap();
        let mut watch = Watch::new(root.clone(), "".into(), false).await.unwrap();
        fs::write(folder.path().join("inner/unseen"), "").unwrap();
        fs::write(folder.path().join("seen"), "").unwrap();
        assert_eq!(watch.next().await.unwrap(), Change::new(What::Create, Path::new("seen"), false, 0));
        assert!(matches!(Watch::new(root, "../x".into(), true).await, Err(FileError::Outside)));
    }
}
