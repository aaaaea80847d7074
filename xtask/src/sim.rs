//! `cargo xtask sim`: simulates the controllers from random seeds.

use clap::Args;

use crate::test::run_with;

/// Default duration of all simulations, in seconds.
const SECONDS: u64 = 60;

/// Options of `cargo xtask sim`.
#[derive(Args)]
pub(crate) struct Sim {
    /// First seed. Without other options it is the only one, and a failure prints its whole trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Runs as many seeds as fit into this many seconds. [default: 60, without a seed]
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Runs as many seeds as fit into this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
}

/// Runs the simulations in one process, in parallel on all processors.
pub(crate) fn run(options: &Sim) -> anyhow::Result<()> {
    let args = ["test", "--quiet", "--locked", "-p", "hutch-controller", "--test", "sim", "--"];
    let test = ["--ignored", "--exact", "the_seeds_asked_for", "--nocapture"];
    run_with(&[&args[..], &test[..]].concat(), &variables(options))
}

fn variables(options: &Sim) -> Vec<(&'static str, String)> {
    let seconds = options.seconds.or(options.minutes.map(|minutes| minutes.saturating_mul(60)));
    let open = options.seeds.is_none() && seconds.is_none();
    let one = options.seed.filter(|_| open).map(|_| 1);
    let seconds = seconds.or(Some(SECONDS).filter(|_| open && one.is_none()));
    let all = [
        ("HUTCH_SIM_SEED", options.seed),
        ("HUTCH_SIM_SEEDS", options.seeds.or(one)),
        ("HUTCH_SIM_SECONDS", seconds),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_runs_once_and_default_is_one_minute() {
        let parsed = |seed, seeds, seconds| variables(&Sim { seed, seeds, seconds, minutes: None });
        let is = |name, value: &str| (name, value.to_owned());
        assert_eq!(parsed(Some(7), None, None), [is("HUTCH_SIM_SEED", "7"), is("HUTCH_SIM_SEEDS", "1")]);
        assert_eq!(parsed(None, None, None), [is("HUTCH_SIM_SECONDS", "60")]);
        assert_eq!(parsed(None, Some(3), None), [is("HUTCH_SIM_SEEDS", "3")]);
        assert_eq!(parsed(Some(7), None, Some(5)), [is("HUTCH_SIM_SEED", "7"), is("HUTCH_SIM_SECONDS", "5")]);
        let five = Sim { seed: None, seeds: None, seconds: None, minutes: Some(5) };
        assert_eq!(variables(&five), [is("HUTCH_SIM_SECONDS", "300")]);
    }
}
