//! Attacks that once worked, one test for each, against the program named by `HUTCH_BINARY` (default: this build's).
//!
//! Each file covers one way out: the root file system, names that become paths, removal of folders, and so on.

mod api_names;
mod connections;
mod copy;
mod doctor;
mod exhaustion;
#[path = "../hutch/harness.rs"]
#[allow(dead_code, reason = "shared with the other test program, which uses more of it")]
mod harness;
mod host_files;
mod ids;
mod images;
mod known;
mod layouts;
mod names;
mod ordinary;
mod removal;
mod root;
mod stalls;
mod streams;
mod strings;
mod tokens;
mod users;
mod volumes;
mod ways;
mod workspace;
