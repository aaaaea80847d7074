//! One simulation from its seed to its end.

use std::sync::Arc;
use std::time::Duration;

use hutch_apiserver::{ApiServer, Identity};
use hutch_serve::Ambient;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::history::History;
use crate::stage::Stage;
use crate::user::{DOOMED, User};
use crate::wire::Wire;
use crate::{collector, node, rest};

/// Without a write for so long, it is quiet.
const QUIET: Duration = Duration::from_secs(400);
/// It must be quiet after.
const RESTLESS: Duration = Duration::from_secs(4000);

/// How a simulation ended.
pub(crate) struct Outcome {
    /// Hash of all requests and answers.
    pub(crate) hash: u64,
    pub(crate) wrong: Vec<String>,
    pub(crate) lines: Vec<String>,
}

/// Runs the simulation of a seed in a runtime of its own.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(play(seed))
}

struct Play {
    seed: u64,
    stage: Arc<Stage>,
    server: ApiServer,
}

impl Play {
    fn client(&self, name: &str) -> Client {
        let server = self.server.client_ahead(Identity::admin(), "default");
        Wire::new(name, server, &self.stage, Dice::new(self.seed, name), false).client()
    }
}

async fn play(seed: u64) -> Outcome {
    let stage = Arc::new(Stage::new());
    let (clock, chance) = (stage.clone(), Dice::new(seed, "server"));
    let ambient = Ambient::new(move || clock.now(), move || chance.number());
    let config =
        hutch_apiserver::Config { default_node: Some("n".into()), ambient, ..hutch_apiserver::Config::default() };
    let server = ApiServer::open(config).await.expect("an API server in memory opens");
    let play = Play { seed, stage: stage.clone(), server: server.clone() };
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(play.client("founder"));
    let namespace = serde_json::from_value(json!({"metadata": {"name": DOOMED}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace is made");

    let history = History::default();
    history.follow(&play.client("history"), &stage);
    tokio::spawn(node::run(play.client("node"), stage.clone(), Dice::new(seed, "node turns")));
    let turns = Dice::new(seed, "collector turns");
    tokio::spawn(collector::run(play.client("collector"), stage.clone(), turns));
    let dice = Dice::new(seed, "storm");
    let mut fleet = Fleet::new(server, stage.clone(), Dice::new(seed, "fleet"));
    let user = User { client: play.client("user"), stage: stage.clone(), dice: Dice::new(seed, "user turns") };
    user.set_up().await;
    fleet.start();
    let length = dice.ms(20_000..120_000);
    futures::join!(user.act(length), fleet.live(length));
    stage.calm();
    stage.note("calm");

    let watcher = play.client("judge");
    let mut wrong = quiet(&stage).await;
    wrong.extend(rest::violations(&watcher).await);
    wrong.extend(history.violations(&stage));
    let writes = stage.writes();
    stage.note("a controller that starts anew has nothing to do");
    fleet.replace();
    sleep(QUIET).await;
    if stage.writes() != writes {
        wrong.push(format!("a controller that started anew made {} writes", stage.writes() - writes));
    }
    Outcome { hash: stage.hash(), wrong, lines: stage.lines() }
}

/// Waits until nobody writes any more.
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
