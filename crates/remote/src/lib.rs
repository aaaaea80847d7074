//! The wire protocols in which kubectl and the Kubernetes client libraries carry streams to a running Pod.
//!
//! It joins a client's streams to a [`Kubelet`] and knows neither jails nor where a Pod runs.

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
