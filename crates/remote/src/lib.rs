//! Wire protocols of kubectl and the Kubernetes client libraries for streams into a running Pod.
//!
//! Joins a client's streams to a [`Kubelet`], independent of jails and of where a Pod runs.

mod channel;
mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
pub mod numbers;
mod port_forward;
mod query;
mod serve;
mod spdy;
mod status;
mod upgrade;

use hutch_kubelet::{
    ByteReader, ByteWriter, Duplex, ExecRequest, Exit, Kubelet, LogRequest, PodId, Session, StreamError,
    TerminalSize,
};
pub use serve::{attach, exec, logs, port_forward};
