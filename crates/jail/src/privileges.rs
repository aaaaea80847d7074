//! Giving up privileges: what init keeps, and what it starts never has.

use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::error::Error;

/// Highest capability number that any kernel may know.
const MAX_CAPABILITY: u32 = 63;

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Privileges { step: step.into(), errno: errno.into() }
}

/// Leaves init with nothing but the right to become another user of the jail and to signal processes of other users
/// of the jail: it must start processes as any of them, and end them, at any time. These rights hold in the
/// jail's own user namespace alone, init runs no code but ours and cannot be traced from inside, and what it starts
/// drops them before `execve` and cannot regain them.
pub(crate) fn give_up() -> Result<(), Error> {
    clear_bounding_set()?;
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits).map_err(failed("secure bits"))?;
    set_exactly(CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL)
        .map_err(failed("capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))
}

/// Leaves no capability that a program could regain.
pub(crate) fn clear_bounding_set() -> Result<(), Error> {
    for number in 0..=MAX_CAPABILITY {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << number,
        )) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // the last one was the last
            Err(errno) => return Err(failed("bounding set")(errno)),
        }
    }
    rustix::thread::clear_ambient_capability_set().map_err(failed("ambient set"))
}

/// Makes `kept` the effective and permitted capabilities; clears the inheritable ones.
pub(crate) fn set_exactly(kept: CapabilitySet) -> Result<(), Errno> {
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

/// Signals that may wait in queues at a time, for each user inside. The default grows with the machine's memory.
const QUEUED_SIGNALS: u64 = 4096;
/// Bytes of POSIX message queues, for each user inside: three queues of the default size.
const MESSAGE_QUEUE_BYTES: u64 = 256 << 10;

/// No core files and no core-dump handlers of the host; no real-time priorities, no raised priority; little memory of
/// the kernel in queues.
///
/// A core size of exactly 1 is what stops the kernel from starting a handler named in `core_pattern`, which would
/// run outside with all rights. The system call filter keeps it from being set inside.
pub(crate) fn limit_resources() -> Result<(), Error> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limits = [
        (Resource::Core, 1),
        (Resource::Rtprio, 0),
        (Resource::Nice, 0),
        (Resource::Sigpending, QUEUED_SIGNALS),
        (Resource::Msgqueue, MESSAGE_QUEUE_BYTES),
    ];
    for (resource, value) in limits {
        // One can only lower what the caller has.
        let value = getrlimit(resource).maximum.map_or(value, |maximum| maximum.min(value));
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(resource, limit).map_err(failed("resource limits"))?;
    }
    Ok(())
}
