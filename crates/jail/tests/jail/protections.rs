//! The table, in native jails.

use hutch_jail::attack::{Planted, all};

use crate::harness::{Bench, Caller};

/// Runs the selected attacks; reports all that worked, not only the first.
fn hold(caller: Caller, pick: impl Fn(&str) -> bool) {
    let bench = Bench::new(caller);
    let planted = Planted::new(&bench.planted()).unwrap();
    let picked: Vec<_> = all(&planted).into_iter().filter(|attack| pick(&attack.attempt)).collect();
    assert!(!picked.is_empty(), "no attack was picked");
    let found = bench.attempts(&picked);
    let failures: Vec<String> = picked
        .iter()
        .zip(found)
        .filter(|(attack, found)| !attack.held(found))
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
    files_of_the_host_are_out_of_reach: "read" | "open-write" | "make" | "list" | "lock";
    other_processes_are_out_of_reach: "process-named" | "programs-of-others" | "session" | "interfaces";
    what_is_on_the_host_is_out_of_reach: "unix" | "abstract" | "connect" | "shared-memory" | "semaphores" | "messages" | "named-messages";
    calls_with_descriptors_reach_nothing: "lease" | "folder-notes" | "core-size" | "held-folders" | "dirty-pipe";
}
