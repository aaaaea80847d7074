//! Features of this machine: each is tested, not guessed. Each missing one is reported with its impact
//! and a remedy. The content of `hutch doctor`.
//!
//! It forks children for the tests; call it from a single-threaded program.

mod advice;
mod attempt;
mod runsc;

use rustix::fs::Access;
use serde::Serialize;

use crate::cgroup::{Controller, Layout};
pub use runsc::Runsc;

/// Features of this machine that the calling user may use.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Release of the kernel.
    pub kernel: String,
    /// Processor architecture.
    pub architecture: &'static str,
    /// `true` when the calling user is root.
    pub root: bool,
    /// Each namespace of a jail.
    pub namespaces: Vec<Namespace>,
    /// `true` when an ordinary user can create user namespaces.
    pub unprivileged_user_namespaces: bool,
    /// Support for limits on CPU, memory, processes.
    pub cgroups: Cgroups,
    /// ABI version of Landlock.
    pub landlock: Option<u32>,
    /// `true` when seccomp filters are supported.
    pub seccomp: bool,
    /// `true` when mounts support id mapping; unknown (`null`) when not root.
    pub idmapped_mounts: Option<bool>,
    /// `true` when overlay mounts are supported.
    pub overlayfs: bool,
    /// `true` when connections of a sandbox can be captured (`tproxy` of nftables), so that policies can open hosts.
    pub egress: bool,
    /// The same for an ordinary user.
    pub egress_for_ordinary_users: bool,
    /// gVisor.
    pub runsc: Option<Runsc>,
    /// `true` when `/dev/kvm` is usable.
    pub kvm: bool,
    /// Swap in bytes. Memory of idle sandboxes is written there.
    pub swap_bytes: u64,
    /// Missing features.
    pub missing: Vec<Missing>,
}

/// Support for one kind of namespace.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Its name, as under `/proc/self/ns`.
    pub name: &'static str,
    /// `true` when one could be created.
    pub available: bool,
}

/// The state of cgroups.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroups {
    /// `v1`, `v2`, `hybrid` or `none`.
    pub version: &'static str,
    /// Controllers that can be limited.
    pub controllers: Vec<ControllerFact>,
    /// Reason why the processes of a jail cannot be frozen. `None`: they can.
    pub freezer: Option<String>,
}

/// One controller.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerFact {
    /// Its name.
    pub name: &'static str,
    /// Cgroup version under which it is mounted: `v1` or `v2`.
    pub version: Option<&'static str>,
    /// `true` when the calling user can set limits.
    pub usable: bool,
    /// Reason when not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A missing feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// Name of the feature.
    pub what: String,
    /// Functionality that is unavailable without it.
    pub costs: String,
    /// Remedy.
    pub remedy: String,
}

/// The namespaces of a jail and their clone flags.
const NAMESPACES: [(&str, i32); 7] = [
    ("user", libc::CLONE_NEWUSER),
    ("pid", libc::CLONE_NEWPID),
    ("mnt", libc::CLONE_NEWNS),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
];

impl Facts {
    /// Tests everything; takes some milliseconds, and the time that `runsc --version` takes.
    pub fn collect() -> Facts {
        let root = rustix::process::geteuid().is_root();
        let system = rustix::system::uname();
        let mut facts = Facts {
            kernel: system.release().to_string_lossy().into_owned(),
            architecture: std::env::consts::ARCH,
            root,
            namespaces: NAMESPACES
                .map(|(name, flag)| Namespace { name, available: attempt::namespace(flag) })
                .to_vec(),
            unprivileged_user_namespaces: attempt::user_namespace_as_nobody(),
            cgroups: Cgroups::collect(),
            landlock: crate::landlock::abi(),
            seccomp: attempt::seccomp(),
            idmapped_mounts: root.then(attempt::idmapped_mount),
            overlayfs: attempt::overlay(),
            egress: attempt::captures(),
            egress_for_ordinary_users: attempt::captures_as_ordinary_user(),
            runsc: Runsc::find().map(Runsc::probe),
            kvm: rustix::fs::access("/dev/kvm", Access::READ_OK | Access::WRITE_OK).is_ok(),
            swap_bytes: crate::Swap::of_this_machine().total_bytes,
            missing: Vec::new(),
        };
        facts.missing = advice::missing(&facts);
        facts
    }
}

impl Cgroups {
    fn collect() -> Cgroups {
        let layout = Layout::of_this_machine().unwrap_or_default();
        let controllers = [Controller::Cpu, Controller::Memory, Controller::Pids];
        Cgroups {
            version: layout.version(),
            freezer: layout.freezable().err(),
            controllers: controllers
                .map(|controller| {
                    let outcome = layout.usable(controller);
                    let version = if layout.unified_has(controller) {
                        Some("v2")
                    } else {
                        layout.legacy_has(controller).then_some("v1")
                    };
                    ControllerFact {
                        name: controller.name(),
                        version,
                        usable: outcome.is_ok(),
                        reason: outcome.err(),
                    }
                })
                .to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn facts_are_what_the_machine_says() {
        hutch_testkit::require!(root, user_namespaces);
        let facts = Facts::collect();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(facts.kernel, release.trim());
        assert!(facts.root);
        assert_eq!(facts.landlock, crate::landlock::abi());
        for namespace in &facts.namespaces {
            let file = Path::new("/proc/self/ns").join(namespace.name);
            assert_eq!(namespace.available, file.exists(), "{}", namespace.name);
        }
        assert!(facts.seccomp);
        assert!(facts.idmapped_mounts.is_some());
        for controller in &facts.cgroups.controllers {
            assert_eq!(controller.usable, controller.reason.is_none());
            assert!(!controller.usable || controller.version.is_some());
        }
        // The test cgroup is removed.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("hutch-facts"));
        assert!(serde_json::to_value(&facts).unwrap()["unprivilegedUserNamespaces"].is_boolean());
    }
}
