//! One sandbox or one client takes as much as it can of a resource and continues to request more. It reaches a documented
//! limit, and the others continue: no Pod restarts, exec works, the API answers.
//!
//! Tenants are separated by namespace (objects), by user (connections, watches, streams) and by Pod (everything inside).

mod clients;
mod disk;
mod inside;
mod quiet;

/// Resource that one tenant could take from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Forks,
    Memory,
    MemoryVolume,
    SharedMemory,
    DiskBytes,
    UnlinkedFiles,
    DiskInodes,
    Descriptors,
    InotifyInstances,
    InotifyWatches,
    QueuedSignals,
    Terminals,
    PipePages,
    UnixSocketBuffers,
    TcpSocketBuffers,
    Keys,
    Logs,
    Events,
    Streams,
    Watches,
    Requests,
    Connections,
}

/// All of them. A resource that is missing here is never constructed, which does not compile without a warning.
const RESOURCES: [Resource; 22] = [
    Resource::Forks,
    Resource::Memory,
    Resource::MemoryVolume,
    Resource::SharedMemory,
    Resource::DiskBytes,
    Resource::UnlinkedFiles,
    Resource::DiskInodes,
    Resource::Descriptors,
    Resource::InotifyInstances,
    Resource::InotifyWatches,
    Resource::QueuedSignals,
    Resource::Terminals,
    Resource::PipePages,
    Resource::UnixSocketBuffers,
    Resource::TcpSocketBuffers,
    Resource::Keys,
    Resource::Logs,
    Resource::Events,
    Resource::Streams,
    Resource::Watches,
    Resource::Requests,
    Resource::Connections,
];

/// Tenant that takes a resource.
#[derive(Debug, Clone, Copy)]
enum Attacker {
    /// A Pod with this script and this memory limit.
    Inside { script: &'static str, arguments: &'static [&'static str], memory: &'static str },
    /// A Pod that fills the disk of the data folder.
    Disk { script: &'static str },
    /// A client of the API.
    Client,
}

/// How a bound answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// A system call fails with this error.
    Errno(&'static str),
    /// The container ends with the reason `OOMKilled`.
    OutOfMemory,
    /// The Pod fails with the reason `Evicted` and a message with this name of the resource.
    Evicted(&'static str),
    /// The oldest are dropped.
    Dropped,
    /// A `Status` with this code and reason.
    Status(u16, &'static str),
    /// The server closes the connection that has been idle for the longest time.
    Closed,
}

impl Resource {
    fn attacker(self) -> Attacker {
        let inside = |script, memory| Attacker::Inside { script, arguments: &[], memory };
        let folder = |arguments| Attacker::Inside {
            script: include_str!("exhaustion/attackers/files.py"),
            arguments,
            memory: "256Mi",
        };
        match self {
            Resource::Forks => inside(include_str!("exhaustion/attackers/forks.py"), "256Mi"),
            Resource::Memory => inside(include_str!("exhaustion/attackers/memory.py"), "64Mi"),
            Resource::MemoryVolume => folder(&["/memory"]),
            Resource::SharedMemory => folder(&["/dev/shm"]),
            Resource::DiskBytes => Attacker::Disk { script: include_str!("exhaustion/attackers/files.py") },
            Resource::UnlinkedFiles => {
                Attacker::Disk { script: include_str!("exhaustion/attackers/unlinked.py") }
            }
            Resource::DiskInodes => Attacker::Disk { script: include_str!("exhaustion/attackers/inodes.py") },
            Resource::Descriptors => inside(include_str!("exhaustion/attackers/descriptors.py"), "1Gi"),
            Resource::InotifyInstances => {
                inside(include_str!("exhaustion/attackers/inotify_instances.py"), "64Mi")
            }
            Resource::InotifyWatches => {
                inside(include_str!("exhaustion/attackers/inotify_watches.py"), "512Mi")
            }
            Resource::QueuedSignals => inside(include_str!("exhaustion/attackers/signals.py"), "64Mi"),
            Resource::Terminals => inside(include_str!("exhaustion/attackers/terminals.py"), "64Mi"),
            Resource::PipePages => inside(include_str!("exhaustion/attackers/pipes.py"), "256Mi"),
            Resource::UnixSocketBuffers => {
                inside(include_str!("exhaustion/attackers/unix_buffers.py"), "64Mi")
            }
            Resource::TcpSocketBuffers => {
                inside(include_str!("exhaustion/attackers/tcp_buffers.py"), "128Mi")
            }
            Resource::Keys => inside(include_str!("exhaustion/attackers/keys.py"), "64Mi"),
            Resource::Logs => inside(include_str!("exhaustion/attackers/logs.py"), "64Mi"),
            Resource::Events
            | Resource::Streams
            | Resource::Watches
            | Resource::Requests
            | Resource::Connections => Attacker::Client,
        }
    }

    fn bound(self) -> Bound {
        match self {
            Resource::Forks | Resource::QueuedSignals | Resource::TcpSocketBuffers => Bound::Errno("EAGAIN"),
            Resource::Memory | Resource::UnixSocketBuffers => Bound::OutOfMemory,
            Resource::MemoryVolume
            | Resource::SharedMemory
            | Resource::InotifyWatches
            | Resource::Terminals => Bound::Errno("ENOSPC"),
            Resource::DiskBytes | Resource::UnlinkedFiles => Bound::Evicted("ephemeral-storage"),
            Resource::DiskInodes => Bound::Evicted("inodes"),
            Resource::Descriptors | Resource::InotifyInstances => Bound::Errno("EMFILE"),
            Resource::PipePages | Resource::Keys => Bound::Errno("EPERM"),
            Resource::Logs | Resource::Events => Bound::Dropped,
            Resource::Streams | Resource::Watches | Resource::Requests => {
                Bound::Status(429, "TooManyRequests")
            }
            Resource::Connections => Bound::Closed,
        }
    }
}
