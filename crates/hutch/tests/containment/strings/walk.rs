//! Submits all cases, runs what is accepted, and counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::api::{Answer, Api};
use super::cases::{self, CLAIM, CONFIG_MAP, Case, KINDS, LINK, POD, SANDBOX, SECRET, TEMPLATE, WARM_POOL};
use super::lives::{Accepted, Lives};
use super::schema::Schemas;
use super::skeleton::{Kind, POOL, SIBLING};
use crate::harness::Up;

/// Objects that are submitted, run and deleted together.
const BATCH: usize = 160;
/// Namespaces in which batches run at the same time.
const LANES: usize = 3;

/// All cases, and the fields that the walk of the schemas left out.
pub(super) struct Walk {
    cases: Vec<Case>,
    values: usize,
    fields: BTreeMap<&'static str, usize>,
    skipped: BTreeMap<&'static str, BTreeSet<String>>,
}

/// Counts of a kind.
#[derive(Default)]
struct Counts {
    objects: usize,
    refused: usize,
    /// Accepted and run to an end.
    run: usize,
}

/// Results.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<&'static str, Counts>,
    wrong: Vec<String>,
    lives: Lives,
}

impl Walk {
    /// All objects, from the schemas that the server publishes.
    pub(super) async fn of(api: &Api, planted: &Path) -> Walk {
        let index = api.get("/openapi/v3").await;
        let mut schemas = Schemas::default();
        let versions: BTreeSet<String> = KINDS.iter().map(Kind::api_version).collect();
        for version in versions {
            let root = if version.contains('/') { "apis" } else { "api" };
            let path = &index["paths"][format!("{root}/{version}")]["serverRelativeURL"];
            schemas.add(&api.get(path.as_str().expect("a document")).await);
        }
        let values = cases::values(planted);
        let (fields, skipped) = (BTreeMap::new(), BTreeMap::new());
        let mut walk = Walk { cases: Vec::new(), values: values.len(), fields, skipped };
        for kind in KINDS {
            let cases = cases::of(&schemas, kind, &values);
            let places: BTreeSet<_> = cases.iter().map(|case| &case.place).collect();
            walk.fields.insert(kind.name, places.len());
            let found = schemas.strings(schemas.kind(kind.group, kind.version, kind.name));
            let skipped = found.skipped.iter().map(|(field, why)| format!("{field} ({why})"));
            walk.skipped.insert(kind.name, skipped.collect());
            walk.cases.extend(cases);
            walk.cases.extend(cases::namespaces(kind, &values));
        }
        walk.cases.extend(cases::late(&values));
        walk
    }

    /// Runs all cases. The server is killed and started again in the middle. The result is everything that was wrong.
    pub(super) fn run(&self, runtime: &Runtime, up: &mut Up) -> Vec<String> {
        let started = Instant::now();
        let mut batches: VecDeque<&[Case]> =
            self.cases.chunk_by(|a, b| a.kind == b.kind).flat_map(|cases| cases.chunks(BATCH)).collect();
        let pods = batches.iter().filter(|batch| batch[0].kind == POD).count();
        let rest = batches.split_off(pods / 2 + 1);
        let middle = batches.pop_back().expect("a batch of Pods");
        let mut tally = Tally::default();
        let lanes = runtime.block_on(connect(up));
        parallel(runtime, &lanes, batches, &mut tally);
        runtime.block_on(tally.batch(&lanes[0], middle, Some(&mut *up)));
        let lanes = runtime.block_on(connect(up));
        parallel(runtime, &lanes, rest, &mut tally);
        // Ends when everything in them has ended.
        let namespaces: Vec<String> = (0..LANES).map(namespace).collect();
        up.ok(&format!("delete namespace {} --timeout=90s", namespaces.join(" ")));
        self.print(&tally, started);
        [tally.wrong, tally.lives.problems].concat()
    }

    fn print(&self, tally: &Tally, started: Instant) {
        let mut lines = vec![format!("\nhostile strings: {} values for each field", self.values)];
        for (kind, counts) in &tally.counts {
            let Counts { objects, refused, run } = counts;
            let skipped: Vec<&str> = self.skipped[kind].iter().map(String::as_str).collect();
            lines.push(format!(
                "  {kind}: {} fields, {objects} objects, {refused} refused, {run} accepted and run; skipped: {}",
                self.fields[kind],
                skipped.join(", ")
            ));
        }
        let sum = |of: fn(&Counts) -> usize| tally.counts.values().map(of).sum::<usize>();
        lines.push(format!(
            "  all: {} fields, {} objects, {} refused, {} accepted and run, {:.0?}",
            self.fields.values().sum::<usize>(),
            sum(|counts| counts.objects),
            sum(|counts| counts.refused),
            sum(|counts| counts.run),
            started.elapsed()
        ));
        lines.push(format!("  ends: {:?}\n", tally.lives.ends));
        println!("{}", lines.join("\n"));
    }
}

/// A client for each lane.
async fn connect(up: &Up) -> Vec<Api> {
    let mut lanes = Vec::new();
    for lane in 0..LANES {
        lanes.push(Api::connect(up, &namespace(lane)).await);
    }
    lanes
}

fn namespace(lane: usize) -> String {
    format!("strings-{lane}")
}

/// Runs batches in all lanes at the same time.
fn parallel(runtime: &Runtime, lanes: &[Api], batches: VecDeque<&[Case]>, tally: &mut Tally) {
    let batches = Mutex::new(batches);
    let lane = |api: &Api| {
        let mut tally = Tally::default();
        loop {
            let batch = batches.lock().expect("the batches").pop_front();
            let Some(batch) = batch else { return tally };
            runtime.block_on(tally.batch(api, batch, None));
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = lanes.iter().map(|api| scope.spawn(move || lane(api))).collect();
        lanes.into_iter().for_each(|lane| tally.add(lane.join().expect("a lane")));
    });
}

impl Tally {
    fn add(&mut self, other: Tally) {
        for (kind, counts) in other.counts {
            let all = self.counts.entry(kind).or_default();
            all.objects += counts.objects;
            all.refused += counts.refused;
            all.run += counts.run;
        }
        self.wrong.extend(other.wrong);
        self.lives.add(other.lives);
    }

    /// Submits a batch and runs what is accepted. With a server, it is killed while all of that is stored.
    async fn batch(&mut self, api: &Api, batch: &[Case], kill: Option<&mut Up>) {
        let kind = batch[0].kind;
        let answers = api.submit(batch).await;
        let counts = self.counts.entry(kind.name).or_default();
        let mut accepted = Vec::new();
        counts.objects += batch.len();
        for (case, answer) in batch.iter().zip(answers) {
            match answer {
                Answer::Refused => counts.refused += 1,
                Answer::Accepted(object) => accepted.push(Accepted { case, object: *object }),
                Answer::Wrong(why) => {
                    self.wrong.push(format!("{} {} ({}): {why}", kind.name, case.place, case.value));
                }
            }
        }
        counts.run += accepted.len();
        let mut api = api.clone();
        if let Some(up) = kill {
            up.kill();
            up.restart();
            api = Api::connect(up, api.namespace()).await;
            let stored: Vec<Value> =
                api.list(&kind).await.iter().map(|object| object["metadata"]["uid"].clone()).collect();
            assert!(
                accepted.iter().all(|it| stored.contains(&it.object["metadata"]["uid"])),
                "an object is lost"
            );
        }
        self.lives.run(&api, &accepted).await;
        assert_eq!(api.get("/readyz").await, "ok");
    }
}

/// Makes what objects name: namespaces, one object of each kind called `sibling`, a volume with links in it, a pool.
pub(super) async fn furnish(up: &Up, planted: &Path) {
    for lane in 0..LANES {
        let namespace = namespace(lane);
        up.ok(&format!("create namespace {namespace}"));
        let api = Api::connect(up, &namespace).await;
        api.make(&CLAIM, &CLAIM.object(SIBLING)).await;
        for kind in [CONFIG_MAP, SECRET] {
            let mut map = kind.object(SIBLING);
            let field = if kind == SECRET { "stringData" } else { "data" };
            map[field] = json!({SIBLING: "x", LINK: "x"});
            api.make(&kind, &map).await;
        }
        let mut pod = POD.object(SIBLING);
        let file = planted.join("file").display().to_string();
        let script = format!("ln -s {file} /d/{LINK}; ln -s {} /d/folder; sleep 100000", planted.display());
        pod["spec"]["containers"][0]["command"][2] = script.into();
        api.make(&POD, &pod).await;
        up.eventually(&format!("exec -n {namespace} {SIBLING} -- readlink /d/folder"), |link| {
            !link.is_empty()
        });
        let mut template = TEMPLATE.object(SIBLING);
        template["spec"]["envVarsInjectionPolicy"] = "Overrides".into();
        template["spec"]["volumeClaimTemplatesPolicy"] = "Overrides".into();
        let containers = json!([{"name": "c", "image": "hutch/pause"}]);
        template["spec"]["podTemplate"]["spec"] = json!({"containers": containers});
        api.make(&TEMPLATE, &template).await;
        for (name, replicas) in [(POOL, 4), (SIBLING, 0)] {
            let mut pool = WARM_POOL.object(name);
            pool["spec"] = json!({"replicas": replicas, "sandboxTemplateRef": {"name": SIBLING}});
            api.make(&WARM_POOL, &pool).await;
        }
        api.make(&SANDBOX, &SANDBOX.object(SIBLING)).await;
    }
}
