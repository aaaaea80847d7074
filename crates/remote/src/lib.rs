//! Streams to a running Pod: the contract between who runs Pods and who carries their bytes, and the wire
//! protocols in which kubectl and the Kubernetes client libraries carry them.
//!
//! It refuses to know what a jail is or where a Pod lives: it joins a client's streams to a [`Kubelet`].

mod channel;
mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod kubelet;
pub mod numbers;
mod port_forward;
mod query;
mod serve;
mod spdy;
mod status;
mod upgrade;

pub use kubelet::{
    ByteReader, ByteWriter, Duplex, ExecRequest, Exit, Hold, Kubelet, LogRequest, PodId, Session,
    StreamError, TerminalSize,
};
pub use serve::{attach, exec, logs, port_forward};
