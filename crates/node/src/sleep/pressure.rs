//! Brings idle Pods down before their time while the machine is short of memory: the longest idle first, one at a time.
//!
//! A Pod sleeps only as its annotations allow. It does not sleep while it is in use, and what wakes it afterwards is the
//! same as when it had fallen asleep by itself.

mod decision;
mod suspend;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_api::condition::is_pod_ready;
use hutch_api::label;
use hutch_api::sleep::{Act, IdleTimes, Input, Phase};
use hutch_jail::Swap;
use kube::ResourceExt;

use self::decision::{Candidate, Decision, Tier, tier};
use super::page_out::{self, lacks, without_page_out};
use super::sleeper::{CPU_WINDOW, Cpu};
use crate::config::{ContainerChange, Handler};
use crate::live::Live;
use crate::register;
use crate::shared::Shared;

/// How often memory is measured, and the least pause between two Pods.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Maximum Pods that are tried at one measurement. Those that cannot be brought down are passed over.
const MOST_TRIED: usize = 64;
/// Reason of the events.
const REASON: &str = "MemoryPressure";

/// Result of an attempt to bring a Pod down.
enum Outcome {
    /// It is down, or will be.
    Down,
    /// It is in use.
    InUse,
    /// It cannot be brought down.
    Unfit,
}

/// Measures the memory of the machine, and brings Pods down while it is short, until the node stops.
pub(crate) async fn relieve(node: Arc<Shared>) {
    let mut decision = Decision::default();
    loop {
        tokio::select! {
            () = node.shutdown.wait() => return,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
        let memory = node.memory.read();
        if memory.has_changed {
            tracing::warn!(
                pressure = memory.is_short,
                available = memory.available,
                "memory pressure changed"
            );
            register::report_conditions(&node).await;
        }
        if memory.is_short {
            tokio::select! {
                () = node.shutdown.wait() => return,
                () = bring_one_down(&node, &mut decision) => {}
            }
        }
    }
}

/// Brings down the Pod that is idle the longest. Returns when its memory is free, or will not be soon.
async fn bring_one_down(node: &Arc<Shared>, decision: &mut Decision) {
    let pods: Vec<_> = node.all().into_iter().filter_map(|live| Some((candidate(&live)?, live))).collect();
    let candidates: Vec<_> = pods.iter().map(|(candidate, _)| candidate.clone()).collect();
    for _ in 0..MOST_TRIED {
        let swap_has_room = lacks(Swap::of_this_machine()).is_none();
        let is_short = node.memory.read().is_short;
        let Some(next) = decision.next(Instant::now(), (is_short, swap_has_room), &candidates) else {
            return;
        };
        let Some((_, live)) = pods.iter().find(|(candidate, _)| candidate.uid == next.uid) else { return };
        decision.tried(&next.uid, Instant::now());
        let outcome = match next.tier {
            Tier::PagedOut => page_out(node, live, next).await,
            Tier::Suspended => suspend::suspend(node, live, next).await,
        };
        match outcome {
            Outcome::Down => return decision.is_down(&next.uid, Instant::now()),
            Outcome::InUse | Outcome::Unfit => {}
        }
    }
}

/// Returns a Pod that its annotations allow to sleep and that is awake or only frozen.
fn candidate(live: &Arc<Live>) -> Option<Candidate> {
    let pod = live.pod();
    let ends = pod.metadata.deletion_timestamp.is_some() || live.is_evicted() || live.has_ended();
    if ends || pod.labels().contains_key(label::WARM_POOL_SANDBOX) || !is_pod_ready(&pod) {
        return None;
    }
    if !matches!(*live.gate.phases().borrow(), Phase::Idle | Phase::Frozen) {
        return None;
    }
    let times = IdleTimes::read([pod.annotations()]).ok()?;
    let has_sandbox = hutch_api::owner::sandbox(pod.as_ref()).is_some();
    let handler = live.handler.get().copied().unwrap_or(Handler::Native);
    let (tier, after) = tier(&times, handler, has_sandbox)?;
    let containers = live.containers();
    let is_fit = |tier| match tier {
        Tier::PagedOut => {
            without_page_out(live).is_none() && containers.iter().all(|one| one.container.is_freezable())
        }
        Tier::Suspended => containers.iter().all(|one| one.container.without_checkpoint().is_none()),
    };
    (!containers.is_empty() && is_fit(tier)).then(|| Candidate {
        uid: live.id.uid.clone(),
        idle: live.gate.idle_for(),
        tier,
        after,
    })
}

/// Returns true if a Pod uses CPU time now. Its own measurements may be further apart than the least idle time.
async fn works(live: &Arc<Live>) -> bool {
    if live.gate.phases().borrow().is_frozen() {
        return false;
    }
    let mut cpu = Cpu::default();
    cpu.was_used(live).await;
    tokio::time::sleep(CPU_WINDOW).await;
    let works = cpu.was_used(live).await;
    if works {
        live.gate.touch();
    }
    works
}

/// Freezes a Pod and writes its memory to swap.
async fn page_out(node: &Arc<Shared>, live: &Arc<Live>, candidate: &Candidate) -> Outcome {
    if works(live).await {
        return Outcome::InUse;
    }
    let pod = live.pod();
    if !live.gate.phases().borrow().is_frozen() {
        if let Err(why) = live.permitted_all(ContainerChange::Frozen).await {
            let text = format!("It was not frozen although the node is short of memory: {why}");
            node.events.warning(&pod, "CannotFreeze", text);
            live.gate.touch();
            return Outcome::Unfit;
        }
        if live.gate.freeze_ahead(candidate.least_idle()) != Act::Freeze {
            return Outcome::InUse;
        }
        if !live.finish_freeze().await {
            let text =
                "It was not frozen although the node is short of memory: a process did not stop in time";
            node.events.warning(&pod, "CannotFreeze", text);
            live.gate.touch();
            return Outcome::Unfit;
        }
    }
    if live.gate.step(Input::LongQuiet) != Act::PageOut {
        return Outcome::InUse;
    }
    announce(node, live, candidate, "it is frozen and its memory is written to swap");
    let report = |problem: Option<String>| {
        if let Some(problem) = problem {
            node.events.warning(&pod, page_out::REASON, problem);
        }
    };
    live.finish_page_out(node, report).await;
    Outcome::Down
}

/// Reports that a Pod is brought down: on its Sandbox, or on itself if it has none.
fn announce(node: &Shared, live: &Live, candidate: &Candidate, what: &str) {
    let pod = live.pod();
    let available = node.memory.read().available >> 20;
    let idle = candidate.idle.unwrap_or_default().as_secs();
    let text = format!("The node has {available} MiB of memory available; idle for {idle} s, {what}");
    tracing::info!(
        pod = live.id.name,
        available_mib = available,
        idle_seconds = idle,
        what,
        "memory is short"
    );
    match hutch_api::owner::sandbox(pod.as_ref()) {
        Some(_) => node.events.of_sandbox(&pod, REASON, text),
        None => node.events.warning(&pod, REASON, text),
    }
}
