//! Errors, named for the step that failed.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An errno of the kernel, in a form that is sent between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Reason why a jail could not be created, or could not serve a request.
///
/// It crosses process borders (from the inside of a half-made jail to the caller), so it holds only plain data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Error {
    /// The description contradicts itself or breaks a bound.
    #[error("the description of the jail is not valid: {0}")]
    Spec(String),
    /// The launcher was called in a multithreaded program.
    #[error("a jail can only be launched from a single-threaded program")]
    Threads,
    /// The namespaces could not be created.
    #[error("cannot make namespaces: {errno}{}", namespace_hint(.errno))]
    Namespaces {
        /// Errno.
        errno: Errno,
    },
    /// The id map could not be written.
    #[error("cannot map user and group ids ({step}): {errno}")]
    IdMap {
        /// File or system call.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// A file or folder of the host, named as the source of a mount, could not be opened.
    #[error("cannot use {}: {errno}{}", .path.display(), source_hint(.errno))]
    Source {
        /// Path on the host.
        path: PathBuf,
        /// Errno.
        errno: Errno,
    },
    /// The file system of a writable source does not support id mapping, so files would change their owner.
    #[error("the file system of {} cannot map ids (idmapped mounts), so it cannot be writable inside: {errno}", .path.display())]
    IdMappedMount {
        /// Path on the host.
        path: PathBuf,
        /// Errno.
        errno: Errno,
    },
    /// A mount inside failed.
    #[error("cannot mount {} inside ({step}): {errno}", .target.display())]
    Mount {
        /// Path inside.
        target: PathBuf,
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// A rule for files cannot be enforced.
    #[error("{rule}: {reason}")]
    FileRule {
        /// Name of the rule.
        rule: String,
        /// Reason.
        reason: String,
    },
    /// The kernel makes no writable copy of a folder, for example because there are overlays below it already.
    #[error("no writable copy of {} can be made here: {errno}", .folder.display())]
    NoCopy {
        /// Path of the folder outside.
        folder: PathBuf,
        /// Errno.
        errno: Errno,
    },
    /// The root file system could not be built or entered.
    #[error("cannot build the root file system ({step}): {errno}")]
    Root {
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// The network inside could not be set up.
    #[error("cannot set up the network inside ({step}): {errno}")]
    Network {
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// An invariant of every jail is violated. The jail was killed before anything ran in it.
    #[error("the jail was refused, because it is not as it has to be: {what}; found: {found}")]
    Invariant {
        /// Expected state.
        what: Cow<'static, str>,
        /// Actual state.
        found: String,
    },
    /// A privilege could not be dropped.
    #[error("cannot give up privileges ({step}): {errno}")]
    Privileges {
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// Landlock is supported but refused the rules.
    #[error("cannot apply Landlock ({step}): {reason}")]
    Landlock {
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Reason.
        reason: String,
    },
    /// The seccomp filter could not be installed.
    #[error("cannot install the system call filter: {errno}")]
    Seccomp {
        /// Errno.
        errno: Errno,
    },
    /// A cgroup file or folder could not be written, read or created.
    #[error("cannot use the control group {} ({step}): {errno}", .path.display())]
    Cgroup {
        /// File or folder.
        path: PathBuf,
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// A requested limit cannot be enforced here.
    #[error("the {limit} limit cannot be enforced here: {reason}")]
    LimitRefused {
        /// `cpu`, `memory` or `pids`.
        limit: Cow<'static, str>,
        /// Reason, and remedy.
        reason: String,
    },
    /// The jail has no cgroup, so its resource usage is unknown.
    #[error("the jail has no control group")]
    NoGroup,
    /// Memory of a jail with a memory limit cannot be written to swap without exceeding that limit.
    #[error("swap does not count in the memory limit on this machine: its kernel runs with swapaccount=0")]
    SwapUncounted,
    /// A system call between processes of this project failed.
    #[error("cannot talk between the processes of a jail ({step}): {errno}")]
    Channel {
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// A message exceeded its bound or was malformed.
    #[error("a message to or from a jail was refused: {0}")]
    Message(String),
    /// The warden program could not be started.
    #[error("cannot start the warden {}: {errno}", .program.display())]
    WardenStart {
        /// Path of the program.
        program: PathBuf,
        /// Reason.
        errno: Errno,
    },
    /// The warden has exited, and all its jails with it.
    #[error("the warden has ended")]
    WardenEnded,
    /// The init of the jail exited before the jail was ready.
    #[error("the jail ended while it was being made")]
    EndedEarly,
    /// The command of `run` could not be executed.
    #[error("cannot run {program}: {reason}")]
    NotStarted {
        /// Program as given in the request.
        program: String,
        /// Errno.
        errno: Errno,
        /// Message text.
        reason: String,
    },
    /// The caller's standard input is a folder, through which its parent folders could be reached.
    #[error("{name} is a folder: redirect it from a file, a pipe or /dev/null")]
    StreamIsFolder {
        /// `standard input`, `standard output` or `standard error`.
        name: Cow<'static, str>,
    },
    /// A standard stream of the caller could not be used.
    #[error("cannot use {name}: {errno}")]
    Stream {
        /// `standard input`, `standard output` or `standard error`.
        name: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
    /// The jail accepts no request at the moment.
    #[error("the jail takes no request at the moment: too many wait already")]
    Busy,
    /// No range of ids is free, or the lock file that keeps ranges apart is unusable.
    #[error("cannot give the jail ids of its own ({step}): {reason}")]
    IdRange {
        /// File, or operation that failed.
        step: String,
        /// Reason.
        reason: String,
    },
    /// The terminal could not be set up.
    #[error("cannot set up the terminal ({step}): {errno}")]
    Terminal {
        /// Operation that failed.
        step: Cow<'static, str>,
        /// Errno.
        errno: Errno,
    },
}

fn namespace_hint(errno: &Errno) -> &'static str {
    match errno.0 {
        libc::EPERM | libc::EACCES => {
            "; this user may not make user namespaces (see kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns), or a surrounding container forbids it"
        }
        libc::ENOSPC => "; the limit in /proc/sys/user/max_*_namespaces is reached",
        libc::EINVAL => "; the kernel lacks one of the namespaces",
        _ => "",
    }
}

fn source_hint(errno: &Errno) -> &'static str {
    match errno.0 {
        libc::ENOENT => "; it does not exist",
        _ => "",
    }
}
