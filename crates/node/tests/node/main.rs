//! The node as a whole: Pods through the API, real jails, real runsc where it is installed.

#![allow(clippy::disallowed_methods, reason = "constant names in temporary folders")]

mod gvisor;
mod hard_limits;
mod hostile_front;
mod machine;
mod pods;
mod pressure;
mod sleep;
mod streams;
mod volumes;
mod without_proxy;
