//! `hutch doctor`: features that this machine supports; consequence and remedy of each missing one.

mod attack;
mod processes;

use std::process::ExitCode;

use hutch_jail::facts::Facts;
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
        match serde_json::to_string_pretty(&Report { facts: &facts, processes: &processes }) {
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
    let runsc = facts
        .runsc
        .as_ref()
        .map(|r| format!("{} ({})", r.path.display(), r.version.as_deref().unwrap_or("does not run")));
    line("gVisor", runsc.unwrap_or_else(|| "no".to_owned()));
    line("/dev/kvm", yes(facts.kvm));
    for missing in &facts.missing {
        out.push_str(&format!(
            "\nmissing: {}\n  effect:  {}\n  remedy:  {}\n",
            missing.what, missing.costs, missing.remedy
        ));
    }
    out
}
