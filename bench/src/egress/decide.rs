//! Measures decisions among many policies.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use hutch_policy::{Authority, Destination, Egress, EgressRule, Level, Moment, decide};

use crate::stats::Samples;

/// Policies, rules of each, and policies of one sandbox.
const POLICIES: usize = 10_000;
const RULES: usize = 50;
const LEVELS: usize = 8;
/// Decisions that are measured.
const DECISIONS: usize = 100_000;

/// Measures and prints the table.
pub(super) fn run() {
    let policies: Vec<Arc<Level>> = (0..POLICIES).map(|number| Arc::new(level(number))).collect();
    let destinations: Vec<Destination> = (0..RULES)
        .filter_map(|rule| format!("h{rule}.example.com").parse().ok())
        .chain((0..RULES).filter_map(|rule| format!("a.b.s{rule}.example.org:8443").parse().ok()))
        .collect();
    let mut samples = Samples::default();
    for number in 0..DECISIONS {
        // Far from each other, so that the caches of the processor do not help.
        let levels: [Arc<Level>; LEVELS] =
            std::array::from_fn(|index| policies[(number * 7919 + index * 1249) % POLICIES].clone());
        let destination = &destinations[number % destinations.len()];
        let began = Instant::now();
        black_box(decide(&levels, destination, &Moment::default()).decision);
        samples.add(began.elapsed());
    }
    let micros = |share| samples.percentile(share).as_secs_f64() * 1e6;
    println!("\n### One decision: {LEVELS} of {POLICIES} policies apply, {RULES} rules each\n");
    println!("| p50 us | p99 us | n |\n|---|---|---|");
    println!("| {:.1} | {:.1} | {} |", micros(0.5), micros(0.99), samples.len());
}

fn level(number: usize) -> Level {
    let rule = |index: usize| {
        let (host, port) = match index % 2 {
            0 => (format!("h{index}.example.com"), 443),
            _ => (format!("**.s{index}.example.org"), 8443),
        };
        EgressRule {
            name: format!("rule-{index}"),
            hosts: host.parse().into_iter().collect(),
            ports: port.to_string().parse().into_iter().collect(),
            ..EgressRule::default()
        }
    };
    Level::new(
        Authority::Namespace,
        format!("policy-{number}"),
        Some(Egress { rules: (0..RULES).map(rule).collect(), budget: None }),
    )
}
