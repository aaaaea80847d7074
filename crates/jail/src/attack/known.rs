//! Known attacks by name: holes that container runtimes had, and the usual ways out.

use std::fmt;

/// An attack that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "`name` and `what` say it")]
pub enum Known {
    Cve2019_5736,
    Cve2021_30465,
    Cve2022_0185,
    Cve2022_0492,
    Cve2022_0847,
    Cve2022_23648,
    Cve2024_21626,
    Cve2025_31133,
    Cve2025_52565,
    Cve2025_52881,
    DockerSocket,
    HostPath,
    Privileged,
    SysAdmin,
    SysModule,
    DacReadSearch,
    CorePattern,
    UeventHelper,
    ReleaseAgent,
    BinfmtMisc,
    Leases,
    Inotify,
    Keyrings,
    SystemVIpc,
    PosixIpc,
    AbstractSockets,
    Tiocsti,
    ProcSelfExe,
    DescriptorLeaks,
    ProcfsRaces,
    RenameLoops,
    IdRanges,
}

/// By what it is shown that a known attack does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// By these attacks of [`super::all`], by name: `hutch doctor --attack` tries them too.
    ByAttacks(&'static [&'static str]),
    /// By this test of `crates/hutch/tests/containment`, which needs a server, an image or a race of its own.
    ByTest(&'static str),
    /// By attacks and by a test.
    ByBoth(&'static [&'static str], &'static str),
}

use Shown::{ByAttacks, ByBoth, ByTest};

impl Known {
    /// All of them, in the order of their names.
    pub const ALL: [Known; 32] = [
        Known::Cve2019_5736,
        Known::Cve2021_30465,
        Known::Cve2022_0185,
        Known::Cve2022_0492,
        Known::Cve2022_0847,
        Known::Cve2022_23648,
        Known::Cve2024_21626,
        Known::Cve2025_31133,
        Known::Cve2025_52565,
        Known::Cve2025_52881,
        Known::DockerSocket,
        Known::HostPath,
        Known::Privileged,
        Known::SysAdmin,
        Known::SysModule,
        Known::DacReadSearch,
        Known::CorePattern,
        Known::UeventHelper,
        Known::ReleaseAgent,
        Known::BinfmtMisc,
        Known::Leases,
        Known::Inotify,
        Known::Keyrings,
        Known::SystemVIpc,
        Known::PosixIpc,
        Known::AbstractSockets,
        Known::Tiocsti,
        Known::ProcSelfExe,
        Known::DescriptorLeaks,
        Known::ProcfsRaces,
        Known::RenameLoops,
        Known::IdRanges,
    ];

    /// Those of which an attack of this name is a part.
    pub(super) fn of(attack: &str) -> Vec<Known> {
        let part = |known: &Known| match known.shown() {
            ByAttacks(names) | ByBoth(names, _) => names.contains(&attack),
            ByTest(_) => false,
        };
        Known::ALL.into_iter().filter(part).collect()
    }

    /// Its name in the field, such as `CVE-2024-21626 (runc)`.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Effect of the attack where it works.
    pub fn what(self) -> &'static str {
        self.row().1
    }

    /// Proof that it does not work.
    pub fn shown(self) -> Shown {
        self.row().2
    }

    #[rustfmt::skip]
    fn row(self) -> (&'static str, &'static str, Shown) {
        match self {
            Known::Cve2019_5736 => ("CVE-2019-5736 (runc)", "overwrites the program that enters a container",
                ByBoth(&["programs of other processes"], "known::the_program_of_init_cannot_be_written_by_way_of_proc_self_exe")),
            Known::Cve2021_30465 => ("CVE-2021-30465 (runc)", "exchanges a mount point for a link while it is mounted",
                ByTest("known::a_mount_point_that_changes_places_with_a_link_stays_inside")),
            Known::Cve2022_0185 => ("CVE-2022-0185 (kernel)", "overflows a buffer by way of fsconfig in an own user namespace",
                ByAttacks(&["fsopen", "fsconfig", "unshare user", "clone user"])),
            Known::Cve2022_0492 => ("CVE-2022-0492 (kernel)", "mounts cgroup v1 in an own namespace and sets its release agent",
                ByAttacks(&["mount", "unshare user", "unshare cgroup", "the release agent of a cgroup"])),
            Known::Cve2022_0847 => ("CVE-2022-0847 (kernel, Dirty Pipe)", "writes into pages of files that may only be read",
                ByAttacks(&["pages of read-only files"])),
            Known::Cve2022_23648 => ("CVE-2022-23648 (containerd)", "copies files of the host into a volume that the image names",
                ByTest("known::a_volume_of_an_image_that_leads_out_shows_no_host_file")),
            Known::Cve2024_21626 => ("CVE-2024-21626 (runc)", "starts in a folder of the host that a descriptor holds",
                ByBoth(&["folders held by descriptors"], "known::a_working_folder_that_is_a_descriptor_shows_no_host_file")),
            Known::Cve2025_31133 => ("CVE-2025-31133 (runc)", "puts a link in the place of /dev/null, which masks files",
                ByBoth(&["memory of the kernel", "keys", "symbols of the kernel", "the core handler"], "known::links_of_an_image_in_dev_and_proc_lead_nowhere")),
            Known::Cve2025_52565 => ("CVE-2025-52565 (runc)", "puts a link in the place of /dev/console",
                ByTest("known::links_of_an_image_in_dev_and_proc_lead_nowhere")),
            Known::Cve2025_52881 => ("CVE-2025-52881 (runc)", "redirects what a runtime writes to /proc",
                ByTest("known::links_of_an_image_in_dev_and_proc_lead_nowhere")),
            Known::DockerSocket => ("docker.sock", "asks a service of the host by its socket",
                ByBoth(&["a socket of the host"], "known::what_opens_the_host_is_refused")),
            Known::HostPath => ("hostPath", "mounts a folder of the host", ByTest("known::what_opens_the_host_is_refused")),
            Known::Privileged => ("privileged", "requests all rights", ByTest("known::what_opens_the_host_is_refused")),
            Known::SysAdmin => ("CAP_SYS_ADMIN", "mounts, enters namespaces",
                ByBoth(&["mount", "umount2", "pivot_root", "setns", "open_tree", "move_mount", "mount_setattr"], "known::what_opens_the_host_is_refused")),
            Known::SysModule => ("CAP_SYS_MODULE", "loads code into the kernel",
                ByBoth(&["init_module", "finit_module", "delete_module"], "known::what_opens_the_host_is_refused")),
            Known::DacReadSearch => ("CAP_DAC_READ_SEARCH", "opens files of the host by their handles (shocker)",
                ByBoth(&["open_by_handle_at", "name_to_handle_at"], "known::what_opens_the_host_is_refused")),
            Known::CorePattern => ("core_pattern", "has the kernel start a program when one crashes",
                ByAttacks(&["the core handler", "the size of core files"])),
            Known::UeventHelper => ("uevent_helper", "has the kernel start a program when a device appears", ByAttacks(&["the uevent helper"])),
            Known::ReleaseAgent => ("release_agent", "has the kernel start a program when a cgroup is empty", ByAttacks(&["the release agent of a cgroup"])),
            Known::BinfmtMisc => ("binfmt_misc", "has the kernel start a program for another's file", ByAttacks(&["handlers of binaries"])),
            Known::Leases => ("leases", "makes programs of the host wait for a file", ByAttacks(&["leases", "locks of the host"])),
            Known::Inotify => ("inotify", "sees what the host opens; takes its instances",
                ByBoth(&["watches of folders"], "host_files")),
            Known::Keyrings => ("keyrings", "reads keys of the host", ByAttacks(&["keyctl", "add_key", "request_key", "keys"])),
            Known::SystemVIpc => ("System V IPC", "shares memory, semaphores, messages with the host",
                ByAttacks(&["shared memory of the host", "semaphores of the host", "messages of the host"])),
            Known::PosixIpc => ("POSIX IPC", "shares named memory and messages with the host",
                ByAttacks(&["named memory of the host", "named messages of the host"])),
            Known::AbstractSockets => ("abstract sockets", "talks to the host without a file", ByAttacks(&["an abstract socket of the host"])),
            Known::Tiocsti => ("TIOCSTI", "types into the caller's terminal", ByAttacks(&["typing into a terminal", "console selection"])),
            Known::ProcSelfExe => ("/proc/self/exe", "runs the runtime's own program inside and keeps it open",
                ByTest("known::the_program_of_init_cannot_be_written_by_way_of_proc_self_exe")),
            Known::DescriptorLeaks => ("descriptor leaks", "uses what the caller left open", ByAttacks(&["folders held by descriptors"])),
            Known::ProcfsRaces => ("procfs races", "opens files of a process that is just being made",
                ByTest("known::processes_that_are_being_made_give_nothing_away")),
            Known::RenameLoops => ("rename loops", "moves mount points while a container starts",
                ByTest("known::a_mount_point_that_changes_places_with_a_link_stays_inside")),
            Known::IdRanges => ("reuse of ids", "finds what another sandbox with the same ids left", ByTest("ids")),
        }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
