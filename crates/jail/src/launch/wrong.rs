//! Jails that are made wrong on purpose, each in one part: the check before the first instruction has to refuse them.

use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use super::Step;
use crate::error::Error;
use crate::spec::{Ids, Limits, Mount, MountSource, Network, Process, Profile, Root, Spec, Upper, User};
use crate::{Capabilities, NetworkPlan, RunOptions, landlock, sys};

/// The deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Something lies over the root.
    Root,
    /// A mount that is not in the plan.
    OneMore,
    /// A mount that was planned is not there.
    OneLess,
    /// A mount that was to be read-only is not.
    ReadOnly,
    /// A mount takes set-user-id bits.
    SetId,
    /// Init has one descriptor more.
    Descriptors,
    /// Init has another group.
    Ids,
    /// A step that gives up rights is left out.
    Without(Step),
}

impl Part {
    const ALL: [Part; 10] = [
        Part::Root,
        Part::OneMore,
        Part::OneLess,
        Part::ReadOnly,
        Part::SetId,
        Part::Descriptors,
        Part::Ids,
        Part::Without(Step::Privileges),
        Part::Without(Step::Landlock),
        Part::Without(Step::Seccomp),
    ];

    /// Returns the name in the refusal.
    fn named(self) -> &'static str {
        match self {
            Part::Root => "/.. is /",
            Part::OneMore => "/tmp is mounted",
            Part::OneLess => "is missing",
            Part::ReadOnly => "/usr can be written",
            Part::SetId => "/tmp takes set-user-id bits",
            Part::Descriptors => "no descriptor but the named ones",
            Part::Ids => "Gid:",
            Part::Without(Step::Privileges) => "CapPrm:",
            Part::Without(Step::Landlock) => "Landlock confines",
            Part::Without(Step::Seccomp) => "Seccomp:",
        }
    }

    /// Makes it wrong, with the rights of init before it gives them up.
    fn make(self) {
        let remount = |path: &CStr, flags| {
            sys::mount(c"", path, c"", libc::MS_BIND | libc::MS_REMOUNT | flags, c"").unwrap();
        };
        let cover = |path: &str| {
            let tree = crate::root::tmpfs(4096, "0755").unwrap();
            move_mount(tree.as_fd(), "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
        };
        match self {
            Part::Root => cover("/"),
            Part::OneMore => cover("/tmp"),
            Part::OneLess => unmount("/tmp", UnmountFlags::empty()).unwrap(),
            Part::ReadOnly => remount(c"/usr", libc::MS_NOSUID | libc::MS_NODEV),
            Part::SetId => remount(c"/tmp", libc::MS_NODEV),
            Part::Descriptors => {
                std::mem::forget(rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).unwrap());
            }
            // SAFETY: numbers only, in a process with one thread.
            Part::Ids => assert_eq!(unsafe { libc::syscall(libc::SYS_setresgid, 1, 1, 1) }, 0),
            Part::Without(_) => {}
        }
    }
}

/// Which part is wrong in jails that this process makes: its place in [`Part::ALL`], and one more.
static WRONG: AtomicUsize = AtomicUsize::new(0);

fn wrong() -> Option<Part> {
    Part::ALL.get(WRONG.load(Ordering::Relaxed).wrapping_sub(1)).copied()
}

/// Makes it, if there is one.
pub(super) fn make() {
    if let Some(part) = wrong() {
        part.make();
    }
}

/// Returns `true` when this step is skipped.
pub(super) fn left_out(step: Step) -> bool {
    wrong() == Some(Part::Without(step))
}

/// A jail that shows `/usr` and has an empty `/tmp`.
fn spec(root: &Path) -> Spec {
    for folder in ["usr", "tmp", "proc", "dev"] {
        std::fs::create_dir(root.join(folder)).unwrap();
    }
    for link in ["bin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    let usr = MountSource::Bind("/usr".into());
    let tmp = MountSource::Tmpfs { bytes: 1 << 20, mode: 0o1777 };
    Spec {
        id: "wrong".into(),
        hostname: "wrong".into(),
        profile: Profile::Native,
        root: Root { layers: vec![root.to_owned()], upper: Upper::ReadOnly },
        mounts: vec![
            Mount { source: usr, target: "/usr".into(), read_only: true },
            Mount { source: tmp, target: "/tmp".into(), read_only: false },
        ],
        ids: Ids::Range { base: 0x2000_0000 },
        network: Network::New(NetworkPlan::default()),
        capabilities: Capabilities::NONE,
        limits: Limits::default(),
        deny_set_id_bits: false,
        links: vec![],
        files: crate::files::FileRules::default(),
        runtime_root: None,
        freezable: false,
    }
}

/// Runs `true` in a jail in which this is wrong, in a process with one thread; how that went.
fn attempt(wrong: usize, spec: &Spec) -> String {
    let process = Process {
        argv: vec!["/bin/true".into()],
        env: vec![],
        cwd: "/".into(),
        terminal: false,
        user: User::default(),
    };
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child has one thread and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        WRONG.store(wrong, Ordering::Relaxed);
        let said = match crate::run(spec, &process, &RunOptions::default()) {
            Ok(outcome) => format!("{:?}", outcome.ended),
            Err(error @ Error::Invariant { .. }) => format!("refused: {error}"),
            Err(other) => format!("not made: {other}"),
        };
        let written = writer.write_all(said.as_bytes());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(written.is_err())) }
    }
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    sys::wait(child, true).unwrap();
    said
}

#[test]
fn a_jail_in_which_one_part_is_wrong_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let plain = spec(folder.path());
    let capable = Spec { capabilities: Capabilities::ALL, ..plain.clone() };
    for spec in [&plain, &capable] {
        assert_eq!(attempt(0, spec), "Exited(0)");
    }
    let kinds =
        [&plain, &capable].map(|spec| Part::ALL.into_iter().enumerate().map(move |part| (spec, part)));
    for (spec, (number, part)) in kinds.into_iter().flatten() {
        if part == Part::Without(Step::Landlock) && !landlock::has_scopes() {
            hutch_testkit::note_skip("a jail without Landlock is refused", "needs Landlock with scopes");
            continue;
        }
        let said = attempt(number + 1, spec);
        assert!(said.starts_with("refused: ") && said.contains(part.named()), "{part:?}: {said}");
    }
}
