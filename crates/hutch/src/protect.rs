//! Files of a workspace that programs of this machine run later, such as git hooks: code inside can neither change nor
//! make them.
//!
//! What exists is mounted read-only over itself, and each folder on the way to it is mounted over itself too, so that
//! it cannot be moved away. What is missing gets a placeholder, which is removed at the end; a marked one that a killed
//! run left is taken over by the next. `.git` has no placeholder, so that `git init` works. A file that cannot be
//! protected because it did not exist, or lies deeper in the workspace, is reported at the end if it is new or changed.

mod changed;
mod repository;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use hutch_jail::{CheckedFolder, Mount, MountSource};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, XattrFlags};
use rustix::io::Errno;

pub(super) use changed::Change;
use changed::Snapshot;

/// Entries of a folder to protect, beside or without the fixed ones.
#[derive(Default)]
pub(super) struct Rules<'a> {
    /// True for the workspace.
    pub(super) is_workspace: bool,
    /// True for the home of the caller, whose shells read files there.
    pub(super) is_home: bool,
    /// Paths in the folder; what is at or below them is not protected.
    pub(super) allow: &'a [PathBuf],
    /// Further entries.
    pub(super) further: &'a [(PathBuf, Placeholder)],
    /// Hidden paths: the folders on the way to them cannot be moved, or the next run would show what it finds elsewhere.
    pub(super) hidden: &'a [PathBuf],
}

/// Placeholder of a missing entry during the run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Placeholder {
    Folder,
    /// A file that its program takes, with this content.
    File(&'static str),
    /// Nothing, because the program would take it for the real one.
    Nothing,
}

/// Maximum placeholders of one path that other runs make or remove meanwhile.
const RACES: usize = 32;

/// Protected entries. Makefiles, `package.json` and the like are not protected: agents have to write them.
const PROTECTED: [(&str, Placeholder); 13] = [
    (".git/hooks", Placeholder::Folder),
    (".git/config", Placeholder::File("")),
    (".git/commondir", Placeholder::File(".\n")),
    (".git/config.worktree", Placeholder::File("")),
    (".git/modules", Placeholder::Folder),
    (".git/worktrees", Placeholder::Folder),
    (".envrc", Placeholder::File("")),
    (".vscode", Placeholder::Folder),
    (".idea", Placeholder::Folder),
    (".mcp.json", Placeholder::File("{\"mcpServers\": {}}\n")),
    (".claude", Placeholder::Folder),
    (".cargo/config.toml", Placeholder::File("")),
    // The older name of the same, which cargo prefers.
    (".cargo/config", Placeholder::Nothing),
];

/// Entries to protect in a home: what the caller's next shell, `git` or `ssh` reads. A placeholder has the effect of a missing
/// entry.
const OF_HOME: [(&str, Placeholder); 17] = [
    (".profile", Placeholder::File("")),
    (".bash_profile", Placeholder::File(READ_LOGIN)),
    (".bash_login", Placeholder::File(READ_PROFILE)),
    (".bash_logout", Placeholder::File("")),
    (".bashrc", Placeholder::File("")),
    (".bash_aliases", Placeholder::File("")),
    (".zshenv", Placeholder::File("")),
    (".zprofile", Placeholder::File("")),
    (".zshrc", Placeholder::File("")),
    (".zlogin", Placeholder::File("")),
    (".zlogout", Placeholder::File("")),
    (".gitconfig", Placeholder::File("")),
    (".config/git/config", Placeholder::File("")),
    (".ssh", Placeholder::Folder),
    // They name programs that kubectl, docker and hutch itself run.
    (".kube/config", Placeholder::File("")),
    (".docker/config.json", Placeholder::File("{}\n")),
    (".config/hutch", Placeholder::Folder),
];
/// A login shell of bash reads only the first of `.bash_profile`, `.bash_login` and `.profile`. So a placeholder reads the next.
const READ_LOGIN: &str =
    "if [ -r ~/.bash_login ]; then . ~/.bash_login; elif [ -r ~/.profile ]; then . ~/.profile; fi\n";
const READ_PROFILE: &str = "if [ -r ~/.profile ]; then . ~/.profile; fi\n";

/// Returns true if a path of a workspace, which may be a home, is a protected entry, in one, or above one.
pub(super) fn is_protected(path: &Path, is_home: bool) -> bool {
    of_workspace(is_home).any(|(entry, _)| path.starts_with(entry) || entry.starts_with(path))
}

/// Returns the protected entries of a folder, which may be a home.
pub(super) fn of_workspace(is_home: bool) -> impl Iterator<Item = (&'static Path, Placeholder)> {
    let fixed = PROTECTED.iter().map(|(path, kind)| (Path::new(*path), *kind));
    fixed.chain(of_home().filter(move |_| is_home))
}

/// Returns the further protected entries of a home.
pub(super) fn of_home() -> impl Iterator<Item = (&'static Path, Placeholder)> {
    OF_HOME.iter().map(|(path, kind)| (Path::new(*path), *kind))
}

/// Marks a placeholder, so that the next run knows one that a killed run left.
const MARK: &str = "user.hutch.placeholder";

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The protected entries of a workspace, for the time of a run.
pub(super) struct Protection {
    workspace: OwnedFd,
    /// Flags of look-ups in it.
    within: ResolveFlags,
    /// Path in the jail, if this is another folder than the workspace.
    shown_at: Option<PathBuf>,
    made: Vec<Made>,
    before: Snapshot,
}

/// A placeholder of this run, or one that another run left.
struct Made {
    path: PathBuf,
    kind: Placeholder,
    /// Locked by each run that uses it.
    entry: OwnedFd,
    /// False for what may be a file of the user that looks like one. It is only locked: it may be one whose file system takes no
    /// mark.
    removes: bool,
}

impl Protection {
    /// Opens or makes the protected entries of `workspace`, which is mounted at `target`, and returns the mounts for them.
    pub(super) fn prepare(
        workspace: &CheckedFolder,
        target: &Path,
        rules: &Rules<'_>,
    ) -> anyhow::Result<(Vec<Mount>, Protection)> {
        let flag = if rules.is_workspace { "--workspace" } else { "--mount" };
        let named = || format!("{flag} {}", workspace.path().display());
        // Root's jail does not show what is mounted below the folder, so that must not be shown by a further mount.
        let workspace = match rustix::process::geteuid().is_root() {
            true => workspace.clone().without_mounts(),
            false => workspace.clone(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = workspace.open().with_context(named)?;
        let folder = rustix::fs::openat(folder, ".", flags, Mode::empty()).with_context(named)?;
        let before = Snapshot::of(&folder);
        let shown_at = (!rules.is_workspace).then(|| target.to_owned());
        let within = workspace.within();
        let mut all = Protection { workspace: folder, within, shown_at, made: Vec::new(), before };
        let (mut on_the_way, mut read_only) = (BTreeSet::new(), BTreeSet::new());
        let allowed = |path: &Path| rules.allow.iter().any(|allowed| path.starts_with(allowed));
        let (repository, held) = all.repository(workspace.path()).with_context(named)?;
        let fixed = of_workspace(rules.is_home).filter(|(path, _)| !allowed(path));
        let fixed = fixed.map(|(path, kind)| (path, kind, false));
        let further = rules.further.iter().map(|(path, kind)| (path.as_path(), *kind, true));
        let repository = repository.iter().map(|(path, kind)| (path.as_path(), *kind, false));
        for (path, kind, is_named) in fixed.chain(further).chain(repository) {
            if let Some(entry) = all.protect(path, kind, is_named).with_context(named)? {
                on_the_way
                    .extend(entry.ancestors().skip(1).filter(|a| *a != Path::new("")).map(Path::to_owned));
                read_only.insert(entry);
            }
        }
        let above_hidden = rules.hidden.iter().flat_map(|path| path.ancestors().skip(1));
        let above_hidden = above_hidden.filter(|path| *path != Path::new(""));
        on_the_way.extend(above_hidden.filter(|path| !all.is_mounted(path)).map(Path::to_owned));
        on_the_way.extend(held.into_iter().filter(|path| !all.is_mounted(path)));
        let mount = |path: PathBuf, read_only| Mount {
            target: target.join(&path),
            source: MountSource::Beneath { folder: workspace.clone(), path },
            read_only,
        };
        let outer = on_the_way.into_iter().map(|path| mount(path, false));
        let mounts = outer.chain(read_only.into_iter().map(|path| mount(path, true))).collect();
        Ok((mounts, all))
    }

    /// Makes sure that an entry is there. Returns what has to be mounted read-only for it: the entry, a file in the place
    /// of `.git`, or nothing where there is no `.git`, unless the caller has named the entry.
    fn protect(&mut self, path: &Path, kind: Placeholder, is_named: bool) -> anyhow::Result<Option<PathBuf>> {
        self.protect_in(path, kind, is_named, RACES)
    }

    /// Begins anew, so many times, where another run makes or removes a placeholder at that moment.
    fn protect_in(
        &mut self,
        path: &Path,
        kind: Placeholder,
        is_named: bool,
        races: usize,
    ) -> anyhow::Result<Option<PathBuf>> {
        let mut here = PathBuf::new();
        let count = path.components().count();
        for (number, part) in path.components().enumerate() {
            here.push(part);
            let last = number + 1 == count;
            match self.open(&here, OFlags::PATH) {
                Ok(entry) => {
                    let status = rustix::fs::fstat(&entry)?;
                    let is_folder = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
                    let kind = if last { kind } else { Placeholder::Folder };
                    self.share(&here, kind)?;
                    // Of a folder that the caller names, the files may have names elsewhere: those of a package, for example.
                    if !is_folder || last && !is_named {
                        self.check_names(&here, &status)?;
                    }
                    if !is_folder && !last {
                        // A file `.git` names the repository, and so chooses the hooks.
                        return Ok(Some(here));
                    }
                }
                Err(Errno::NOENT) if here == Path::new(".git") && !is_named => return Ok(None),
                Err(Errno::NOENT) if last && matches!(kind, Placeholder::Nothing) => return Ok(None),
                Err(Errno::NOENT) => {
                    let made = self.make(&here, if last { kind } else { Placeholder::Folder });
                    let errno = made.as_ref().err().and_then(|error| error.downcast_ref::<Errno>());
                    if matches!(errno, Some(&(Errno::EXIST | Errno::NOENT))) && races > 0 {
                        return self.protect_in(path, kind, is_named, races - 1);
                    }
                    let read_only =
                        if self.shown_at.is_some() { "`:ro` after its path" } else { "--read-only" };
                    made.map_err(|error| not_made(&here, &error, read_only))?;
                }
                Err(Errno::LOOP) => return Err(linked(&here)),
                Err(Errno::XDEV) => {
                    bail!(
                        "{} is on another mount, so it cannot be protected; unmount it for the run",
                        here.display()
                    )
                }
                Err(errno) => return Err(errno).with_context(|| here.display().to_string()),
            }
        }
        Ok(Some(here))
    }

    /// Returns true if a path is on a mount that is not shown.
    fn is_mounted(&self, path: &Path) -> bool {
        matches!(self.open(path, OFlags::PATH), Err(Errno::XDEV))
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        // A FIFO in the place of a file must not hold up the opening. The flag is refused where nothing is opened.
        let wait = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | wait | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat2(&self.workspace, path, flags, Mode::empty(), self.within)?;
        // With both flags the last part may be a link, which is then what is open.
        match FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode) {
            FileType::Symlink => Err(Errno::LOOP),
            _ => Ok(entry),
        }
    }

    /// Refuses a protected file, or one right in a protected folder, that has a second name: code inside could change it by that.
    fn check_names(&self, path: &Path, status: &Stat) -> anyhow::Result<()> {
        let is_linked = |status: &Stat| {
            FileType::from_raw_mode(status.st_mode) == FileType::RegularFile && status.st_nlink > 1
        };
        let mut found = Some(path.to_owned()).filter(|_| is_linked(status));
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            let caller = rustix::process::geteuid();
            let folder = match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
                // The command has no more rights, and cannot take any: the folder is another user's.
                Err(Errno::ACCESS) if !caller.is_root() && status.st_uid != caller.as_raw() => return Ok(()),
                folder => folder.with_context(|| path.display().to_string())?,
            };
            for entry in rustix::fs::Dir::read_from(&folder)? {
                let entry = entry?;
                let status = rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                if is_linked(&status) {
                    found = Some(path.join(OsStr::from_bytes(entry.file_name().to_bytes())));
                }
            }
        }
        let Some(path) = found else { return Ok(()) };
        let path = path.display();
        bail!(
            "{path} has a second name (a hard link) by which it could be changed; replace it by a copy of itself"
        );
    }

    /// Makes a placeholder that belongs to the owner of the folder it is in.
    fn make(&mut self, path: &Path, kind: Placeholder) -> anyhow::Result<()> {
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => {
                self.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?
            }
            _ => self.workspace.try_clone()?,
        };
        let name = path.file_name().unwrap_or(OsStr::new(""));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = match kind {
            Placeholder::Folder => {
                rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
                rustix::fs::openat2(&parent, name, flags | OFlags::DIRECTORY, Mode::empty(), BENEATH)?
            }
            Placeholder::Nothing => return Ok(()),
            Placeholder::File(content) => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let entry = rustix::fs::openat2(&parent, name, flags, Mode::from_raw_mode(0o644), BENEATH)?;
                rustix::io::write(&entry, content.as_bytes())?;
                entry
            }
        };
        let owner = rustix::fs::fstat(&parent)?;
        let (uid, gid) = (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
        // An ordinary user may not give files away, and a file system may not take marks: then a killed run leaves an
        // empty entry behind.
        let _ = rustix::fs::fchown(&entry, Some(uid), Some(gid));
        let _ = rustix::fs::fsetxattr(&entry, MARK, b"1", XattrFlags::empty());
        let _ = rustix::fs::flock(&entry, FlockOperation::NonBlockingLockShared);
        self.made.push(Made { path: path.to_owned(), kind, entry, removes: true });
        Ok(())
    }

    /// Shares what may be a placeholder with the run that made it; the last one removes it, if it is marked.
    fn share(&mut self, path: &Path, kind: Placeholder) -> anyhow::Result<()> {
        if self.made.iter().any(|made| made.path == path) {
            return Ok(());
        }
        let Ok(entry) = self.open(path, OFlags::RDONLY) else { return Ok(()) };
        let is_marked = is_marked(&entry);
        // Another run may have made it as another kind.
        let kinds = [kind, Placeholder::Folder, Placeholder::File("")];
        let kinds = &kinds[..if is_marked { kinds.len() } else { 1 }];
        let as_made = kinds.iter().copied().find(|kind| is_as_made(&entry, *kind));
        if as_made.is_none() && is_marked {
            // No run uses it, so it has become the user's own.
            let alone = rustix::fs::flock(&entry, FlockOperation::NonBlockingLockExclusive).is_ok();
            let _ = alone.then(|| rustix::fs::fremovexattr(&entry, MARK));
        }
        if as_made.is_some() || is_marked {
            let _ = rustix::fs::flock(&entry, FlockOperation::NonBlockingLockShared);
            let removes = is_marked && as_made.is_some();
            self.made.push(Made { path: path.to_owned(), kind: as_made.unwrap_or(kind), entry, removes });
        }
        Ok(())
    }

    /// Removes the placeholders of all folders, and returns what is new or changed of what programs of this machine run.
    pub(super) fn finish(mut all: Vec<Protection>) -> Change {
        // Of each folder first: one may be within another.
        all.iter_mut().for_each(Protection::remove_placeholders);
        let changes = all.iter().map(|of| {
            let change = of.before.compare(&of.workspace, &|path| of.is_placeholder(path));
            match &of.shown_at {
                Some(target) => change.at(target),
                None => change,
            }
        });
        Change::all(changes)
    }

    /// Removes what is below a folder before the folder.
    fn remove_placeholders(&mut self) {
        for made in std::mem::take(&mut self.made).iter().rev() {
            self.remove(made);
        }
    }

    /// Returns true for a placeholder of another run, as it was made.
    fn is_placeholder(&self, path: &Path) -> bool {
        let Ok(entry) = self.open(path, OFlags::RDONLY) else { return false };
        let known = of_workspace(true).filter(|(known, _)| path.ends_with(known)).map(|(_, kind)| kind);
        let mut kinds = known.chain([Placeholder::Folder, Placeholder::File("")]);
        is_marked(&entry) && kinds.any(|kind| is_as_made(&entry, kind))
    }

    /// Removes a placeholder, if it is still the one that was made, unless another run uses it.
    fn remove(&self, made: &Made) {
        let same = || {
            let (ours, now) =
                (rustix::fs::fstat(&made.entry).ok()?, self.open(&made.path, OFlags::PATH).ok()?);
            let now = rustix::fs::fstat(&now).ok()?;
            Some((ours.st_dev, ours.st_ino) == (now.st_dev, now.st_ino))
        };
        let alone = rustix::fs::flock(&made.entry, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !made.removes || !alone || same() != Some(true) || !is_as_made(&made.entry, made.kind) {
            return;
        }
        let flags = match made.kind {
            Placeholder::Folder => AtFlags::REMOVEDIR,
            Placeholder::File(_) => AtFlags::empty(),
            Placeholder::Nothing => return,
        };
        let (Some(parent), Some(name)) = (made.path.parent(), made.path.file_name()) else { return };
        let parent = match parent == Path::new("") {
            true => self.workspace.try_clone().ok(),
            false => self.open(parent, OFlags::PATH).ok(),
        };
        // What stays is marked, and taken over by the next run.
        let _ = parent.map(|parent| rustix::fs::unlinkat(&parent, name, flags));
    }
}

impl Drop for Protection {
    /// Where the command did not start.
    fn drop(&mut self) {
        self.remove_placeholders();
    }
}

/// Returns the error for a link at or on the way to a protected entry.
fn linked(path: &Path) -> anyhow::Error {
    let path = path.display();
    let line = format!("{path} is a symbolic link, so what it leads to cannot be protected; replace it");
    match allowed(&path.to_string()) {
        Ok(_) => anyhow!("{line}, or open it to the command with --allow-write {path}"),
        Err(_) => anyhow!("{line}, or name the path of what it leads to"),
    }
}

/// Returns the error for a placeholder that cannot be made. In a folder that the caller cannot write, the command could
/// write nothing either.
fn not_made(path: &Path, error: &anyhow::Error, read_only: &str) -> anyhow::Error {
    let path = path.display();
    match error.downcast_ref::<Errno>() {
        Some(&(Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
            anyhow!(
                "{path} cannot be protected, because the folder cannot be written ({error}); show it with {read_only}"
            )
        }
        _ => anyhow!("a placeholder for {path}: {error:#}"),
    }
}

/// Returns true for what a run has made as a placeholder.
fn is_marked(entry: &OwnedFd) -> bool {
    rustix::fs::fgetxattr(entry, MARK, &mut [0_u8; 8]).is_ok()
}

/// Returns true if a placeholder has its original content.
fn is_as_made(entry: &OwnedFd, kind: Placeholder) -> bool {
    let Ok(status) = rustix::fs::fstat(entry) else { return false };
    let is_folder = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    match kind {
        // Removing a folder that is not empty fails.
        Placeholder::Folder => is_folder,
        Placeholder::Nothing => false,
        Placeholder::File(content) => {
            let mut found = vec![0; content.len() + 1];
            let count = rustix::io::pread(entry, &mut found, 0).unwrap_or(found.len());
            !is_folder && found[..count] == *content.as_bytes()
        }
    }
}

/// Reads a path of `--allow-write`: one below the workspace.
pub(crate) fn allowed(text: &str) -> Result<PathBuf, String> {
    let path: PathBuf = Path::new(text).components().filter(|part| *part != Component::CurDir).collect();
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || path.as_os_str().is_empty() {
        return Err("must be a path within the workspace, such as .git/config".to_owned());
    }
    if !of_workspace(true).any(|(protected, _)| protected.starts_with(&path)) {
        let names: Vec<&str> = PROTECTED.iter().map(|(path, _)| *path).collect();
        return Err(format!(
            "is not protected; protected are {}, and startup files in a home",
            names.join(", ")
        ));
    }
    Ok(path)
}

/// Returns true if programs of this machine run a path of a workspace, at any depth, or read settings from it.
fn is_trusted(path: &Path) -> bool {
    let names: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    PROTECTED.iter().any(|(protected, _)| {
        let wanted: Vec<&OsStr> = Path::new(protected).components().map(Component::as_os_str).collect();
        names.ends_with(&wanted)
    })
}
