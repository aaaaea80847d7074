//! Makes and opens folders that containers write or read.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use hutch_image::remove_tree;
use hutch_jail::quota;
use rustix::fs::{Mode, OFlags};

/// Mode of a folder until it has its own. A folder with this mode was left unfinished by a process that was killed.
const UNFINISHED: u32 = 0o1700;

/// Makes a folder with this mode below folders of mode 0700; one that is there already stays as it is. Where the file system has
/// quotas, it holds at most `bytes`.
pub(crate) fn make_folder(path: &Path, mode: u32, bytes: Option<u64>) -> io::Result<()> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    let made = match bytes {
        Some(bytes) => {
            let name = CString::new(name.as_encoded_bytes())?;
            quota::make_folder(open_folder(parent)?, &name, bytes).map_err(io::Error::from)
        }
        None => Ok(false),
    };
    let made = made.and_then(|made| match made {
        true => Ok(()),
        false => std::fs::DirBuilder::new().mode(UNFINISHED).create(path),
    });
    match made {
        // Separately, because the process's mask takes bits away on creation.
        Ok(()) => rustix::fs::fchmod(open_folder(path)?, Mode::from_raw_mode(mode))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let folder = open_folder(path)?;
            bytes.map(|bytes| quota::set(&folder, bytes)).transpose()?;
            if rustix::fs::fstat(&folder)?.st_mode & 0o7777 == UNFINISHED {
                rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode))?;
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Makes the folder of a persistent volume, which holds at most `bytes` where the file system has quotas. One that is there
/// already stays. Blocks.
///
/// # Errors
/// When it cannot be made, or is no folder.
pub fn make_volume(path: &Path, bytes: Option<u64>) -> io::Result<()> {
    make_folder(path, 0o777, bytes)
}

/// Makes the folder of the root of a container, which holds at most `bytes` where the file system has quotas. Blocks.
pub(crate) fn make_root(path: &Path, bytes: Option<u64>) -> io::Result<()> {
    make_folder(path, 0o755, bytes)
}

/// Opens a folder that is no link.
pub(crate) fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Writes a file, readable for this user only, as a whole or not at all, to the disk. `new` is its name until it is complete.
/// Blocks.
pub(crate) fn write_durable(file: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    let mut opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new)?;
    opened.write_all(content)?;
    opened.sync_all()?;
    std::fs::rename(new, file)?;
    sync(file.parent().ok_or(io::ErrorKind::InvalidInput)?)
}

/// Writes the names in a folder to the disk. Blocks.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes a folder with everything below it, whatever its limit. Blocks.
pub(crate) fn remove_limited(path: &Path) -> io::Result<()> {
    lift_limit(path);
    remove_tree(path)
}

/// Lifts the limits of the folders in a folder, before all of them are removed. Blocks.
pub(crate) fn lift_limits(parent: &Path) {
    for folder in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        lift_limit(&folder.path());
    }
}

/// Lifts the limit of a folder. At its limit nothing in it can be renamed, as removing it needs.
fn lift_limit(path: &Path) {
    // Removing it reports what cannot be done.
    let _ = open_folder(path).map(|folder| quota::set(folder, u64::MAX));
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folder_of_a_killed_process_gets_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let mode = || path.metadata().unwrap().permissions().mode() & 0o7777;
        std::fs::DirBuilder::new().mode(UNFINISHED).create(&path).unwrap();
        make_folder(&path, 0o777, None).unwrap();
        assert_eq!(mode(), 0o777);
        // What a container has set stays.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        make_folder(&path, 0o777, None).unwrap();
        assert_eq!(mode(), 0o700);
    }
}
