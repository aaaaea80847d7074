//! The node: runs the Pods that are bound to it, each container in a jail of its own (the kubelet's role).
//!
//! It speaks to the API server as any other client and to the machine through the jail and image crates. It refuses
//! what would weaken the isolation (host namespaces, privileged containers, capabilities of the machine), says no
//! to what it does not support in an event that names it, and never runs a Pod in less isolation than its spec says.
//! It decides nothing about which Pods there should be.

mod addresses;
mod admission;
mod blueprint;
mod capacity;
mod claims;
mod config;
mod container;
mod cordon;
mod dial;
mod disk;
mod embedded;
mod environment;
mod error;
mod events;
mod files;
mod folders;
mod gate;
mod host_paths;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod inventory;
mod kubelet;
mod limits;
mod live;
mod memory;
mod memory_volumes;
mod node;
pub mod oci;
mod out_of_memory;
mod persistent;
mod places;
mod pod;
mod policies;
mod register;
mod runtime;
mod saved;
mod security;
mod session;
mod shared;
mod sleep;
mod snapshot;
mod stdio;
mod subpath;
mod tokens;
pub mod trust;
mod usage;
mod volumes;
mod walks;

pub use config::{
    Bundle, Config, ContainerChange, DEFAULT_MEMORY_BYTES, DEFAULT_PIDS, DefaultLimits, Egress, EgressNews,
    EmbeddedService, Handler, Holder, HostPath, ImagePuller, Journal, Offer, PeerAnswer, PeerRequest,
    PullFailure, PullSecret, ServiceKind,
};
pub use embedded::service_of;
pub use error::Error;
pub use folders::make_volume;
pub use hutch_attach::{Ground, PeerRefusal, ServiceFacts};
pub use node::Node;
pub use persistent::{capacity, is_in_memory, is_over_capacity, volume_folder};
pub use runtime::changes_folder;
pub use usage::{Usage, measure};
