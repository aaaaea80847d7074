//! Simulations: all reconcilers against an API server in memory, in a time that is simulated, while connections break,
//! watches fall behind, controllers die and people do as they like. Everything follows from a seed.
//!
//! `cargo xtask sim` runs as many as are wanted; `cargo xtask sim --seed N` runs one again, exactly as it was.

mod collector;
mod dice;
mod fleet;
mod history;
mod node;
mod rest;
mod run;
mod stage;
mod user;
mod wire;

use std::time::{Duration, Instant};

use run::{Outcome, run, run_with_death_at};

/// Seeds of the ordinary test.
const SEEDS: u64 = 12;
/// Lines of the trace that a failure prints.
const SHOWN: usize = 80;

/// Runs one seed. What is wrong is printed with the seed.
fn passes(seed: u64, shown: usize) -> bool {
    judged(seed, run(seed), shown)
}

fn judged(seed: u64, outcome: Outcome, shown: usize) -> bool {
    if outcome.wrong.is_empty() {
        return true;
    }
    for line in &outcome.lines[outcome.lines.len().saturating_sub(shown)..] {
        println!("{line}");
    }
    for wrong in &outcome.wrong {
        println!("seed {seed}: {wrong}");
    }
    println!("seed {seed} failed, trace {:016x}; again: cargo xtask sim --seed {seed}", outcome.hash);
    false
}

#[test]
fn a_bounded_number_of_seeds() {
    let failed: Vec<_> = (1..=SEEDS).filter(|seed| !passes(*seed, SHOWN)).collect();
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let (first, second) = (run(7), run(7));
    let differs = first.lines.iter().zip(&second.lines).find(|(first, second)| first != second);
    assert_eq!(first.hash, second.hash, "{differs:?}");
    assert_ne!(first.hash, run(8).hash);
}

/// The controller dies at that write of those that follow a claim, before the server has it or after.
fn survives_death_at(write: i64) {
    let died = |outcome: &Outcome| outcome.lines.iter().any(|line| line.ends_with(" dies"));
    let mut deaths = 0;
    for seed in 1..=3 {
        let outcome = run_with_death_at(write, seed);
        deaths += usize::from(died(&outcome));
        assert!(judged(seed, outcome, SHOWN), "seed {seed}");
    }
    assert!(deaths > 0, "no claim led to so many writes");
}

#[test]
fn a_controller_that_dies_at_the_first_write_of_an_adoption() {
    survives_death_at(1);
}

#[test]
fn a_controller_that_dies_at_the_second_write_of_an_adoption() {
    survives_death_at(2);
}

#[test]
fn a_controller_that_dies_at_the_third_write_of_an_adoption() {
    survives_death_at(3);
}

#[test]
fn a_controller_that_dies_at_the_fourth_write_of_an_adoption() {
    survives_death_at(4);
}

#[test]
fn a_controller_that_dies_at_the_fifth_write_of_an_adoption() {
    survives_death_at(5);
}

#[test]
fn a_controller_that_dies_at_the_sixth_write_of_an_adoption() {
    survives_death_at(6);
}

#[test]
#[ignore = "cargo xtask sim runs it"]
fn the_seeds_asked_for() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("HUTCH_SIM_SEED").unwrap_or(1);
    let count = number("HUTCH_SIM_SEEDS").unwrap_or(u64::MAX);
    let time = Duration::from_secs(number("HUTCH_SIM_SECONDS").unwrap_or(u64::MAX));
    let (began, mut done, mut failed) = (Instant::now(), 0, Vec::new());
    let shown = if count == 1 { usize::MAX } else { 0 };
    while done < count && began.elapsed() < time {
        let seed = first + done;
        if !passes(seed, shown) {
            failed.push(seed);
        }
        done += 1;
    }
    println!("{done} seeds from {first}: {} failed {failed:?}", failed.len());
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}
