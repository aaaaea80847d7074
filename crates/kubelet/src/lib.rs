//! The contract of a node: what it offers for the Pods that it runs.

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

/// Keeps a Pod awake until it is dropped.
pub type Hold = Box<dyn Send + Sync>;

/// Names one life of a Pod. The UID keeps a stream from reaching a namesake.
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
    /// Whether the client sends standard input.
    pub stdin: bool,
    /// Whether the client wants standard output.
    pub stdout: bool,
    /// Whether the client wants standard error; always false with `tty`.
    pub stderr: bool,
    /// Whether the process gets a pseudo-terminal.
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

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// It was killed by this signal number.
    Signal(i32),
    /// It could not be started or followed; the text is for the caller.
    Failed(String),
}

/// A process whose streams are joined to a client. Dropping it ends a process started by `exec`.
pub struct Session {
    /// Present when the request asked for standard input.
    pub stdin: Option<ByteWriter>,
    /// Present when the request asked for standard output (or has a terminal).
    pub stdout: Option<ByteReader>,
    /// Present when the request asked for standard error and has no terminal.
    pub stderr: Option<ByteReader>,
    /// Where terminal sizes go; present with a terminal.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// Resolves when the process has ended; the output may still hold bytes then.
    pub exit: BoxFuture<'static, Exit>,
}

/// What part of a container's log is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRequest {
    /// Container name; `None` is the default container.
    pub container: Option<String>,
    /// Go on with what is written later, until the container ends.
    pub follow: bool,
    /// Only the last so many lines.
    pub tail_lines: Option<u64>,
    /// Only lines not older than so many seconds.
    pub since_seconds: Option<u64>,
    /// Put an RFC 3339 time before each line.
    pub timestamps: bool,
    /// Stop after so many bytes.
    pub limit_bytes: Option<u64>,
    /// The log of the container's previous life.
    pub previous: bool,
}

/// Why a stream could not be opened. The texts are for the caller and hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum StreamError {
    /// No such Pod or container here, or another life of it.
    #[error("{0}")]
    NotFound(String),
    /// The request makes no sense for this Pod.
    #[error("{0}")]
    BadRequest(String),
    /// The Pod exists and is not running, or nothing listens on the port.
    #[error("{0}")]
    Unavailable(String),
    /// Something went wrong on the node; the cause is in its log.
    #[error("{0}")]
    Internal(String),
}

/// What a node offers for the Pods that it runs.
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
    /// Wakes a Pod whose processes stand still, and keeps it awake for as long as the answer lives. A node whose Pods
    /// never sleep has nothing to do.
    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        let _ = pod;
        Box::pin(futures::future::ready(Ok(Box::new(()) as Hold)))
    }
}

/// A process whose streams are descriptors. Dropping it ends the process.
pub struct PipedSession {
    /// Write end of a pipe; present when the request asked for standard input.
    pub stdin: Option<OwnedFd>,
    /// Read end of a pipe; present when the request asked for standard output.
    pub stdout: Option<OwnedFd>,
    /// Read end of a pipe; present when the request asked for standard error.
    pub stderr: Option<OwnedFd>,
    /// Resolves when the process has ended; the output may still hold bytes then.
    pub exit: BoxFuture<'static, Exit>,
}

/// Reports that bytes move through a connection: keeps its Pod awake, and wakes it first if it sleeps.
pub type Activity = Box<dyn Fn() -> BoxFuture<'static, Result<(), StreamError>> + Send + Sync>;

/// A connection to a port of a Pod, as a descriptor.
pub enum ConnectedSocket {
    /// A connected TCP socket, and what to call while bytes move through it.
    Socket(OwnedFd, Activity),
    /// The Pod holds no process: this service of the caller's own answers for it.
    Service(String),
}

/// A node that hands streams to another process by their descriptors, where copying would cost too much.
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
