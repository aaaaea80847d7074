//! The Kubernetes API of one machine: the resources that Agent Sandbox and its clients use, with the answers that a
//! Kubernetes API server gives.
//!
//! Kinds are data (`kinds`): the built-in ones are a table, those of CustomResourceDefinitions are read from
//! their objects. One handler serves them all; what is special about a kind is in `admission` (defaults that a real
//! server fills in) and `subresource`.
//!
//! [`ApiServer`] is offered twice: [`ApiServer::router_as`] answers callers of this process under an identity they are
//! given, [`ApiServer::authenticated`] finds out who calls. Who may do what is decided in `access`, by the stored roles and
//! bindings.
//!
//! It refuses to reconcile: it collects no garbage, empties no namespace and runs no Pod. It keeps the finalizers,
//! timestamps and preconditions by which others can.

mod accept;
mod access;
mod admission;
mod admit;
mod annotations;
mod audit;
mod authentication;
mod body;
mod bootstrap;
mod bounds;
mod call;
mod certificates;
mod convert;
mod core;
mod credentials;
mod depth;
mod discovery;
mod dispatch;
mod error;
mod expression;
mod failure;
mod field_path;
mod fields;
mod filter;
mod hooks;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod identity;
mod journal;
mod json;
mod json_path;
mod kinds;
mod locks;
mod meta;
mod number;
mod object;
mod openapi;
mod ownership;
mod patch;
mod protobuf;
mod query;
mod quota;
mod registry;
mod respond;
mod review;
mod scale;
mod schema;
mod selector;
mod server;
mod service_token;
mod subresource;
mod table;
mod verbs;

pub use error::Error;
pub use hooks::Connector;
pub use identity::Identity;
pub use journal::{Audit, Make, Refusals};
pub use server::{ApiServer, Config};

/// Maximum bytes of a request body, as in Kubernetes.
pub const BODY_BYTES: usize = 3 << 20;
/// Version that `/version` reports.
pub const SERVER_VERSION: &str = "v1.36.0";
