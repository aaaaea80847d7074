//! Creates claims at a given rate and measures them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use hutch_testkit::cluster::Usage;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::claims::{NAMESPACE, api};
use crate::machine::busy;
use crate::server::Server;
use crate::stats::{Samples, millis};
use crate::wake::is;

/// Connections for creating and deleting claims, used in turn.
const CLIENTS: usize = 4;
/// Delay before the first claim, so that it too is created on time.
const LEAD: Duration = Duration::from_millis(50);
/// Timeout of a claim; a claim that is not Ready by then has failed and counts with this time.
const WAIT_LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of claims in progress: a server that is further behind does not sustain the rate.
const MOST_UNDER_WAY: usize = 2000;

/// Creates claims and observes when they become Ready.
pub(super) struct Offer {
    clients: Vec<kube::Client>,
    waiting: Arc<Waiting>,
    watch: AbortHandle,
    tries: usize,
}

/// Waiters by claim.
#[derive(Default)]
struct Waiting(Mutex<HashMap<String, oneshot::Sender<(Instant, String)>>>);

/// Result of one rate.
pub(super) struct Outcome {
    /// Requested claims a second.
    pub(super) rate: f64,
    /// Durations from the due time of a claim until it was observed Ready.
    pub(super) ready: Samples,
    time: Duration,
    cold: usize,
    failed: usize,
    broken_off: bool,
    server: Duration,
    driver: Duration,
    machine: Duration,
}

/// Result of one claim: its duration, and whether it started cold.
struct One {
    ready: Option<(Duration, bool)>,
}

impl Offer {
    pub(super) async fn start(server: &Server) -> anyhow::Result<Offer> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(server.client().await?);
        }
        let waiting = Arc::<Waiting>::default();
        let claims = api(&server.client().await?, "SandboxClaim");
        let watch = tokio::spawn(follow(claims, waiting.clone())).abort_handle();
        Ok(Offer { clients, waiting, watch, tries: 0 })
    }

    /// Creates claims at this rate for this duration.
    pub(super) async fn claims(
        &mut self,
        server: &Server,
        rate: f64,
        time: Duration,
    ) -> anyhow::Result<Outcome> {
        self.tries += 1;
        let mut outcome = Outcome::new(rate, time);
        let before = (server.usage().cpu, Usage::of(std::process::id()).cpu, busy());
        let mut under_way = JoinSet::new();
        let begin = Instant::now() + LEAD;
        for number in 0..(rate * time.as_secs_f64()).round() as usize {
            let due = begin + Duration::from_secs_f64(number as f64 / rate);
            tokio::time::sleep_until(due).await;
            while let Some(done) = under_way.try_join_next() {
                outcome.take(&done??);
            }
            if under_way.len() >= MOST_UNDER_WAY {
                outcome.broken_off = true;
                break;
            }
            let name = format!("rate-{}-{number}", self.tries);
            let client = self.clients[number % CLIENTS].clone();
            under_way.spawn(one(client, self.waiting.clone(), name, due));
        }
        // The shares are those of the time in which claims were due.
        outcome.server = server.usage().cpu.saturating_sub(before.0);
        outcome.driver = Usage::of(std::process::id()).cpu.saturating_sub(before.1);
        outcome.machine = busy().saturating_sub(before.2);
        outcome.time = begin.elapsed();
        while let Some(done) = under_way.join_next().await {
            outcome.take(&done??);
        }
        Ok(outcome)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Outcome {
    pub(super) const HEAD: &str = "| claims/s | for s | p50 ms to Ready | p99 ms | worst ms | cold | not Ready | hutch | this driver | machine, of its \
                                   processors |\n|---|---|---|---|---|---|---|---|---|---|";

    fn new(rate: f64, time: Duration) -> Outcome {
        let none = Duration::ZERO;
        let (cold, failed, broken_off) = (0, 0, false);
        Outcome {
            rate,
            time,
            ready: Samples::default(),
            cold,
            failed,
            broken_off,
            server: none,
            driver: none,
            machine: none,
        }
    }

    fn take(&mut self, one: &One) {
        let Some((time, cold)) = one.ready else {
            self.failed += 1;
            return self.ready.add(WAIT_LIMIT);
        };
        self.cold += usize::from(cold);
        self.ready.add(time);
    }

    pub(super) fn holds(&self, limit: Duration) -> bool {
        self.failed == 0 && !self.broken_off && self.ready.p99() < limit
    }

    pub(super) fn row(&self) -> String {
        let share = |cpu: Duration| format!("{:.0} %", 100.0 * cpu.as_secs_f64() / self.time.as_secs_f64());
        let cpus = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
        format!(
            "| {:.0} | {:.1}{} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.rate,
            self.time.as_secs_f64(),
            if self.broken_off { ", broken off" } else { "" },
            millis(self.ready.p50()),
            millis(self.ready.p99()),
            millis(self.ready.percentile(1.0)),
            self.cold,
            self.failed,
            share(self.server),
            share(self.driver),
            share(self.machine.div_f64(cpus)),
        )
    }
}

/// Runs one claim from its creation to its deletion.
async fn one(client: kube::Client, waiting: Arc<Waiting>, name: String, due: Instant) -> anyhow::Result<One> {
    let claims = api(&client, "SandboxClaim");
    let object = serde_json::from_value(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"warmPoolRef": {"name": "bench"}},
    }))?;
    let ready = waiting.expect(&name);
    claims.create(&PostParams::default(), &object).await?;
    let ready = tokio::time::timeout_at(due + WAIT_LIMIT, ready).await;
    claims.delete(&name, &DeleteParams::default()).await?;
    let ready = ready.ok().and_then(Result::ok);
    Ok(One { ready: ready.map(|(seen, sandbox)| (seen.duration_since(due), sandbox == name)) })
}

impl Waiting {
    fn expect(&self, name: &str) -> oneshot::Receiver<(Instant, String)> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), sender);
        receiver
    }

    fn tell(&self, claim: &DynamicObject) {
        let status = &claim.data["status"];
        let ready = is(&claim.data, "Ready");
        let (true, Some(sandbox), Some(name)) =
            (ready, status["sandbox"]["name"].as_str(), &claim.metadata.name)
        else {
            return;
        };
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        // One that has given up does not want to know.
        drop(waiting.map(|waiting| waiting.send((Instant::now(), sandbox.to_owned()))));
    }
}

/// Watches all claims with one watch, as a client of many claims would.
async fn follow(claims: Api<DynamicObject>, waiting: Arc<Waiting>) {
    let events = watcher(claims, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(claim) => waiting.tell(&claim),
            Err(error) => eprintln!("the watch of claims was interrupted: {error}"),
        }
    }
}
