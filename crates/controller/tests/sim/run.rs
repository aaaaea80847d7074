//! One simulation from its seed to its end.

use std::sync::Arc;
use std::time::Duration;

use hutch_apiserver::{ApiServer, Identity};
use hutch_serve::Ambient;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::history::History;
use crate::stage::Stage;
use crate::trace::{Outcome, Trace, in_time, within_bounds};
use crate::user::{DOOMED, User};
use crate::wire::Wire;
use crate::{collector, node, rest};

/// Without a write for so long, it is quiet.
const QUIET: Duration = Duration::from_secs(400);
/// It must be quiet after.
const RESTLESS: Duration = Duration::from_secs(4000);

/// Time for everything that was begun to come to its end.
pub(crate) const SETTLED: Duration = Duration::from_secs(120);

/// Runs the simulation of a seed.
pub(crate) fn run(seed: u64) -> Outcome {
    within_bounds(move |trace| async move { in_time(play(Scene::open(seed, trace).await, seed)).await })
}

/// One in which nothing goes wrong but what `act` does, once all that is there at the beginning has come to rest. What
/// `act` says is wrong too.
pub(crate) fn run_with<A>(seed: u64, act: A) -> Outcome
where
    A: AsyncFnOnce(&mut Scene) -> Vec<String> + Send + 'static,
{
    within_bounds(move |trace| async move { in_time(calmly(Scene::open(seed, trace).await, act)).await })
}

/// One in which the controller dies at its so manieth write after a claim was made.
pub(crate) fn run_with_death_at(write: i64, seed: u64) -> Outcome {
    run_with(seed, async move |scene| {
        scene.fleet.kill_at(write);
        scene.user.claim_one().await;
        Vec::new()
    })
}

/// All who take part.
pub(crate) struct Scene {
    pub(crate) stage: Arc<Stage>,
    history: History,
    pub(crate) fleet: Fleet,
    pub(crate) user: User,
    pub(crate) judge: Client,
}

impl Scene {
    async fn open(seed: u64, trace: Arc<Trace>) -> Self {
        let stage = Arc::new(Stage::new(trace));
        let (clock, chance) = (stage.clone(), Dice::new(seed, "server"));
        let ambient = Ambient::new(move || clock.now(), move || chance.number());
        let default_node = Some("n".into());
        let config = hutch_apiserver::Config { default_node, ambient, ..Default::default() };
        let server = ApiServer::open(config).await.expect("an API server in memory opens");
        let client = |name: &str| {
            let server = server.client_ahead(Identity::admin(), "default");
            Wire::new(name, server, &stage, Dice::new(seed, name), false).client()
        };
        let namespaces: Api<Namespace> = Api::all(client("founder"));
        let namespace = serde_json::from_value(json!({"metadata": {"name": DOOMED}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace is made");

        let history = History::default();
        history.follow(&client("history"), &stage);
        tokio::spawn(node::run(client("node"), stage.clone(), Dice::new(seed, "node turns")));
        let turns = Dice::new(seed, "collector turns");
        tokio::spawn(collector::run(client("collector"), stage.clone(), turns));
        let dice = Dice::new(seed, "user turns");
        let user = User { client: client("user"), stage: stage.clone(), dice };
        let judge = client("judge");
        let fleet = Fleet::new(server, stage.clone(), Dice::new(seed, "fleet"));
        Scene { stage, history, fleet, user, judge }
    }

    async fn end(mut self) -> Vec<String> {
        let mut wrong = quiet(&self.stage).await;
        wrong.extend(rest::violations(&self.judge).await);
        wrong.extend(self.history.violations(&self.stage));
        let writes = self.stage.writes();
        self.stage.note("a controller that starts anew has nothing to do");
        self.fleet.replace();
        sleep(QUIET).await;
        if self.stage.writes() != writes {
            wrong
                .push(format!("a controller that started anew made {} writes", self.stage.writes() - writes));
        }
        wrong
    }
}

async fn play(mut scene: Scene, seed: u64) -> Vec<String> {
    scene.user.set_up().await;
    scene.fleet.start();
    let length = Dice::new(seed, "storm").ms(20_000..120_000);
    futures::join!(scene.user.act(length), scene.fleet.live(length));
    scene.stage.calm();
    scene.stage.note("calm");
    scene.end().await
}

async fn calmly<A>(mut scene: Scene, act: A) -> Vec<String>
where
    A: AsyncFnOnce(&mut Scene) -> Vec<String>,
{
    scene.stage.calm();
    scene.user.set_up().await;
    scene.user.doom().await;
    scene.fleet.start();
    sleep(SETTLED).await;
    let mut wrong = act(&mut scene).await;
    sleep(SETTLED).await;
    scene.fleet.settle();
    wrong.extend(scene.end().await);
    wrong
}

/// Waits until there are no more writes.
async fn quiet(stage: &Stage) -> Vec<String> {
    let began = stage.elapsed();
    loop {
        let writes = stage.writes();
        sleep(QUIET).await;
        if stage.writes() == writes {
            return Vec::new();
        }
        if stage.elapsed() - began > RESTLESS {
            return vec!["it never becomes quiet".to_owned()];
        }
    }
}
