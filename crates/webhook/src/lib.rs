//! Serves two versions of the four kinds on any cluster: the conversion webhook that a Kubernetes API server
//! calls, with its certificates, and the [`Migration`] of what is stored in the older one.
//!
//! It refuses to admit, to validate and to change anything but what conversion and migration need. Hutch's own API server
//! converts by itself and needs none of this.
//!
//! # Certificates
//!
//! The API server dials `<service>.<namespace>.svc` and trusts what `spec.conversion.webhook.clientConfig.caBundle` of the
//! definition holds. With [`Settings::manage_certs`] both ends are kept here, from one Secret that all replicas share,
//! in the form that the Go controller of Agent Sandbox uses (`ca.crt`, `tls.crt`, `tls.key`), so either can continue
//! with what the other has made. An authority signs one certificate, and then its key is thrown away, so a renewal is
//! always a new authority and a new certificate.
//!
//! A renewal must not break a conversion while some replicas show the old certificate and some the new one:
//!
//! 1. Thirty days before the end (or when the Secret cannot be used) a replica makes the new pair and writes the Secret, guarded
//!    by its resourceVersion: of several replicas one wins, the others load what it has written. `ca.crt` is then a
//!    bundle: the new authority first, after it every older one *that has not expired*. So the old authority stays trusted as
//!    long as any certificate of it can be valid, whichever replica shows it, even a Go replica that never reads again.
//! 2. Each replica, when it sees a Secret that is new to it, writes the bundle into the definitions, guarded by their
//!    resourceVersions as read *before* the Secret, so that a slow replica cannot put an older bundle over a newer one.
//! 3. Only then, and after a pause in which every API server has heard of the definitions, it shows the new certificate.
//!
//! The Secret and the definitions are read every minute: a definition that was applied anew without its bundle, or that
//! came after the start, is repaired then.
//!
//! Without [`Settings::manage_certs`] the operator provides the files. They are read again after a change; a pair that
//! cannot be used leaves the last one in place.

mod authority;
mod convert;
mod definitions;
mod error;
mod key_material;
mod migrate;
mod operator_files;
mod review;
mod rotator;
mod settings;
mod webhook;

pub use error::Error;
pub use migrate::Migration;
pub use settings::Settings;
pub use webhook::{Webhook, run, start};

#[cfg(test)]
mod tests;
