//! The table, in native jails.

use hutch_jail::Capabilities;
use hutch_jail::attack::{ALL_CAPABILITIES, Planted, all};

use crate::harness::{Bench, Caller};

/// Runs the selected attacks; reports all that worked, not only the first.
fn hold(caller: Caller, pick: impl Fn(&str) -> bool) {
    hold_in(&Bench::new(caller), pick);
}

fn hold_in(bench: &Bench, pick: impl Fn(&str) -> bool) {
    let planted = Planted::new(&bench.planted()).unwrap();
    let picked: Vec<_> = all(&planted).into_iter().filter(|attack| pick(&attack.attempt)).collect();
    assert!(!picked.is_empty(), "no attack was picked");
    let found = bench.attempts(&picked);
    let failures: Vec<String> = picked
        .iter()
        .zip(found)
        .filter(|(attack, found)| match attack.name {
            "no capabilities" if !bench.spec.capabilities.is_empty() => {
                !ALL_CAPABILITIES.contains(&found.as_str())
            }
            _ => !attack.held(found),
        })
        .map(|(attack, found)| format!("{}: {found:?}, not one of {:?}", attack.name, attack.finds))
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} protections do not hold:\n{}",
        failures.len(),
        picked.len(),
        failures.join("\n")
    );
}

/// All of them where user 0 has capabilities.
#[test]
fn capabilities_of_user_0_open_nothing() {
    hutch_testkit::require!(root);
    let mut bench = Bench::new(Caller::Root);
    bench.spec.capabilities = Capabilities::ALL;
    hold_in(&bench, |_| true);
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
    privileges_are_gone: "status" | "mknod" | "more-capabilities" | "ambient-capability";
    files_of_the_host_are_out_of_reach: "read" | "open-write" | "make" | "list" | "lock" | "chown" | "chmod";
    other_processes_are_out_of_reach: "process-named" | "programs-of-others" | "session" | "interfaces";
    what_is_on_the_host_is_out_of_reach: "unix" | "abstract" | "connect" | "shared-memory" | "semaphores" | "messages" | "named-messages";
    calls_with_descriptors_reach_nothing: "lease" | "folder-notes" | "core-size" | "held-folders" | "dirty-pipe";
}
