//! `cargo xtask sim`: simulations of the controllers, each made from a seed.

use clap::Args;

use crate::test::run_with;

/// How long simulations run when nobody says so, in seconds.
const SECONDS: u64 = 60;

/// Which simulations.
#[derive(Args)]
pub(crate) struct Sim {
    /// The first seed. Alone it is the only one, and its whole trace is printed when it fails.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// As many seeds as fit into so many seconds. [default: 60, if no seed is named]
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// The same in minutes.
    #[arg(long)]
    minutes: Option<u64>,
}

/// Runs them in one process, as many at a time as there are processors.
pub(crate) fn run(wanted: &Sim) -> anyhow::Result<()> {
    let args = ["test", "--quiet", "--locked", "-p", "hutch-controller", "--test", "sim", "--"];
    let test = ["--ignored", "--exact", "the_seeds_asked_for", "--nocapture"];
    run_with(&[&args[..], &test[..]].concat(), &variables(wanted))
}

fn variables(wanted: &Sim) -> Vec<(&'static str, String)> {
    let seconds = wanted.seconds.or(wanted.minutes.map(|minutes| minutes.saturating_mul(60)));
    let open = wanted.seeds.is_none() && seconds.is_none();
    let one = wanted.seed.filter(|_| open).map(|_| 1);
    let seconds = seconds.or(Some(SECONDS).filter(|_| open && one.is_none()));
    let all = [
        ("HUTCH_SIM_SEED", wanted.seed),
        ("HUTCH_SIM_SEEDS", wanted.seeds.or(one)),
        ("HUTCH_SIM_SECONDS", seconds),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_alone_is_one_simulation_and_nothing_is_a_minute() {
        let told = |seed, seeds, seconds| variables(&Sim { seed, seeds, seconds, minutes: None });
        let is = |name, value: &str| (name, value.to_owned());
        assert_eq!(told(Some(7), None, None), [is("HUTCH_SIM_SEED", "7"), is("HUTCH_SIM_SEEDS", "1")]);
        assert_eq!(told(None, None, None), [is("HUTCH_SIM_SECONDS", "60")]);
        assert_eq!(told(None, Some(3), None), [is("HUTCH_SIM_SEEDS", "3")]);
        assert_eq!(told(Some(7), None, Some(5)), [is("HUTCH_SIM_SEED", "7"), is("HUTCH_SIM_SECONDS", "5")]);
        let five = Sim { seed: None, seeds: None, seconds: None, minutes: Some(5) };
        assert_eq!(variables(&five), [is("HUTCH_SIM_SECONDS", "300")]);
    }
}
