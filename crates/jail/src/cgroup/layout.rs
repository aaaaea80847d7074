//! Where the hierarchies are, and which of them has which controller.

use std::path::{Path, PathBuf};

use crate::{Error, Limits};

/// A resource that cgroups limit or account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// CPU time per second.
    Cpu,
    /// CPU time used (version 1 only; on version 2 every group counts it).
    CpuAccount,
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// Stopping processes (version 1 only; on version 2 every group can).
    Freezer,
}

impl Controller {
    /// Its name in the kernel.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::CpuAccount => "cpuacct",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Freezer => "freezer",
        }
    }

    pub(super) fn wanted(limits: &Limits) -> Vec<Controller> {
        let all = [
            limits.cpu_millis.map(|_| Controller::Cpu),
            limits.memory_bytes.map(|_| Controller::Memory),
            limits.pids.map(|_| Controller::Pids),
        ];
        all.into_iter().flatten().collect()
    }
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    /// The caller's own group, at or below `mount`.
    pub(super) own: PathBuf,
    /// Names of the controllers (version 1).
    controllers: Vec<String>,
}

/// The hierarchies that are mounted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    pub(super) unified: Option<Hierarchy>,
    pub(super) legacy: Vec<Hierarchy>,
}

impl Layout {
    /// Reads how this machine has it, for the calling process.
    ///
    /// # Errors
    /// [`Error::Cgroup`] when `/proc` cannot be read.
    pub(crate) fn of_this_machine() -> Result<Layout, Error> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|error| super::failed(Path::new(path), "read", error))
        };
        Ok(Self::read(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?))
    }

    /// Reads the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
    pub(crate) fn read(mountinfo: &str, membership: &str) -> Layout {
        let mut layout = Layout::default();
        for line in mountinfo.lines() {
            let Some((mount, kind)) = line.split_once(" - ") else { continue };
            let mut fields = mount.split(' ').skip(3);
            let (Some(root), Some(point)) = (fields.next(), fields.next()) else { continue };
            let mut kind = kind.split(' ');
            let (kind, options) = (kind.next().unwrap_or(""), kind.nth(1).unwrap_or(""));
            let (root, point) = (unescape(root), PathBuf::from(unescape(point)));
            if kind == "cgroup2" && layout.unified.is_none() {
                let own = own_group(&point, &root, membership, |names| names.is_empty());
                layout.unified = Some(Hierarchy { mount: point, own, controllers: Vec::new() });
            } else if kind == "cgroup" {
                let controllers: Vec<String> = options.split(',').map(str::to_owned).collect();
                let own = own_group(&point, &root, membership, |names| {
                    !names.is_empty() && names.split(',').any(|name| controllers.iter().any(|c| c == name))
                });
                layout.legacy.push(Hierarchy { mount: point, own, controllers });
            }
        }
        layout
    }

    /// Returns `true` when version 2 has a controller, for at least one group.
    pub(crate) fn unified_has(&self, controller: Controller) -> bool {
        self.unified
            .as_ref()
            .is_some_and(|hierarchy| has_word(&hierarchy.mount.join("cgroup.controllers"), controller))
    }

    /// Returns `true` when version 1 has a controller.
    pub(crate) fn legacy_has(&self, controller: Controller) -> bool {
        self.legacy_of(controller).is_some()
    }

    pub(super) fn legacy_of(&self, controller: Controller) -> Option<&Hierarchy> {
        self.legacy
            .iter()
            .find(|hierarchy| hierarchy.controllers.iter().any(|name| name == controller.name()))
    }

    /// `v1`, `v2`, `hybrid` (version 2 is mounted beside version 1) or `none`.
    pub(crate) fn version(&self) -> &'static str {
        match (&self.unified, self.legacy.is_empty()) {
            (None, true) => "none",
            (None, false) => "v1",
            (Some(_), true) => "v2",
            (Some(_), false) => "hybrid",
        }
    }

    /// Checks that the calling user can make groups with a controller; else why not. Changes nothing.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn usable(&self, controller: Controller) -> Result<(), String> {
        match &self.unified {
            Some(hierarchy) if self.unified_has(controller) => super::v2::usable(hierarchy, Some(controller)),
            _ => super::v1::usable(self, controller),
        }
    }

    /// Checks that the calling user can make groups whose processes can be frozen; else why not. Changes nothing.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn freezable(&self) -> Result<(), String> {
        match &self.unified {
            Some(hierarchy) => super::v2::usable(hierarchy, None),
            None => super::v1::usable(self, Controller::Freezer),
        }
    }

    /// Where the hierarchies are mounted in which jails can have groups.
    pub(super) fn mounts(&self) -> impl Iterator<Item = &Path> {
        use Controller::{Cpu, CpuAccount, Freezer, Memory, Pids};
        let ours = [Cpu, CpuAccount, Memory, Pids, Freezer].map(Controller::name);
        let legacy = self
            .legacy
            .iter()
            .filter(move |h| h.controllers.iter().any(|name| ours.contains(&name.as_str())));
        self.unified.iter().chain(legacy).map(|hierarchy| hierarchy.mount.as_path())
    }
}

/// Returns `true` when a file of words lists a controller.
pub(super) fn has_word(path: &Path, controller: Controller) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().any(|word| word == controller.name())
}

/// The caller's own group in a hierarchy: the line of `/proc/self/cgroup` whose names fit, less the part of the
/// hierarchy that is not mounted here.
fn own_group(mount: &Path, root: &str, membership: &str, fits: impl Fn(&str) -> bool) -> PathBuf {
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (fields.next(), fields.next()) else { continue };
        if !fits(names) {
            continue;
        }
        let below = match root {
            "/" => Some(path),
            root => path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        // A group outside of what is mounted or of the namespace (`/..`) cannot be reached by a path.
        let below = below.filter(|below| !below.split('/').any(|part| part == "..")).unwrap_or("");
        let below = below.trim_start_matches('/');
        return if below.is_empty() { mount.to_owned() } else { mount.join(below) };
    }
    mount.to_owned()
}

/// Undoes the octal escapes of mountinfo (space, tab, newline, backslash).
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}
