//! Landlock: a second wall, inside the first. If a mount were writable by mistake, a write to it would still be
//! refused; if a way to mount were found, it would still be closed.
//!
//! Reading and executing are left alone: what is visible in a jail may be read. Three system calls by hand; the
//! program that runs as init of every jail stays smaller so than with a library.

use std::ffi::CString;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::Error;

/// The first version under which files can be renamed from one folder to another.
const OLDEST_ABI: u32 = 2;
/// The first version with scopes.
const SCOPES_ABI: u32 = 6;

const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
/// Reading files, and listing folders.
const READ: u64 = READ_FILE | (1 << 3);
/// Removing, and making each kind of file.
const CHANGE_FOLDER: u64 = 0b1_1111_1111 << 4;
/// Renaming and linking to another folder (version 2).
const REFER: u64 = 1 << 13;
/// Truncating (version 3).
const TRUNCATE: u64 = 1 << 14;

/// TCP, from version 4 on.
const BIND_TCP: u64 = 1 << 0;
const CONNECT_TCP: u64 = 1 << 1;

const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
const SCOPE_SIGNAL: u64 = 1 << 1;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

#[repr(C)]
struct Ruleset {
    files: u64,
    net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// The version of Landlock that the kernel has, if it is built in and switched on.
pub fn abi() -> Option<u32> {
    // SAFETY: requests the version; no memory is read.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Ruleset>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Returns `true` when [`restrict`] keeps signals and abstract sockets inside.
pub(crate) fn has_scopes() -> bool {
    abi().is_some_and(|abi| abi >= SCOPES_ABI)
}

/// Confines the calling thread and all that it starts: nothing is written, made, removed or renamed except beneath
/// the paths of `writable` (folders or files, as the caller sees them; `/dev` and `/proc` too must be named where
/// their files are to be written); no mount is changed; signals and abstract sockets reach only processes confined
/// by the same call. `no_new_privs` must be set, unless the caller may administer its user namespace.
///
/// Gives `false`, and does nothing, where the kernel has no Landlock, or only its first version, under which no file
/// could be renamed from one folder to another.
///
/// # Errors
/// [`Error::Landlock`] when a path cannot be opened or the kernel refuses.
pub fn restrict(writable: &[&Path]) -> Result<bool, Error> {
    let Some(abi) = abi().filter(|abi| *abi >= OLDEST_ABI) else { return Ok(false) };
    let handled = WRITE_FILE | CHANGE_FOLDER | REFER | if abi >= 3 { TRUNCATE } else { 0 };
    let scoped = if abi >= SCOPES_ABI { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
    let ruleset = create(&Ruleset { files: handled, net: 0, scoped }, abi)
        .map_err(|errno| failed("create the rule set", errno))?;
    for path in writable {
        allow(ruleset.as_fd(), path, handled)?;
    }
    enforce(&ruleset)
}

/// Confines the calling thread and all that it starts, as [`restrict`], and besides: nothing is read or executed but
/// beneath `writable`, and read beneath `readable`; no TCP socket is bound, nor connected without `connects` (version 4).
///
/// Returns `false`, and does nothing, where [`restrict`] does.
///
/// # Errors
/// As [`restrict`].
pub(crate) fn restrict_service(
    writable: &[&Path],
    readable: &[&Path],
    connects: bool,
) -> Result<bool, Error> {
    let Some(abi) = abi().filter(|abi| *abi >= OLDEST_ABI) else { return Ok(false) };
    let writes = WRITE_FILE | CHANGE_FOLDER | REFER | if abi >= 3 { TRUNCATE } else { 0 };
    let net = match abi {
        ..4 => 0,
        _ if connects => BIND_TCP,
        _ => BIND_TCP | CONNECT_TCP,
    };
    let scoped = if abi >= SCOPES_ABI { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
    let ruleset = create(&Ruleset { files: writes | READ | EXECUTE, net, scoped }, abi)
        .map_err(|errno| failed("create the rule set", errno))?;
    for path in writable {
        allow(ruleset.as_fd(), path, writes | READ)?;
    }
    for path in readable {
        allow(ruleset.as_fd(), path, READ)?;
    }
    enforce(&ruleset)
}

fn enforce(ruleset: &OwnedFd) -> Result<bool, Error> {
    // SAFETY: a descriptor and a number.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) })
        .map_err(|errno| failed("restrict", errno))?;
    Ok(true)
}

fn create(ruleset: &Ruleset, abi: u32) -> Result<OwnedFd, Errno> {
    // Older kernels refuse a longer description, even when the rest of it is zero for them to understand.
    let size = match abi {
        ..4 => size_of::<u64>(),
        4..SCOPES_ABI => 2 * size_of::<u64>(),
        _ => size_of::<Ruleset>(),
    };
    // SAFETY: `size` is at most the size of what is pointed at.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::from_ref(ruleset), size, 0_u32)
    })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn allow(ruleset: BorrowedFd<'_>, path: &Path, handled: u64) -> Result<(), Error> {
    let step = || format!("allow writes beneath {}", path.display());
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(&step(), Errno::INVAL))?;
    let file = rustix::fs::open(&*name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| failed(&step(), errno))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| failed(&step(), errno))?;
    let folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    // The kernel refuses rights of folders on a file.
    let allowed = if folder { handled } else { handled & (WRITE_FILE | TRUNCATE | READ_FILE) };
    let rule = PathBeneath { allowed, parent: file.as_raw_fd() };
    // SAFETY: the rule is of the kind that is named and lives until the call returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0_u32,
        )
    })
    .map_err(|errno| failed(&step(), errno))?;
    Ok(())
}

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn failed(step: &str, errno: Errno) -> Error {
    Error::Landlock { step: step.to_owned().into(), reason: std::io::Error::from(errno).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own, since a restriction is for good; a thread is confined by itself.
    #[test]
    fn writes_are_refused_except_beneath_what_is_named() {
        if abi().is_none_or(|abi| abi < OLDEST_ABI) {
            hutch_testkit::note_skip("landlock", "needs Landlock");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
        for folder in [&inside, &outside] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("old"), "content").unwrap();
        }
        std::fs::create_dir(inside.join("deep")).unwrap();
        let single = folder.path().join("single");
        std::fs::write(&single, "").unwrap();
        std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            assert!(restrict(&[&inside, &single]).unwrap());
            std::fs::write(inside.join("new"), "x").unwrap();
            std::fs::rename(inside.join("new"), inside.join("deep/new")).unwrap();
            std::fs::remove_file(inside.join("deep/new")).unwrap();
            std::fs::write(&single, "x").unwrap();

            let denied = |result: std::io::Result<()>| {
                let kind = result.map_err(|error| error.kind());
                assert!(
                    matches!(
                        kind,
                        Err(std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::CrossesDevices)
                    ),
                    "{kind:?}"
                );
            };
            assert_eq!(std::fs::read_to_string(outside.join("old")).unwrap(), "content");
            denied(std::fs::write(outside.join("old"), "x"));
            denied(std::fs::write(outside.join("new"), "x"));
            denied(std::fs::remove_file(outside.join("old")));
            denied(std::fs::create_dir(outside.join("folder")));
            denied(std::fs::rename(inside.join("old"), outside.join("moved")));
            assert_eq!(rustix::process::test_kill_process(rustix::process::Pid::INIT), Err(Errno::PERM));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_path_that_is_not_there_is_named() {
        if abi().is_none_or(|abi| abi < OLDEST_ABI) {
            hutch_testkit::note_skip("landlock", "needs Landlock");
            return;
        }
        let error = restrict(&[Path::new("/no/such/folder")]).unwrap_err().to_string();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}
