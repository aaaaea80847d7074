//! The objects by which policies are attached to Pods, as their watches report them, the levels of a Pod, and the Sandboxes
//! that it reaches.

mod conflict;
mod links;
mod message;
mod mirror;
mod objects;
mod peers;
mod service;
mod watch;

pub use conflict::Conflicts;
pub use links::{Link, Links};
pub use message::egress_of;
pub use mirror::{Mirror, version};
pub use objects::{Closed, Labels, Objects, PENDING, SandboxFacts, TemplateFacts, policy, provider};
pub use peers::{AllBehind, Behind, Chosen, Ground, PeerRefusal, Reachable, Services, choose};
pub use service::ServiceFacts;
pub use watch::{Events, in_small_pages, logged, policies_of_kind, watch, watch_metadata};
