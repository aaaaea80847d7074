//! What went wrong, named for the step that failed.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An error number of the kernel, in a form that travels between processes.
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

/// Why a jail could not be made, or could not do what was asked.
///
/// It crosses process borders (from the inside of a half-made jail to the caller), so it holds only plain data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Error {
    /// The description contradicts itself or breaks a bound.
    #[error("the description of the jail is not valid: {0}")]
    Spec(String),
    /// The launcher was called in a program that has more than one thread.
    #[error("a jail can only be launched from a single-threaded program")]
    Threads,
    /// The namespaces could not be made.
    #[error("cannot make namespaces: {errno}{}", namespace_hint(.errno))]
    Namespaces {
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// The id map could not be written.
    #[error("cannot map user and group ids ({step}): {errno}")]
    IdMap {
        /// File or call.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// A file or folder of the host, named as the source of a mount, could not be had.
    #[error("cannot use {}: {errno}{}", .path.display(), source_hint(.errno))]
    Source {
        /// Path outside.
        path: PathBuf,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// The file system of a writable source cannot map ids, so files would change their owner.
    #[error("the file system of {} cannot map ids (idmapped mounts), so it cannot be writable inside: {errno}", .path.display())]
    IdMappedMount {
        /// Path outside.
        path: PathBuf,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// A mount inside failed.
    #[error("cannot mount {} inside ({step}): {errno}", .target.display())]
    Mount {
        /// Path inside.
        target: PathBuf,
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// The root file system could not be built or entered.
    #[error("cannot build the root file system ({step}): {errno}")]
    Root {
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// The network inside could not be set up.
    #[error("cannot set up the network inside ({step}): {errno}")]
    Network {
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// Something that must hold in every jail does not. The jail was ended before anything ran in it.
    #[error("the jail was refused, because it is not as it has to be: {what}; found: {found}")]
    Invariant {
        /// What must hold.
        what: Cow<'static, str>,
        /// What was found.
        found: String,
    },
    /// A privilege could not be given up.
    #[error("cannot give up privileges ({step}): {errno}")]
    Privileges {
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// Landlock is there but refused the rules.
    #[error("cannot apply Landlock ({step}): {reason}")]
    Landlock {
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason.
        reason: String,
    },
    /// The system call filter could not be installed.
    #[error("cannot install the system call filter: {errno}")]
    Seccomp {
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// A cgroup file or folder could not be written, read or made.
    #[error("cannot use the control group {} ({step}): {errno}", .path.display())]
    Cgroup {
        /// File or folder.
        path: PathBuf,
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// A limit was asked for that cannot be enforced here.
    #[error("the {limit} limit cannot be enforced here: {reason}")]
    LimitRefused {
        /// `cpu`, `memory` or `pids`.
        limit: Cow<'static, str>,
        /// Why, and what would help.
        reason: String,
    },
    /// The jail has no cgroup, so its use cannot be told.
    #[error("the jail has no control group")]
    NoGroup,
    /// A system call between processes of our own failed.
    #[error("cannot talk between the processes of a jail ({step}): {errno}")]
    Channel {
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// A message exceeded its bound or made no sense.
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
    /// The warden is gone; so are all its jails.
    #[error("the warden has ended")]
    WardenEnded,
    /// The init of the jail ended before the jail was ready.
    #[error("the jail ended while it was being made")]
    EndedEarly,
    /// The command of `run` could not be executed.
    #[error("cannot run {program}: {reason}")]
    NotStarted {
        /// As it was named.
        program: String,
        /// Reason given by the kernel.
        errno: Errno,
        /// In words.
        reason: String,
    },
    /// The caller's standard input is a folder, through which the folders above it could be reached.
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
        /// Reason given by the kernel.
        errno: Errno,
    },
    /// The jail takes no request at the moment.
    #[error("the jail takes no request at the moment: too many wait already")]
    Busy,
    /// No range of ids is free, or what keeps them apart cannot be used.
    #[error("cannot give the jail ids of its own ({step}): {reason}")]
    IdRange {
        /// File, or what was being done.
        step: String,
        /// Reason.
        reason: String,
    },
    /// The terminal could not be set up.
    #[error("cannot set up the terminal ({step}): {errno}")]
    Terminal {
        /// What was being done.
        step: Cow<'static, str>,
        /// Reason given by the kernel.
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
