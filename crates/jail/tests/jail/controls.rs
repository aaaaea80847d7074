//! The table where the protection is missing: each attempt must find something else, or it shows nothing.

use std::path::Path;
use std::process::Command;

use crate::harness::{Bench, PROBE, outside, words};
use crate::protections::fits;
use crate::table::{Control, protections};

#[test]
fn each_attack_works_where_there_is_no_protection() {
    hutch_testkit::require!(root);
    let bench = Bench::unprotected();
    let mut failures = Vec::new();
    for protection in &protections() {
        // Without a mount of its own, `/tmp` is the machine's.
        let attempt = words(&protection.attempt.replace("/tmp", &bench.work().to_string_lossy()));
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
            Control::ProcessNamespace => {
                let mut unshare = Command::new("unshare");
                let output =
                    unshare.args(["--pid", "--fork", PROBE, "attempt"]).args(&attempt).output().unwrap();
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            }
        };
        if fits(protection, &found) || found.starts_with("not launched") {
            failures.push(format!("{}: {found:?} without the protection too", protection.name));
        }
    }
    // What the attempts made on the machine itself.
    for path in ["/usr/bin/hutch-test-of-writing", "/hutch-test-of-writing"] {
        let _ = std::fs::remove_file(path);
    }
    assert!(failures.is_empty(), "{} attacks show nothing:\n{}", failures.len(), failures.join("\n"));
}
