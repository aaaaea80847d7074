//! Pulls from registries that lie, break off and are busy, and from the one that Debian has.

mod debian;
mod downloads;
mod fixture;
mod login;
mod lying;
mod manifests;
mod signatures;
