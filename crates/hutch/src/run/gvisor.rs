//! `hutch run --isolation gvisor`.
use hutch_jail::run::RunOptions;
use hutch_jail::{Process, Spec};

pub(super) fn run(_spec: &Spec, _process: &Process, _options: &RunOptions) -> anyhow::Result<super::Ran> {
    anyhow::bail!("not yet")
}
