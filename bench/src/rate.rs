//! Searches the highest rate of warm claims that `hutch up` sustains.
//!
//! The load is an open loop: claims are created when they are due, and the time of a claim counts from its due time, so a
//! server or a driver that falls behind is measured. Each claim is deleted once it is Ready; the pool is refilled meanwhile.

mod offer;

use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::time::Instant;

use crate::claims::{NAMESPACE, api, make_pool, wait_for_pool};
use crate::machine::number;
use crate::server::Server;
use crate::stats::millis;
use offer::{Offer, Outcome};

/// Maximum p99.
const LIMIT: Duration = Duration::from_millis(100);
/// Resolution of the search: maximum ratio of a rate that is not sustained to one that is.
const CLOSE_ENOUGH: f64 = 1.1;
/// Bounds of the search.
const LEAST_RATE: f64 = 1.0;
const MOST_RATE: f64 = 5000.0;
/// Factor for the next try when a rate of the search is not sustained for the whole time.
const STEP_DOWN: f64 = 0.9;
/// Maximum time until all created objects are deleted.
const GONE_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Measures and prints the table. `HUTCH_RATE_SECONDS` (60) is the time that the rate must be sustained,
/// `HUTCH_RATE_SEARCH_SECONDS` (10) the time of each try, `HUTCH_RATE_POOL` (100) the pool, `HUTCH_RATE_START` (50) the
/// first rate.
pub(crate) fn run() -> anyhow::Result<()> {
    let seconds = |variable, usual| Ok::<_, anyhow::Error>(Duration::from_secs_f64(number(variable, usual)?));
    let (whole, short) = (seconds("HUTCH_RATE_SECONDS", 60.0)?, seconds("HUTCH_RATE_SEARCH_SECONDS", 10.0)?);
    let pool = number("HUTCH_RATE_POOL", 100.0)? as usize;
    let start = number("HUTCH_RATE_START", 50.0)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::start()?;
        let before = server.leftovers();
        let client = server.client().await?;
        make_pool(&client, pool).await?;
        let mut bench = Bench { offer: Offer::start(&server).await?, server: &server, client, pool };
        println!("\n### Rate of warm claims on `hutch up`; pool of {pool} refilled meanwhile\n");
        println!("{}", Outcome::HEAD);
        let held = bench.highest(start, short, whole).await?;
        match held {
            Some(held) => println!(
                "\nHighest rate that held for {} s: **{:.0}/s**, p50 {} ms, p99 {} ms.",
                whole.as_secs(),
                held.rate,
                millis(held.ready.p50()),
                millis(held.ready.p99())
            ),
            None => println!("\nNo rate held for {} s.", whole.as_secs()),
        }
        bench.clear().await?;
        println!("Left behind: no claim, Sandbox or Pod.");
        let started = Instant::now();
        while server.leftovers() != before && started.elapsed() < GONE_WITHIN {
            tokio::time::sleep(PAUSE).await;
        }
        let after = server.leftovers();
        if after != before {
            bail!("left on the machine: {after:?}, and {before:?} before");
        }
        println!("On the machine no process and no folder more than before.");
        Ok(())
    })
}

struct Bench<'a> {
    offer: Offer,
    server: &'a Server,
    client: kube::Client,
    pool: usize,
}

impl Bench<'_> {
    /// Finds the rate in short tries, then checks that it is sustained for the whole time.
    async fn highest(
        &mut self,
        start: f64,
        short: Duration,
        whole: Duration,
    ) -> anyhow::Result<Option<Outcome>> {
        let (mut good, mut bad, mut rate) = (None, None, start);
        while (LEAST_RATE..=MOST_RATE).contains(&rate) {
            if self.one(rate, short).await?.holds(LIMIT) {
                good = Some(rate);
            } else {
                bad = Some(rate);
            }
            rate = match (good, bad) {
                (Some(good), Some(bad)) if bad / good < CLOSE_ENOUGH => break,
                (Some(good), Some(bad)) => f64::midpoint(good, bad),
                (Some(good), None) => good * 2.0,
                (None, _) => rate / 2.0,
            };
        }
        let Some(mut rate) = good else { return Ok(None) };
        while rate >= LEAST_RATE {
            let outcome = self.one(rate, whole).await?;
            if outcome.holds(LIMIT) {
                return Ok(Some(outcome));
            }
            rate *= STEP_DOWN;
        }
        Ok(None)
    }

    async fn one(&mut self, rate: f64, time: Duration) -> anyhow::Result<Outcome> {
        let outcome = self.offer.claims(self.server, rate, time).await?;
        println!("{}", outcome.row());
        self.settle().await?;
        Ok(outcome)
    }

    /// Waits until all claims and their Sandboxes are deleted and the pool is full.
    async fn settle(&self) -> anyhow::Result<()> {
        self.until(0, self.pool).await?;
        wait_for_pool(&self.client, self.pool).await
    }

    /// Deletes all created objects, and fails if any remain.
    async fn clear(&self) -> anyhow::Result<()> {
        for kind in ["SandboxWarmPool", "SandboxTemplate"] {
            api(&self.client, kind).delete("bench", &DeleteParams::default()).await?;
        }
        self.until(0, 0).await
    }

    async fn until(&self, claims: usize, sandboxes: usize) -> anyhow::Result<()> {
        let started = Instant::now();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        loop {
            let count = async |kind| {
                anyhow::Ok(api(&self.client, kind).list(&ListParams::default()).await?.items.len())
            };
            let there = (
                count("SandboxClaim").await.context("claims")?,
                count("Sandbox").await.context("Sandboxes")?,
                pods.list(&ListParams::default()).await.context("Pods")?.items.len(),
            );
            if there == (claims, sandboxes, sandboxes) {
                return Ok(());
            }
            if started.elapsed() > GONE_WITHIN {
                bail!("claims, Sandboxes and Pods left after {GONE_WITHIN:?}: {there:?}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
