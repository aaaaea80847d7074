//! The Kubernetes API on one machine: the subset that clients of Agent Sandbox use, over a durable store.
//!
//! It refuses what it cannot do as a real API server would refuse it, never by silence.

pub mod discovery;
pub mod kinds;
pub mod openapi;
pub mod protobuf;
pub mod table;
