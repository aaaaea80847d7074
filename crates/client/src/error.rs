//! Errors of this crate.

use std::io;
use std::time::Duration;

use kube::core::Status;
use tokio_tungstenite::tungstenite;

/// Reason why a request for a Sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Text that is not a [`Name`](crate::Name).
    #[error("`{0}` names no Sandbox; write NAME, claim/NAME or sandbox/NAME")]
    Name(String),
    /// The API server refused a request.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// The API server does not know who is asking.
    #[error(
        "the API server does not accept the credential of the kubeconfig: it has ended, or is another server's"
    )]
    Unauthorized,
    /// A request failed for another reason.
    #[error("the API server")]
    Api(#[source] kube::Error),
    /// A request that cannot be built.
    #[error("the request")]
    Request(#[source] kube::core::request::Error),
    /// No object of that name.
    #[error("no {kind} {name} in namespace {namespace}")]
    NotFound {
        /// Kind, or kinds.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// Namespace.
        namespace: String,
    },
    /// A claim is bound to a Sandbox that does not exist.
    #[error("claim {claim} names sandbox {sandbox}, which is not there")]
    Unbound {
        /// Name of the claim.
        claim: String,
        /// Name of the Sandbox.
        sandbox: String,
    },
    /// The object cannot reach the awaited state by itself.
    #[error("{kind} {name}: {obstacle}")]
    Blocked {
        /// Kind, such as `sandbox`.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// Reason.
        obstacle: Obstacle,
    },
    /// The time limit of a wait has passed.
    #[error("{kind} {name} is not {goal}{}: {state}", after(.limit))]
    TimedOut {
        /// Kind, such as `sandbox`.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// Awaited state.
        goal: &'static str,
        /// State at the end.
        state: String,
        /// Time limit.
        limit: Duration,
    },
    /// The object was deleted during a wait.
    #[error("{kind} {name} was deleted meanwhile")]
    Deleted {
        /// Kind, such as `sandbox`.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
    /// The Sandbox of a snapshot does not exist, or another one has its name.
    #[error("snapshot {snapshot} is of a sandbox {sandbox} that is gone, and so is its spec")]
    NoSource {
        /// Name of the snapshot.
        snapshot: String,
        /// Name of the Sandbox.
        sandbox: String,
    },
    /// The API server keeps no memory.
    #[error(
        "the API server has no SandboxSnapshots: `hutch up` alone keeps the memory of a suspended Sandbox"
    )]
    NoSnapshots,
    /// A Sandbox that was suspended without its memory.
    #[error("sandbox {0} is suspended already, without its memory")]
    NoMemory(String),
    /// A Sandbox whose memory was lost during the suspend, for example because its Pod was deleted.
    #[error("sandbox {0} is suspended, but its memory is lost: it will begin anew")]
    MemoryLost(String),
    /// The watch of an object ended.
    #[error("the watch ended")]
    WatchEnded,
    /// The Sandbox has no Pod.
    #[error("sandbox {sandbox} has no Pod {pod}")]
    NoPod {
        /// Name of the Sandbox.
        sandbox: String,
        /// Name that its Pod would have.
        pod: String,
        /// Namespace of both.
        namespace: String,
    },
    /// The Pod has no such container.
    #[error("container {container}: pod {pod} has no such container; it has {}", .containers.join(", "))]
    NoContainer {
        /// Requested name.
        container: String,
        /// Name of the Pod.
        pod: String,
        /// Containers of the Pod.
        containers: Vec<String>,
    },
    /// The log of a suspended Sandbox, which was deleted with its Pod.
    #[error("sandbox {0} is suspended and its log has gone with its Pod")]
    NoLog(String),
    /// Sending to a command failed.
    #[error("the connection ended")]
    Disconnected,
    /// The connection ended before the command.
    #[error("the connection ended before the command did; the command may still be running")]
    Lost(#[source] Option<Box<tungstenite::Error>>),
    /// The API server did not report how a command ended.
    #[error("{0}")]
    Outcome(&'static str, #[source] Option<serde_json::Error>),
    /// A program that a copy needs did not start.
    #[error("{0}")]
    NotStarted(String),
    /// The container lacks a program that a copy needs.
    #[error("container {container} has no `{program}`")]
    NoProgram {
        /// Name of the container.
        container: String,
        /// Name of the program.
        program: String,
    },
    /// A program of a copy failed in the container.
    #[error("{program} in sandbox {sandbox} ended with status {status}: {stderr}")]
    Failed {
        /// Name of the Sandbox.
        sandbox: String,
        /// Name of the program.
        program: String,
        /// Exit status.
        status: u8,
        /// Start of its standard error, which is untrusted text.
        stderr: String,
    },
    /// The archive of a copy cannot be read or written at the caller's side.
    #[error("the archive")]
    Archive(#[source] io::Error),
    /// The port is not forwarded.
    #[error("port {0} is not forwarded")]
    NoPort(u16),
}

/// Reason why an object cannot reach the awaited state by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The Sandbox is being deleted.
    #[error("it is being deleted")]
    Deleting,
    /// The Sandbox is suspended.
    #[error("it is suspended")]
    Suspended,
    /// Another client resumed the Sandbox during the wait for its suspension.
    #[error("another client has resumed it")]
    Resumed,
    /// The shutdown time of the Sandbox has passed.
    #[error("{0}; a later spec.shutdownTime brings it back")]
    Expired(String),
    /// The Pod of the Sandbox has ended.
    #[error("{0}")]
    PodEnded(String),
    /// The Pod of the Sandbox cannot start, or cannot be created.
    #[error("{0}")]
    Pod(String),
    /// A Pod that does not belong to the Sandbox has its name.
    #[error("{0}; delete that Pod, or rename the Sandbox")]
    PodNotOwned(String),
    /// The claim is rejected, or the snapshot or the fork has failed.
    #[error("{0}")]
    Rejected(String),
}

fn after(limit: &Duration) -> String {
    if limit.is_zero() { String::new() } else { format!(" after {limit:?}") }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) if status.code == 401 => Error::Unauthorized,
            // Its text is that of the server, without a dump of the object.
            kube::Error::Api(status) if !status.message.is_empty() => Error::Refused(status),
            error => Error::Api(error),
        }
    }
}
