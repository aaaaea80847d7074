//! What a jail is made of, as data. The same description serves `hutch run` and the warden.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One jail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// Names the jail and its cgroups: 1 to 63 of `[a-z0-9-]`.
    pub id: String,
    /// Host name inside.
    pub hostname: String,
    /// What confines the processes inside.
    pub profile: Profile,
    /// The root file system. Not looked at for [`Profile::Runtime`].
    pub root: Root,
    /// Further mounts, in order.
    pub mounts: Vec<Mount>,
    /// How ids inside map to ids outside.
    pub ids: Ids,
    /// The network namespace.
    pub network: Network,
    /// Cgroup limits; with none set, no cgroup is made.
    pub limits: Limits,
    /// Refuse to set set-user-id and set-group-id bits on files: wanted whenever a folder of the host, in which
    /// other users of the host may run programs, is writable inside.
    pub deny_set_id_bits: bool,
}

/// What confines the processes inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Profile {
    /// All namespaces, pivoted root, no capabilities, no new privileges, seccomp, Landlock.
    Native,
    /// Own pid, mount, net, ipc namespaces only, root and capabilities of the caller: the shell around a runtime
    /// that isolates by itself (runsc), so that its processes and mounts end with the jail.
    Runtime,
}

/// The root file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Root {
    /// Folders to stack, topmost first; never written.
    pub layers: Vec<PathBuf>,
    /// Where writes go.
    pub upper: Upper,
}

/// Where writes to an overlay go.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Upper {
    /// Nowhere: the mount is read-only.
    ReadOnly,
    /// To memory, at most so many bytes, gone with the jail.
    Memory {
        /// Bound in bytes.
        bytes: u64,
    },
    /// To this folder of the host (made when missing; it holds `upper` and `work`).
    Dir(PathBuf),
}

/// A mount inside the jail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    /// What is mounted.
    pub source: MountSource,
    /// Absolute path inside; made when missing (in the writable or skeleton part of the root).
    pub target: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountSource {
    /// A file or folder of the host, without what is mounted below it. Ids are mapped, so that uid 0 inside is
    /// uid 0 on disk, where the caller has the right to (root); else they appear as they are.
    Bind(PathBuf),
    /// Empty memory.
    Tmpfs {
        /// Bound in bytes.
        bytes: u64,
        /// Permission bits of its top, such as 0o1777.
        mode: u32,
    },
    /// A folder of the host under an overlay of its own.
    Overlay {
        /// The folder, never written.
        lower: PathBuf,
        /// Where writes go.
        upper: Upper,
    },
}

/// How ids inside map to ids outside.
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

/// The network namespace: `lo` only, up, all addresses local.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Network {
    /// A new one with these addresses on `lo` beside 127.0.0.1 and ::1.
    New {
        /// Addresses of the Pod.
        addresses: Vec<IpAddr>,
    },
    /// The one of another jail, whose descriptor is handed over with the spec (a further container of a Pod).
    Join,
}

/// Cgroup limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time per second, in thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// Memory in bytes (swap included).
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// A process inside a jail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Process {
    /// Program (looked up on `PATH` of `env` when it has no slash) and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory inside.
    pub cwd: PathBuf,
    /// Make the process the leader of a new session whose controlling terminal is its standard input.
    pub terminal: bool,
    /// Who it runs as, in ids inside.
    pub user: User,
}

/// Who a process runs as, in ids inside.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}
