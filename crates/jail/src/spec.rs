//! Description of a jail, as data. `hutch run` and the warden use the same description.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::error::Error;
use crate::files::FileRules;
use crate::folder::CheckedFolder;
use crate::network::NetworkPlan;

/// Description of one jail. A warden of another version refuses one with a part that it does not know.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the jail and its cgroups: 1 to 63 of `[a-z0-9-]`.
    pub id: String,
    /// Host name inside the jail.
    pub hostname: String,
    /// Confinement of the processes inside.
    pub profile: Profile,
    /// The root file system. For [`Profile::Runtime`], ignored without `runtime_root`.
    pub root: Root,
    /// Root that the jail around a runtime makes for it.
    #[serde(default)]
    pub runtime_root: Option<RuntimeRoot>,
    /// Further mounts, in order.
    pub mounts: Vec<Mount>,
    /// Symbolic links at the top of the root. They hide what the layers have there.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Files and folders inside that its processes cannot read or write.
    #[serde(default)]
    pub files: FileRules,
    /// Mapping of ids inside to ids outside.
    pub ids: Ids,
    /// The network namespace.
    pub network: Network,
    /// Capabilities of user 0 inside. Only for [`Profile::Native`] with [`Ids::Range`].
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Cgroup limits; without limits, no cgroup is created.
    pub limits: Limits,
    /// Refuses set-user-id and set-group-id bits on files. Required whenever a writable mount is a folder of
    /// the host in which other users of the host may run programs.
    pub deny_set_id_bits: bool,
    /// Creates the cgroup that [`crate::Freezer`] needs, where the machine supports it.
    #[serde(default)]
    pub freezable: bool,
}

/// Confinement of the processes inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Profile {
    /// All namespaces, pivoted root, no capabilities, no new privileges, seccomp, Landlock.
    Native,
    /// Own pid, mount, net, ipc namespaces only, with the caller's root and capabilities: the outer jail of a
    /// runtime that isolates by itself (runsc), so that its processes and mounts end with the jail.
    Runtime,
}

/// The root file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Root {
    /// Lower layers of the overlay, topmost first; never written. Their paths must have no symlink.
    pub layers: Vec<PathBuf>,
    /// Destination of writes.
    pub upper: Upper,
}

/// Root file system that the jail around a runtime makes for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RuntimeRoot {
    /// Folder on the machine over which it is mounted. No jail may write the folders above it.
    pub folder: PathBuf,
    /// Mounts that the runtime makes: the path inside, and the target of the mount in the jail that it shows there.
    pub shown: Vec<(PathBuf, PathBuf)>,
}

/// Destination of writes to an overlay.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Upper {
    /// None: the mount is read-only.
    ReadOnly,
    /// A tmpfs of bounded size, discarded with the jail.
    Memory {
        /// Maximum bytes.
        bytes: u64,
    },
    /// This folder of the host as upperdir (created when missing; it holds `upper` and `work`).
    Dir(PathBuf),
}

/// A symbolic link at the top of the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Name of the link.
    pub name: String,
    /// Absolute path that the link names.
    pub target: PathBuf,
}

/// A mount inside the jail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    /// Source of the mount.
    pub source: MountSource,
    /// Absolute path inside; created when missing (in the writable or skeleton part of the root).
    pub target: PathBuf,
    /// `true` for a read-only mount.
    pub read_only: bool,
}

/// Source of a mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountSource {
    /// A file or folder that belongs to the jail or to its user, without what is mounted below it (for an ordinary
    /// user with it: the kernel lets only root uncover what lies under a mount). As root, ids are mapped: uid 0
    /// inside is uid 0 on disk. For an ordinary user they appear as they are. Where the file system cannot map ids,
    /// files of a read-only mount have the overflow id, and a writable mount is refused.
    ///
    /// The path is resolved once, with all rights of the caller: no component may be a folder that a jail can
    /// write.
    Bind(PathBuf),
    /// As [`MountSource::Bind`], for a folder whose path, and all names in it, a jail may replace: symlinks
    /// are not followed.
    Beneath {
        /// The folder.
        folder: CheckedFolder,
        /// Relative path in the folder; empty for the folder itself.
        path: PathBuf,
    },
    /// A folder of the host that others use too, such as `/usr`, or one file of it: always read-only, under an
    /// overlay of its own, ids not mapped. So nothing inside owns a file of the host, and locks, leases, watches and
    /// sockets do not reach it. For an ordinary user with mounts below the folder, a plain read-only mount: the kernel
    /// refuses the overlay, and code inside has no more rights to the files than the user.
    Host {
        /// The folder.
        folder: PathBuf,
        /// Name of the one file in it to mount; without it, the whole folder is mounted.
        file: Option<String>,
    },
    /// A folder of the caller as [`MountSource::Beneath`], under an overlay whose writable side is in memory: writes stay
    /// in the jail and are discarded with it. The folder itself is never written.
    Layered {
        /// The folder.
        folder: CheckedFolder,
        /// Maximum bytes of what is written.
        bytes: u64,
    },
    /// Nothing, over a path that exists: an empty folder, or an empty file that no process inside may open. Always
    /// read-only.
    Hidden {
        /// `true` for a folder.
        folder: bool,
    },
    /// An empty tmpfs.
    Tmpfs {
        /// Maximum bytes.
        bytes: u64,
        /// Permission bits of its root directory, such as 0o1777.
        mode: u32,
    },
}

impl MountSource {
    /// Returns `true` if it shows a file or folder of the host.
    pub(crate) fn is_of_the_host(&self) -> bool {
        !matches!(self, MountSource::Tmpfs { .. } | MountSource::Hidden { .. })
    }
}

/// Mapping of ids inside to ids outside.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ids {
    /// 0..65536 inside is `base..base + 65536` outside (root only; `base` is at least 65536).
    Range {
        /// First id outside.
        base: u32,
    },
    /// Only uid 0 and gid 0 inside, which are the caller's outside (ordinary users).
    Caller,
}

/// Network namespace of a jail.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Network {
    /// A new one, which the user namespace of the jail owns. Only for [`crate::run()`].
    New(NetworkPlan),
    /// An existing one; its file descriptor is sent with the description: see [`crate::Warden::launch`].
    Join,
}

/// Cgroup limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time per second, in thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// Maximum memory in bytes (swap included).
    pub memory_bytes: Option<u64>,
    /// Maximum number of processes and threads.
    pub pids: Option<u64>,
}

/// A process inside a jail. `Debug` shows neither arguments nor values of variables: they may hold secrets.
#[derive(Clone, Serialize, Deserialize)]
pub struct Process {
    /// Program (resolved on `PATH` of `env` when it has no slash) and arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    /// Working directory inside.
    pub cwd: PathBuf,
    /// Makes the process the leader of a new session whose controlling terminal is its standard input.
    pub terminal: bool,
    /// User and groups of the process, as ids inside.
    pub user: User,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Process");
        shown.field("program", &self.argv.first());
        shown.field("variables", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>());
        shown.field("cwd", &self.cwd).field("terminal", &self.terminal).field("user", &self.user);
        shown.finish()
    }
}

/// User and groups of a process, as ids inside.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Usual path of the termination message of a container in a Pod.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Maximum layers and host mounts of one jail: the maximum file descriptors of one message, less a reserve.
pub(crate) const MAX_SOURCES: usize = 240;

/// Number of ids that [`Ids::Range`] maps.
pub(crate) const RANGE: u32 = 65536;

impl Spec {
    /// Validates the description, its bounds included.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Spec(what));
        let id = self.id.as_bytes();
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        if id.is_empty() || id.len() > 63 || !id.iter().all(plain) {
            return refuse(format!("id {:?} is not 1 to 63 of [a-z0-9-]", self.id));
        }
        if self.hostname.is_empty() || self.hostname.len() > 64 || self.hostname.contains('\0') {
            return refuse("the host name must have 1 to 64 bytes".into());
        }
        if let Ids::Range { base } = self.ids
            && (base < RANGE || base.checked_add(RANGE).is_none())
        {
            return refuse(format!("the range of ids cannot begin at {base}"));
        }
        if self.profile == Profile::Native
            && matches!(self.ids, Ids::Caller)
            && rustix::process::geteuid().is_root()
        {
            return refuse("root's own ids are never mapped into a jail: use a range".into());
        }
        if !self.capabilities.are_grantable() {
            return refuse("a jail cannot give these capabilities".into());
        }
        let has_range = self.profile == Profile::Native && matches!(self.ids, Ids::Range { .. });
        if !self.capabilities.is_empty() && !has_range {
            return refuse("capabilities need a range of ids of the jail's own".into());
        }
        if self.root.layers.is_empty() && matches!(self.root.upper, Upper::Dir(_)) {
            return refuse("a root without layers cannot be kept in a folder".into());
        }
        let sources = self.sources();
        if sources > MAX_SOURCES {
            return refuse(format!("{sources} layers and mounts are more than {MAX_SOURCES}"));
        }
        if let Network::New(plan) = &self.network {
            plan.check()?;
        }
        if let Some(path) = self.files.mistake() {
            return refuse(format!("a rule for files cannot be about {path:?}"));
        }
        if self.profile == Profile::Runtime && self.runtime_root.is_none() && !self.files.is_empty() {
            return refuse("rules for files need a root".into());
        }
        self.links.iter().try_for_each(|link| self.check_link(link))?;
        self.mounts.iter().try_for_each(|mount| self.check_mount(mount))
    }

    /// Returns true if the jail makes a root file system.
    pub(crate) fn makes_root(&self) -> bool {
        self.profile == Profile::Native || self.runtime_root.is_some()
    }

    /// Number of file descriptors of its sources on the host.
    pub(crate) fn sources(&self) -> usize {
        let upper = usize::from(matches!(self.root.upper, Upper::Dir(_)));
        let root = if self.makes_root() { self.root.layers.len() + upper } else { 0 };
        root + self.mounts.iter().filter(|mount| mount.source.is_of_the_host()).count()
    }

    fn check_link(&self, link: &Link) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::Spec(format!("link /{}: {why}", link.name.escape_debug())));
        let name = link.name.as_str();
        if matches!(name, "" | "." | ".." | "proc" | "sys" | "dev") || name.contains(['/', '\0']) {
            return refuse("not a name of its own at the top of the root");
        }
        if !link.target.is_absolute() || link.target.as_os_str().as_encoded_bytes().contains(&0) {
            return refuse("its target is not an absolute path");
        }
        match self.root.upper {
            Upper::Dir(_) => refuse("a root that is kept has no links of a jail"),
            Upper::ReadOnly | Upper::Memory { .. } => Ok(()),
        }
    }

    fn check_mount(&self, mount: &Mount) -> Result<(), Error> {
        let target = mount.target.as_path();
        let refuse = |why: &str| Err(Error::Spec(format!("mount at {}: {why}", target.display())));
        let plain = |c| matches!(c, Component::RootDir | Component::Normal(_));
        if !target.is_absolute() || !target.components().all(plain) || target.as_os_str().len() > 4000 {
            return refuse("not an absolute path without `..`");
        }
        if target.components().count() < 2 || target.as_os_str().as_encoded_bytes().contains(&0) {
            return refuse("not a path below the root");
        }
        if self.profile == Profile::Runtime && matches!(mount.source, MountSource::Host { .. }) {
            return refuse("the shell around a runtime has no overlays");
        }
        if let MountSource::Host { file: Some(file), .. } = &mount.source
            && (file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']))
        {
            return refuse("its file is not a plain name");
        }
        let mut names = target.components().skip(1).map(Component::as_os_str);
        match names.next().and_then(OsStr::to_str) {
            Some(top @ ("proc" | "sys")) => refuse(&format!("nothing is mounted at or below /{top}")),
            Some("dev")
                if names.next() != Some(OsStr::new("shm")) && target != Path::new(TERMINATION_LOG) =>
            {
                refuse(
                    "nothing is mounted at or below /dev, except at or below /dev/shm, and /dev/termination-log",
                )
            }
            _ => Ok(()),
        }
    }
}

impl Process {
    /// Checks that it can be passed to the kernel at all.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Spec(what.into()));
        if self.argv.first().is_none_or(String::is_empty) {
            return refuse("no program is named");
        }
        if self.argv.iter().any(|a| a.contains('\0')) {
            return refuse("an argument has a NUL byte in it");
        }
        if self.env.iter().any(|(k, v)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0')) {
            return refuse(
                "an environment variable has an empty name, or a NUL byte or `=` where none may be",
            );
        }
        if !self.cwd.is_absolute() || self.cwd.as_os_str().as_encoded_bytes().contains(&0) {
            return refuse("the working directory is not an absolute path");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileAccess, FileRule};

    fn spec() -> Spec {
        Spec {
            id: "a-1".into(),
            hostname: "h".into(),
            profile: Profile::Native,
            root: Root { layers: vec![], upper: Upper::ReadOnly },
            runtime_root: None,
            mounts: vec![],
            links: vec![],
            files: FileRules::default(),
            ids: Ids::Range { base: 100_000 },
            network: Network::Join,
            capabilities: Capabilities::NONE,
            limits: Limits::default(),
            deny_set_id_bits: false,
            freezable: false,
        }
    }

    #[test]
    fn what_breaks_a_bound_is_refused_by_name() {
        type Change = fn(&mut Spec);
        let link = |name: &str| Link { name: name.into(), target: "/a".into() };
        let mut linked = spec();
        linked.links = vec![link("workspace")];
        assert_eq!(linked.check(), Ok(()));
        for name in ["", "..", "a/b", "proc", "a\0"] {
            linked.links = vec![link(name)];
            assert!(linked.check().is_err(), "{name:?}");
        }
        linked.links = vec![Link { target: "relative".into(), ..link("a") }];
        assert!(linked.check().is_err());
        let closed = |path: &str| FileRules {
            rules: vec![FileRule { path: path.into(), access: FileAccess::Hidden, name: "a".into() }],
            shared: Vec::new(),
        };
        let mut with_rules = spec();
        with_rules.files = closed("/a");
        assert_eq!(with_rules.check(), Ok(()));
        with_rules.profile = Profile::Runtime;
        assert!(with_rules.check().is_err(), "no root");
        with_rules.files = closed("/proc/a");
        assert!(with_rules.check().is_err());
        let refused: [(&str, Change); 15] = [
            ("id", |s| s.id = "../x".into()),
            ("id", |s| s.id = String::new()),
            ("host name", |s| s.hostname = "x".repeat(65)),
            ("range of ids", |s| s.ids = Ids::Range { base: 0 }),
            ("range of ids", |s| s.ids = Ids::Range { base: u32::MAX - 5 }),
            ("folder", |s| s.root.upper = Upper::Dir("/tmp/x".into())),
            ("more than", |s| s.root.layers = vec!["/".into(); MAX_SOURCES + 1]),
            ("`..`", |s| s.mounts.push(tmpfs("/a/../b"))),
            ("below the root", |s| s.mounts.push(tmpfs("/"))),
            ("below /proc", |s| s.mounts.push(tmpfs("/proc"))),
            ("below /proc", |s| s.mounts.push(tmpfs("//proc/./foo/bar"))),
            ("below /sys", |s| s.mounts.push(tmpfs("/sys/fs/cgroup"))),
            ("below /dev", |s| s.mounts.push(tmpfs("/dev"))),
            ("below /dev", |s| s.mounts.push(tmpfs("/dev/shm2"))),
            ("below /dev", |s| s.mounts.push(tmpfs("/dev/termination-log/a"))),
        ];
        let mut fine = spec();
        fine.mounts =
            ["/dev/shm", "/dev/shm/a", "/dev/termination-log", "/procedure", "/a/proc"].map(tmpfs).into();
        assert_eq!(fine.check(), Ok(()));
        for (says, change) in refused {
            let mut changed = spec();
            change(&mut changed);
            let error = changed.check().expect_err(says).to_string();
            assert!(error.contains(says), "{error:?} does not say {says:?}");
        }
    }

    fn tmpfs(target: &str) -> Mount {
        let source = MountSource::Tmpfs { bytes: 1, mode: 0o755 };
        Mount { source, target: target.into(), read_only: false }
    }

    #[test]
    fn a_process_without_a_program_or_with_nul_bytes_is_refused() {
        let process = |argv: &[&str], key: &str, cwd: &str| Process {
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            env: vec![(key.into(), "v".into())],
            cwd: cwd.into(),
            terminal: false,
            user: User::default(),
        };
        assert_eq!(process(&["true"], "K", "/").check(), Ok(()));
        for bad in [
            process(&[], "K", "/"),
            process(&[""], "K", "/"),
            process(&["a\0b"], "K", "/"),
            process(&["a"], "K=", "/"),
            process(&["a"], "", "/"),
            process(&["a"], "K", "relative"),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn debug_shows_no_argument_and_no_value() {
        let process = Process {
            argv: vec!["tool".into(), "--password=SECRET".into()],
            env: vec![("KEY".into(), "SECRET".into())],
            cwd: "/".into(),
            terminal: false,
            user: User::default(),
        };
        let shown = format!("{process:?}");
        assert!(shown.contains("tool") && shown.contains("KEY") && !shown.contains("SECRET"), "{shown}");
    }
}
