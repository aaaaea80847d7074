//! The table, in native jails.

use crate::harness::{Bench, Caller, words};
use crate::table::{CGROUP_ROOTS, Protection, protections};

/// Whether an attempt found what it has to.
pub(crate) fn fits(protection: &Protection, found: &str) -> bool {
    if protection.finds == CGROUP_ROOTS {
        return !found.is_empty() && found.lines().all(|line| line.ends_with(":/"));
    }
    protection.finds.contains(&found)
}

/// Runs the rows that are picked; tells of all that failed, not only of the first.
fn hold(caller: Caller, pick: impl Fn(&str) -> bool) {
    let bench = Bench::new(caller);
    let mut failures = Vec::new();
    let mut tried = 0;
    for protection in protections().iter().filter(|protection| pick(&protection.attempt)) {
        let found = bench.attempt(&words(&protection.attempt)).found();
        tried += 1;
        if !fits(protection, &found) {
            failures.push(format!("{}: {:?}, not one of {:?}", protection.name, found, protection.finds));
        }
    }
    assert!(tried > 0, "no row was picked");
    assert!(
        failures.is_empty(),
        "{} of {tried} protections do not hold:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// One test for each kind of attack, as root and as an ordinary user.
macro_rules! kinds {
    ($($name:ident: $($word:literal)|+;)+) => {
        fn kind(attempt: &str) -> &'static str {
            let word = attempt.split(' ').next().unwrap_or("");
            match word {
                $($($word)|+ => stringify!($name),)+
                other => panic!("no kind for {other}"),
            }
        }
        mod as_root {
            use super::*;
            $(#[test]
            fn $name() {
                hutch_testkit::require!(root);
                hold(Caller::Root, |attempt| kind(attempt) == stringify!($name));
            })+
        }
        mod as_ordinary_user {
            use super::*;
            $(#[test]
            fn $name() {
                hutch_testkit::require!(user_namespaces);
                hold(Caller::Ordinary, |attempt| kind(attempt) == stringify!($name));
            })+
        }
    };
}

kinds! {
    system_calls_are_refused: "syscall";
    namespaces_cannot_be_made: "unshare" | "clone";
    terminals_cannot_be_typed_into: "terminal";
    other_binary_interfaces_kill: "gate";
    set_id_bits_cannot_be_set: "set-id";
    sockets_of_other_families_are_refused: "socket";
    privileges_are_gone: "status" | "mknod";
    files_of_the_host_are_out_of_reach: "read" | "write" | "list";
    other_processes_are_out_of_reach: "processes" | "session" | "interfaces";
}
