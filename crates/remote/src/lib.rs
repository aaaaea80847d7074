//! Streams to a running Pod: the contract between who runs Pods and who carries their bytes, and the wire
//! protocols in which kubectl and the Kubernetes client libraries carry them.
//!
//! It refuses to know what a jail is or where a Pod lives: it joins a client's streams to a [`Kubelet`].

mod kubelet;

pub use kubelet::{
    ByteReader, ByteWriter, Duplex, ExecRequest, Exit, Kubelet, LogRequest, PodId, Session, StreamError, TerminalSize,
};
