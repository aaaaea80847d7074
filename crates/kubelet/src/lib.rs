//! The contract of a node's streams into the Pods that it runs.

use std::os::fd::OwnedFd;
use std::pin::Pin;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A stream of bytes that comes out of a Pod.
pub type ByteReader = Pin<Box<dyn AsyncRead + Send>>;
/// A stream of bytes that goes into a Pod. Shutting it down is end of file for the process.
pub type ByteWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// A connection to a port of a Pod.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Keeps a Pod awake until dropped.
pub type Hold = Box<dyn Send + Sync>;

tokio::task_local! {
    /// Name of the caller for whom a task calls [`Kubelet::connect`], for services in the same process that record it.
    pub static CALLER: std::sync::Arc<str>;
}

/// Identifies one instance of a Pod. The UID keeps a stream from reaching a later Pod of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodId {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub name: String,
    /// `metadata.uid` of the Pod.
    pub uid: String,
}

/// A command to start in a container, or (with an empty command) the running one to attach to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Container name; `None` is the annotated default container, else the first.
    pub container: Option<String>,
    /// Program and arguments; no shell is involved.
    pub command: Vec<String>,
    /// `true` when the client sends standard input.
    pub stdin: bool,
    /// `true` when the client reads standard output.
    pub stdout: bool,
    /// `true` when the client reads standard error; always `false` with `tty`.
    pub stderr: bool,
    /// `true` when the process gets a pseudo-terminal.
    pub tty: bool,
}

/// Size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Exit status of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// The process returned this code.
    Code(i32),
    /// The process was killed by this signal number.
    Signal(i32),
    /// The process was killed because the memory of its container ran out.
    OutOfMemory,
    /// The process could not be started or observed; the text is for the caller.
    Failed(String),
}

/// A process whose streams are joined to a client. Dropping it ends a process started by `exec`.
pub struct Session {
    /// Present when the request enables standard input.
    pub stdin: Option<ByteWriter>,
    /// Present when the request enables standard output (or has a terminal).
    pub stdout: Option<ByteReader>,
    /// Present when the request enables standard error and has no terminal.
    pub stderr: Option<ByteReader>,
    /// Receiver of terminal sizes; present with a terminal.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// Resolves when the process has ended; the output may still hold bytes then.
    pub exit: BoxFuture<'static, Exit>,
}

/// Options of a log request, as in `PodLogOptions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRequest {
    /// Container name; `None` is the default container.
    pub container: Option<String>,
    /// Follows the log until the container ends.
    pub follow: bool,
    /// Returns only this many lines from the end.
    pub tail_lines: Option<u64>,
    /// Returns only lines that are at most this many seconds old.
    pub since_seconds: Option<u64>,
    /// Prefixes each line with an RFC 3339 timestamp.
    pub timestamps: bool,
    /// Stops after this many bytes.
    pub limit_bytes: Option<u64>,
    /// Returns the log of the container's previous instance.
    pub previous: bool,
}

/// Reason why a stream could not be opened. The texts are for the caller and hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum StreamError {
    /// This node has no such Pod or container, or has another instance of the Pod.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid for this Pod.
    #[error("{0}")]
    BadRequest(String),
    /// The Pod exists but is not running, or no process listens on the port.
    #[error("{0}")]
    Unavailable(String),
    /// The node failed; the cause is in its log.
    #[error("{0}")]
    Internal(String),
}

/// Streams that a node offers into the Pods that it runs.
pub trait Kubelet: Send + Sync + 'static {
    /// Starts a command in a container.
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>>;
    /// Joins the streams of a container's main process.
    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>>;
    /// Connects to a TCP port inside the Pod's network namespace.
    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>>;
    /// Resolves when this life of the Pod is over; what is forwarded into it ends then. Never, unless the node says otherwise.
    fn ended<'a>(&'a self, _pod: &'a PodId) -> BoxFuture<'a, ()> {
        std::future::pending().boxed()
    }
    /// Reads a container's log.
    fn logs<'a>(
        &'a self,
        pod: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>>;
    /// Wakes a frozen Pod and keeps it awake until the returned value is dropped. No-op on a node that never
    /// freezes Pods.
    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        let _ = pod;
        Box::pin(futures::future::ready(Ok(Box::new(()) as Hold)))
    }
}

/// A process whose streams are file descriptors. Dropping it ends the process.
pub struct PipedSession {
    /// Write end of a pipe; present when the request enables standard input.
    pub stdin: Option<OwnedFd>,
    /// Read end of a pipe; present when the request enables standard output.
    pub stdout: Option<OwnedFd>,
    /// Read end of a pipe; present when the request enables standard error.
    pub stderr: Option<OwnedFd>,
    /// Resolves when the process has ended; the output may still hold bytes then.
    pub exit: BoxFuture<'static, Exit>,
}

/// Reports traffic on a connection: keeps its Pod awake, and wakes it first if it is frozen.
pub type Activity = Box<dyn Fn() -> BoxFuture<'static, Result<(), StreamError>> + Send + Sync>;

/// A connection to a port of a Pod, as a file descriptor.
pub enum ConnectedSocket {
    /// A connected TCP socket, and the callback that reports traffic on it.
    Socket(OwnedFd, Activity),
    /// The Pod has no process: a service in the caller's own process serves the port.
    Service(String),
}

/// A node that passes streams to another process as file descriptors, which avoids copying.
pub trait Handover: Kubelet {
    /// Starts a command without a terminal. As [`Kubelet::exec`].
    fn exec_pipes<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<PipedSession, StreamError>>;
    /// Connects to a TCP port. As [`Kubelet::connect`].
    fn connect_socket<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<ConnectedSocket, StreamError>>;
}
