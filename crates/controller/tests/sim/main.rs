//! Simulations: all reconcilers against an API server in memory, in a time that is simulated, while connections break,
//! watches fall behind, controllers die and people do as they like. Everything follows from a seed.
//!
//! `cargo xtask sim` runs as many as are wanted; `cargo xtask sim --seed N` runs one again, exactly as it was.

mod collector;
mod dice;
mod faults;
mod fleet;
mod history;
mod node;
mod rest;
mod run;
mod stage;
mod trace;
mod user;
mod wire;

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use run::{run, run_with_death_at};
use trace::Outcome;

/// Seeds of the ordinary test, unless the environment wants others: half a minute on two processors.
const SEEDS: u64 = 32;
/// Lines of the trace that a failure prints.
const SHOWN: usize = 80;

/// Runs one seed. What is wrong is printed with the seed.
fn passes(seed: u64, shown: usize) -> bool {
    judged(seed, run(seed), shown)
}

fn judged(seed: u64, outcome: Outcome, shown: usize) -> bool {
    // Several run at a time; what one says stays together.
    static TELLING: Mutex<()> = Mutex::new(());
    if outcome.wrong.is_empty() {
        return true;
    }
    let _alone = TELLING.lock().unwrap_or_else(PoisonError::into_inner);
    for line in &outcome.lines[outcome.lines.len().saturating_sub(shown)..] {
        println!("{line}");
    }
    for wrong in &outcome.wrong {
        println!("seed {seed}: {wrong}");
    }
    println!("seed {seed} failed, trace {:016x}; again: cargo xtask sim --seed {seed}", outcome.hash);
    false
}

/// Runs seeds, as many at a time as there are processors, until there are no more or the time is over. How many were
/// run, and which of them failed.
fn run_all(first: u64, count: u64, time: Duration, shown: usize) -> (u64, Vec<u64>) {
    let (began, next, failed) = (Instant::now(), AtomicU64::new(0), Mutex::new(Vec::new()));
    let work = || {
        while began.elapsed() < time {
            let turn = next.fetch_add(1, Ordering::SeqCst);
            if turn >= count {
                next.fetch_sub(1, Ordering::SeqCst);
                return;
            }
            if !passes(first + turn, shown) {
                failed.lock().expect("no panic").push(first + turn);
            }
        }
    };
    let workers = available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut failed = failed.into_inner().expect("no panic");
    failed.sort_unstable();
    (next.into_inner(), failed)
}

/// Returns a number of the environment.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn bounded_number_of_seeds_passes() {
    let time = variable("HUTCH_SIM_SECONDS").map_or(Duration::MAX, Duration::from_secs);
    let (_, failed) = run_all(1, variable("HUTCH_SIM_SEEDS").unwrap_or(SEEDS), time, SHOWN);
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
fn seeds_of_the_environment() {
    let first = variable("HUTCH_SIM_SEED").unwrap_or(1);
    let count = variable("HUTCH_SIM_SEEDS").unwrap_or(u64::MAX);
    let time = Duration::from_secs(variable("HUTCH_SIM_SECONDS").unwrap_or(u64::MAX));
    let shown = if count == 1 { usize::MAX } else { SHOWN };
    let (done, failed) = run_all(first, count, time, shown);
    println!("{done} seeds from {first}: {} failed {failed:?}", failed.len());
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}
