//! Giving up privileges: what init keeps, and what it starts never has.

use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::capabilities::Capabilities;
use crate::error::Error;

/// Highest capability number that any kernel may know.
const MAX_CAPABILITY: u32 = 63;

fn failed(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Privileges { step: step.into(), errno: errno.into() }
}

/// Capabilities that init uses: to become another user of the jail, and to signal one.
const USED: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// Secure bits by which user 0 is a user like any other: for what has no capabilities.
const ORDINARY: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(NO_AMBIENT);

/// Secure bits where user 0 has capabilities. It loses them with its id, as usual.
const NO_AMBIENT: CapabilitiesSecureBits =
    CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE.union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Capability sets of init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfInit {
    pub(crate) effective: u64,
    pub(crate) permitted: u64,
    pub(crate) bounding: u64,
}

impl OfInit {
    /// Returns those of the init of a jail that gives `granted` to user 0.
    ///
    /// Where it gives any, init also has `CAP_SETPCAP`, which no process that it starts has. So the kernel lets none of
    /// them look into init, which takes all of its capabilities, and processes of other users lose the bounding set.
    pub(crate) fn planned(granted: Capabilities) -> OfInit {
        let (effective, bounding) = (USED.bits(), granted.bits());
        let more = if granted.is_empty() { 0 } else { CapabilitySet::SETPCAP.bits() };
        OfInit { effective, permitted: effective | bounding | more, bounding }
    }
}

/// Leaves init with nothing but the right to become another user of the jail and to signal processes of other users
/// of the jail: it must start processes as any of them, and end them, at any time. These rights hold in the
/// jail's own user namespace alone, init runs no code but ours and cannot be traced from inside, and what it starts
/// drops them before `execve` and cannot regain them. It also keeps what it gives, unused: see [`OfInit`].
pub(crate) fn give_up(granted: Capabilities) -> Result<(), Error> {
    bound(granted.set()).map_err(failed("bounding set"))?;
    let bits = if granted.is_empty() { ORDINARY } else { NO_AMBIENT };
    rustix::thread::set_capabilities_secure_bits(bits).map_err(failed("secure bits"))?;
    let OfInit { effective, permitted, .. } = OfInit::planned(granted);
    let [effective, permitted] = [effective, permitted].map(CapabilitySet::from_bits_retain);
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed("capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))
}

/// Leaves a process that init has made with what it needs to become this user of a jail that gives `granted` to user 0.
/// It allocates nothing, like [`leave_to_user`].
pub(crate) fn leave_to_become(uid: u32, granted: Capabilities) -> Result<(), Errno> {
    if granted.is_empty() || uid == 0 {
        return Ok(());
    }
    set_exactly(USED.union(CapabilitySet::SETPCAP))?;
    bound(CapabilitySet::empty())?;
    rustix::thread::set_capabilities_secure_bits(ORDINARY)
}

/// Leaves a process that init has made, and that has become this user, with the capabilities of the user.
pub(crate) fn leave_to_user(uid: u32, granted: Capabilities) -> Result<(), Errno> {
    set_exactly(if uid == 0 { granted.set() } else { CapabilitySet::empty() })
}

/// Leaves no capability that a program could regain.
pub(crate) fn clear_bounding_set() -> Result<(), Error> {
    bound(CapabilitySet::empty()).map_err(failed("bounding set"))
}

/// Leaves these in the bounding set, and none in the ambient set.
fn bound(kept: CapabilitySet) -> Result<(), Errno> {
    let all = (0..=MAX_CAPABILITY).map(|number| CapabilitySet::from_bits_retain(1 << number));
    for capability in all.filter(|capability| !kept.contains(*capability)) {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // the last one was the last
            Err(errno) => return Err(errno),
        }
    }
    rustix::thread::clear_ambient_capability_set()
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
