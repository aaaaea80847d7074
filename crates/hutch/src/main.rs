//! The `hutch` binary: parses flags and connects the crates.
//!
//! It holds no domain logic. `hutch run` and `hutch doctor` fork, so they call the jail crate before any thread
//! exists. Every other command starts its own runtime.

mod address;
mod allow;
mod audit;
mod audit_log;
mod authority_folder;
mod bootstrap;
mod broker;
mod callout;
mod cli;
mod client;
mod cluster;
mod controller;
mod credentials;
mod demo;
mod doctor;
mod egress;
mod explicit;
mod folder;
mod gateway;
mod go;
#[cfg(any(test, feature = "fuzzing"))]
mod hostile;
mod image;
mod kubeconfig;
mod lean;
mod mcp_guard;
mod migrate;
mod mount;
mod paths;
mod place;
mod policy;
mod programs;
mod protect;
mod pull;
mod quantity;
mod question;
mod roles;
mod router;
mod run;
mod runtime;
mod sandboxd;
mod services;
mod signals;
mod telemetry;
mod token;
mod unpack;
mod up;
mod upstream_proxy;
mod user;
mod vault;
mod volume;

use std::process::ExitCode;

fn main() -> ExitCode {
    if runtime::is_program(up::front::NAME) {
        return up::front::main();
    }
    if runtime::is_program(egress::NAME) {
        return egress::main();
    }
    if runtime::is_program(vault::NAME) {
        return vault::main();
    }
    if runtime::is_program(pull::NAME) {
        return pull::main();
    }
    if runtime::is_program(unpack::NAME) {
        return unpack::main();
    }
    if runtime::is_program(callout::NAME) {
        return callout::main();
    }
    if runtime::is_program(broker::NAME) {
        return broker::main();
    }
    match cli::parse() {
        Ok(cli::Command::Run(arguments)) => run::main(arguments),
        Ok(cli::Command::Up(arguments)) => up::main(arguments),
        Ok(cli::Command::Egress(arguments)) => explicit::main(&arguments),
        Ok(cli::Command::McpGuard(arguments)) => mcp_guard::main(&arguments),
        Ok(cli::Command::Router(arguments)) => router::main(&arguments.flags),
        Ok(cli::Command::Token(arguments)) => token::main(&arguments),
        Ok(cli::Command::User(arguments)) => user::main(&arguments),
        Ok(cli::Command::Image(arguments)) => image::main(&arguments),
        Ok(cli::Command::Volume(arguments)) => volume::main(&arguments),
        Ok(cli::Command::Sandboxd(arguments)) => sandboxd::main(&arguments),
        Ok(cli::Command::Exec(arguments)) => client::exec(arguments),
        Ok(cli::Command::Shell(arguments)) => client::shell(arguments),
        Ok(cli::Command::Cp(arguments)) => client::copy(&arguments),
        Ok(cli::Command::Logs(arguments)) => client::logs(&arguments),
        Ok(cli::Command::Suspend(arguments)) => client::suspend(&arguments),
        Ok(cli::Command::Resume(arguments)) => client::resume(&arguments),
        Ok(cli::Command::Snapshot(arguments)) => client::snapshot(&arguments),
        Ok(cli::Command::Fork(arguments)) => client::fork(arguments),
        Ok(cli::Command::Allow(arguments)) => policy::allow::main(&arguments),
        Ok(cli::Command::Policy(arguments)) => policy::main(&arguments),
        Ok(cli::Command::Audit(arguments)) => audit::main(&arguments),
        Ok(cli::Command::Controller(arguments)) => controller::main(&arguments.flags),
        Ok(cli::Command::Migrate(arguments)) => migrate::main(arguments),
        Ok(cli::Command::Demo(arguments)) => demo::main(arguments),
        Ok(cli::Command::ProbeNetwork(arguments)) => gateway::probe::main(&arguments),
        Ok(cli::Command::Doctor(arguments)) => doctor::main(arguments),
        Ok(cli::Command::Version) => {
            println!("hutch {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Err(refusal) => refusal.report(),
    }
}
