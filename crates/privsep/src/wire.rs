//! The messages between front and root process.

use hutch_kubelet::{ExecRequest, Exit, LogRequest, PodId, StreamError, TerminalSize};
use serde::{Deserialize, Serialize};

/// A message of the front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromFront {
    Request(Request),
    /// Traffic on the connection that this request opened.
    Active(u64),
    /// The connection that this request opened is closed.
    Closed(u64),
}

/// A request of the front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Chosen by the front; repeated in the answer.
    pub(crate) number: u64,
    pub(crate) pod: PodId,
    pub(crate) what: What,
}

/// Operation requested for a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    Exec(ExecRequest),
    Attach(ExecRequest),
    Connect(u16),
    Logs(LogRequest),
    Hold,
    Ended,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) result: Result<Opened, StreamError>,
}

/// Opened resource; its file descriptors come along, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Opened {
    /// The control socket, and the streams that are present.
    Session { stdin: bool, stdout: bool, stderr: bool, resize: bool },
    /// A connected TCP socket.
    Connection,
    /// No file descriptor: the front's own service of this name serves the Pod.
    Service(String),
    /// The read end of a pipe.
    Log,
    /// The control socket.
    Held,
    /// A socket that the root process closes when the Pod has ended.
    Watch,
}

/// A message on a control socket, from the front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    /// New size of the terminal.
    Resize(TerminalSize),
}

/// A message on a control socket, from the root process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended(pub(crate) Exit);
