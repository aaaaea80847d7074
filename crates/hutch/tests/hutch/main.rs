//! The program as its users meet it: on one machine, and beside a real Kubernetes.

mod bad_input;
mod caches;
mod captured;
mod carried;
mod client_commands;
mod clients;
mod cluster_sleep;
mod collector;
mod control_plane;
mod controller;
mod deploy;
mod docs;
mod egress;
mod harness;
mod image;
mod inspected;
mod isolation;
mod killed;
mod late_env;
/// Runs and compares lives, as in the tests of the controllers.
#[path = "../../../controller/tests/lives/mod.rs"]
mod lives;
mod migrate;
mod mounts;
mod neighbors;
mod on_cluster;
mod paths;
mod peers;
mod policies;
mod policy_commands;
mod policy_crds;
mod processes;
mod recorded;
mod registries;
mod replica;
mod router;
mod run;
mod sandbox_config;
mod settings;
mod sleep;
mod toolchains;
mod trusted;
mod tunnels;
mod upgrade;
mod walkthrough;
mod websocket;
