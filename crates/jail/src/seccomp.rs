//! The system calls a process in a jail may make: an allow-list, answered by a filter in the kernel.
//!
//! What is known to be dangerous is answered with `EPERM`; what is not on the list at all with `ENOSYS`, so that a
//! C library which tries a newer call falls back to an older one. A call of another ABI (32-bit, x32) ends the
//! process, since its numbers mean something else.
//!
//! The program is assembled by the compiler. The kernel runs a new filter once for each system call number to
//! learn which it may always allow, so the length of the *path* through it is what an install costs: the numbers
//! are sorted into ranges and searched as a balanced tree. A filter stays for good and is inherited by every
//! process started later.

mod assemble;
mod table;

use crate::Error;

use assemble::Program;

/// The list as it stands.
static PLAIN: Program = Program::assemble(&table::answers(false));
/// The list that also keeps set-user-id and set-group-id bits from being set.
static WITHOUT_SET_ID: Program = Program::assemble(&table::answers(true));

/// Every call, less those that set set-user-id and set-group-id bits.
static AROUND_RUNTIME: Program = Program::assemble(&table::around_runtime());

/// System calls allowed to a service: see [`crate::service`].
static SERVICE: Program = Program::assemble(&table::service(false, true));
static CONNECTING_SERVICE: Program = Program::assemble(&table::service(true, true));
static SERVICE_WITHOUT_FOLDERS: Program = Program::assemble(&table::service(false, false));
static CONNECTING_WITHOUT_FOLDERS: Program = Program::assemble(&table::service(true, false));

/// Confines the calling thread, and the threads that it starts, to what a service needs, or one that connects to other
/// hosts, with folders to which it writes or without. Sets `no_new_privs`.
///
/// # Errors
/// [`Error::Seccomp`], as [`install`].
pub(crate) fn install_for_service(connects: bool, writes: bool) -> Result<(), Error> {
    let program = match (connects, writes) {
        (false, true) => &SERVICE,
        (true, true) => &CONNECTING_SERVICE,
        (false, false) => &SERVICE_WITHOUT_FOLDERS,
        (true, false) => &CONNECTING_WITHOUT_FOLDERS,
    };
    Program::no_new_privileges()
        .and_then(|()| program.install())
        .map_err(|error| Error::Seccomp { errno: error.into() })
}

/// Confines the calling thread, and all that it starts, to the system calls on the list; sets `no_new_privs`,
/// which a filter needs.
///
/// With `deny_set_id_bits`, no file can be created or changed so that it has a set-user-id or set-group-id bit
/// (`EPERM`), and `openat2`, whose mode a filter cannot see, is not there (`ENOSYS`).
///
/// # Errors
/// [`Error::Seccomp`] when the kernel has no seccomp filters or refuses this one.
pub(crate) fn install(deny_set_id_bits: bool) -> Result<(), Error> {
    let program = if deny_set_id_bits { &WITHOUT_SET_ID } else { &PLAIN };
    Program::no_new_privileges()
        .and_then(|()| program.install())
        .map_err(|error| Error::Seccomp { errno: error.into() })
}

/// Keeps a runtime such as gVisor's, and what it starts, from giving a file a set-user-id or set-group-id bit; all else
/// is allowed. Only for root: runsc starts helpers that `no_new_privs` would keep from their work.
///
/// # Errors
/// [`Error::Seccomp`], as [`install`].
pub(crate) fn install_around_runtime() -> Result<(), Error> {
    AROUND_RUNTIME.install().map_err(|error| Error::Seccomp { errno: error.into() })
}

#[cfg(test)]
mod tests;
