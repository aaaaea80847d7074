//! Invariants of a jail before its first instruction. A jail in which something else is found is refused, whatever
//! the reason: each of these has been wrong once somewhere, and none of it shows by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{OwnedFd, RawFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::capabilities::Capabilities;
use crate::error::Error;
use crate::privileges::OfInit;
use crate::{dev, proc};

/// Longest file of `/proc` that is read, in bytes: a line for each of at most 240 mounts and what comes with them.
const MAX_FILE: usize = 1 << 20;

/// A mount that the description of the jail names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    /// Its number, as the kernel gave it when it was made.
    pub(crate) id: u64,
    pub(crate) read_only: bool,
    /// `true` when submounts come along: the kernel lets no ordinary user uncover what lies under a mount.
    pub(crate) with_submounts: bool,
}

fn broken(what: &'static str, found: impl std::fmt::Display) -> Error {
    Error::Invariant { what: what.into(), found: found.to_string() }
}

/// The number of the mount that a path or descriptor is on.
pub(crate) fn mount_id(at: impl std::os::fd::AsFd, path: &str) -> Result<u64, Errno> {
    statx(at, path, AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map(|found| found.stx_mnt_id)
}

/// Expected state of a jail.
pub(crate) struct Expected<'a> {
    /// The mount of the root.
    pub(crate) root: Planned,
    pub(crate) mounts: Vec<Planned>,
    /// Descriptors above 2 that init has.
    pub(crate) descriptors: &'a [RawFd],
    /// Where Landlock has scopes.
    pub(crate) outside: Option<Outside>,
    /// Capabilities of user 0 inside.
    pub(crate) capabilities: Capabilities,
}

/// Checks all of it. The calling process is init, and nothing else has run in the jail.
pub(crate) fn check(expected: Expected<'_>) -> Result<(), Error> {
    if let Some(outside) = expected.outside {
        outside.check_is_out_of_reach()?;
    }
    check_root()?;
    check_mounts(expected.root, &expected.mounts)?;
    check_descriptors(expected.descriptors)?;
    check_privileges(expected.capabilities)
}

/// Nothing lies above the root: `/..` is `/`.
fn check_root() -> Result<(), Error> {
    let place = |path| {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID | StatxFlags::INO);
        found
            .map(|found| (found.stx_mnt_id, found.stx_ino))
            .map_err(|e| broken("the root can be inspected", e))
    };
    let (root, above) = (place("/")?, place("/..")?);
    if root == above { Ok(()) } else { Err(broken("/.. is /", format!("mounts {} and {}", root.0, above.0))) }
}

/// The mounts are those that were planned, and those of `/dev` and `/proc`; each is as read-only as planned, and none
/// takes set-user-id bits. `root` is the number of the root's mount.
fn check_mounts(root: Planned, planned: &[Planned]) -> Result<(), Error> {
    let text = read("/proc/self/mountinfo").map_err(|e| broken("the mounts can be read", e))?;
    mounts_as_planned(&text, root, planned).map_err(|found| broken("mounts are as planned", found))
}

/// The pure part of [`check_mounts`]: the error names the first mount that is not as planned.
fn mounts_as_planned(mountinfo: &str, root: Planned, planned: &[Planned]) -> Result<(), String> {
    let mut expected: BTreeMap<u64, Planned> = planned.iter().map(|mount| (mount.id, *mount)).collect();
    expected.insert(root.id, root);
    let mut missing: BTreeSet<u64> = expected.keys().copied().collect();
    for line in mountinfo.lines() {
        let malformed = || format!("a line that cannot be read: {line:?}");
        let fields: Vec<&str> = line.split(' ').take(6).collect();
        let [id, parent, _, _, place, options] = fields[..] else { return Err(malformed()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| malformed());
        let (id, parent) = (number(id)?, number(parent)?);
        let has = |option: &str| options.split(',').any(|other| other == option);
        if (id == root.id) != (place == "/") {
            return Err(format!("{place} is not where the root is"));
        }
        let known = expected.get(&id).copied();
        if let Some(mount) = known {
            missing.remove(&id);
            if mount.read_only && !has("ro") {
                return Err(format!("{place} can be written"));
            }
        } else if let Some(above) = expected.get(&parent).copied().filter(|above| above.with_submounts) {
            if above.read_only && !has("ro") {
                return Err(format!("{place} can be written"));
            }
            expected.insert(id, Planned { id, ..above });
        } else if dev::makes(place) || proc::makes(place) {
            continue;
        } else {
            return Err(format!("{place} is mounted"));
        }
        if !has("nosuid") || !has("nodev") {
            return Err(format!("{place} takes set-user-id bits or devices"));
        }
    }
    match missing.first() {
        Some(id) => Err(format!("mount {id} is missing")),
        None => Ok(()),
    }
}

/// Open are the three standard streams and `named`, nothing else.
fn check_descriptors(named: &[RawFd]) -> Result<(), Error> {
    let fail = |e: Errno| broken("the descriptors can be listed", e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open("/proc/self/fd", flags, Mode::empty()).map_err(fail)?;
    let own = std::os::fd::AsRawFd::as_raw_fd(&folder);
    let mut listing = [std::mem::MaybeUninit::uninit(); 2048];
    let mut entries = rustix::fs::RawDir::new(&folder, &mut listing);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(fail)?;
        let Some(number) = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok()) else {
            continue;
        };
        if number > 2 && number != own && !named.contains(&number) {
            return Err(broken("no descriptor but the named ones is open", number));
        }
    }
    Ok(())
}

/// Init is root of the jail with exactly the capabilities that a jail of its kind has, which hold there alone. It cannot
/// gain more, and is filtered.
fn check_privileges(granted: Capabilities) -> Result<(), Error> {
    let text = read("/proc/self/status").map_err(|e| broken("the privileges can be read", e))?;
    privileges_as_planned(&text, granted).map_err(|found| broken("privileges are as planned", found))
}

/// The pure part of [`check_privileges`]: the error is the line that is not as planned.
fn privileges_as_planned(status: &str, granted: Capabilities) -> Result<(), String> {
    ids_and_privileges_as_planned(status, (0, 0), OfInit::planned(granted), "")
}

/// A service has these ids, no capability, cannot gain one, and is filtered.
pub(crate) fn check_service(ids: (u32, u32), of_root: bool) -> Result<(), Error> {
    let text = read("/proc/self/status").map_err(|e| broken("the privileges can be read", e))?;
    // Only root can clear the bounding set.
    let unchecked = if of_root { "" } else { "CapBnd" };
    let none = OfInit { effective: 0, permitted: 0, bounding: 0 };
    ids_and_privileges_as_planned(&text, ids, none, unchecked)
        .map_err(|found| broken("privileges are as planned", found))
}

fn ids_and_privileges_as_planned(
    status: &str,
    (uid, gid): (u32, u32),
    kept: OfInit,
    unchecked: &str,
) -> Result<(), String> {
    let OfInit { effective, permitted, bounding } = kept;
    let [effective, permitted, bounding] = [effective, permitted, bounding].map(|set| format!("{set:016x}"));
    let four = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
    let (uid, gid) = (four(uid), four(gid));
    let none = "0000000000000000";
    let planned = [
        ("Uid", uid.as_str()),
        ("Gid", &gid),
        ("CapInh", none),
        ("CapPrm", &permitted),
        ("CapEff", &effective),
        ("CapBnd", &bounding),
        ("CapAmb", none),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ];
    for (name, value) in planned.into_iter().filter(|(name, _)| *name != unchecked) {
        let line =
            status.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')));
        let found = line.and_then(|line| line.split_once(':')).map(|(_, found)| found.trim());
        if found != Some(value) {
            return Err(line.unwrap_or(name).to_owned());
        }
    }
    Ok(())
}

/// A socket with an abstract name, made before Landlock applies: afterwards it is out of reach.
pub(crate) struct Outside {
    _socket: OwnedFd,
    address: SocketAddrUnix,
}

impl Outside {
    /// To be called before Landlock applies.
    pub(crate) fn new() -> Result<Outside, Error> {
        let fail = |e: Errno| broken("Landlock can be tried", e);
        let socket = socket().map_err(fail)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed()).map_err(fail)?;
        let address = rustix::net::getsockname(&socket).map_err(fail)?;
        let address = address.try_into().map_err(fail)?;
        Ok(Outside { _socket: socket, address })
    }

    /// Landlock keeps what it confines from reaching what is outside. To be called after it applies, where it has scopes.
    fn check_is_out_of_reach(&self) -> Result<(), Error> {
        let reached = socket().and_then(|inside| rustix::net::connect(&inside, &self.address));
        match reached {
            Err(Errno::PERM) => Ok(()),
            other => Err(broken("Landlock confines", format!("a connection to the outside: {other:?}"))),
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn read(path: &str) -> Result<String, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(8192);
    loop {
        let count = rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))?;
        if count == 0 {
            break;
        }
        if bytes.len() > MAX_FILE {
            return Err(Errno::FBIG);
        }
        bytes.reserve(4096);
    }
    String::from_utf8(bytes).map_err(|_| Errno::ILSEQ)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 20 0:50 / / ro,nosuid,nodev,relatime - overlay overlay ro\n\
        31 30 0:51 / /dev rw,nosuid - tmpfs tmpfs rw\n\
        32 31 0:6 /null /dev/null rw,relatime - devtmpfs devtmpfs rw\n\
        33 30 0:52 / /proc rw,nosuid,nodev,noexec - proc proc rw\n\
        34 33 0:52 /sys /proc/sys ro,nosuid,nodev,noexec - proc proc rw\n\
        35 30 0:53 / /work rw,nosuid,nodev - ext4 /dev/vda rw\n\
        36 35 0:54 / /work/below rw,nosuid,nodev - tmpfs tmpfs rw\n";

    fn planned(id: u64, read_only: bool, with_submounts: bool) -> Planned {
        Planned { id, read_only, with_submounts }
    }

    #[test]
    fn mount_that_was_not_planned_is_found() {
        let root = planned(30, true, false);
        let work = planned(35, false, true);
        let found = |text: &str, planned: &[Planned]| mounts_as_planned(text, root, planned);
        assert_eq!(found(MOUNTS, &[work]), Ok(()));
        for (change, names) in [
            (("/ / ro", "/ / rw"), "/ can be written"),
            (("/work rw,nosuid", "/work rw"), "/work takes"),
            (("/work/below rw", "/elsewhere rw"), ""),
            (("36 35", "36 30"), "/work/below is mounted"),
            (("/proc/sys", "/proc/self/attr"), "/proc/self/attr is mounted"),
            (("/dev/null", "/dev/vda"), "/dev/vda is mounted"),
            (("30 20 0:50 / /", "30 20 0:50 / /x"), "/x is not where the root is"),
            (("35 30", "x 30"), "cannot be read"),
        ] {
            let found = found(&MOUNTS.replacen(change.0, change.1, 1), &[work]);
            match names {
                "" => assert_eq!(found, Ok(()), "a mount below one that brings its own"),
                _ => assert!(found.as_ref().is_err_and(|found| found.contains(names)), "{found:?}"),
            }
        }
        let error = found(MOUNTS, &[planned(35, true, true)]).unwrap_err();
        assert!(error.contains("/work can be written"), "{error}");
        let error = found(MOUNTS, &[planned(35, false, false)]).unwrap_err();
        assert!(error.contains("/work/below is mounted"), "{error}");
        let error = found(MOUNTS, &[work, planned(99, false, false)]).unwrap_err();
        assert!(error.contains("99 is missing"), "{error}");
        let old_root = format!("{MOUNTS}20 20 8:1 / / rw - ext4 /dev/vda rw\n");
        assert!(found(&old_root, &[work]).unwrap_err().contains("is not where the root is"));
    }

    #[test]
    fn privilege_that_was_not_planned_is_found() {
        let one = Capabilities::named("CHOWN").unwrap();
        for (granted, permitted, bounding) in [
            (Capabilities::NONE, "00000000000000e0", "0000000000000000"),
            (one, "00000000000001e1", "0000000000000001"),
            (Capabilities::ALL, "00000000000005fb", "00000000000004fb"),
        ] {
            let status = format!(
                "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapInh:\t0000000000000000\nCapPrm:\t{permitted}\n\
                CapEff:\t00000000000000e0\nCapBnd:\t{bounding}\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n\
                Seccomp:\t2\nSeccomp_filters:\t1\n"
            );
            assert_eq!(privileges_as_planned(&status, granted), Ok(()));
            for line in status.lines().filter(|line| !line.starts_with("Seccomp_filters")) {
                let (name, value) = line.split_once(":\t").unwrap();
                let other = format!(
                    "{name}:\t{}",
                    value.replace('0', "1").replacen('2', "0", 1).replacen('1', "7", 1)
                );
                let changed = status.replacen(line, &other, 1);
                assert_eq!(privileges_as_planned(&changed, granted), Err(other));
                let missing = status.replacen(&format!("{line}\n"), "", 1);
                assert!(privileges_as_planned(&missing, granted).is_err(), "{name}");
            }
        }
    }

    /// One set of capabilities more or less than the kind of the jail has is found too.
    #[test]
    fn privileges_of_another_kind_of_jail_are_found() {
        let status = |granted: Capabilities| {
            let OfInit { effective, permitted, bounding } = OfInit::planned(granted);
            format!(
                "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapInh:\t{0:016x}\nCapPrm:\t{permitted:016x}\n\
                CapEff:\t{effective:016x}\nCapBnd:\t{bounding:016x}\nCapAmb:\t{0:016x}\nNoNewPrivs:\t1\nSeccomp:\t2\n",
                0
            )
        };
        let kinds = [Capabilities::NONE, Capabilities::named("KILL").unwrap(), Capabilities::ALL];
        for planned in kinds {
            for made in kinds {
                let found = privileges_as_planned(&status(made), planned);
                assert_eq!(found.is_ok(), made == planned, "{made:?} where {planned:?} was planned");
            }
        }
    }

    /// The process of the tests is no jail: what it is can only break what must hold in one.
    #[test]
    fn process_outside_of_a_jail_breaks_each_invariant() {
        let open = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
        assert!(matches!(check_descriptors(&[]), Err(Error::Invariant { .. })), "{fd} is open");
        assert!(matches!(check_privileges(Capabilities::NONE), Err(Error::Invariant { .. })));
        let root = Planned { id: mount_id(CWD, "/").unwrap(), read_only: false, with_submounts: false };
        assert!(matches!(check_mounts(root, &[]), Err(Error::Invariant { .. })));
        let reachable = Outside::new().unwrap().check_is_out_of_reach();
        assert!(matches!(reachable, Err(Error::Invariant { .. })), "{reachable:?}");
    }

    #[test]
    fn mount_over_the_root_breaks_the_root() {
        hutch_testkit::require!(root);
        // On a thread of its own with its own mounts.
        std::thread::spawn(|| {
            // SAFETY: no descriptor table or memory is unshared.
            unsafe {
                rustix::thread::unshare_unsafe(
                    rustix::thread::UnshareFlags::NEWNS | rustix::thread::UnshareFlags::FS,
                )
            }
            .unwrap();
            let private =
                rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).unwrap();
            check_root().unwrap();
            let covered = crate::root::tmpfs(4096, "0755").unwrap();
            let flags = rustix::mount::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(&covered, "", CWD, "/", flags).unwrap();
            assert!(matches!(check_root(), Err(Error::Invariant { .. })));
        })
        .join()
        .unwrap();
    }
}
