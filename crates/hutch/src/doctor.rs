//! `hutch doctor`: features that this machine supports; consequence and remedy of each missing one.

mod attack;
mod processes;
mod tiers;

use std::process::ExitCode;

use hutch_jail::facts::{Facts, Runsc};
use serde::Serialize;

use crate::cli::DoctorArguments;

/// Prints the report. Exit status 0 if this machine supports native jails, else 1.
///
/// With `--attack`, 0 if no attack worked.
pub(crate) fn main(arguments: DoctorArguments) -> ExitCode {
    if arguments.attack {
        return match attack::main(arguments.json) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("hutch doctor: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let facts = Facts::collect();
    let processes = processes::running();
    if arguments.json {
        match serde_json::to_string_pretty(&Report {
            facts: &facts,
            tiers: tiers::tiers(&facts),
            processes: &processes,
        }) {
            Ok(text) => println!("{text}"),
            Err(error) => {
                eprintln!("hutch doctor: {error}");
                return ExitCode::FAILURE;
            }
        }
    } else {
        print!("{}{}", text(&facts), processes::text(&processes));
    }
    if facts.namespaces.iter().all(|namespace| namespace.available) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Report as JSON.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    facts: &'a Facts,
    /// Tiers of idle Sandboxes that this machine has, and does not have.
    tiers: [tiers::Tier; 4],
    processes: &'a [processes::Process],
}

fn text(facts: &Facts) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| out.push_str(&format!("{name:<28}{value}\n"));
    let yes = |held: bool| if held { "yes" } else { "no" }.to_owned();
    line("kernel", format!("{} ({})", facts.kernel, facts.architecture));
    line("root", yes(facts.root));
    let names = |available: bool| {
        let chosen = facts.namespaces.iter().filter(|n| n.available == available).map(|n| n.name);
        chosen.collect::<Vec<_>>().join(" ")
    };
    line("namespaces", names(true));
    if !names(false).is_empty() {
        line("namespaces refused", names(false));
    }
    line("user ns for ordinary users", yes(facts.unprivileged_user_namespaces));
    let controllers: Vec<String> = facts
        .cgroups
        .controllers
        .iter()
        .map(|c| format!("{} {}", c.name, if c.usable { c.version.unwrap_or("?") } else { "no" }))
        .collect();
    line("cgroups", format!("{}: {}", facts.cgroups.version, controllers.join(", ")));
    line("Landlock", facts.landlock.map_or("no".to_owned(), |abi| format!("ABI {abi}")));
    line("seccomp filters", yes(facts.seccomp));
    line("idmapped mounts", facts.idmapped_mounts.map_or("unknown (needs root)".to_owned(), yes));
    line("overlayfs", yes(facts.overlayfs));
    line("egress (nft tproxy)", yes(facts.egress));
    line("egress for ordinary users", yes(facts.egress_for_ordinary_users));
    line("gVisor", facts.runsc.as_ref().map_or_else(|| "no".to_owned(), gvisor));
    line("/dev/kvm", yes(facts.kvm));
    line("swap", format!("{} MiB", facts.swap_bytes >> 20));
    for tier in tiers::tiers(facts) {
        line(&format!("idle: {}", tier.name), tier.text());
    }
    for missing in &facts.missing {
        out.push_str(&format!(
            "\nmissing: {}\n  effect:  {}\n  remedy:  {}\n",
            missing.what, missing.costs, missing.remedy
        ));
    }
    out
}

/// Returns the path, version and features of runsc, or why it cannot be used.
fn gvisor(runsc: &Runsc) -> String {
    if let Some(problem) = &runsc.problem {
        return format!("no: {problem}");
    }
    let version = runsc.version.as_deref().unwrap_or_default();
    let (platforms, networks) = (runsc.platforms.join(" "), runsc.networks.join(" "));
    let checkpoint = if runsc.checkpoint { "" } else { "no " };
    format!(
        "{} ({version}); platforms {platforms}; networks {networks}; {checkpoint}checkpoint",
        runsc.path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gvisor_that_cannot_be_used_is_not_reported_as_there() {
        let mut runsc = Runsc {
            path: "/usr/bin/runsc".into(),
            version: Some("release-1".into()),
            platforms: vec!["systrap", "kvm"],
            networks: vec!["host"],
            checkpoint: true,
            problem: None,
        };
        assert_eq!(
            gvisor(&runsc),
            "/usr/bin/runsc (release-1); platforms systrap kvm; networks host; checkpoint"
        );
        runsc.problem = Some("too old".into());
        assert_eq!(gvisor(&runsc), "no: too old");
    }
}
