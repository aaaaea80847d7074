//! Third-party clients against the streams alone.

mod kube;
mod kubectl;
mod python;
mod server;
