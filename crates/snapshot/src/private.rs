//! Folders and files that only this process's user may use.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use hutch_image::PathSegment;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::Error;

/// Makes the folder with mode 0700, or checks that the existing one belongs to this user and that no other may use it.
pub(crate) fn folder(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(Error::folder("make", path))?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync(parent).map_err(Error::folder("write out", parent))?;
            }
        }
        Err(error) => return Err(Error::folder("read", path)(error)),
        Ok(_) => {}
    }
    let opened = open_folder(CWD, path).map_err(Error::folder("open", path))?;
    let found = rustix::fs::fstat(&opened).map_err(Error::folder("read", path))?;
    check(path, &found)?;
    match rustix::fs::fgetxattr(&opened, "system.posix_acl_default", &mut [0_u8; 1]) {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        _ => Err(Error::Unsafe {
            path: path.to_owned(),
            reason: "it has a default ACL, which new files would inherit: remove it with `setfacl -k`".into(),
        }),
    }
}

/// Checks that an existing folder or file belongs to this user and that no other may use it.
pub(crate) fn check(path: &Path, found: &Stat) -> Result<(), Error> {
    let refused = |reason| Err(Error::Unsafe { path: path.to_owned(), reason });
    let own = rustix::process::geteuid().as_raw();
    if found.st_uid != own {
        return refused(format!("it belongs to user {}, and must belong to user {own}", found.st_uid));
    }
    if found.st_mode & 0o077 != 0 {
        let mode = found.st_mode & 0o7777;
        return refused(format!(
            "its mode is {mode:04o}, and other users may have no rights: run `chmod go=`"
        ));
    }
    Ok(())
}

/// Opens a folder for reading; a link is refused.
pub(crate) fn open_folder(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Opens a regular file for reading; anything else is [`Errno::NOTSUP`]. Never blocks.
pub(crate) fn open_file(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<(File, Stat), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Errno::NOTSUP);
    }
    Ok((File::from(file), found))
}

/// Reads a regular file of at most so many bytes.
pub(crate) fn read(parent: impl AsFd, name: &PathSegment, maximum: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open_file(parent, name.as_str())?;
    let mut bytes = Vec::new();
    file.take(maximum + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > maximum {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Writes a new file with mode 0600. It may not be on the disk yet.
pub(crate) fn write(parent: impl AsFd, name: &PathSegment, bytes: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let mut file = File::from(rustix::fs::openat(parent, name.as_str(), flags, mode)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Writes the names in a folder to the disk.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Names in a folder, without `.` and `..`. Names that are not UTF-8 are refused, and so are more than the maximum.
pub(crate) fn names(folder: impl AsFd, maximum: usize) -> io::Result<Vec<PathSegment>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        let name = entry.file_name().to_str().ok().and_then(PathSegment::new);
        names.push(name.ok_or(ErrorKind::InvalidFilename)?);
        if names.len() > maximum {
            return Err(ErrorKind::ArgumentListTooLong.into());
        }
    }
    names.sort();
    Ok(names)
}
