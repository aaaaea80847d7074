//! The node as a whole: Pods through the API, real jails, real runsc where it is installed.

mod gvisor;
mod machine;
mod pods;
mod sleep;
mod streams;
