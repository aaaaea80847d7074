//! One fault each, by name, in simulated time: all requested objects exist in the end, and none twice.

use std::time::Duration;

use hutch_api::{Sandbox, SandboxClaim};
use jiff::SignedDuration;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use crate::judged;
use crate::run::{SETTLED, Scene, run_with};
use crate::stage::Fault;
use crate::user::{AGENTS, EXTENSIONS, HERE};

/// Seeds of each fault.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=2;
/// Claims that are made meanwhile, for a pool of half as many.
const CLAIMS: usize = 6;
const WARM: &str = "warm";

/// Nothing goes wrong but what `act` does.
fn survives<A>(act: A)
where
    A: AsyncFnOnce(&mut Scene) -> Vec<String> + Clone + Send + 'static,
{
    for seed in SEEDS {
        assert!(judged(seed, run_with(seed, act.clone()), 60), "seed {seed}");
    }
}

/// The fault lasts so long, while claims are made and a pool grows.
fn survives_fault(fault: Fault, length: Duration) {
    survives(async move |scene| {
        own_pool(scene).await;
        scene.stage.set_fault(Some(fault));
        for n in 0..CLAIMS {
            claim(scene, n).await;
            sleep(length / CLAIMS as u32 / 2).await;
        }
        scene.user.patch(&pool_path(), json!({"spec": {"replicas": CLAIMS}})).await;
        sleep(length / 2).await;
        let hits = scene.stage.set_fault(None);
        sleep(SETTLED).await;
        let mut wrong = all_bound(&scene.judge).await;
        if hits == 0 {
            wrong.push(format!("{fault:?} has hit no request"));
        }
        // A failing server gets few requests: each object is retried with backoff.
        if hits > 2000 {
            wrong.push(format!("{fault:?}: {hits} requests in {length:?}"));
        }
        wrong
    });
}

async fn own_pool(scene: &Scene) {
    template(scene).await;
    let spec = json!({"replicas": CLAIMS / 2, "sandboxTemplateRef": {"name": WARM}});
    scene.user.create(EXTENSIONS, HERE, ("SandboxWarmPool", "sandboxwarmpools"), WARM, spec).await;
    sleep(SETTLED).await;
}

async fn template(scene: &Scene) {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}});
    scene.user.create(EXTENSIONS, HERE, ("SandboxTemplate", "sandboxtemplates"), WARM, spec).await;
}

fn pool_path() -> String {
    format!("{EXTENSIONS}/namespaces/{HERE}/sandboxwarmpools/{WARM}")
}

fn template_path() -> String {
    format!("{EXTENSIONS}/namespaces/{HERE}/sandboxtemplates/{WARM}")
}

async fn claim(scene: &Scene, n: usize) {
    let spec = json!({"warmPoolRef": {"name": WARM}});
    scene.user.create(EXTENSIONS, HERE, ("SandboxClaim", "sandboxclaims"), &format!("k{n}"), spec).await;
}

/// Returns the claims that are not Ready with a Sandbox of their own.
async fn all_bound(client: &Client) -> Vec<String> {
    let claims = Api::<SandboxClaim>::default_namespaced(client.clone());
    let claims = claims.list(&ListParams::default()).await.expect("a list").items;
    let ours: Vec<_> = claims.iter().filter(|claim| claim.name_any().starts_with('k')).collect();
    let mut wrong = Vec::new();
    if ours.len() != CLAIMS {
        wrong.push(format!("{} claims of {CLAIMS}", ours.len()));
    }
    for claim in ours {
        let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_deref());
        let ready = conditions.unwrap_or_default().iter().find(|it| it.type_ == "Ready");
        if ready.is_none_or(|ready| ready.status != "True") {
            wrong.push(format!("claim {} says {ready:?}", claim.name_any()));
        }
    }
    wrong
}

#[test]
fn the_api_server_is_gone_for_ten_seconds_and_comes_back() {
    survives_fault(Fault::Gone, Duration::from_secs(10));
}

#[test]
fn every_change_conflicts_for_half_a_minute() {
    survives_fault(Fault::Conflicts, Duration::from_secs(30));
}

#[test]
fn the_api_server_is_too_busy_for_half_a_minute_and_says_retry_after() {
    survives_fault(Fault::Busy, Duration::from_secs(30));
}

#[test]
fn watches_are_closed_as_too_old_for_half_a_minute() {
    survives_fault(Fault::TooOld, Duration::from_secs(30));
}

#[test]
fn the_api_server_takes_seconds_for_everything() {
    survives_fault(Fault::Slow(Duration::from_secs(3)), Duration::from_secs(120));
}

#[test]
fn a_template_is_deleted_while_it_is_claimed_from() {
    survives(async |scene| {
        own_pool(scene).await;
        for n in 0..CLAIMS {
            claim(scene, n).await;
            if n == 2 {
                scene.user.delete(&template_path()).await;
            }
        }
        sleep(SETTLED).await;
        template(scene).await;
        sleep(SETTLED).await;
        all_bound(&scene.judge).await
    });
}

#[test]
fn a_pool_is_deleted_while_it_is_refilled() {
    survives(async |scene| {
        own_pool(scene).await;
        for n in 0..CLAIMS {
            claim(scene, n).await;
        }
        scene.user.patch(&pool_path(), json!({"spec": {"replicas": 40}})).await;
        sleep(Duration::from_millis(20)).await;
        scene.user.delete(&pool_path()).await;
        sleep(SETTLED).await;
        let sandboxes = Api::<Sandbox>::default_namespaced(scene.judge.clone());
        let sandboxes = sandboxes.list(&ListParams::default()).await.expect("a list").items;
        let left = |sandbox: &&Sandbox| sandbox.owner_references().iter().any(|owner| owner.name == WARM);
        sandboxes.iter().filter(left).map(|left| format!("{} is left of the pool", left.name_any())).collect()
    });
}

#[test]
fn a_clock_that_is_hours_ahead_or_behind_makes_nothing_anew() {
    survives(async |scene| {
        own_pool(scene).await;
        let before = scene.stage.deletes().len();
        for hours in [2, -2, 3, 0] {
            scene.fleet.clock(SignedDuration::from_hours(hours));
            scene.user.patch(&pool_path(), json!({"spec": {"replicas": CLAIMS + 20}})).await;
            sleep(SETTLED).await;
            scene.user.patch(&pool_path(), json!({"spec": {"replicas": CLAIMS}})).await;
            sleep(SETTLED).await;
        }
        for n in 0..CLAIMS {
            claim(scene, n).await;
        }
        sleep(SETTLED).await;
        let mut wrong = all_bound(&scene.judge).await;
        // Four times the pool became smaller by twenty, the first time by what it had not grown to.
        let deleted = scene.stage.deletes().len() - before;
        if deleted > 4 * 20 {
            wrong.push(format!("{deleted} deletions"));
        }
        wrong
    });
}

#[test]
fn a_namespace_is_deleted_while_everything_in_it_is_made() {
    survives(async |scene| {
        const GOING: &str = "going";
        let namespace = json!({"metadata": {"name": GOING}});
        crate::collector::send(&scene.judge, "POST", "/api/v1/namespaces", namespace).await;
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}});
        let kind = ("SandboxTemplate", "sandboxtemplates");
        scene.user.create(EXTENSIONS, GOING, kind, WARM, json!({"podTemplate": pod})).await;
        let pool = json!({"replicas": 20, "sandboxTemplateRef": {"name": WARM}});
        scene.user.create(EXTENSIONS, GOING, ("SandboxWarmPool", "sandboxwarmpools"), WARM, pool).await;
        scene.user.create(AGENTS, GOING, ("Sandbox", "sandboxes"), "s", json!({"podTemplate": pod})).await;
        for n in 0..CLAIMS {
            let spec = json!({"warmPoolRef": {"name": WARM}});
            let name = format!("k{n}");
            scene.user.create(EXTENSIONS, GOING, ("SandboxClaim", "sandboxclaims"), &name, spec).await;
        }
        sleep(Duration::from_millis(30)).await;
        scene.user.delete(&format!("/api/v1/namespaces/{GOING}")).await;
        sleep(SETTLED).await;
        let path = format!("/api/v1/namespaces/{GOING}");
        let left = crate::collector::send(&scene.judge, "GET", &path, serde_json::Value::Null).await;
        left.map(|left| format!("it is still there: {left}")).into_iter().collect()
    });
}
