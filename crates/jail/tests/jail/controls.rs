//! The table where the protection is missing: each attempt must find something else, or it shows nothing.

use std::path::Path;
use std::process::Command;

use hutch_jail::attack::{Control, Planted, all};

use crate::harness::{Bench, PROBE, outside};

#[test]
fn each_attack_works_where_there_is_no_protection() {
    hutch_testkit::require!(root);
    let bench = Bench::unprotected();
    let planted = Planted::new(&bench.planted()).unwrap();
    let mut failures = Vec::new();
    for protection in &all(&planted) {
        // Without a mount of its own, `/tmp` is the machine's.
        let attempt = protection.attempt_in(&bench.work());
        let found = match protection.control {
            Control::Unprotected => bench.attempt(&attempt).found(),
            Control::Outside => outside(&attempt),
            Control::OutsideIfThere => {
                if !Path::new(&attempt[1]).exists() {
                    hutch_testkit::note_skip(
                        &format!("control of {}", protection.name),
                        "not on this machine",
                    );
                    continue;
                }
                outside(&attempt)
            }
            Control::NotHere(reason) => {
                hutch_testkit::note_skip(&format!("control of {}", protection.name), reason);
                continue;
            }
            Control::ProcessNamespace => {
                let mut unshare = Command::new("unshare");
                let output =
                    unshare.args(["--pid", "--fork", PROBE, "attempt"]).args(&attempt).output().unwrap();
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            }
        };
        if protection.held(&found) || found.starts_with("not launched") {
            failures.push(format!("{}: {found:?} without the protection too", protection.name));
        }
    }
    assert!(failures.is_empty(), "{} attacks show nothing:\n{}", failures.len(), failures.join("\n"));
}
