//! The end of a Pod: its containers are signaled, then killed, and all of its resources are removed.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LifecycleHandler, Pod};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::time::{Instant, timeout_at};

use super::plan::{Phase, RestartPolicy, plan};
use super::probe::{self, Target};
use super::{Outcome, Worker, ended_by, evict};
use crate::admission::Choice;
use crate::container::Running;
use crate::live::Live;
use crate::shared::Shared;

/// Grace of a Pod that names none.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Longest grace: a user may ask for more than a clock can count.
const LONGEST_GRACE: Duration = Duration::from_secs(366 * 24 * 3600);
/// Grace when the node itself stops.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How long a killed container may take to be reaped.
const REAP: Duration = Duration::from_secs(2);
/// Waits between attempts to delete the object.
const DELETE_RETRY: Duration = Duration::from_millis(500);
/// Attempts: some minutes of an API server that does not answer.
const DELETE_ATTEMPTS: u32 = 400;

impl Worker {
    /// Ends the containers, then leaves.
    pub(super) async fn end(mut self, outcome: Outcome) {
        let grace = match outcome {
            Outcome::Deleted => {
                let named = self.live.pod().metadata.deletion_grace_period_seconds;
                let named = named.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
                named.unwrap_or(DEFAULT_GRACE).min(LONGEST_GRACE)
            }
            Outcome::Stopping => STOP_GRACE,
            Outcome::Gone | Outcome::Evicted(_) => Duration::ZERO,
        };
        self.sleeper.abort_all();
        if !matches!(outcome, Outcome::Stopping) {
            // A snapshot that is being made is complete before the processes end. A later one is refused.
            drop(self.live.snapshots.lock().await);
        }
        let grace = if self.node.snapshots.has_ended(&self.live.id.uid) { Duration::ZERO } else { grace };
        self.live.prepare_end().await;
        self.stop_all(grace, matches!(outcome, Outcome::Deleted)).await;
        if matches!(outcome, Outcome::Deleted) {
            self.publish_end().await;
        }
        let (node, live) = (self.node.clone(), self.live.clone());
        let evicted = match &outcome {
            Outcome::Evicted(message) => Some(self.evicted_status(message)),
            _ => None,
        };
        drop(self);
        let outcome = match evicted {
            // On the heap, because most Pods are never evicted.
            Some(status) => Box::pin(evict::evict(&node, &live, &status)).await,
            None => outcome,
        };
        leave(&node, &live, outcome).await;
    }

    async fn stop_all(&mut self, grace: Duration, announce: bool) {
        if !self.anything_runs() {
            return;
        }
        let deadline = Instant::now() + grace;
        let (mut endings, mut ends) = (Vec::new(), Vec::new());
        for index in 0..self.slots.len() {
            self.slots[index].tasks.abort_all();
            let Some(running) = self.slots[index].running.take() else { continue };
            let name = &self.states[index].name;
            if announce {
                self.node.events.container(
                    &self.pod,
                    name,
                    false,
                    "Killing",
                    format!("Stopping container {name}"),
                );
            }
            ends.push((index, running.ended.clone()));
            let hook = self.containers[index].lifecycle.as_ref().and_then(|l| l.pre_stop.clone());
            let network = self.live.network();
            let target = network.map(|(network, address)| Target {
                live: self.live.clone(),
                running: running.clone(),
                network,
                address,
                container: self.containers[index].clone(),
            });
            endings.push(stop(running, hook.zip(target), deadline));
        }
        futures::future::join_all(endings).await;
        for (index, ended) in ends {
            let exit = ended.borrow().clone();
            let ended = ended_by(&self.states[index], exit.as_ref(), None);
            self.states[index].end(ended);
        }
    }

    /// Writes the last status of a Pod whose object stays, because a finalizer holds it.
    async fn publish_end(&mut self) {
        if self.live.pod().finalizers().is_empty() || matches!(self.choice, Choice::Embedded(_)) {
            return;
        }
        let mut plan = plan(&self.states, RestartPolicy::Never, Timestamp::now());
        if !plan.phase.is_final() {
            plan.phase = Phase::Failed;
        }
        self.pod = self.live.pod();
        self.rewrite_at = None;
        self.publish(&plan).await;
    }
}

/// Hook, the stop signal of the image, and at the deadline SIGKILL.
async fn stop(running: Arc<Running>, hook: Option<(LifecycleHandler, Target)>, deadline: Instant) {
    if let Some((handler, target)) = hook {
        // A hook that fails or takes too long does not keep the container.
        let _ = timeout_at(deadline, self::hook(&handler, &target)).await;
    }
    if Instant::now() < deadline {
        running.container.signal(running.blueprint.stop_signal);
    }
    let mut ended = running.ended.clone();
    if timeout_at(deadline, ended.wait_for(Option::is_some)).await.is_err() {
        running.container.kill();
        if tokio::time::timeout(REAP, ended.wait_for(Option::is_some)).await.is_err() {
            tracing::warn!(container = running.blueprint.name, "a killed container was not reaped in time");
        }
    }
}

/// Runs a lifecycle hook.
pub(super) async fn hook(handler: &LifecycleHandler, target: &Target) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        return probe::exec(exec.command.clone().unwrap_or_default(), target).await;
    }
    if let Some(get) = &handler.http_get {
        return probe::http_get(get, target).await.map(drop);
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
    }
    Ok(())
}

/// Takes a Pod's traces off the machine and, when it was deleted, its object out of the API.
pub(super) async fn leave(node: &Arc<Shared>, live: &Arc<Live>, outcome: Outcome) {
    if matches!(outcome, Outcome::Stopping) {
        // Everything stays for the next life of the node, but nothing runs.
        live.clear();
        return;
    }
    live.clear();
    live.over();
    node.remove_folders(&live.uid).await;
    node.remove(&live.id.uid);
    if matches!(outcome, Outcome::Deleted) {
        delete_object(node, live).await;
    }
}

async fn delete_object(node: &Shared, live: &Live) {
    let api: Api<Pod> = Api::namespaced(node.client.clone(), &live.id.namespace);
    let preconditions = Preconditions { uid: Some(live.id.uid.clone()), resource_version: None };
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    for _ in 0..DELETE_ATTEMPTS {
        match api.delete(&live.id.name, &parameters).await {
            Ok(_) => return,
            // Gone already, or a namesake has its place.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => return,
            Err(error) => tracing::debug!(pod = live.id.name, %error, "deleting a Pod is tried again"),
        }
        tokio::select! {
            () = node.shutdown.wait() => return,
            () = tokio::time::sleep(DELETE_RETRY) => {}
        }
    }
}
