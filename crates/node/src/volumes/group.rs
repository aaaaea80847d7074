//! Gives volumes to the group that `fsGroup` names, as a kubelet does.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, chmodat, chownat, fstat, openat, openat2,
};
use rustix::io::Errno;

use super::open_folder;
use crate::security::Owner;
use crate::walks::{Walk, too_large};

/// Rights of the group to files and folders that only the node writes.
const FILE: u32 = 0o440;
const FOLDER: u32 = 0o2550;

/// Rights of the group to files and folders that containers write.
const WRITTEN_FILE: u32 = 0o660;
const WRITTEN_FOLDER: u32 = 0o2770;
/// Maximum entries of a volume that is given to a group.
const MAX_ENTRIES: usize = 1_000_000;
/// Maximum depth of its folders. A descriptor is open for each level.
const MAX_DEPTH: usize = 128;

/// Gives a folder that containers write to a group, with all that is in it.
///
/// Containers may change the folder meanwhile, so each entry is opened by its name in an open folder, without following links
/// or entering other mounts, and changed by its descriptor. The top comes last: until then it does not match.
pub(super) fn give(path: &Path, owner: Owner, walk: &Walk) -> io::Result<()> {
    let top = open_folder(path)?;
    let found = fstat(&top)?;
    let group = owner.group;
    if owner.on_root_mismatch && found.st_gid == group && found.st_mode & WRITTEN_FOLDER == WRITTEN_FOLDER {
        return Ok(());
    }
    give_entries(&top, group, MAX_ENTRIES, walk)?;
    give_one(&top, group)
}

fn give_entries(top: &OwnedFd, group: u32, mut left: usize, walk: &Walk) -> io::Result<()> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let mut folders = vec![Dir::read_from(top)?];
    while let Some(folder) = folders.last_mut() {
        let Some(entry) = folder.next() else {
            folders.pop();
            continue;
        };
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        walk.check()?;
        left = left.checked_sub(1).ok_or_else(|| too_much(format!("more than {MAX_ENTRIES} files")))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = match openat2(folder.fd()?, entry.file_name(), flags, Mode::empty(), within) {
            Ok(held) => held,
            // A container has removed it meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if FileType::from_raw_mode(fstat(&held)?.st_mode) == FileType::Directory {
            if folders.len() == MAX_DEPTH {
                return Err(too_much(format!("more than {MAX_DEPTH} levels of folders")));
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            folders.push(Dir::new(openat(&held, c".", flags, Mode::empty())?)?);
        }
        match give_one(&held, group) {
            // A full volume must not keep its Pod from starting.
            Err(error)
                if error.kind() == io::ErrorKind::QuotaExceeded
                    || error.kind() == io::ErrorKind::StorageFull => {}
            given => given?,
        }
    }
    Ok(())
}

fn too_much(what: String) -> io::Error {
    too_large(format!(
        "{what}, too much for spec.securityContext.fsGroup: leave it out or remove files, then create the pod again"
    ))
}

/// Gives what is open to a group.
fn give_one(held: &OwnedFd, group: u32) -> io::Result<()> {
    let found = fstat(held)?;
    if found.st_gid != group {
        chownat(held, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    let mode = match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => return Ok(()),
        FileType::Directory => found.st_mode & 0o7777 | WRITTEN_FOLDER,
        // As by any change of the owner, no bit is left that gives an identity.
        _ => found.st_mode & 0o1777 | WRITTEN_FILE,
    };
    if found.st_mode & 0o7777 != mode {
        // The link leads to exactly what is open.
        let held = format!("/proc/self/fd/{}", held.as_raw_fd());
        chmodat(CWD, held, Mode::from_raw_mode(mode), AtFlags::empty())?;
    }
    Ok(())
}

/// Gives a folder that only the node writes to a group that may read it, with all that is in it.
pub(super) fn let_read(path: &Path, group: u32) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    let more = if found.is_dir() { FOLDER } else { FILE };
    let mode = found.permissions().mode() & 0o7777 | more;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    if !found.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let_read(&entry?.path(), group)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::walks::tests::walk;
    use crate::walks::{Permits, Walks};

    #[test]
    fn group_reads_what_the_node_has_written() {
        hutch_testkit::require!(root);
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("v");
        std::fs::create_dir_all(volume.join("deep")).unwrap();
        for (name, mode) in [("a", 0o400), ("deep/b", 0o644)] {
            std::fs::write(volume.join(name), "").unwrap();
            std::fs::set_permissions(volume.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let_read(&volume, 77).unwrap();
        for (name, mode) in [("", 0o2755), ("a", 0o440), ("deep", 0o2755), ("deep/b", 0o644)] {
            let found = volume.join(name).metadata().unwrap();
            assert_eq!((found.gid(), found.mode() & 0o7777), (77, mode), "{name:?}");
        }
    }

    #[test]
    fn group_gets_everything_in_a_volume_but_what_links_lead_to() {
        hutch_testkit::require!(root);
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let volume = folder.path().join("v");
        std::fs::create_dir_all(volume.join("deep/er")).unwrap();
        std::fs::write(outside.path().join("secret"), "").unwrap();
        for (name, mode) in [("a", 0o600), ("deep/b", 0o4755)] {
            std::fs::write(volume.join(name), "").unwrap();
            std::fs::set_permissions(volume.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        for (target, link) in
            [(outside.path().join("secret"), "file"), (outside.path().into(), "deep/folder")]
        {
            std::os::unix::fs::symlink(target, volume.join(link)).unwrap();
        }
        rustix::fs::mknodat(CWD, volume.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        give(&volume, Owner { group: 77, on_root_mismatch: false }, &walk()).unwrap();
        let found = |path: &Path| {
            let found = path.symlink_metadata().unwrap();
            (found.gid(), found.mode() & 0o7777)
        };
        for (name, mode) in [
            ("", 0o2775),
            ("a", 0o660),
            ("deep", 0o2775),
            ("deep/er", 0o2775),
            ("deep/b", 0o775),
            ("fifo", 0o660),
        ] {
            assert_eq!(found(&volume.join(name)), (77, mode), "{name:?}");
        }
        assert_eq!(found(&volume.join("file")).0, 77, "the link itself");
        assert_eq!(found(&outside.path().join("secret")), (0, 0o644));
        assert_eq!(found(outside.path()).0, 0);
    }

    #[test]
    fn on_root_mismatch_leaves_a_volume_that_matches() {
        hutch_testkit::require!(root);
        let folder = tempfile::tempdir().unwrap();
        give(folder.path(), Owner { group: 77, on_root_mismatch: true }, &walk()).unwrap();
        std::fs::write(folder.path().join("later"), "").unwrap();
        lchown(folder.path().join("later"), None, Some(0)).unwrap();
        let group = || folder.path().join("later").metadata().unwrap().gid();
        give(folder.path(), Owner { group: 77, on_root_mismatch: true }, &walk()).unwrap();
        assert_eq!(group(), 0);
        give(folder.path(), Owner { group: 77, on_root_mismatch: false }, &walk()).unwrap();
        assert_eq!(group(), 77);
    }

    #[tokio::test]
    async fn walk_ends_with_its_pod_and_the_top_stays() {
        hutch_testkit::require!(root);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "").unwrap();
        let walks = Walks::default();
        let walk = walks.begin(&Permits::default(), "a", || false).await.unwrap();
        walks.cancel();
        let error = give(folder.path(), Owner { group: 77, on_root_mismatch: false }, &walk).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        assert_eq!(folder.path().join("a").metadata().unwrap().gid(), 0);
        assert_eq!(folder.path().metadata().unwrap().gid(), 0);
    }

    #[test]
    fn volume_beyond_the_bounds_is_refused_and_its_top_stays() {
        hutch_testkit::require!(root);
        let folder = tempfile::tempdir().unwrap();
        let mut deep = folder.path().to_owned();
        for _ in 0..MAX_DEPTH {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();
        let error = give(folder.path(), Owner { group: 77, on_root_mismatch: false }, &walk()).unwrap_err();
        assert!(error.to_string().contains("128 levels"), "{error}");
        // Its top does not match, so this policy would not help.
        assert!(!error.to_string().contains("OnRootMismatch"), "{error}");
        assert_eq!(folder.path().metadata().unwrap().gid(), 0);
        let top = open_folder(folder.path()).unwrap();
        assert!(give_entries(&top, 77, 3, &walk()).unwrap_err().to_string().contains("files"));
    }
}
