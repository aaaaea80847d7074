//! The contract of a node ([`hutch_kubelet::Kubelet`]) between two processes.
//!
//! `hutch up` runs as two processes. The *front* parses what clients send; it has a user id of its own and no
//! capabilities. The *root* process runs the node and its jails. The front sends requests over a socket pair, the root
//! process answers with descriptors: pipes and sockets whose bytes then flow without it.
//!
//! - A request names a Pod, a container, a port or a command. It carries no path, no user id and no descriptor: the
//!   root process never receives one from the front.
//! - Every answer that keeps something alive (a process, a connection, a Pod that is held awake) has a *control*
//!   socket. Closing it releases what it stands for, so a front that dies releases everything.
//! - Messages are bounded in size, and in number: see [`serve`].

mod channel;
mod client;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod server;
mod streams;
mod wire;

pub use channel::{Channel, MAX_MESSAGE, Message, pair, receive_now, send_now};
pub use client::{RemoteKubelet, Service};
pub use server::serve;
