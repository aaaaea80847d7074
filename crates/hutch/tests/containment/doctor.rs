//! `hutch doctor --attack`, as root and as an ordinary user.

use serde_json::Value;

use crate::harness::text;
use crate::ordinary::{Caller, Place};

fn count(tried: &Value, verdict: &str) -> usize {
    let tried = tried.as_array().expect("attacks");
    tried.iter().filter(|tried| tried["verdict"] == verdict).count()
}

#[test]
fn doctor_reports_the_result_of_each_attack() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    // Root reaches more without a sandbox, so more can be shown.
    for (caller, shown) in [(Caller::Root, 110), (Caller::Ordinary, 50)] {
        let output = place.program(caller, &["doctor", "--attack", "--json"]).output().expect("hutch doctor");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{caller:?}: {error}: {} {}", text(&output.stdout), text(&output.stderr))
        });
        assert_eq!((output.status.code(), count(&printed["native"], "works")), (Some(0), 0), "{printed}");
        assert!(count(&printed["native"], "held") >= shown, "{caller:?}: {printed}");
        let gvisor = caller == Caller::Root && hutch_testkit::Need::Runsc.missing().is_none();
        assert_eq!(printed["gvisor"].is_array(), gvisor, "{caller:?}");
        assert!(!gvisor || count(&printed["gvisor"], "held") >= 60, "{printed}");
    }
    let output = place.program(Caller::Root, &["doctor", "--attack"]).output().expect("hutch doctor");
    let printed = text(&output.stdout);
    assert!(
        printed.contains("CVE-2024-21626") && printed.contains(" held, ") && !printed.contains("WORKED"),
        "{printed}"
    );
}
