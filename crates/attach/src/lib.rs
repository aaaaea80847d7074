//! The objects by which policies are attached to Pods, as their watches report them, and the levels of a Pod.

mod mirror;
mod objects;
mod watch;

pub use mirror::{Mirror, version};
pub use objects::{Closed, Labels, Objects, SandboxFacts, TemplateFacts, policy};
pub use watch::{Events, policies_of_kind, watch, watch_metadata};
