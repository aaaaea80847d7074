//! Paths in writable folders that the command cannot write: what the caller denies, what programs of this machine run, and what
//! later commands of hutch read, such as the images and the files that flags name.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use hutch_image::Reference;
use hutch_jail::{Mount, MountSource, Spec};

use super::workspace::Workspace;
use super::{every_name, hide};
use crate::cli::RunArguments;
use crate::image::ImageFolders;
use crate::place::{below_folder, mounted};
use crate::protect::{Placeholder, Protection, Rules, of_home, of_workspace};

/// Folder of images in a home.
const IMAGES: &str = ".cache/hutch";

/// A path that the command cannot write.
#[derive(Clone)]
struct Closed {
    path: PathBuf,
    placeholder: Placeholder,
}

/// Adds mounts over the closed paths of writable folders. `hidden` are targets of what is hidden there.
pub(super) fn protect(
    arguments: &RunArguments,
    workspace: &Workspace,
    hidden: &[PathBuf],
    spec: &mut Spec,
) -> anyhow::Result<Vec<Protection>> {
    let (mut mounts, mut protections) = (Vec::new(), Vec::new());
    let is_writable = |mount: &Mount| !mount.read_only && matches!(mount.source, MountSource::Beneath { .. });
    if !spec.mounts.iter().any(is_writable) {
        return Ok(protections);
    }
    let listed = arguments.listed.as_deref();
    let denied = denied(listed.map_or(&[], |listed| &listed.deny_write), spec)?;
    let opened = listed.map_or(&[][..], |listed| &listed.write_within);
    let read = every_place(read_by_later_runs(arguments, workspace), "later runs read it", spec)?;
    let mounted = mounted();
    for mount in spec.mounts.iter_mut().filter(|mount| !mount.read_only) {
        let MountSource::Beneath { folder, path } = &mount.source else { continue };
        let source = below_folder(folder.path(), path);
        let is_in = |closed: &Closed| mounted.is_within(&source, &closed.path);
        // A part of a folder that can otherwise only be read is not, unless it is denied itself.
        let is_open = |closed: &Closed| opened.contains(&source) && source != closed.path;
        if denied.iter().any(|denied| is_in(denied) && !is_open(denied)) {
            mount.read_only = true;
            continue; // nothing in it can be written
        }
        if let Some(read) = read.iter().find(|read| is_in(read)) {
            bail!(
                "{}: later commands of hutch read {}; show it with `:ro`",
                source.display(),
                read.path.display()
            );
        }
        if path != Path::new("") {
            continue; // it is a file
        }
        let is_home = is_home(folder.path());
        let shows_mounts = !rustix::process::geteuid().is_root() && mounted.has_below(folder.path());
        let mut further = [denied.clone(), read.clone()].concat();
        let homes = homes(folder.path()).into_iter().flat_map(every_name);
        further.extend(homes.flat_map(|home| beside_home(&home, folder.path())));
        let places = |closed: &Closed| {
            let rests = mounted.within(&closed.path, folder.path(), shows_mounts).into_iter();
            let placeholder = closed.placeholder;
            rests
                .filter(|rest| rest != Path::new(""))
                .map(move |rest| (rest, placeholder))
                .collect::<Vec<_>>()
        };
        let mut further: Vec<_> = further.iter().flat_map(places).collect();
        // Where a further mount shows a protected entry again.
        let again = of_workspace(is_home).filter(|_| shows_mounts).flat_map(|(entry, placeholder)| {
            let path = folder.path().join(entry);
            let all = places(&Closed { path, placeholder });
            all.into_iter().filter(move |(rest, _)| rest != entry)
        });
        further.extend(again);
        let is_workspace = mount.target == workspace.path;
        let allow = if is_workspace { &arguments.allow_write[..] } else { &[] };
        let within =
            hidden.iter().filter_map(|hidden| Some(hidden.strip_prefix(&mount.target).ok()?.to_owned()));
        let hidden: Vec<PathBuf> = within.collect();
        let rules = Rules { is_workspace, is_home, allow, further: &further, hidden: &hidden };
        let (over, protection) = Protection::prepare(folder, &mount.target, &rules)?;
        mounts.extend(over);
        protections.push(protection);
    }
    spec.mounts.extend(mounts);
    Ok(protections)
}

/// Returns denied paths by every name.
fn denied(paths: &[(PathBuf, bool)], spec: &Spec) -> anyhow::Result<Vec<Closed>> {
    let paths = paths.iter().map(|(path, is_folder)| closed(path, *is_folder)).collect();
    every_place(paths, "it is not to be written", spec)
}

/// Returns paths by every name. Refuses one on which there is a link that the command could replace.
fn every_place(paths: Vec<Closed>, why: &str, spec: &Spec) -> anyhow::Result<Vec<Closed>> {
    let found = paths.iter().find_map(|Closed { path, .. }| Some((path, hide::replaceable(path, spec)?)));
    if let Some((path, link)) = found {
        bail!(
            "{}: {why}, but {} is a symbolic link that the command could replace; name the path of what it leads to",
            path.display(),
            link.display()
        );
    }
    Ok(by_every_name(paths))
}

fn closed(path: &Path, is_folder: bool) -> Closed {
    let placeholder = if is_folder { Placeholder::Folder } else { Placeholder::File("") };
    Closed { path: path.to_owned(), placeholder }
}

/// Returns paths by every name.
fn by_every_name(paths: Vec<Closed>) -> Vec<Closed> {
    let names = |Closed { path, placeholder }| every_name(path).map(move |path| Closed { path, placeholder });
    paths.into_iter().flat_map(names).collect()
}

/// Returns what later commands of hutch read and believe: images, and the files and folders that the flags name.
fn read_by_later_runs(arguments: &RunArguments, workspace: &Workspace) -> Vec<Closed> {
    let absolute = |path: &Path| super::absolute(path).map(|path| super::below_root(&path)).ok();
    let named = arguments.policy.iter().chain(&arguments.settings).chain(&arguments.config);
    let files = named
        .filter(|file| file.is_file())
        .filter_map(|file| absolute(file))
        .map(|file| closed(&file, false));
    let layout = match Reference::parse(&arguments.image) {
        Ok(Reference::Layout(folder)) => Some(PathBuf::from(folder)),
        _ => None,
    };
    let roots = arguments.rootfs.iter().chain(&layout).filter(|folder| folder.is_dir());
    let roots = roots.filter_map(|folder| absolute(folder)).map(|folder| closed(&folder, true));
    let images = ImageFolders::of_user().ok().map(|images| images.folder().to_owned());
    // Root runs the command as the owner of the workspace, who may run hutch too.
    let owner = workspace.folder.as_ref().and_then(|folder| home_of(folder.metadata().ok()?.st_uid));
    let images = images.into_iter().chain(owner.map(|home| home.join(IMAGES)));
    let images = images.map(|folder| closed(&folder, true));
    files.chain(roots).chain(images).collect()
}

/// Returns the entries to protect of a home that is within a folder, or in which the folder is. For the home itself they are
/// among the fixed ones. A folder that is such an entry, or in one, was named to be written.
fn beside_home(home: &Path, folder: &Path) -> Vec<Closed> {
    if home == folder || !(home.starts_with(folder) || folder.starts_with(home)) {
        return Vec::new();
    }
    let entries = of_home().map(|(entry, placeholder)| Closed { path: home.join(entry), placeholder });
    entries.filter(|entry| entry.path.starts_with(folder) && entry.path != folder).collect()
}

/// Returns the homes of the caller and of the owner of a folder, without links.
fn homes(folder: &Path) -> Vec<PathBuf> {
    let caller = std::env::var_os("HOME").map(PathBuf::from);
    let owner = folder.metadata().ok().and_then(|found| home_of(found.uid()));
    let mut homes: Vec<PathBuf> =
        caller.into_iter().chain(owner).filter_map(|home| home.canonicalize().ok()).collect();
    homes.dedup();
    homes.retain(|home| home != Path::new("/"));
    homes
}

/// Returns the home of a user of this machine.
fn home_of(uid: u32) -> Option<PathBuf> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let found = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = found.filter(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid));
    let home = PathBuf::from(found.next()?.get(5)?);
    home.is_absolute().then_some(home)
}

/// Returns true if a folder is the home of the caller or of its owner, by any name.
pub(super) fn is_home(folder: &Path) -> bool {
    let found = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let this = found(folder);
    this.is_some() && homes(folder).iter().any(|home| found(home) == this)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_every_name_that_a_mount_can_have() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(folder.join("work/docs")).unwrap();
        std::os::unix::fs::symlink(folder.join("work"), folder.join("link")).unwrap();
        std::fs::write(folder.join("work/docs/a"), "").unwrap();
        let all =
            |path: PathBuf| by_every_name(vec![closed(&path, false)]).into_iter().map(|closed| closed.path);
        let names = |path: &str| -> Vec<String> {
            let beneath = |path: PathBuf| path.strip_prefix(&folder).unwrap().display().to_string();
            all(folder.join(path)).map(beneath).collect()
        };
        assert_eq!(names("work/docs/a"), ["work/docs/a"]);
        assert_eq!(names("link/docs/a"), ["link/docs/a", "work/docs/a"]);
        assert_eq!(names("link/missing/b"), ["link/missing/b", "work/missing/b"]);
        assert_eq!(names("missing"), ["missing"]);
        // Where the machine has a link right below its root, only what it leads to counts.
        if std::fs::read_link("/bin").is_ok_and(|target| target == Path::new("usr/bin")) {
            assert_eq!(all("/bin/x".into()).collect::<Vec<_>>(), [PathBuf::from("/usr/bin/x")]);
        }
    }

    #[test]
    fn entries_of_a_home_are_those_within_a_folder() {
        let within = |folder: &str| -> Vec<String> {
            let all = beside_home(Path::new("/home/u"), Path::new(folder)).into_iter();
            all.map(|closed| closed.path.display().to_string()).collect()
        };
        assert!(within("/home").contains(&"/home/u/.bashrc".to_owned()));
        assert_eq!(within("/home/u/.config/git"), ["/home/u/.config/git/config"]);
        for folder in ["/home/u", "/home/u/p", "/home/v", "/home/u/.ssh", "/home/u/.ssh/keys"] {
            assert_eq!(within(folder), [""; 0], "{folder}");
        }
        assert_eq!(home_of(0).as_deref(), Some(Path::new("/root")));
        assert_eq!(home_of(4_000_000_000), None);
    }
}
