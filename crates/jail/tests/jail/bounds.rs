//! Limits hold inside.

use hutch_jail::Limits;

use crate::harness::{Bench, Caller, words};

fn limited(limits: Limits, attempt: &str) -> crate::harness::Report {
    let mut bench = Bench::new(Caller::Root);
    bench.spec.limits = limits;
    bench.attempt(&words(attempt))
}

#[test]
fn processes_are_bounded() {
    hutch_testkit::require!(root);
    let forks = |limits| -> u64 { limited(limits, "forks 60").found().parse().unwrap() };
    assert_eq!(forks(Limits::default()), 60);
    let bounded = forks(Limits { pids: Some(20), ..Limits::default() });
    // Init and the probe are of the 20.
    assert_eq!(bounded, 18);
}

#[test]
fn memory_limit_kills_and_reports_the_exit() {
    hutch_testkit::require!(root);
    assert_eq!(limited(Limits::default(), "eat 200").found(), "ok");
    let report = limited(Limits { memory_bytes: Some(64 << 20), ..Limits::default() }, "eat 200");
    assert_eq!(report.ended.as_deref(), Some("OutOfMemory"), "{report:?}");
    let enough = limited(Limits { memory_bytes: Some(64 << 20), ..Limits::default() }, "eat 20");
    assert_eq!(enough.found(), "ok");
}

#[test]
fn cpu_time_is_bounded() {
    hutch_testkit::require!(root);
    let used = |limits| -> u64 { limited(limits, "burn 1000").found().parse().unwrap() };
    let bounded = used(Limits { cpu_millis: Some(200), ..Limits::default() });
    // A fifth of a second, and the rest of a period at each end.
    assert!((20..=450).contains(&bounded), "{bounded} ms");
    let free = used(Limits::default());
    assert!(free > bounded, "{free} ms without a limit, {bounded} ms with one");
}
